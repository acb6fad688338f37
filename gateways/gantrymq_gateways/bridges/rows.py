"""What is kept of an AMQP bridge: tables `amqp_bridge` (what it is to do, written by people) and `amqp_bridge_state` (how far it is, written by the
gateway that runs it). No row holds a password: it names a secret, which the gateway finds in a file or in its environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

TABLE: Final = "amqp_bridge"
STATE_TABLE: Final = "amqp_bridge_state"

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Of bridges: it is part of a queue's name at the other side."""
SECRET: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A file's name in the folder of secrets, and part of a variable's: no way out of that folder."""
VARIABLE: Final = "GANTRY_BRIDGE_"
"""How variables with secrets begin: of the rest of the environment a row gets nothing."""
QUEUE_PREFIX: Final = "gantry.bridge."
"""Of the queue at the source that holds what a bridge takes from an exchange."""

PREFETCH_MAX: Final = 10_000
TEXT_MAX: Final = 2_048
"""Characters of an address."""
SCHEMES: Final = ("amqp", "amqps")
KINDS: Final = ("direct", "fanout", "topic", "headers")


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side. Without `url` it is this installation's own door, of the gateway that runs the bridge. `secret`: name of the password."""

    url: str = ""
    user: str = ""
    """At the own door; elsewhere it stands in `url`."""
    vhost: str = ""
    secret: str = ""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bridge: from `queue`, or a queue of its own that gets what `exchange` gets under `pattern`, to `to_queue`, or to `to_exchange` with `key`
    (None: each message's own)."""

    source: End
    destination: End
    queue: str = ""
    exchange: str = ""
    pattern: str = "#"
    to_queue: str = ""
    to_exchange: str = ""
    key: str | None = None
    rate: float = 0.0
    prefetch: int = 200
    declare: bool = False
    kind: str = "topic"
    """Type of exchanges that are made."""
    arguments: dict[str, Any] = {}
    """Of queues that are made."""


class State(msgspec.Struct):
    """How far it is. `since`: milliseconds; `moved`: messages since it was added; `left`: ready at the source."""

    state: str = "waiting"
    why: str = ""
    since: int = 0
    moved: int = 0
    left: int = 0
    gateway: str = ""


_decode: Final = msgspec.json.Decoder(Row).decode
_decode_state: Final = msgspec.json.Decoder(State).decode
encode: Final = msgspec.json.Encoder().encode
"""Of either table."""


class SecretError(Exception):
    """A password that is not to be had; the text names the secret and says where it was looked for."""


def row_from(key: str, value: bytes) -> Row:
    """Raises ValueError for what is no bridge."""
    row = _decode(value)
    check(key, row)
    return row


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of `amqp_bridge` that cannot be read."""
    row_from(key, value)


def state_from(value: bytes) -> State:
    """Raises ValueError."""
    return _decode_state(value)


def check_state(key: str, value: bytes) -> None:
    """The same of `amqp_bridge_state`."""
    _decode_state(value)


def made(name: str, **said: Any) -> bytes:
    """For the command line: the row of what was said. Raises ValueError with words for people."""
    try:
        row = msgspec.convert(said, Row)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    check(name, row)
    return encode(row)


def check(name: str, row: Row) -> None:
    """Raises ValueError, which never shows an address."""
    if not NAME.fullmatch(name):
        raise ValueError("the name of a bridge has 1 to 64 letters, digits, dots, dashes or underscores")
    if bool(row.queue) is bool(row.exchange):
        raise ValueError("a bridge takes from a queue or from an exchange: one of the two is needed")
    if row.to_queue and row.to_exchange:
        raise ValueError("a bridge gives to a queue or to an exchange, not to both")
    if row.key is not None and not row.to_exchange:
        raise ValueError("a routing key is for an exchange at the destination")
    if not row.source.url and not row.destination.url:
        raise ValueError("a bridge needs the address of another broker on one side")
    if not 1 <= row.prefetch <= PREFETCH_MAX or not 0 <= row.rate < 1e9:
        raise ValueError(f"1 to {PREFETCH_MAX} messages are on their way, and a rate is not below 0")
    if row.kind not in KINDS:
        raise ValueError(f"the type of an exchange is one of {', '.join(KINDS)}")
    for text in (row.queue, row.exchange, row.to_queue, row.to_exchange, row.pattern, row.key or ""):
        if len(text.encode()) > 255:
            raise ValueError("names and keys have at most 255 bytes")
    for side, end in (("source", row.source), ("destination", row.destination)):
        _check_end(side, end)


def _check_end(side: str, end: End) -> None:
    if end.secret and not SECRET.fullmatch(end.secret):
        raise ValueError(f"{side}: the name of a secret has 1 to 64 letters, digits, dashes or underscores")
    if not end.url:
        return
    if end.user or end.vhost:
        raise ValueError(f"{side}: user and vhost stand in the address")
    try:
        parts = urlsplit(end.url)
        good = parts.scheme in SCHEMES and bool(parts.hostname) and len(end.url) <= TEXT_MAX and parts.port != 0
    except ValueError:
        raise ValueError(f"{side}: its address is none") from None
    if not good:
        raise ValueError(f"{side}: an address is amqp://USER@HOST:PORT/VHOST or amqps://...")
    if parts.password is not None:
        raise ValueError(
            f"{side}: no password in the address: name a secret, which is a file or a variable of the server"
        )


def shown(end: End) -> str:
    """For people, and what stands for this end where messages say which way they came."""
    if not end.url:
        return "here" + (f"/{end.vhost}" if end.vhost not in ("", "/") else "")
    parts = urlsplit(end.url)
    port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
    return f"{parts.hostname}:{port}" + (parts.path if parts.path not in ("", "/") else "")


def address(end: End, here: str, folder: str, environment: Mapping[str, str] = os.environ) -> str:
    """With its password, to connect to. `here`: HOST:PORT of the own door; `folder`: where secrets are files, or empty. Raises SecretError."""
    password = secret(end.secret, folder, environment) if end.secret else None
    if not end.url:
        user = quote(end.user or "guest", safe="")
        word = quote(password if password is not None else "guest", safe="")
        return f"amqp://{user}:{word}@{here}/{quote(end.vhost or '/', safe='')}"
    parts = urlsplit(end.url)
    if password is None:
        return end.url
    user, _, place = parts.netloc.rpartition("@")
    netloc = f"{user or 'guest'}:{quote(password, safe='')}@{place}"
    return urlunsplit((parts.scheme, netloc, parts.path, parts.query, parts.fragment))


def secret(name: str, folder: str, environment: Mapping[str, str]) -> str:
    """The first line of a file, else a variable. Raises SecretError."""
    if folder:
        try:
            return (Path(folder) / name).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise SecretError(f"secret {name}: file {name} of amqp.bridge_secrets ({why})") from error
    variable = VARIABLE + name.upper().replace("-", "_")
    found = environment.get(variable)
    if found is None:
        where = f"file {name} of amqp.bridge_secrets" if folder else "file (amqp.bridge_secrets names no folder)"
        raise SecretError(f"secret {name}: the server has no {where} and no variable {variable}")
    return found
