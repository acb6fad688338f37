"""Names: what is legal, what is reserved, and how foreign names become native ones (docs/mapping).

A native topic is `[%A-Za-z0-9_|-]{1,127}`. A native tag is words joined by `.`. Foreign characters are escaped as `%XX`
per UTF-8 byte, upper case; `%` itself becomes `%25` only before two upper-case hexadecimal digits, so that names
without such a sequence stay readable.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import GROUP_BYTES_MAX, LONG_TOPIC_PREFIX, TAG_BYTES_MAX, TOPIC_BYTES_MAX

SYSTEM_PREFIX: Final = "rmq_sys_gantry_"
"""Topics of our own tables: refused for reading, writing, binding and deletion at every door."""

AUDIT_TOPIC: Final = SYSTEM_PREFIX + "audit"
"""Who came in, who was refused what, who changed what (auth/audit.py): no table."""

FORWARDED_TOPIC: Final = SYSTEM_PREFIX + "forwarded"
"""Records of other broker groups that queues here want (store/log/forwarded.py): no table."""

NOT_TABLES: Final = frozenset({"ack", "dispatch", "moved", "filler", "audit", "forwarded"})
"""What follows `SYSTEM_PREFIX` in the names of own topics that are no tables."""

LMQ_PREFIX: Final = "%LMQ%"
OWN_LIGHT_PREFIX: Final = "%LMQ%~"
OWN_ROWS_PREFIX: Final = LMQ_PREFIX + SYSTEM_PREFIX
"""With a table's name behind it: the queue of messages that are rows of that table, too (model/tables/message_rows.py)."""
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

