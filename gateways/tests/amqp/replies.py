"""Reply codes and texts, as data: what RabbitMQ 3.10 and 4.0 answer to the same frames. Played to a door by `test_replies.py`, and over a socket to a
server by `interop_tests/test_amqp_replies.py`."""

from __future__ import annotations

from typing import Any

from gantrymq_gateways.amqp.wire.codec import FRAME, HEADER, content_frames
from gantrymq_gateways.amqp.wire.constants import METHODS
from gantrymq_gateways.amqp.wire.values import Field, Table
from gateways.tests.amqp.peer import NO_PROPERTIES, call, publish

X_TTL: Table = [("x-message-ttl", Field("I", 1000))]
LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'xq' in vhost '/'. It could be originally declared on "
    "another connection or the exclusive property value does not match that of the original declaration."
)


def exchange_declare(
    name: str, kind: str = "direct", passive: bool = False, durable: bool = True, args: Any = ()
) -> bytes:
    return call(1, "exchange.declare", 0, name, kind, passive, durable, False, False, False, list(args))


def queue_declare(
    name: str, passive: bool = False, durable: bool = True, exclusive: bool = False, args: Any = ()
) -> bytes:
    return call(1, "queue.declare", 0, name, passive, durable, exclusive, False, False, list(args))


def consume(queue: str, tag: str, exclusive: bool = False, args: Any = ()) -> bytes:
    return call(1, "basic.consume", 0, queue, tag, False, False, exclusive, False, list(args))


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + end


# What exists before each case.
HELD = queue_declare("xq", durable=False, exclusive=True)
"""Another connection's."""
PREPARED = [
    queue_declare("q"),
    exchange_declare("e"),
    call(1, "exchange.declare", 0, "inner", "direct", False, True, False, True, False, []),
    call(1, "queue.bind", 0, "q", "e", "k", False, []),
]

UNKNOWN_METHOD = frame(1, 1, b"\0\x3c\x03\xe7")
"""Closes the socket without a word."""

