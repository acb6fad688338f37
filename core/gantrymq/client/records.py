"""Decodes what a pull, a view or a query answers with: raw stored records, one behind the other.

Knows RocketMQ's record layout V1 and V2 with IPv4 and IPv6 hosts; bodies are inflated when they are read, up to a cap.
Checks the CRC of bodies, and of whole records that have one (`__CRC32#`), where its caller asks for that (a GantryMQ broker looks at what it has
not written itself lately).
"""

from __future__ import annotations

import io
import ipaddress
import logging
import struct
import zlib
from contextlib import suppress
from typing import Any, Final

from gantrymq.model import compression, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError

_log = logging.getLogger(__name__)

#   0  total size        4      40  born timestamp   8
#   4  magic             4      48  born host        8, IPv6: 20
#   8  CRC of the body   4          store timestamp  8
#  12  queue id          4          store host       8, IPv6: 20
#  16  flag              4          reconsume times  4
#  20  queue offset      8          prepared offset  8
#  28  physical offset   8          body length      4, body
#  36  sysFlag           4          topic length     1 (V1) or 2 (V2), topic
#                                   properties length 2, properties
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB

SYS_FLAG_AT: Final = 36
HOST_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
_HOST_FLAGS: Final = sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6


def _head(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">IIIiiqqiq{born}sq{store}siqi")


HEADS: Final = {
    0: _head(HOST_BYTES, HOST_BYTES),
    sysflag.BORN_HOST_V6: _head(HOST_V6_BYTES, HOST_BYTES),
    sysflag.STORE_HOST_V6: _head(HOST_BYTES, HOST_V6_BYTES),
    _HOST_FLAGS: _head(HOST_V6_BYTES, HOST_V6_BYTES),
}
"""Everything before the body, by the two host bits of sysFlag."""

HEAD_BYTES: Final = HEADS[0].size
RECORD_BYTES_MIN: Final = HEAD_BYTES + 1 + 2
"""A record without body, topic and properties."""