AUTO_CREATE_TEMPLATE: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where clients write what became of their messages, unless they name another topic."""

ROCKETMQ_SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TEMPLATE, SCHEDULE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", TRACE_TOPIC,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    }
)  # fmt: skip

MQTT_OWN: Final = frozenset({"%24SYS", "%24share", "%24queue", "%24delayed", "%24from", "%24exclusive"})
"""Native names of the first levels that MQTT servers use for themselves; others that begin with `$` are ordinary topics."""

_TOPIC = re.compile(r"[%A-Za-z0-9_|\-]+\Z")
_TOPIC_ESCAPE = re.compile(rb"[^%A-Za-z0-9_|\-]|%(?=[0-9A-F]{2})")
_LONG_TOPIC = re.compile(rf".{{{LONG_TOPIC_PREFIX}}}_[0-9A-F]{{32}}")
_WORD_ESCAPE = re.compile(rb"[./+#|*\x00-\x20\x7f-\xff]|%(?=[0-9A-F]{2})")
_ESCAPES = re.compile(r"(?:%[0-9A-F]{2})+")
EMPTY: Final = "%00"
"""Stands for an empty first level, and for a tag that is one empty level."""


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match.group()[0]


def refuse_nul(text: str) -> None:
    """Raise NAME_INVALID if `text` holds U+0000, which is refused at every door."""
    if "\0" in text:
        raise GantryError(ErrorCode.NAME_INVALID, "a name holds U+0000, which is not allowed")


def encode_topic(foreign: str) -> str:
    """Native topic for a foreign first level (MQTT), exchange or queue name (AMQP); an empty one is `%00`.

    Over `TOPIC_BYTES_MAX` it becomes prefix + `_` + SHA-256 digits (`is_long_topic`); the caller keeps the way back in a table.
    """
    refuse_nul(foreign)
    if not foreign:
        return EMPTY
    native = _TOPIC_ESCAPE.sub(_escape, foreign.encode("utf-8", "strict")).decode("ascii")
    if native == foreign and len(native) <= TOPIC_BYTES_MAX:
        return foreign  # most are: one object in all tables
    if len(native) > TOPIC_BYTES_MAX:
        return native[:LONG_TOPIC_PREFIX] + "_" + hashlib.sha256(native.encode()).hexdigest()[:32].upper()
    return native


def is_long_topic(native: str) -> bool:
    """True for what `encode_topic` makes of a name over `TOPIC_BYTES_MAX`."""
    return _LONG_TOPIC.fullmatch(native) is not None


def encode_word(word: str) -> str:
    """One word of a tag: separators, wildcards, space, controls and non-ASCII escaped."""
    return _WORD_ESCAPE.sub(_escape, word.encode("utf-8", "strict")).decode("ascii")


def encode_tag(words: list[str]) -> str:
    """Native tag for the words of a foreign key (MQTT levels after the first, AMQP key split at `.`); no words: empty.

    Raises NAME_INVALID over `TAG_BYTES_MAX` or with U+0000.
    """
    if not words:
        return ""
    if len(words) == 1 and not words[0]:
        return EMPTY
    tag = ".".join([encode_word(word) for word in words])
    refuse_nul("".join(words))
    if len(tag) > TAG_BYTES_MAX:
        raise GantryError(ErrorCode.NAME_INVALID, f"the tag has {len(tag)} bytes, at most {TAG_BYTES_MAX} are allowed")
    return tag


def decode_escapes(native: str, standing: str) -> str:
    """Foreign form of a topic or one word: escapes decoded, except where the character is one of `standing`.

    `standing` holds what would be a separator or wildcard at that door (MQTT `/+#`, AMQP `.`). `%00` alone is empty.
    """
    if "%" not in native:
        return native
    if native == EMPTY:
        return ""

    def replace(match: re.Match[str]) -> str:
        run = match.group()
        try:
            text = bytes.fromhex(run.replace("%", "")).decode("utf-8", "strict")
        except UnicodeDecodeError:
            return run
        return "".join([f"%{ord(c):02X}" if c in standing or c == "\0" else c for c in text])

    return _ESCAPES.sub(replace, native)


def check_topic(name: str) -> None:
    """Raise NAME_INVALID unless `name` is a legal native topic (RocketMQ TopicValidator: charset and length)."""
    if not name:
        raise GantryError(ErrorCode.NAME_INVALID, "the topic name is empty; allowed are 1 to 127 of [%A-Za-z0-9_|-]")
    if len(name) > TOPIC_BYTES_MAX:
        raise GantryError(
            ErrorCode.NAME_INVALID, f"the topic name has {len(name)} characters, at most {TOPIC_BYTES_MAX} are allowed"
        )
    if _TOPIC.match(name) is None:
        raise GantryError(ErrorCode.NAME_INVALID, f"topic name {name!r} holds a character outside [%A-Za-z0-9_|-]")


def check_stored_topic(name: str) -> None:
    """As `check_topic`, for what a log may hold: retry and dead letter topics carry a group's name and may be longer."""
    if len(name) > TOPIC_BYTES_MAX and name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(name) > GROUP_BYTES_MAX or _TOPIC.match(name) is None:
            raise GantryError(
                ErrorCode.NAME_INVALID,
                f"topic name {name[:64]!r}...: a retry or dead letter topic has at most {GROUP_BYTES_MAX} of [%A-Za-z0-9_|-]",
            )
        return
    check_topic(name)


def is_stored_topic(name: str) -> bool:
    """True for names that a log may hold as a topic (RocketMQ: RETRY_OR_DLQ_TOPIC_MAX_LENGTH)."""
    try:
        check_stored_topic(name)
    except GantryError:
        return False
    return True


def check_group(name: str) -> None:
    """Raise NAME_INVALID unless `name` is a legal group name."""
    if not name or len(name) > GROUP_BYTES_MAX or _TOPIC.match(name) is None:
        raise GantryError(
            ErrorCode.NAME_INVALID, f"group name {name[:64]!r}: allowed are 1 to {GROUP_BYTES_MAX} of [%A-Za-z0-9_|-]"
        )


