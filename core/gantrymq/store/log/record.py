"""One record of the CommitLog: the only place that knows its layout (docs/formats/commitlog.md).

All integers big-endian. V1; V2 differs in the topic length only (2 bytes) and is written for topics over 127 bytes:

      0  size 4 | magic 4 | body CRC 4 | queue id 4 | flag 4
     20  queue offset 8 | physical offset 8
     36  sysFlag 4 | born ms 8 | born host 8 (IPv6: 20)
     56  store ms 8 | store host 8 (IPv6: 20)
     72  reconsume times 4 | prepared offset 8 | body length 4
     88  body | topic length 1 | topic | properties length 2 | properties

Behind the sender's properties stand the dispatch pairs of this store (`Message.dispatch`): the light queues that the
record entered, with the offsets it took there. With `store.properties_crc` the last property is `__CRC32#`, the CRC of everything before it in
the record, as RocketMQ's `enabledAppendPropCRC` writes it; it is no part of a `Message`, and looked at wherever the body's is.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Final
from zlib import crc32

from gantrymq.model import sysflag
from gantrymq.model.limits import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from gantrymq.model.message import Message
from gantrymq.model.properties import OWN_CRC_MARK, OWN_CRC_SIZE, has_own_crc, own_crc_is_right

if TYPE_CHECKING:
    import mmap

    Readable = bytes | memoryview | mmap.mmap

MAGIC_V1: Final = -0x255CDF59  # 0xDAA320A7
MAGIC_V2: Final = -0x255CDF55  # 0xDAA320AB
MAGIC_BLANK: Final = -0x342BCE6C  # 0xCBD43194
MAGIC_BYTES_V1: Final = b"\xda\xa3\x20\xa7"
MAGIC_BYTES_V2: Final = b"\xda\xa3\x20\xab"

_BEFORE_HOSTS: Final = ">iiIiiqqiq"
HEAD: Final = Struct(f"{_BEFORE_HOSTS}8sq8siqi")
_HEADS: Final = {
    (8, 8): HEAD,
    (20, 8): Struct(f"{_BEFORE_HOSTS}20sq8siqi"),
    (8, 20): Struct(f"{_BEFORE_HOSTS}8sq20siqi"),
    (20, 20): Struct(f"{_BEFORE_HOSTS}20sq20siqi"),
}
PREFIX: Final = Struct(">ii")
"""Size and magic: all there is of a blank record."""
SHORT: Final = Struct(">h")
LONG: Final = Struct(">q")
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
STORE_MS_AT: Final = 56
"""With an IPv4 born host; 12 later with an IPv6 one."""
BLANK_SIZE: Final = PREFIX.size
"""A record needs this much behind it in its segment (RocketMQ: END_FILE_MIN_BLANK_LENGTH)."""
RECORD_SIZE_MIN: Final = HEAD.size + 1 + SHORT.size
OVERHEAD_MAX: Final = HEAD.size + 2 * 12 + 2 + SHORT.size
"""Bytes of a record beside body, properties and topic, with IPv6 hosts."""
CRC_MASK: Final = 0x7FFFFFFF

DISPATCH_MARK: Final = b"INNER_MULTI_DISPATCH\x01"
OFFSETS_MARK: Final = b"INNER_MULTI_QUEUE_OFFSET\x01"
MORE_MARK: Final = b"GANTRY_DISPATCH_MORE\x01"
"""Number of light queue entries that stand in continuation records behind this record."""
_DISPATCH_NAMES: Final = (DISPATCH_MARK, OFFSETS_MARK, MORE_MARK)
DISPATCH_RESERVE: Final = 64
"""Bytes of the properties kept free for MORE_MARK with its number, so that any record can enter any number of queues."""
PAIRS_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - OWN_CRC_SIZE - 1
"""What sender's properties and dispatch pairs leave free for it, with a separator."""
SENDER_PROPERTIES_MAX: Final = PROPERTIES_BYTES_MAX - DISPATCH_RESERVE
_TAGS: Final = b"TAGS\x01"


class RecordError(ValueError):
    """The bytes at a position are not a record; the text says why."""


def heads(sys_flag: int) -> Struct:
    """The head's layout for the host widths in `sys_flag`."""
    if not sys_flag & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6):
        return HEAD
    return _HEADS[20 if sys_flag & sysflag.BORN_HOST_V6 else 8, 20 if sys_flag & sysflag.STORE_HOST_V6 else 8]