INFLATED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Twice the largest body a broker takes (15 MiB): a few KiB of zeros must not become gigabytes here."""

_SIZE: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_INNER_PROPERTIES: Final = (props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET)
"""The store's own, appended behind the sender's properties; no reader of messages sees them."""


def _illegal(text: str) -> GantryError:
    return GantryError(ErrorCode.MESSAGE_ILLEGAL, text)


def inflate(body: bytes, sys_flag: int, limit: int = INFLATED_BYTES_MAX) -> bytes:
    """The body as it was sent. Raises MESSAGE_ILLEGAL for a broken one, MESSAGE_TOO_LARGE above `limit` bytes and
    NOT_SUPPORTED for LZ4 and ZSTD where neither the extra `compression` nor pyarrow is installed (zlib needs nothing)."""
    if not sys_flag & sysflag.COMPRESSED:
        return body
    kind = sys_flag & sysflag.COMPRESSION_MASK
    if kind in (0, sysflag.COMPRESSION_ZLIB):  # old clients set bit 0 alone
        result = _inflate_zlib(body, limit)
    elif kind in (sysflag.COMPRESSION_LZ4, sysflag.COMPRESSION_ZSTD):
        try:
            result = compression.inflate(body, sys_flag, limit)
        except GantryError as error:
            if error.code is not ErrorCode.NOT_SUPPORTED:
                raise
            result = _inflate_arrow(body, "lz4" if kind == sysflag.COMPRESSION_LZ4 else "zstd", limit)
    else:
        raise _illegal(f"compression type {kind >> 8} is unknown")
    if len(result) > limit:
        raise GantryError(ErrorCode.MESSAGE_TOO_LARGE, f"the body inflates to more than {limit} bytes")
    return result


def _inflate_zlib(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        result = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise _illegal(f"the compressed body is broken: {error}") from None
    if not stream.eof and len(result) <= limit:
        raise _illegal("the compressed body is cut short")
    return result


def _inflate_arrow(body: bytes, codec: str, limit: int) -> bytes:
    try:
        import pyarrow
    except ImportError:
        text = f"a body compressed with {codec} needs a package: pip install 'gantrymq[compression]' (or pyarrow)"
        raise GantryError(ErrorCode.NOT_SUPPORTED, text) from None
    try:
        with pyarrow.CompressedInputStream(io.BytesIO(body), codec) as stream:
            result: bytes = stream.read(limit + 1)
    except OSError as error:
        raise _illegal(f"the compressed body is broken: {error}") from None
    return result


def _host(data: bytes) -> str:
    address = ipaddress.ip_address(data[:-4])
    port = int.from_bytes(data[-4:], "big")
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


class ReceivedMessage:
    """A stored message as a consumer sees it; consumers and `Admin` make them.

    Attributes:
        topic (str): Its topic; where a push or simple consumer gets it again, the one that it was sent to.
        broker (str): Name of the broker that it was read from; empty where that is not known.
        queue_id (int): Number of its queue on that broker.
        queue_offset (int): Its number in that queue, from 0.
        physical_offset (int): Its byte in the broker's log.
        properties (bytes): Encoded pairs, the store's own included; `property` and `property_map` read them.
        body_crc (int): CRC-32 of the body as it was stored, its highest bit undefined.
        flag (int): The sender's number; 0 unless it gave one.
        sys_flag (int): RocketMQ's bits: compression, kind of transaction, kinds of addresses.
        born_ms (int): When the sender made it, by the sender's clock.
        store_ms (int): When the broker stored it.
        reconsume_times (int): Attempts before this one that failed; 0 at the first.
        prepared_offset (int): Of a committed transactional message: the half message's byte in the log; else 0.
    """

    __slots__ = (
        "_born_host", "_map", "_raw_body", "_store_host", "body_crc", "born_ms", "broker", "flag", "physical_offset", "prepared_offset",
        "properties", "queue_id", "queue_offset", "reconsume_times", "store_ms", "sys_flag", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, broker: str, properties: bytes, raw_body: bytes, head: tuple[Any, ...]) -> None:
        self.topic = topic
        self.broker = broker
        self.properties = properties
        (
            _, _, self.body_crc, self.queue_id, self.flag, self.queue_offset, self.physical_offset, self.sys_flag, self.born_ms,
            self._born_host, self.store_ms, self._store_host, self.reconsume_times, self.prepared_offset, _,
        ) = head  # fmt: skip
        self._raw_body = raw_body
        self._map: dict[str, str] | None = None

    @property
    def tag(self) -> str:
        """The sender's tag; empty if there is none."""
        return props.find(self.properties, props.TAGS)

    @property
    def body(self) -> bytes:
        """The body as it was sent; inflated at each call if it is stored compressed. Raises MESSAGE_ILLEGAL for a broken one,
        MESSAGE_TOO_LARGE above 32 MiB, and NOT_SUPPORTED where the package for its compression is missing."""
        if self.sys_flag & sysflag.COMPRESSED:
            return inflate(self._raw_body, self.sys_flag)
        return self._raw_body

    @property
    def raw_body(self) -> bytes:
        """The body as it is stored."""
        return self._raw_body

    @property
    def keys(self) -> str:
        """The sender's keys, separated by spaces; empty if there are none."""
        return props.find(self.properties, props.KEYS)

    @property
    def message_id(self) -> str:
        """The client's id (UNIQ_KEY) if there is one, else the offset message id."""
        return props.find(self.properties, props.UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Hexadecimal address, port and physical offset of the record: what `Admin.view` takes."""
        where: bytes = self._store_host + self.physical_offset.to_bytes(8, "big")
        return where.hex().upper()

    @property
    def born_host(self) -> str:
        """`host:port` of the sender."""
        return _host(self._born_host)

    @property
    def store_host(self) -> str:
        """`host:port` of the broker that stored it."""
        return _host(self._store_host)

    def property_map(self) -> dict[str, str]:
        """Name to value, without what the store appended for itself. Do not change it: it is kept."""
        if self._map is None:
            self._map = props.decode(self.properties)
            for name in _INNER_PROPERTIES:
                self._map.pop(name, None)
        return self._map

    def property(self, name: str) -> str:
        """Value of one property or an empty string."""
        return props.find(self.properties, name)

    def __repr__(self) -> str:
        place = f"{self.topic}/{self.broker}/{self.queue_id}@{self.queue_offset}"
        return f"ReceivedMessage({place}, tag={self.tag!r}, {len(self._raw_body)} bytes)"


def decode_records(data: bytes, broker: str = "", check_crc: bool = False) -> list[ReceivedMessage]:
    """All records in `data`. Raises MESSAGE_ILLEGAL, naming the byte, for anything that is not whole records, and with `check_crc` for a body
    that is not the one that was stored."""
    result = []
    position = 0
    end = len(data)
    while position < end:
        if end - position < RECORD_BYTES_MIN:
            raise _illegal(f"byte {position}: {end - position} bytes are no record")
        size = _SIZE.unpack_from(data, position)[0]
        if size < RECORD_BYTES_MIN or size > end - position:
            raise _illegal(f"byte {position}: a record of {size} bytes, {end - position} bytes are there")
        result.append(_decode_one(data, position, position + size, broker, check_crc))
        position += size
    return result


def readable_records(data: bytes, broker: str, where: str, check_crc: bool = False) -> list[ReceivedMessage]:
    """Records in `data` that can be read. One that cannot is left out, with a line of the log that names `where` it came from and its queue
    offset; behind one that does not even say how long it is nothing is read (the Java client does the same: MessageDecoder.decodesBatch)."""
    with suppress(GantryError):  # then one after the other, to find out which
        return decode_records(data, broker, check_crc)
    result: list[ReceivedMessage] = []
    position, end = 0, len(data)
    while position < end:
        size = _SIZE.unpack_from(data, position)[0] if end - position >= RECORD_BYTES_MIN else 0
        if not RECORD_BYTES_MIN <= size <= end - position:
            _log.error("%s: byte %d of an answer is no record; %d bytes are left out", where, position, end - position)
            break
        try:
            result.append(_decode_one(data, position, position + size, broker, check_crc))
        except GantryError as error:
            queue_offset = HEADS[0].unpack_from(data, position)[5]
            _log.error(
                "%s: the record at queue offset %d cannot be read and is left out: %s", where, queue_offset, error
            )
        position += size
    return result


def crc_is_wrong(crc: int, body: bytes) -> bool:
    """Whether a stored body is another than the one that the record's CRC was made of."""
    return (crc ^ zlib.crc32(body)) & 0x7FFFFFFF != 0


def _decode_one(data: bytes, start: int, end: int, broker: str, check_crc: bool) -> ReceivedMessage:
    layout = HEADS[data[start + SYS_FLAG_AT + 3] & _HOST_FLAGS]
    if start + layout.size > end:
        raise _illegal(f"byte {start}: the record ends inside its head")
    head = layout.unpack_from(data, start)
    magic = head[1]
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise _illegal(f"byte {start}: magic {magic:#010x} is not a record's")
    body_at = start + layout.size
    topic_at = body_at + head[-1]
    if head[-1] < 0 or topic_at + 3 > end:
        raise _illegal(f"byte {start}: a body of {head[-1]} bytes leaves the record")
    if magic == MAGIC_V1:
        topic_size = data[topic_at]
        topic_at += 1
    else:
        topic_size = _SHORT.unpack_from(data, topic_at)[0]
        topic_at += 2
    properties_at = topic_at + topic_size + 2
    if properties_at > end:
        raise _illegal(f"byte {start}: a topic of {topic_size} bytes leaves the record")
    properties_end = properties_at + _SHORT.unpack_from(data, properties_at - 2)[0]
    if properties_end > end:
        raise _illegal(f"byte {start}: properties leave the record")
    topic = data[topic_at : topic_at + topic_size].decode("utf-8", "replace")
    body = data[body_at : body_at + head[-1]]
    if check_crc and crc_is_wrong(head[2], body):
        raise _illegal(f"byte {start}: the CRC of the body is wrong")
    if data[properties_end - props.OWN_CRC_SIZE : properties_end - 11] == props.OWN_CRC_MARK:
        if check_crc and not props.own_crc_is_right(data[start:end]):
            raise _illegal(f"byte {start}: the CRC of the record is wrong")
        properties_end -= props.OWN_CRC_SIZE
    return ReceivedMessage(topic, broker, data[properties_at:properties_end], body, head)
