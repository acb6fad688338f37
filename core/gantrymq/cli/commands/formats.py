"""Format strings of `gantry message tail`, as users of kcat (`-f`) and mosquitto_sub (`-F`) write them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Final

from gantrymq.cli.commands.people import moment
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ConfigError

Part = Callable[[ReceivedMessage], bytes]


def _properties(message: ReceivedMessage) -> bytes:
    return ",".join([f"{name}={value}" for name, value in message.property_map().items()]).encode(errors="replace")


FIELDS: Final[dict[str, tuple[str, Part]]] = {
    "t": ("topic", lambda message: message.topic.encode()),
    "g": ("tag", lambda message: message.tag.encode(errors="replace")),
    "k": ("keys", lambda message: message.keys.encode(errors="replace")),
    "b": ("body", lambda message: message.body),
    "s": ("the same, as kcat calls it", lambda message: message.body),
    "S": ("bytes of the body", lambda message: b"%d" % len(message.body)),
    "B": ("broker", lambda message: message.broker.encode()),
    "p": ("queue (partition)", lambda message: b"%d" % message.queue_id),
    "o": ("offset", lambda message: b"%d" % message.queue_offset),
    "T": ("time stored, milliseconds since 1970", lambda message: b"%d" % message.store_ms),
    "I": ("time stored, ISO 8601", lambda message: moment(message.store_ms).encode()),
    "i": ("message id", lambda message: message.message_id.encode(errors="replace")),
    "h": ("properties, NAME=VALUE joined by commas", _properties),
    "%": ("a percent sign", lambda message: b"%"),
}
"""What stands behind each letter (docs/operations/cli.md has the same table)."""

HELP: Final = (
    "One line per message: "
    + ", ".join([f"%{letter} {what}" for letter, (what, _) in FIELDS.items()])
    + r"; \n, \t, \xHH."
)

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(?P<field>.?)|\\(?:x(?P<code>[0-9A-Fa-f]{2})|(?P<escape>.?))|(?P<text>[^%\\]+)", re.DOTALL)


def parse(text: str) -> list[Part | bytes]:
    """Pieces of a format. Raises ConfigError for a letter that means nothing."""
    pieces: list[Part | bytes] = []
    for match in _PIECE.finditer(text):
        field, code, escape, plain = match.group("field", "code", "escape", "text")
        if field is not None:
            if field not in FIELDS:
                known = " ".join([f"%{letter}" for letter in FIELDS])
                raise ConfigError(f'--format "{text}": %{field} means nothing; allowed are {known}')
            pieces.append(FIELDS[field][1])
        elif code is not None:
            pieces.append(bytes.fromhex(code))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise ConfigError(rf'--format "{text}": \{escape} means nothing; allowed are \n \t \r \0 \\ \xHH')
            pieces.append(_ESCAPES[escape])
        else:
            pieces.append(plain.encode(errors="surrogateescape"))
    if not pieces or pieces[-1] not in (b"\n", b"\0"):
        pieces.append(b"\n")
    return pieces


def render(pieces: list[Part | bytes], message: ReceivedMessage) -> bytes:
    """One message's bytes; a body stands there as it was sent."""
    return b"".join([piece if isinstance(piece, bytes) else piece(message) for piece in pieces])


def writer(text: str) -> Callable[[ReceivedMessage], None]:
    """Writes messages to standard output. Raises ConfigError."""
    pieces = parse(text)
    return lambda message: _write(render(pieces, message))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