def record_size(message: Message) -> int:
    """Bytes of the whole record with the `dispatch` that it has now."""
    topic = len(message.topic)
    return (
        heads(message.sys_flag).size + len(message.body) + (1 if topic <= TOPIC_BYTES_MAX else 2) + topic + SHORT.size
        + len(message.properties) + len(message.dispatch)
    )  # fmt: skip


def encode(message: Message) -> bytes:
    """The record of a message whose store fields are set. The store's append builds the same bytes in one pass."""
    body, properties = message.body, message.properties + message.dispatch
    topic = message.topic.encode()
    long = len(topic) > TOPIC_BYTES_MAX
    head = heads(message.sys_flag).pack(
        record_size(message), MAGIC_V2 if long else MAGIC_V1, crc32(body) & CRC_MASK, message.queue_id, message.flag, message.queue_offset,
        message.physical_offset, message.sys_flag, message.born_ms, message.born_host, message.store_ms,
        message.store_host, message.reconsume_times, message.prepared_offset, len(body),
    )  # fmt: skip
    return b"".join(
        (head, body, len(topic).to_bytes(2 if long else 1, "big"), topic, SHORT.pack(len(properties)), properties)
    )


def fits(message: Message) -> bool:
    """Whether every field has a place in a record."""
    try:
        encode(message)
    except (error, TypeError, ValueError, OverflowError, AttributeError):
        return False
    return type(message.tag) is str and all(type(key) is str for key in message.keys)


def blank(size: int) -> bytes:
    """The first bytes of a blank record that fills the rest of a segment."""
    return PREFIX.pack(size, MAGIC_BLANK)


def decode(buffer: Readable, at: int = 0, *, check_crc: bool = True) -> Message:
    """The message whose record begins at `at`; raises RecordError. `keys` stays empty."""
    try:
        size, magic = PREFIX.unpack_from(buffer, at)
        (flags,) = _INT.unpack_from(buffer, at + SYS_FLAG_AT)
        head = heads(flags)
        (
            size, magic, crc, queue_id, flag, queue_offset, physical_offset, flags, born_ms, born_host, store_ms,
            store_host, reconsume_times, prepared_offset, body_length,
        ) = head.unpack_from(buffer, at)  # fmt: skip
    except Exception as error:
        raise RecordError("cut off inside the head") from error
    end = at + size
    body_at = at + head.size
    topic_at = body_at + body_length
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordError(f"magic {magic & 0xFFFFFFFF:#010x}")
    if size < RECORD_SIZE_MIN or body_length < 0 or topic_at + 3 > end or end > len(buffer):
        raise RecordError(f"size {size} with a body of {body_length}")
    body = bytes(buffer[body_at:topic_at])
    if magic == MAGIC_V1:
        topic_length = buffer[topic_at]
        topic_at += 1
    else:
        topic_length = int.from_bytes(buffer[topic_at : topic_at + 2], "big")
        topic_at += 2
    properties_at = topic_at + topic_length + 2
    if properties_at > end:
        raise RecordError(f"topic of {topic_length} bytes runs over the end")
    properties_length = int.from_bytes(buffer[properties_at - 2 : properties_at], "big")
    if properties_at + properties_length != end:
        raise RecordError(f"properties of {properties_length} bytes do not end the record")
    if check_crc and crc != crc32(body) & CRC_MASK:
        raise RecordError("CRC of the body")
    try:
        topic = str(buffer[topic_at : properties_at - 2], "utf-8")
    except UnicodeDecodeError as undecodable:
        raise RecordError("topic is not UTF-8") from undecodable
    properties = bytes(buffer[properties_at:end])
    if has_own_crc(properties):
        if check_crc and not own_crc_is_right(buffer[at:end]):
            raise RecordError(OWN_CRC_WRONG)
        properties = properties[:-OWN_CRC_SIZE]
    message = Message(topic, body, properties, "", (), queue_id, born_ms)
    if b"INNER_MULTI_" in properties or MORE_MARK in properties:
        message.properties, message.dispatch = split_dispatch(properties)
    message.tag = tag_of(properties)
    message.born_host = born_host
    message.flag = flag
    message.sys_flag = flags
    message.reconsume_times = reconsume_times
    message.prepared_offset = prepared_offset
    message.queue_offset = queue_offset
    message.physical_offset = physical_offset
    message.size = size
    message.store_ms = store_ms
    message.store_host = store_host
    return message


