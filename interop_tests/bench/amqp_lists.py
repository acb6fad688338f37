"""Property lists of AMQP frameworks as their clients put them on the wire, for amqp_load.py --list NAME; ids differ in each message.

Recorded between client and server with the versions named, each of the frameworks' own defaults unless said. `OWN`: the parts that
differ in each message, as they were recorded: letters and digits of ids are drawn anew (an id that stands several times stays one
id), decimal numbers count.
"""

import itertools
import os
import struct
import time

LISTS = {
    # Celery 5.7.0, kombu 5.7.0, py-amqp 5.4.2 on Python 3.11: `send_invoice.delay(1234567, to="customer@example.com")`, a task with ignore_result.
    "celery": (
        b"\xfe\x00\x10application/json\x05utf-8\0\0\x01\x82"
        b"\x04langS\0\0\0\x02py\x04taskS\0\0\0\x17shop.tasks.send_invoice\x02idS\0\0\0\x24f290ab36-b80b-4754-a7d2-61531e064434"
        b"\x06shadowV\x03etaV\x07expiresV\x05groupV\x0bgroup_indexV\x07retriesI\0\0\0\0\ttimelimitA\0\0\0\x02VV"
        b"\x07root_idS\0\0\0\x24f290ab36-b80b-4754-a7d2-61531e064434\tparent_idV\x08argsreprS\0\0\0\n(1234567,)"
        b"\nkwargsreprS\0\0\0\x1e{'to': 'customer@example.com'}\x06originS\0\0\0\x0bgen18415@vm\rignore_resultt\x01"
        b"\x15replaced_task_nestingI\0\0\0\0\x0fstamped_headersV\x06stampsF\0\0\0\0"
        b"\x02\0\x24f290ab36-b80b-4754-a7d2-61531e064434\x24e23ae2aa-f20c-36ea-9945-9efb08744c3e"
    ),
    # Spring AMQP 3.2.5 (amqp-client 5.22) on Java 17: RabbitTemplate with Jackson2JsonMessageConverter, message ids and correlated confirms.
    "spring": (
        b"\xf8\x80\x10application/json\x05UTF-8\0\0\0\x69"
        b"\x23spring_returned_message_correlationS\0\0\0\x2469f24745-ff42-478e-b3dd-77d9c5dc7829"
        b"\n__TypeId__S\0\0\0\x0cx.Main$Order\x02\0\x24dc54174c-b32c-439f-b46f-322c641530a0"
    ),
    # MassTransit 6.2.5 (RabbitMQ.Client, .NET): not recorded but put together from a published listing of a message as RabbitMQ's management
    # page shows it (github.com/joonhwan/masstransit-rabbitmq-redis-commute, README), with the trace context that later versions send.
    "masstransit": (
        b"\xb0\x80\x20application/vnd.masstransit+json\0\0\0\x93"
        b"\x0cContent-TypeS\0\0\0\x20application/vnd.masstransit+json"
        b"\x0eMT-Activity-IdS\0\0\0\x3700-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
        b"\x09publishIdS\0\0\0\x07" b"1234567\x02\x2482d30000-5d21-0015-4a10-08d8d959e63c"
    ),
    # NestJS 12.1.1 (@nestjs/microservices, amqplib 2.3.1) on Node 20: `client.send({ cmd: "price" }, { id: 7 })`, recorded with RabbitMQ's direct
    # reply-to, in whose place stands a reply queue (option replyQueue).
    "nestjs": b"\x36\0\0\0\0\0\x02\x21aec7f1b8844e4842aef8415ab1c8d7e0a\x0eorders-replies",
    # pika 1.4.4 on Python 3.11: BasicProperties as a service sets them that traces its messages.
    "pika": (
        b"\xb0\xe8\x10application/json\0\0\0\x4b\x08trace-idS\0\0\0\x207380c7e5e2c7467da3fbc177e3e719a4"
        b"\x07attemptI\0\0\0\x01\x06tenantS\0\0\0\x04eu-1\x02\x24e84dd310-6a67-4698-a369-913ab4a36c44"
        b"\0\0\0\0\x6b\x04\x32\xe2\x0dorder.created\x07billing"
    ),
}  # fmt: skip

OWN = {
    "celery": (b"f290ab36-b80b-4754-a7d2-61531e064434", b"1234567"),
    "spring": (b"69f24745-ff42-478e-b3dd-77d9c5dc7829", b"dc54174c-b32c-439f-b46f-322c641530a0"),
    "masstransit": (
        b"4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        b"1234567",
        b"82d30000-5d21-0015-4a10-08d8d959e63c",
    ),
    "nestjs": (b"aec7f1b8844e4842aef8415ab1c8d7e0a",),
    "pika": (
        b"7380c7e5e2c7467da3fbc177e3e719a4",
        b"e84dd310-6a67-4698-a369-913ab4a36c44",
        b"\0\0\0\0\x6b\x04\x32\xe2",  # the timestamp
    ),
}


def fresh(recorded, number):
    """Another one of the same form."""
    if recorded.isdigit():
        return b"%0*d" % (len(recorded), number)
    if recorded[0] == 0:
        return struct.pack(">Q", int(time.time()))
    digits = os.urandom(len(recorded)).hex().encode()
    out = digits[: len(recorded)]
    if b"-" in recorded:
        words, at = [], 0
        for word in recorded.split(b"-"):
            words.append(out[at : at + len(word)])
            at += len(word)
        out = b"-".join(words)
    return out


def lists(name):
    """Property lists without end."""
    pieces, whose = [LISTS[name]], []
    for index, own in enumerate(OWN[name]):
        cut, owners = [], []
        for place, piece in enumerate(pieces):
            parts = piece.split(own)
            cut += parts
            owners += [index] * (len(parts) - 1)
            owners += whose[place : place + 1]
        pieces, whose = cut, owners
    for number in itertools.count(1_000_000):
        values = [fresh(own, number) for own in OWN[name]]
        out = [pieces[0]]
        for index, piece in zip(whose, pieces[1:], strict=True):
            out += (values[index], piece)
        yield b"".join(out)
