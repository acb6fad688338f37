"""Every way to route that RabbitMQ's clients use, by pika over real sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.running import Gantry
from interop_tests.test_amqp_clients import connect, unique
from interop_tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def channel(server: Gantry) -> Iterator[Any]:
    connection = connect(server)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def queue_of(channel: Any) -> str:
    name: str = channel.queue_declare("", exclusive=True).method.queue
    return name


def bodies(channel: Any, queue: str) -> list[bytes]:
    found = []
    while (taken := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(taken[2])
    return found


def test_headers_exchange(channel: Any) -> None:
    both, one = queue_of(channel), queue_of(channel)
    channel.queue_bind(both, "amq.headers", arguments={"x-match": "all", "format": "pdf", "size": 4})
    channel.queue_bind(one, "amq.headers", arguments={"x-match": "any", "format": "pdf", "size": 4})
    for number, headers in enumerate(({"format": "pdf", "size": 4}, {"format": "pdf"}, {"size": "4"}, {})):
        channel.basic_publish("amq.headers", "", b"%d" % number, pika.BasicProperties(headers=headers))
    assert (bodies(channel, both), bodies(channel, one)) == ([b"0"], [b"0", b"1"])
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("amq.headers", "", b"", pika.BasicProperties(headers={"format": "txt"}), mandatory=True)


def test_exchanges_in_a_chain_and_an_alternate(channel: Any) -> None:
    front, back, rest = unique("front"), unique("back"), unique("rest")
    channel.exchange_declare(rest, "fanout")
    channel.exchange_declare(front, "topic", arguments={"alternate-exchange": rest})
    channel.exchange_declare(back, "direct", internal=True)
    wanted, lost = queue_of(channel), queue_of(channel)
    channel.queue_bind(lost, rest)
    # Bound before the exchanges are: what is remembered of `front` must not outlive the change.
    channel.queue_bind(wanted, back, "a.b")
    channel.basic_publish(front, "a.b", b"1")
    channel.exchange_bind(back, front, "a.*")
    channel.basic_publish(front, "a.b", b"2")
    channel.queue_unbind(wanted, back, "a.b")
    channel.basic_publish(front, "a.b", b"3")
    channel.queue_bind(wanted, back, "a.b")
    channel.basic_publish(front, "a.b", b"4")
    channel.basic_publish(front, "z", b"5")
    assert (bodies(channel, wanted), bodies(channel, lost)) == ([b"2", b"4"], [b"1", b"5"])
    for exchange in (front, back, rest):
        channel.exchange_delete(exchange)


def test_hashes_and_random(channel: Any) -> None:
    for kind in ("x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random"):
        exchange = unique(kind)
        channel.exchange_declare(exchange, kind)
        names = [queue_of(channel) for _ in range(3)]
        for name in names:
            channel.queue_bind(name, exchange, "10")
        for round_ in range(2):
            for key in range(60):
                channel.basic_publish(exchange, f"key{key}", b"%d %d" % (key, round_))
        found = [bodies(channel, name) for name in names]
        assert sum(map(len, found)) == 120
        assert min(map(len, found)) > 12
        if not kind.endswith("random"):
            keys = [{body.split()[0] for body in part} for part in found]
            assert sum(map(len, keys)) == 60  # a key goes to one queue, both times
        channel.exchange_delete(exchange)


@pytest.mark.parametrize("argument", ["hash-header", "hash-property"])
def test_a_hash_of_something_else_than_the_key(channel: Any, argument: str) -> None:
    exchange = unique("hash")
    channel.exchange_declare(
        exchange, "x-consistent-hash", arguments={argument: "user" if argument == "hash-header" else "message_id"}
    )
    names = [queue_of(channel) for _ in range(3)]
    for name in names:
        channel.queue_bind(name, exchange, "10")
    for key in range(40):
        for user in ("one", "two", "three", "four"):
            properties = pika.BasicProperties(headers={"user": user}, message_id=user)
            channel.basic_publish(exchange, f"key{key}", user.encode(), properties)
    found = [bodies(channel, name) for name in names]
    assert sum(map(len, found)) == 160
    assert sum([len(set(part)) for part in found]) == 4, "all of a user's go to one queue, whatever their keys"
    channel.exchange_delete(exchange)


def test_carbon_copies(channel: Any) -> None:
    to, copy, blind = (queue_of(channel) for _ in range(3))
    properties = pika.BasicProperties(headers={"CC": [copy], "BCC": [blind], "x": 1})
    channel.basic_publish("", to, b"x", properties)
    for name in (to, copy, blind):
        method, back, _ = channel.basic_get(name, auto_ack=True)
        assert (method.routing_key, back.headers) == (to, {"CC": [copy], "x": 1})


def test_delayed_messages(channel: Any) -> None:
    exchange = unique("later")
    channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "topic"})
    queue = queue_of(channel)
    channel.queue_bind(queue, exchange, "a.#")
    begin = time.monotonic()
    for delay in (600, 300, 0):
        channel.basic_publish(exchange, "a.b", b"%d" % delay, pika.BasicProperties(headers={"x-delay": delay}))
    found: list[tuple[bytes, float]] = []

    def arrived() -> bool:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            assert (method.exchange, method.routing_key) == (exchange, "a.b")
            found.append((body, time.monotonic() - begin))
        return len(found) == 3

    until(arrived)
    assert [body for body, _ in found] == [b"0", b"300", b"600"]
    assert all(at >= int(body) / 1000 for body, at in found)
    channel.exchange_delete(exchange)


def test_direct_replies_of_pika(server: Gantry, channel: Any) -> None:
    work = queue_of(channel)
    replies: list[bytes] = []

    def answer(on: Any, method: Any, properties: Any, body: bytes) -> None:
        on.basic_publish("", properties.reply_to, body.upper(), pika.BasicProperties(correlation_id="1"))

    channel.basic_consume(work, answer, auto_ack=True)
    other = connect(server)
    asking = other.channel()
    asking.basic_consume("amq.rabbitmq.reply-to", lambda c, m, p, body: replies.append(body), auto_ack=True)
    asking.basic_publish("", work, b"abc", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))

    def answered() -> bool:
        channel.connection.process_data_events(0.01)
        other.process_data_events(0.01)
        return bool(replies)

    until(answered)
    assert replies == [b"ABC"]
    other.close()