OWN_CRC_WRONG: Final = "CRC of the record"
PREPARED: Final = "it is marked as a message that stands in no queue (prepared or rolled back)"
ZEROS_FOUND: Final = "zeros in its properties"
TIME_BITS: Final = 43
"""A store time of more bits is of no year before 2248."""
FLAG_BITS: Final = 16
"""RocketMQ's sysFlag has eleven so far."""
_ODD_FLAGS: Final = -1 << FLAG_BITS | sysflag.TRANSACTION_PREPARED | sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
_ZEROS: Final = bytes(4)
"""Of one property no sender makes four; of a sector that was lost, or overwritten with nothing, they are what is read."""
_INT: Final = Struct(">i")
_BEGIN: Final = Struct(">iii")
_CHECK: Final = Struct(">iiii4xqqi12xH2xI8xH2x4xH6xi")
"""Of hosts the upper half of the port, of the store time the upper half, of the prepared offset the upper two bytes."""
_PLACE: Final = Struct(">i4xqq")
"""From byte 12 on."""


def fault(data: bytes, size: int) -> str:
    """What is wrong with `data`, which ought to be one whole record of `size` bytes; empty: nothing. A third of what `decode` takes."""
    if size < RECORD_SIZE_MIN or len(data) != size:
        return f"{len(data)} bytes of a record of {size}"
    found, magic, crc = _BEGIN.unpack_from(data)
    if found != size:
        return f"its size field is {found} instead of {size}"
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return f"magic {magic & 0xFFFFFFFF:#010x}"
    body_at = HEAD.size if not data[SYS_FLAG_AT + 3] & 0x30 else heads(data[SYS_FLAG_AT + 3]).size
    body_length = int.from_bytes(data[body_at - 4 : body_at], "big")
    topic_at = body_at + body_length
    if topic_at + 3 > size:
        return f"a body of {body_length} bytes runs over its end"
    if magic == MAGIC_V1:
        properties_at = topic_at + 3 + data[topic_at]
    else:
        properties_at = topic_at + 4 + int.from_bytes(data[topic_at : topic_at + 2], "big")
    if properties_at + int.from_bytes(data[properties_at - 2 : properties_at], "big") != size:
        return "topic and properties do not end it"
    try:
        data[topic_at + (1 if magic == MAGIC_V1 else 2) : properties_at - 2].decode()
    except UnicodeDecodeError:
        return "topic is not UTF-8"
    if crc != crc32(data[body_at:topic_at]) & CRC_MASK:
        return "CRC of the body"
    if has_own_crc(data):
        return "" if own_crc_is_right(data) else OWN_CRC_WRONG
    if data.find(_ZEROS, properties_at) >= 0:
        return ZEROS_FOUND
    head = heads(data[SYS_FLAG_AT + 3]).unpack_from(data)
    return contradiction(head[7], head[9], head[10], head[11], head[13])


def contradiction(sys_flag: int, born_host: bytes, store_ms: int, store_host: bytes, prepared_offset: int) -> str:
    """What no broker writes into a head; empty: nothing. Only some of the bits can be told for wrong: a record's own CRC tells all."""
    if sys_flag >> FLAG_BITS:
        return f"sysFlag {sys_flag & 0xFFFFFFFF:#x}"
    if store_ms >> TIME_BITS:
        return f"store time {store_ms}"
    if born_host[-4:-2] != b"\0\0" or store_host[-4:-2] != b"\0\0":
        return "a host's port is above 65535"
    return f"prepared offset {prepared_offset}" if prepared_offset >> 48 else ""


def oddness(message: Message) -> str:
    """What `fault` says of the head and the properties of a record that has no CRC of its own, once it is decoded."""
    if message.properties.find(_ZEROS) >= 0 or message.dispatch.find(_ZEROS) >= 0:
        return ZEROS_FOUND
    return contradiction(
        message.sys_flag, message.born_host, message.store_ms, message.store_host, message.prepared_offset
    )


