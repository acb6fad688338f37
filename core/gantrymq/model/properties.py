"""Names of message properties and their text form: name \\x01 value \\x02, repeated.

Pairs with an empty name or value do not exist in this form (RocketMQ drops them when parsing).
Of a repeated name the last one counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

NAME_END: Final[bytes] = b"\x01"
PAIR_END: Final[bytes] = b"\x02"

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
UNIQ_KEY: Final = "UNIQ_KEY"
SHARDING_KEY: Final = "__SHARDINGKEY"
CLUSTER: Final = "CLUSTER"
PRODUCER_GROUP: Final = "PGROUP"
TRAN_MSG: Final = "TRAN_MSG"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

# Shared properties: one meaning at every door (docs/mapping).
CONTENT_TYPE: Final = "GANTRY_CONTENT_TYPE"
CORRELATION_ID: Final = "GANTRY_CORRELATION_ID"
REPLY_TO: Final = "GANTRY_REPLY_TO"
MESSAGE_ID: Final = "GANTRY_MESSAGE_ID"
PRIORITY: Final = "GANTRY_PRIORITY"
EXPIRES_AT: Final = "GANTRY_EXPIRES_AT"
"""Absolute expiry, milliseconds since the epoch."""
QOS: Final = "GANTRY_QOS"
"""0, 1 or 2; absent counts as 1."""
RETAIN: Final = "GANTRY_RETAIN"
RETAIN_IT: Final = "GANTRY_MQTT_RETAIN"
"""`1`: a sender that is no MQTT client asks to have the message retained. It is in no record: there `RETAIN` is."""
ROW: Final = "GANTRY_ROW"
"""The row of a table that a message is (model/tables/message_rows.py)."""
FORWARD: Final = "GANTRY_FORWARD"
"""Which light queues of other broker groups want a record (broker/forward/marks.py)."""
ORIGIN: Final = "GANTRY_ORIGIN"
BRIDGE: Final = "GANTRY_MQTT_BRIDGE"
"""Client id of the MQTT bridge that a message came in by: it does not go back there."""
"""Door of origin: `mqtt`, `amqp`, `cloudevents`; absent for native messages."""
EXCHANGE: Final = "GANTRY_EXCHANGE"
ORIGIN_KEYS: Final = "GANTRY_EXCHANGE_KEYS"
"""Further routing keys of a message of an exchange: `=` and a tag each, spaces between them."""
"""AMQP exchange that the record was published to, as `vhost NUL`-free text; only on records of the AMQP door. The default exchange is `(default)`."""
AMQP_HEADER: Final = "GANTRY_AMQP_HEADER"
"""Base64 of the exact AMQP content-header property list: records of earlier versions."""
AMQP_REST: Final = "GANTRY_AMQP_REST"
"""What other properties cannot tell of an AMQP property list: form and values in base64 (docs/mapping/amqp.md)."""
CE_PREFIX: Final = "CE_"
"""CloudEvents attributes: `CE_id`, `CE_source`, `CE_type`, ...; data content type in `CE_datacontenttype`."""

SYSTEM_NAMES: Final = frozenset(
    {
        KEYS, TAGS, WAIT, DELAY, UNIQ_KEY, SHARDING_KEY, CLUSTER, PRODUCER_GROUP, TRAN_MSG, REAL_TOPIC, REAL_QUEUE_ID,
        RETRY_TOPIC, ORIGIN_MESSAGE_ID, MULTI_DISPATCH, MULTI_QUEUE_OFFSET, "RETRY_TIMES", "MAX_RECONSUME_TIMES",
        "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "TRACE_CONTEXT", "CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
        "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "POP_CK", "1ST_POP_TIME",
        "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE", "INNER_NUM",
        "INNER_BASE", "DUP_INFO", "__CRC32#", "__BORNHOST", "BORN_TIMESTAMP", "__transactionId__", "BUYER_ID", "TRANSFER_FLAG",
        "CORRECTION_FLAG", "MQ2_FLAG", "EXTEND_UNIQ_INFO", "REAL_TAGS", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "CONSUME_QUEUE_ID",
        "_SYS_MSG_PRIORITY_",
    }
)  # fmt: skip
"""Names with a meaning in the store or in RocketMQ: a foreign header of such a name is stored escaped."""

FOREIGN_ESCAPE: Final = "GANTRY_H_"
"""Prefix under which a foreign header is stored whose own name is taken or cannot stand as a native name."""


def encode(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """The text form of `pairs`; empty names and values are left out.

    The caller has made sure that neither contains U+0001 or U+0002 (`foreign_pair` does).
    """
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return "".join([f"{name}\x01{value}\x02" for name, value in items if name and value]).encode(
        "utf-8", "surrogatepass"
    )


def decode(data: bytes) -> dict[str, str]:
    """Name to value; malformed pairs are skipped as RocketMQ's decoder does, of a repeated name the last counts."""
    result = {}
    for pair in data.decode("utf-8", "replace").split("\x02"):
        name, mark, value = pair.partition("\x01")
        if mark and name and value:
            result[name] = value
    return result


