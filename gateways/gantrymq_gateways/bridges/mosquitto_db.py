"""Mosquitto's persistence file (mosquitto.db, versions 5 and 6: Mosquitto 1.6 to 2.1) -> sessions, queued and retained messages.

    file:   magic[15]  crc u32 (always 0)  version u32  chunk...         chunk: kind u32  length u32  body[length]
    body:   a C structure as Mosquitto's compiler laid it out, then its strings, payload and properties; a structure with strings
            alone may have padding in front of them, so its size is what the strings leave of the length.

Integers of 16 and 32 bits are big-endian, those of 64 bits the machine's own: files of big-endian machines are not read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.properties import Properties, decode_properties
from gantrymq_gateways.mqtt.wire.text import MalformedPacket

MAGIC: Final = b"\x00\xb5\x00mosquitto db"
VERSIONS: Final = (5, 6)
CONFIG, MESSAGE, QUEUED, RETAINED, SUBSCRIPTION, CLIENT = 1, 2, 3, 4, 5, 6
"""Kinds of chunks."""

_CHUNK: Final = struct.Struct(">II")
_MESSAGE: Final = struct.Struct("=8s8s4s2s2s2s2s2sBB")
"""Id, expiry (s since 1970, 0: none), payload, source's packet id, source's id, its user, topic, source's port, QoS, retain."""
_QUEUED: Final = struct.Struct("=8s2s2sBBBB")
"""Message, packet id, client id, QoS, state, retain and dup, direction."""
_SUBSCRIPTION: Final = struct.Struct("=4s2s2sBB")
"""Subscription identifier, client id, topic, QoS, options."""
_CLIENT: Final = struct.Struct("=8s4s2s2s")
"""Expiry (s since 1970, 0: it was connected), expiry interval in s, last packet id, client id."""
_CLIENT_6: Final = struct.Struct("=2s2s")
"""More of it from version 6 on: listener's port, user name."""
_CONFIG: Final = struct.Struct("=8sBB")
"""Last id, clean shutdown, bytes of an id."""

OUTBOUND: Final = 1
"""Direction of what goes to the client."""
RECEIVED_BY_CLIENT: Final = (6, 9)
"""States of a QoS 2 message whose PUBREC came: PUBREL is to be sent, or was."""
UNRELEASED: Final = 7
"""State of a client's own QoS 2 message: PUBREC was sent, PUBREL has not come."""


class MosquittoFileError(Exception):
    """Why a file cannot be read, for people."""