def is_at(data: bytes, size: int, position: int, topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether `data` is a whole record (`fault` says nothing) and the one of these places; in one look of 0.7 us. False may also mean that one of
    its hosts is an IPv6 one, its topic long, or its head odd: then `fault` and `place_of` tell."""
    if len(data) != size or size < RECORD_SIZE_MIN:
        return False
    (
        found, magic, crc, its_queue, its_offset, its_position, flags, born_port, store_time, store_port, prepared, body_length,
    ) = _CHECK.unpack_from(data)  # fmt: skip
    if found != size or magic != MAGIC_V1 or flags & _ODD_FLAGS or born_port or store_port or prepared:
        return False
    if store_time >> (TIME_BITS - 32):
        return False
    if its_position != position or its_offset != queue_offset or its_queue != queue_id:
        return False
    topic_at = HEAD.size + body_length
    end = topic_at + 1 + len(topic)
    if (
        body_length < 0
        or end + 2 > size
        or data[topic_at] != len(topic)
        or data[topic_at + 1 : end] != topic
        or end + 2 + int.from_bytes(data[end : end + 2], "big") != size
    ):
        return False
    if data[-OWN_CRC_SIZE:-11] == OWN_CRC_MARK:  # the body is in it
        return own_crc_is_right(data)
    return bool(crc == crc32(data[HEAD.size : topic_at]) & CRC_MASK) and data.find(_ZEROS, end + 2) < 0


def place_of(data: bytes) -> tuple[str, int, int, int]:
    """Topic, queue id, queue offset and physical offset that a whole record says it has."""
    queue_id, queue_offset, position = _PLACE.unpack_from(data, 12)
    topic_at = HEAD.size if not data[SYS_FLAG_AT + 3] & 0x30 else heads(data[SYS_FLAG_AT + 3]).size
    topic_at += int.from_bytes(data[topic_at - 4 : topic_at], "big")
    wide = data[7] != MAGIC_BYTES_V1[3]
    begin = topic_at + 1 + wide
    length = int.from_bytes(data[topic_at:begin], "big")
    return str(data[begin : begin + length], "utf-8", "replace"), queue_id, queue_offset, position


def properties_of(buffer: bytes, at: int, end: int) -> bytes:
    """Properties of the record in `buffer[at:end]`, dispatch pairs included, its own CRC not; nothing else of it is looked at or checked."""
    if buffer[end - OWN_CRC_SIZE : end - 11] == OWN_CRC_MARK:
        end -= OWN_CRC_SIZE
    flags = buffer[at + SYS_FLAG_AT + 3]
    topic_at = at + HEAD.size if not flags & 0x30 else at + heads(flags).size
    topic_at += int.from_bytes(buffer[topic_at - 4 : topic_at], "big")
    if buffer[at + 7] == MAGIC_BYTES_V1[3]:
        return buffer[topic_at + 3 + buffer[topic_at] : end]
    return buffer[topic_at + 4 + int.from_bytes(buffer[topic_at : topic_at + 2], "big") : end]


def tag_of(properties: bytes) -> str:
    """Value of TAGS, or an empty string."""
    at = properties.rfind(_TAGS)
    while at > 0 and properties[at - 1] != 2:
        at = properties.rfind(_TAGS, 0, at)
    if at < 0:
        return ""
    end = properties.find(b"\x02", at)
    return str(properties[at + 5 : end if end >= 0 else len(properties)], "utf-8", "replace")


def split_dispatch(properties: bytes) -> tuple[bytes, bytes]:
    """(the sender's pairs, the dispatch pairs); a real broker may have put them in any place."""
    own: list[bytes] = []
    dispatch: list[bytes] = []
    for pair in properties.split(b"\x02"):
        if pair:
            (dispatch if pair.startswith(_DISPATCH_NAMES) else own).append(pair)
    tail = b"\x02" if own and (dispatch or properties.endswith(b"\x02")) else b""
    return b"\x02".join(own) + tail, b"\x02".join(dispatch) + (b"\x02" if dispatch else b"")


def dispatch_of(dispatch: bytes) -> tuple[list[tuple[str, int]], int]:
    """Queue names with offsets from the dispatch pairs, and the number of entries in continuation records."""
    names: list[str] = []
    offsets: list[int] = []
    more = 0
    try:
        for pair in dispatch.split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if pair.startswith(DISPATCH_MARK):
                names = value.decode("utf-8", "replace").split(",")
            elif pair.startswith(OFFSETS_MARK):
                offsets = [int(text) for text in value.split(b",")]
            elif name + b"\x01" == MORE_MARK:
                more = int(value)
    except ValueError:
        return [], 0
    return list(zip(names, offsets, strict=False)), more


def is_entry(pairs: bytes, name: str, offset: int) -> bool:
    """Whether a record with these pairs (dispatch pairs among them) is entry `offset` of the light queue `name`, as far as it says: what stands in
    continuation records behind it is not looked at."""
    named, more = dispatch_of(pairs)
    places = [place for its, place in named if its == name]
    return offset in places if places else more > 0