def find(data: bytes, name: str) -> str:
    """Value of `name`, or an empty string; the last occurrence counts."""
    key = name.encode() + b"\x01"
    start = data.rfind(b"\x02" + key)
    if start >= 0:
        start += 1 + len(key)
    elif data.startswith(key):
        start = len(key)
    else:
        return ""
    end = data.find(b"\x02", start)
    return data[start : end if end >= 0 else len(data)].decode("utf-8", "replace")


def origin_of(data: bytes) -> str | None:
    """`Message.exchange` of a message with these properties."""
    exchange = find(data, EXCHANGE)
    keys = find(data, ORIGIN_KEYS)
    return (f"{exchange}\x01{keys}" if keys else exchange) or None


_KEY: Final = b"KEY"
"""In both names of the properties that the index's keys are made of."""


def index_keys(data: bytes) -> tuple[str, ...]:
    """What the index holds of a record with these properties: UNIQ_KEY first, then each entry of KEYS. A record that was read has no
    `Message.keys`: its copy takes them from here."""
    if _KEY not in data:
        return ()
    return tuple([key for key in (find(data, UNIQ_KEY), *find(data, KEYS).split(" ")) if key])


def foreign_name(name: str) -> str:
    """Native property name for a foreign header: its own name, or escaped where that name means something here."""
    if name in SYSTEM_NAMES or name.startswith(("GANTRY_", CE_PREFIX)) or not name or "\x01" in name or "\x02" in name:
        return FOREIGN_ESCAPE + name.replace("%", "%25").replace("\x01", "%01").replace("\x02", "%02")
    return name


def foreign_name_of(native: str) -> str | None:
    """The foreign header's name for a native property, or None for a property of the system."""
    if native.startswith(FOREIGN_ESCAPE):
        return native[len(FOREIGN_ESCAPE) :].replace("%02", "\x02").replace("%01", "\x01").replace("%25", "%")
    if native in SYSTEM_NAMES or native.startswith(("GANTRY_", CE_PREFIX)):
        return None
    return native


# --- the CRC of a whole record (docs/formats/commitlog.md)

OWN_CRC: Final = "__CRC32#"
OWN_CRC_MARK: Final = OWN_CRC.encode() + b"\x01"
OWN_CRC_SIZE: Final = len(OWN_CRC_MARK) + 11
"""The pair is always the last of its record: ten digits, the last one first, and the separator. It covers all that is before it, the head, too."""


JOINED_MAX: Final = 16_384
"""Bodies that are copied to be read at once: a call for each part of a record takes half a microsecond more."""


def own_crc(parts: Sequence[bytes], separated: bool) -> bytes:
    """The `__CRC32#` pair that ends a record of these parts, of which the second is the body; with a separator in front unless the properties are `separated`."""
    value = zlib.crc32(b"".join(parts)) if len(parts[1]) < JOINED_MAX else _crc_of(parts)
    if not separated:
        value = zlib.crc32(PAIR_END, value)
    pair = OWN_CRC_MARK + (b"\x02%010d" % (value & 0x7FFFFFFF))[::-1]
    return pair if separated else PAIR_END + pair


def _crc_of(parts: Sequence[bytes]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def has_own_crc(data: bytes | memoryview) -> bool:
    """Whether a record, or its properties, ends with a `__CRC32#` pair."""
    return bytes(data[-OWN_CRC_SIZE:-11]) == OWN_CRC_MARK and data[-1] == 2


def own_crc_is_right(data: bytes | memoryview) -> bool:
    """Whether a record that ends with a `__CRC32#` pair is the one that it was made of."""
    digits = bytes(data[-11:-1])[::-1]
    return digits.isdigit() and int(digits) == zlib.crc32(data[:-OWN_CRC_SIZE]) & 0x7FFFFFFF