@dataclass(slots=True)
class StoredMessage:
    """One message. `expires_s`: seconds since 1970; 0: never."""

    topic: bytes
    payload: bytes
    qos: int
    expires_s: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class StoredClient:
    """One session. `until_s`: when it ends, in seconds since 1970; 0: `expiry_s` after its connection."""

    expiry_s: int
    until_s: int = 0
    user: str = ""
    filters: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By filter: QoS and options as in a SUBSCRIBE of 5.0, subscription identifier (0: none)."""
    queue: list[int] = field(default_factory=list)
    """Messages that it has not got."""


@dataclass(slots=True)
class Database:
    """What a file has."""

    messages: dict[int, StoredMessage] = field(default_factory=dict)
    clients: dict[str, StoredClient] = field(default_factory=dict)
    retained: list[int] = field(default_factory=list)
    unreleased: list[int] = field(default_factory=list)
    """QoS 2 messages that Mosquitto took (PUBREC) and had not passed on: nobody sends them again."""


def read_database(data: bytes) -> Database:
    """Everything in a file. Raises MosquittoFileError."""
    if data[: len(MAGIC)] != MAGIC:
        raise MosquittoFileError("this is no persistence file of Mosquitto: it does not begin as one")
    start = len(MAGIC) + _CHUNK.size
    if len(data) < start:
        raise MosquittoFileError("the file ends in its head")
    version = int.from_bytes(data[start - 4 : start], "big")
    if version not in VERSIONS:
        raise MosquittoFileError(
            f"the file has version {version}, and 5 and 6 are read (Mosquitto 1.6 to 2.1): let a newer Mosquitto write it once"
        )
    reader = _Reader(version)
    while start < len(data):
        body = start + _CHUNK.size
        if body > len(data):
            raise MosquittoFileError(f"the file ends in the head of the chunk at byte {start}")
        kind, length = _CHUNK.unpack_from(data, start)
        if body + length > len(data):
            raise MosquittoFileError(f"the file ends in the chunk at byte {start}: it was not written whole")
        try:
            reader.chunk(kind, data[body : body + length])
        except (ValueError, struct.error, MalformedPacket) as error:
            raise MosquittoFileError(f"the chunk at byte {start} (kind {kind}): {error}") from error
        start = body + length
    return reader.found


def _big(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _own(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _strings(body: bytes, *sizes: int) -> list[bytes]:
    """The last fields of a chunk."""
    at = len(body) - sum(sizes)
    found = []
    for size in sizes:
        found.append(_cut(body, at, size))
        at += size
    return found


def _cut(body: bytes, at: int, size: int) -> bytes:
    if at < 0 or at + size > len(body):
        raise ValueError("a field is longer than its chunk")
    return body[at : at + size]


class _Reader:
    """Chunks in the order of the file: messages, each client and what is queued for it, subscriptions, retained messages."""

    def __init__(self, version: int) -> None:
        self.found = Database()
        self._version = version

    def chunk(self, kind: int, body: bytes) -> None:
        """One of them. Raises ValueError, struct.error, MalformedPacket."""
        if kind == MESSAGE:
            self._message(body)
        elif kind == QUEUED:
            self._queued(body)
        elif kind == RETAINED:
            self.found.retained.append(_own(_cut(body, 0, 8)))
        elif kind == SUBSCRIPTION:
            self._subscription(body)
        elif kind == CLIENT:
            self._client(body)
        elif kind == CONFIG:
            size = _CONFIG.unpack_from(body)[2]
            if size != 8:
                raise ValueError(f"ids of {size} bytes are not read")
        else:
            raise ValueError("there is no such kind")

    def _message(self, body: bytes) -> None:
        number, expires, payload, _, source, user, topic, _, qos, _ = _MESSAGE.unpack_from(body)
        at = _MESSAGE.size + _big(source) + _big(user)
        name = _cut(body, at, _big(topic))
        at += _big(topic)
        content = _cut(body, at, _big(payload))
        at += _big(payload)
        properties: Properties = {}
        if at < len(body):
            properties, _ = decode_properties(body, at, len(body), c.PUBLISH)
        self.found.messages[_own(number)] = StoredMessage(name, content, qos & 3, _own(expires), properties)

    def _queued(self, body: bytes) -> None:
        number, _, size, _, state, _, direction = _QUEUED.unpack_from(body)
        client_id = _cut(body, _QUEUED.size, _big(size)).decode()
        if direction == OUTBOUND:
            if state not in RECEIVED_BY_CLIENT and client_id in self.found.clients:
                self.found.clients[client_id].queue.append(_own(number))
        elif state == UNRELEASED:
            self.found.unreleased.append(_own(number))

    def _subscription(self, body: bytes) -> None:
        identifier, size, topic, qos, options = _SUBSCRIPTION.unpack_from(body)
        client_id, text = (raw.decode() for raw in _strings(body, _big(size), _big(topic)))
        if client_id in self.found.clients:
            wanted = qos & c.OPTION_QOS | options & (c.OPTION_NO_LOCAL | c.OPTION_RETAIN_AS_PUBLISHED)
            self.found.clients[client_id].filters[text] = (wanted, _big(identifier))

    def _client(self, body: bytes) -> None:
        until, interval, _, size = _CLIENT.unpack_from(body)
        user_bytes = 0
        if self._version > VERSIONS[0]:
            user_bytes = _big(_CLIENT_6.unpack_from(body, _CLIENT.size)[1])
        client_id, user = (raw.decode() for raw in _strings(body, _big(size), user_bytes))
        self.found.clients[client_id] = StoredClient(_big(interval), max(0, _own(until)), user)