# Every case: method that fails, frames, reply code and text, name of the method that the close names ("" for none).
# Text with `...` at its end: only the beginning is fixed. Queue `q` and exchanges `e` (direct) and `inner` (internal) exist;
# `xq` is another connection's exclusive queue.
CHANNEL = [
    ("type unknown", exchange_declare("x", "foo"), 406, "PRECONDITION_FAILED - invalid exchange type 'foo'", "exchange.declare"),
    ("delayed type", exchange_declare("x", "x-delayed-message"), 406, "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type", "exchange.declare"),
    ("x-match", call(1, "queue.bind", 0, "q", "amq.headers", "", False, [("x-match", Field("S", b"foo"))]), 406, 'PRECONDITION_FAILED - Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x', "queue.bind"),
    ("hash weight", exchange_declare("h", "x-consistent-hash") + call(1, "queue.bind", 0, "q", "h", "a", True, []), 406, "PRECONDITION_FAILED - The binding key must be an integer greater than 0: 'a'", "queue.bind"),
    ("hash weights", exchange_declare("h", "x-consistent-hash") + call(1, "queue.bind", 0, "q", "h", "999", True, []) + call(1, "queue.bind", 0, "q", "h", "2", True, []), 406, "PRECONDITION_FAILED - the weights of an exchange's bindings are 1001 together, at most 1000 are allowed", "queue.bind"),
    ("reserved exchange", exchange_declare("amq.foo"), 403, "ACCESS_REFUSED - exchange name 'amq.foo' contains reserved prefix 'amq.*'", "exchange.declare"),
    ("reserved queue", queue_declare("amq.foo"), 403, "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'", "queue.declare"),
    ("our name of the default exchange", exchange_declare("(default)"), 403, "ACCESS_REFUSED - exchange name '(default)' is reserved", "exchange.declare"),
    ("default exchange declare", exchange_declare(""), 403, "ACCESS_REFUSED - operation not permitted on the default exchange", "exchange.declare"),
    ("default exchange passive", exchange_declare("", passive=True), 403, "ACCESS_REFUSED - operation not permitted on the default exchange", "exchange.declare"),
    ("default exchange delete", call(1, "exchange.delete", 0, "", False, False), 403, "ACCESS_REFUSED - operation not permitted on the default exchange", "exchange.delete"),
    ("default exchange bind", call(1, "queue.bind", 0, "q", "", "k", False, []), 403, "ACCESS_REFUSED - operation not permitted on the default exchange", "queue.bind"),
    ("default exchange unbind", call(1, "queue.unbind", 0, "q", "", "k", []), 403, "ACCESS_REFUSED - operation not permitted on the default exchange", "queue.unbind"),
    ("default exchange e2e", call(1, "exchange.bind", 0, "e", "", "k", False, []), 403, "ACCESS_REFUSED - operation not permitted on the default exchange", "exchange.bind"),
    ("delete amq.direct", call(1, "exchange.delete", 0, "amq.direct", False, False), 403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed", "exchange.delete"),
    ("passive exchange", exchange_declare("nope", passive=True), 404, "NOT_FOUND - no exchange 'nope' in vhost '/'", "exchange.declare"),
    ("passive queue", queue_declare("nope", passive=True), 404, "NOT_FOUND - no queue 'nope' in vhost '/'", "queue.declare"),
    ("bind missing queue", call(1, "queue.bind", 0, "nope", "e", "k", False, []), 404, "NOT_FOUND - no queue 'nope' in vhost '/'", "queue.bind"),
    ("bind missing exchange", call(1, "queue.bind", 0, "q", "nope", "k", False, []), 404, "NOT_FOUND - no exchange 'nope' in vhost '/'", "queue.bind"),
    ("e2e missing", call(1, "exchange.bind", 0, "e", "nope", "k", False, []), 404, "NOT_FOUND - no exchange 'nope' in vhost '/'", "exchange.bind"),
    ("publish to missing", publish(1, "nope", "k", b"x"), 404, "NOT_FOUND - no exchange 'nope' in vhost '/'", "basic.publish"),
    ("consume missing", consume("nope", "t"), 404, "NOT_FOUND - no queue 'nope' in vhost '/'", "basic.consume"),
    ("get missing", call(1, "basic.get", 0, "nope", False), 404, "NOT_FOUND - no queue 'nope' in vhost '/'", "basic.get"),
    ("purge missing", call(1, "queue.purge", 0, "nope", False), 404, "NOT_FOUND - no queue 'nope' in vhost '/'", "queue.purge"),
    ("no last queue", call(1, "basic.get", 0, "", False), 404, "NOT_FOUND - no previously declared queue", "basic.get"),
    ("other type", exchange_declare("e", "fanout"), 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received 'fanout' but current is 'direct'", "exchange.declare"),
    ("other durability", exchange_declare("e", durable=False), 406, "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'e' in vhost '/': received 'false' but current is 'true'", "exchange.declare"),
    ("queue durability", queue_declare("q", durable=False), 406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'", "queue.declare"),
    ("queue argument", queue_declare("q", args=[("x-message-ttl", Field("s", 1000))]), 406, "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '1000' of type 'short' but current is none", "queue.declare"),
    ("queue exclusive", queue_declare("q", exclusive=True), 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'...", "queue.declare"),
    ("locked", queue_declare("xq"), 405, LOCKED, "queue.declare"),
    ("locked passive", queue_declare("xq", passive=True), 405, LOCKED, "queue.declare"),
    ("locked consume", consume("xq", "t"), 405, LOCKED, "basic.consume"),
    ("locked delete", call(1, "queue.delete", 0, "xq", False, False, False), 405, LOCKED, "queue.delete"),
    ("exchange in use", call(1, "exchange.delete", 0, "e", True, False), 406, "PRECONDITION_FAILED - exchange 'e' in vhost '/' in use", "exchange.delete"),
    ("queue in use", consume("q", "t") + call(1, "queue.delete", 0, "q", True, False, False), 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use", "queue.delete"),
    ("queue not empty", publish(1, "", "q", b"x") + call(1, "queue.delete", 0, "q", False, True, False), 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty", "queue.delete"),
    ("internal", publish(1, "inner", "", b"x"), 403, "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'", "basic.publish"),
    ("user id", publish(1, "", "q", b"x", b"\x00\x10\x03bob"), 406, "PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'guest'", "basic.publish"),
    ("expiration", publish(1, "", "q", b"x", b"\x01\x00\x03abc"), 406, "PRECONDITION_FAILED - invalid expiration 'abc': no_integer", "basic.publish"),
    ("CC type", publish(1, "", "q", b"x", b"\x20\x00\x00\x00\x00\x09\x02CCS\x00\x00\x00\x01x"), 406, 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}', "basic.publish"),
    ("exclusive after shared", consume("q", "a") + consume("q", "b", exclusive=True), 403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use", "basic.consume"),
    ("shared after exclusive", consume("q", "a", exclusive=True) + consume("q", "b"), 403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use", "basic.consume"),
    ("ack unknown", call(1, "basic.ack", 99, False), 406, "PRECONDITION_FAILED - unknown delivery tag 99", "basic.ack"),
    ("ack single zero", call(1, "basic.ack", 0, False), 406, "PRECONDITION_FAILED - unknown delivery tag 0", "basic.ack"),
    ("nack beyond", call(1, "basic.nack", 5, True, True), 406, "PRECONDITION_FAILED - unknown delivery tag 5", "basic.nack"),
    ("reject unknown", call(1, "basic.reject", 7, True), 406, "PRECONDITION_FAILED - unknown delivery tag 7", "basic.reject"),
    ("too large", call(1, "basic.publish", 0, "", "q", False, False) + HEADER.pack(2, 1, 14, 60, 0, 1 << 40) + b"\0\0\xce", 406, "PRECONDITION_FAILED - message size 1099511627776 is larger than configured max size 15728640", "basic.publish"),
    ("negative time to live", queue_declare("new", args=[("x-message-ttl", Field("I", -1))]), 406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'new' in vhost '/': {value_negative,-1}", "queue.declare"),
    ("time to live as text", queue_declare("new", args=[("x-message-ttl", Field("S", b"1"))]), 406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'new' in vhost '/': \"expected integer, got longstr\"", "queue.declare"),
    ("time to live too long", queue_declare("new", args=[("x-message-ttl", Field("l", 1 << 32))]), 406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'new' in vhost '/': {value_too_large,4294967296}", "queue.declare"),
    ("no lifetime", queue_declare("new", args=[("x-expires", Field("I", 0))]), 406, "PRECONDITION_FAILED - invalid arg 'x-expires' for queue 'new' in vhost '/': {value_zero,0}", "queue.declare"),
    ("negative length", queue_declare("new", args=[("x-max-length", Field("I", -1))]), 406, "PRECONDITION_FAILED - invalid arg 'x-max-length' for queue 'new' in vhost '/': {value_negative,-1}", "queue.declare"),
    ("negative bytes", queue_declare("new", args=[("x-max-length-bytes", Field("I", -1))]), 406, "PRECONDITION_FAILED - invalid arg 'x-max-length-bytes' for queue 'new' in vhost '/': {value_negative,-1}", "queue.declare"),
    ("overflow", queue_declare("new", args=[("x-overflow", Field("S", b"drop-tail"))]), 406, "PRECONDITION_FAILED - invalid arg 'x-overflow' for queue 'new' in vhost '/': invalid_overflow", "queue.declare"),
    ("dead letters as number", queue_declare("new", args=[("x-dead-letter-exchange", Field("I", 1))]), 406, "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'new' in vhost '/'", "queue.declare"),
    ("key without exchange", queue_declare("new", args=[("x-dead-letter-routing-key", Field("S", b"k"))]), 406, "PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue 'new' in vhost '/': routing_key_but_no_dlx_defined", "queue.declare"),
    ("queue type", queue_declare("new", args=[("x-queue-type", Field("S", b"foo"))]), 406, "PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue 'new' in vhost '/': \"unsupported queue type 'foo'\"", "queue.declare"),
    ("queue mode", queue_declare("new", args=[("x-queue-mode", Field("S", b"foo"))]), 406, "PRECONDITION_FAILED - invalid arg 'x-queue-mode' for queue 'new' in vhost '/': \"unsupported queue mode 'foo'\"", "queue.declare"),
    ("quorum, not durable", queue_declare("new", durable=False, args=[("x-queue-type", Field("S", b"quorum"))]), 406, "PRECONDITION_FAILED - invalid property 'non-durable' for queue 'new' in vhost '/'", "queue.declare"),
    ("alternate exchange", exchange_declare("e", args=[("alternate-exchange", Field("S", b"a"))]), 406, "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'e' in vhost '/': received the value 'a' of type 'longstr' but current is none", "exchange.declare"),
    ("type of alternate exchange", exchange_declare("new", args=[("alternate-exchange", Field("I", 1))]), 406, "PRECONDITION_FAILED - invalid arg 'alternate-exchange' for exchange 'new' in vhost '/': {unacceptable_type,signedint}", "exchange.declare"),
    ("priority of a consumer", consume("q", "t", args=[("x-priority", Field("S", b"1"))]), 406, "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\"", "basic.consume"),
    ("highest priority", queue_declare("new", args=[("x-max-priority", Field("I", 256))]), 406, "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'new' in vhost '/': {max_value_exceeded,256}", "queue.declare"),
    ("negative highest priority", queue_declare("new", args=[("x-max-priority", Field("I", -1))]), 406, "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'new' in vhost '/': {value_negative,-1}", "queue.declare"),
    ("single active consumer", queue_declare("new", args=[("x-single-active-consumer", Field("I", 1))]), 406, "PRECONDITION_FAILED - invalid arg 'x-single-active-consumer' for queue 'new' in vhost '/': {unacceptable_type,signedint}", "queue.declare"),
    ("commit without select", call(1, "tx.commit"), 406, "PRECONDITION_FAILED - channel is not transactional", "tx.commit"),
    ("rollback without select", call(1, "tx.rollback"), 406, "PRECONDITION_FAILED - channel is not transactional", "tx.rollback"),
    ("from confirm to tx", call(1, "confirm.select", True) + call(1, "tx.select"), 406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", "tx.select"),
    ("from tx to confirm", call(1, "tx.select") + call(1, "confirm.select", True), 406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", "confirm.select"),
    ("unknown tag in a transaction", call(1, "tx.select") + call(1, "basic.ack", 9, False), 406, "PRECONDITION_FAILED - unknown delivery tag 9", "basic.ack"),
    ("tag 0 in a transaction", call(1, "tx.select") + call(1, "basic.ack", 0, False), 406, "PRECONDITION_FAILED - unknown delivery tag 0", "basic.ack"),
    ("answered twice in a transaction", publish(1, "", "q", b"x") + call(1, "basic.get", 0, "q", False) + call(1, "tx.select") + 2 * call(1, "basic.ack", 1, False), 406, "PRECONDITION_FAILED - unknown delivery tag 1", "basic.ack"),
    ("direct reply-to with acknowledgements", consume("amq.rabbitmq.reply-to", "t"), 406, "PRECONDITION_FAILED - reply consumer cannot acknowledge", "basic.consume"),
    ("getting direct replies", call(1, "basic.get", 0, "amq.rabbitmq.reply-to", True), 404, "NOT_FOUND - no queue 'amq.rabbitmq.reply-to' in vhost '/'", "basic.get"),
    ("binding direct replies", call(1, "queue.bind", 0, "amq.rabbitmq.reply-to.x", "e", "", False, []), 404, "NOT_FOUND - no queue 'amq.rabbitmq.reply-to.x' in vhost '/'", "queue.bind"),
    ("asking for a direct reply", publish(1, "", "q", b"x", b"\x02\x00\x15amq.rabbitmq.reply-to"), 406, "PRECONDITION_FAILED - fast reply consumer does not exist", "basic.publish"),
    ("reserved for the broker", exchange_declare("rmq_sys_x"), 403, "ACCESS_REFUSED - exchange name 'rmq_sys_x' is reserved", "exchange.declare"),
    ("publish to a system topic", publish(1, "rmq_sys_gantry_topic", "", b"x"), 404, "NOT_FOUND - no exchange 'rmq_sys_gantry_topic' in vhost '/'", "basic.publish"),
]  # fmt: skip

CONNECTION = [
    ("immediate", call(1, "basic.publish", 0, "", "q", False, True) + content_frames(1, NO_PROPERTIES, b"", 4096), 540, "NOT_IMPLEMENTED - immediate=true", "basic.publish"),
    ("prefetch size", call(1, "basic.qos", 10, 1, False), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)", "basic.qos"),
    ("recover without requeue", call(1, "basic.recover", False), 540, "NOT_IMPLEMENTED - requeue=false", "basic.recover"),
    ("flow", call(1, "channel.flow", False), 540, "NOT_IMPLEMENTED - active=false", "channel.flow"),
    ("consumer tag again", consume("q", "t") + consume("q", "t"), 530, "NOT_ALLOWED - attempt to reuse consumer tag 't'", "basic.consume"),
    ("second open", call(1, "channel.open", ""), 504, "CHANNEL_ERROR - second 'channel.open' seen", "channel.open"),
    ("not open", call(9, "basic.qos", 0, 1, False), 504, "CHANNEL_ERROR - expected 'channel.open'", "basic.qos"),
    ("publish not open", publish(9, "", "q", b"x"), 504, "CHANNEL_ERROR - expected 'channel.open'", "basic.publish"),
    ("connection method on a channel", call(9, "connection.close", 200, "", 0, 0), 504, "CHANNEL_ERROR - expected 'channel.open'", "connection.close"),
    ("server's method", call(1, "queue.declare-ok", "q", 0, 0), 503, "COMMAND_INVALID - unimplemented method", "queue.declare-ok"),
    ("method on channel 0", call(0, "basic.qos", 0, 1, False), 504, "CHANNEL_ERROR - unexpected method in connection state running", "basic.qos"),
    ("header alone", content_frames(1, NO_PROPERTIES, b"", 4096), 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead", ""),
    ("body alone", frame(3, 1, b"x"), 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead", ""),
    ("method for header", call(1, "basic.publish", 0, "", "q", False, False) + call(1, "basic.qos", 0, 1, False), 505, "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead", "basic.publish"),
    ("two headers", call(1, "basic.publish", 0, "", "q", False, False) + 2 * (HEADER.pack(2, 1, 14, 60, 0, 5) + b"\0\0\xce"), 505, "UNEXPECTED_FRAME - expected content body for class 60, got non content body frame instead", "basic.publish"),
    ("frame type", frame(9, 1, b"x"), 501, 'FRAME_ERROR - type 9, all octets = <<"x">>: unknown_frame', ""),
    ("end octet", frame(1, 1, b"\0\0\0\1", b"\xff"), 501, "FRAME_ERROR - type 1, all octets = <<0,0,0,1>>: {invalid_frame_end_marker,255}", ""),
    ("oversize", FRAME.pack(3, 1, 200_000), 501, "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,200000,131064}", ""),
    ("truncated", frame(1, 1, METHODS["basic.qos"].number.to_bytes(4, "big") + b"\0\0"), 501, "FRAME_ERROR - cannot decode <<0,0>>", "basic.qos"),
    ("bad UTF-8", frame(1, 1, METHODS["basic.cancel"].number.to_bytes(4, "big") + b"\x02\xff\xff\0"), 501, "FRAME_ERROR - Malformed UTF-8 in shortstr", ""),
    ("table type", frame(1, 1, METHODS["queue.declare"].number.to_bytes(4, "big") + b"\0\0\x01q\0\0\0\0\x03\x01az"), 541, "INTERNAL_ERROR", ""),
    ("body over announced", call(1, "basic.publish", 0, "", "q", False, False) + HEADER.pack(2, 1, 14, 60, 0, 2) + b"\0\0\xce" + frame(3, 1, b"xyz"), 501, "FRAME_ERROR - content body of 3 octets is longer than the 2 that its header announced", "basic.publish"),
    ("heartbeat on a channel", frame(8, 1, b""), 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", ""),
    ("header on channel 0", content_frames(0, NO_PROPERTIES, b"", 4096)[:-1] + b"\xce", 505, "UNEXPECTED_FRAME - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,0,0,0>>", ""),
]  # fmt: skip

# What is no error: frames, name and arguments of the answer.
IGNORED = [
    ("delete missing queue", call(1, "queue.delete", 0, "nope", False, False, False), "queue.delete-ok", [0]),
    ("delete missing exchange", call(1, "exchange.delete", 0, "nope", False, False), "exchange.delete-ok", []),
    ("unbind missing binding", call(1, "queue.unbind", 0, "q", "e", "nope", []), "queue.unbind-ok", []),
    ("unbind missing exchange", call(1, "queue.unbind", 0, "q", "nope", "", []), "queue.unbind-ok", []),
    ("unbind missing queue", call(1, "queue.unbind", 0, "nope", "e", "", []), "queue.unbind-ok", []),
    ("e2e unbind missing", call(1, "exchange.unbind", 0, "e", "inner", "", False, []), "exchange.unbind-ok", []),
    ("cancel unknown", call(1, "basic.cancel", "nope", False), "basic.cancel-ok", ["nope"]),
    ("declare amq.direct again", exchange_declare("amq.direct"), "exchange.declare-ok", []),
    ("access", call(1, "access.request", "/data", False, False, True, True, True), "access.request-ok", [1]),
    ("flow on", call(1, "channel.flow", True), "channel.flow-ok", [True]),
    ("classic", queue_declare("c", args=[("x-queue-type", Field("S", b"classic"))]), "queue.declare-ok", ["c", 0, 0]),
    ("line ends", queue_declare("a\nb\r"), "queue.declare-ok", ["ab", 0, 0]),
    ("strange name", queue_declare("é $1"), "queue.declare-ok", ["é $1", 0, 0]),
    ("long name", queue_declare("n" * 255), "queue.declare-ok", ["n" * 255, 0, 0]),
]  # fmt: skip
