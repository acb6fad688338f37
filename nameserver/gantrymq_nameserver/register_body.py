"""Body of REGISTER_BROKER: JSON, or the compressed form that brokers with many topics send.

    zlib( int32 n, n bytes DataVersion as JSON
        | int32 count, count times: int32 n, n bytes topic config as text
        | int32 n, n bytes filter servers as JSON | queue mappings, not read )

A topic config as text: name, read queues, write queues, perm, filter type and (since 5.0) attributes as JSON,
with a space between.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from gantrymq.remoting.headers import RegisterBrokerHeader
from gantrymq.remoting.json_bodies import (
    BodyError,
    DataVersion,
    RegisterBody,
    TopicConfigBody,
    TopicConfigTable,
    decode,
)

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a compressed body may grow to: 200,000 topics of 300 bytes."""


def read(header: RegisterBrokerHeader, body: bytes) -> TopicConfigTable:
    """The broker's topics; raises `BodyError`."""
    if header.body_crc32 and zlib.crc32(body) != header.body_crc32 & 0xFFFFFFFF:
        raise BodyError("crc32 of the body does not match the header's bodyCrc32: the request was damaged")
    if not body:
        return TopicConfigTable({}, DataVersion())
    if header.compressed:
        return _read_compressed(body)
    return decode(body, RegisterBody).topic_config_serialize_wrapper


class _Gone(msgspec.Struct, rename="camel"):
    gantry_gone: list[str] = []


def gone_topics(body: bytes) -> list[str]:
    """Topics deleted since the version that a body of changes follows."""
    return decode(body, _Gone).gantry_gone


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BodyError(f"body is not a zlib stream: {error}") from None
    if inflater.unconsumed_tail:
        raise BodyError(f"body inflates to more than {INFLATED_BYTES_MAX} bytes")
    if not inflater.eof:
        raise BodyError("body is a cut zlib stream")
    return data


class _Parts:
    """Length-prefixed parts of the inflated body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        end = self._at + 4
        if end > len(self._data):
            raise BodyError(f"inflated body ends at byte {len(self._data)} inside a number")
        value = int.from_bytes(self._data[self._at : end], "big", signed=True)
        self._at = end
        return value

    def part(self) -> bytes:
        size = self.number()
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise BodyError(f"inflated body: a part of {size} bytes at byte {self._at} of {len(self._data)}")
        data = self._data[self._at : end]
        self._at = end
        return data


def _read_compressed(body: bytes) -> TopicConfigTable:
    parts = _Parts(_inflate(body))
    version = decode(parts.part(), DataVersion)
    table = {}
    for _ in range(parts.number()):
        config = _topic_config(parts.part())
        table[config.topic_name] = config
    return TopicConfigTable(table, version)


def _topic_config(data: bytes) -> TopicConfigBody:
    try:
        words = data.decode().split(" ", 5)
        config = TopicConfigBody(words[0], int(words[1]), int(words[2]), int(words[3]), words[4])
    except (UnicodeDecodeError, ValueError, IndexError):
        raise BodyError(f"inflated body: bad topic config {data[:80]!r}") from None
    if len(words) == 6:
        config.attributes = decode(words[5].encode(), dict)
    return config