def is_own_system_topic(name: str) -> bool:
    """True for topics, and queues of rows, that only their owning table may touch."""
    return name.startswith((SYSTEM_PREFIX, OWN_ROWS_PREFIX))


def table_of(name: str) -> str:
    """The table whose records are in that topic, or whose rows messages in that queue are; empty: none."""
    if not is_own_system_topic(name):
        return ""
    table = name[len(SYSTEM_PREFIX if name.startswith(SYSTEM_PREFIX) else OWN_ROWS_PREFIX) :]
    return "" if table in NOT_TABLES else table


def is_system_topic(name: str) -> bool:
    """True for RocketMQ's system topics and our own; they match no wildcard."""
    return name in ROCKETMQ_SYSTEM_TOPICS or name.startswith(("rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_"))


def is_closed_to_gateways(name: str) -> bool:
    """True for topics that no foreign door may publish to."""
    return name in MQTT_OWN or name.startswith(("$", RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX)) or is_system_topic(name)


def matches_wildcards(name: str) -> bool:
    """False for system topics and topics beginning with `$` (escaped or not)."""
    return not name.startswith(("$", "%24", LMQ_PREFIX)) and not is_system_topic(name)


def light_name(light: int) -> str:
    """Dispatch name of one of our own light queues: `%LMQ%~` + base-36 of its id."""
    digits = ""
    while True:
        light, digit = divmod(light, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
        if not light:
            return OWN_LIGHT_PREFIX + digits


def light_id(name: str) -> int:
    """Id of one of our own light queues by its dispatch name; raises ValueError for any other name."""
    if not name.startswith(OWN_LIGHT_PREFIX):
        raise ValueError(f"{name!r} is not a light queue of this broker")
    return int(name[len(OWN_LIGHT_PREFIX) :], 36)


HASH_CHUNK: Final = 512
"""Digits per conversion; CPython limits longer decimal-like conversions (sys.set_int_max_str_digits, at least 640)."""
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
LOW_DIGIT: Final = bytes([_DIGITS[code % 31] for code in range(256)])
HIGH_DIGIT: Final = bytes([_DIGITS[code // 31] for code in range(256)])
"""Tables for `bytes.translate`: a character's two digits in base 31. Hash of a text of at most HASH_CHUNK of them: int(low digits, 31) + 31 * int(high digits, 31)."""


def java_hash(text: str) -> int:
    """Java's String.hashCode as a signed 32-bit integer (the tag hash of a ConsumeQueue unit, the key hash of an IndexFile).

    The hash is the text read as a number in base 31 whose digits are the UTF-16 units. `int(_, 31)` reads such numbers in C;
    a unit is too large for one digit, so it is split: low digit + 31 * high digit.
    """
    if not text:
        return 0
    try:
        data = text.encode("latin-1")
        if len(data) <= HASH_CHUNK:
            value = int(data.translate(LOW_DIGIT), 31) + 31 * int(data.translate(HIGH_DIGIT), 31)
        else:
            value = _hash_bytes(data)
    except UnicodeEncodeError:
        data = text.encode("utf-16-be", "surrogatepass")
        value = (_hash_bytes(data[::2]) << 8) + _hash_bytes(data[1::2])
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _hash_bytes(data: bytes) -> int:
    if len(data) <= HASH_CHUNK:
        return int(data.translate(LOW_DIGIT), 31) + 31 * int(data.translate(HIGH_DIGIT), 31)
    value = 0
    for at in range(0, len(data), HASH_CHUNK):
        part = data[at : at + HASH_CHUNK]
        value = (value * pow(31, len(part), 1 << 32) + _hash_bytes(part)) & 0xFFFFFFFF
    return value


def share_parts(text: str) -> tuple[str, str]:
    """Group and topic filter of a shared MQTT subscription: `$share/<group>` or `$queue`, and what follows."""
    group, _, wanted = text.partition("/")
    if group == "$share":
        name, _, wanted = wanted.partition("/")
        group = f"{group}/{name}"
    return group, wanted
