"""The vocabulary of AMQP 0-9-1 with RabbitMQ's extensions, as data.

One table of methods (class, method, argument spec), one of reply codes. `codec.py` derives encoders and decoders
from it; nothing else spells a method id. Sources: AMQP 0-9-1 XML, RabbitMQ's `amqp-rabbitmq-0.9.1.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PROTOCOL_HEADER_OLD: Final = b"AMQP\x01\x01\x00\x09"
"""What AMQP 0-9 clients send; RabbitMQ takes it for 0-9-1."""

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
"""Type, channel and size before the payload, end octet after it."""

FRAME_MIN_SIZE: Final = 4096
"""AMQP 0-9-1 frame-min-size: no peer may be asked for less."""

CLASS_BASIC: Final = 60

REPLY_CODES: Final = {
    200: "",
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
"""Code to the word in front of the reply text."""

CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541
NO_ROUTE: Final = 312

REPLY_TEXT_BYTES_MAX: Final = 255
"""A reply text is a shortstr."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method: `spec` has a letter per argument (see `_SPEC`), `content` says that header and body follow."""

    class_id: int
    method_id: int
    name: str
    spec: str
    content: bool

    @property
    def number(self) -> int:
        """Class and method id as the first four bytes of the payload."""
        return self.class_id << 16 | self.method_id


# Argument letters: o octet, h short, l long, q longlong, s shortstr, S longstr, t bit, F table.
_SPEC: Final = """
10 10 connection.start ooFSS
10 11 connection.start-ok FsSs
10 20 connection.secure S
10 21 connection.secure-ok S
10 30 connection.tune hlh
10 31 connection.tune-ok hlh
10 40 connection.open sst
10 41 connection.open-ok s
10 50 connection.close hshh
10 51 connection.close-ok -
10 60 connection.blocked s
10 61 connection.unblocked -
10 70 connection.update-secret Ss
10 71 connection.update-secret-ok -
20 10 channel.open s
20 11 channel.open-ok S
20 20 channel.flow t
20 21 channel.flow-ok t
20 40 channel.close hshh
20 41 channel.close-ok -
30 10 access.request sttttt
30 11 access.request-ok h
40 10 exchange.declare hsstttttF
40 11 exchange.declare-ok -
40 20 exchange.delete hstt
40 21 exchange.delete-ok -
40 30 exchange.bind hssstF
40 31 exchange.bind-ok -
40 40 exchange.unbind hssstF
40 51 exchange.unbind-ok -
50 10 queue.declare hstttttF
50 11 queue.declare-ok sll
50 20 queue.bind hssstF
50 21 queue.bind-ok -
50 30 queue.purge hst
50 31 queue.purge-ok l
50 40 queue.delete hsttt
50 41 queue.delete-ok l
50 50 queue.unbind hsssF
50 51 queue.unbind-ok -
60 10 basic.qos lht
60 11 basic.qos-ok -
60 20 basic.consume hssttttF
60 21 basic.consume-ok s
60 30 basic.cancel st
60 31 basic.cancel-ok s
60 40 basic.publish hsstt content
60 50 basic.return hsss content
60 60 basic.deliver sqtss content
60 70 basic.get hst
60 71 basic.get-ok qtssl content
60 72 basic.get-empty s
60 80 basic.ack qt
60 90 basic.reject qt
60 100 basic.recover-async t
60 110 basic.recover t
60 111 basic.recover-ok -
60 120 basic.nack qtt
85 10 confirm.select t
85 11 confirm.select-ok -
90 10 tx.select -
90 11 tx.select-ok -
90 20 tx.commit -
90 21 tx.commit-ok -
90 30 tx.rollback -
90 31 tx.rollback-ok -
"""


def _methods() -> dict[str, Method]:
    methods = {}
    for line in _SPEC.strip().splitlines():
        class_id, method_id, name, spec, *rest = line.split()
        methods[name] = Method(int(class_id), int(method_id), name, "" if spec == "-" else spec, bool(rest))
    return methods


METHODS: Final[dict[str, Method]] = _methods()
METHODS_BY_NUMBER: Final[dict[int, Method]] = {method.number: method for method in METHODS.values()}

NUMBER_PUBLISH: Final = METHODS["basic.publish"].number
NUMBER_ACK: Final = METHODS["basic.ack"].number

BLOCKED_CAPABILITY: Final = "connection.blocked"
CANCEL_CAPABILITY: Final = "consumer_cancel_notify"
AUTH_CLOSE_CAPABILITY: Final = "authentication_failure_close"
ASKED_CAPABILITIES: Final = frozenset({BLOCKED_CAPABILITY, CANCEL_CAPABILITY, AUTH_CLOSE_CAPABILITY})
"""Whether a client announced one of these matters to somebody."""

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
"""What the server announces."""

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""RabbitMQ's queue that is none: who consumes from it and names it in `reply_to` gets replies without a queue."""

MECHANISMS: Final = b"PLAIN AMQPLAIN"
LOCALES: Final = b"en_US"


class AmqpError(Exception):
    """A failure with AMQP's own code. `connection`: the whole connection ends, else the channel."""

    def __init__(self, code: int, text: str, *, connection: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.connection = connection

    @property
    def reply_text(self) -> str:
        """`NAME - text`, as RabbitMQ writes it."""
        return f"{REPLY_CODES[self.code]} - {self.text}" if self.text else REPLY_CODES[self.code]


def unknown_queue_error(name: str) -> AmqpError:
    """There is no such queue."""
    return AmqpError(NOT_FOUND, f"no queue '{name}' in vhost '/'")


def locked_error(name: str) -> AmqpError:
    """Somebody else's exclusive queue."""
    return AmqpError(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on another "
        "connection or the exclusive property value does not match that of the original declaration.",
    )
