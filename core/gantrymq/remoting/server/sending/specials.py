"""What a sender's properties ask for beyond storing the message: later delivery, a transaction, light queues of its own, to be retained for MQTT.

Looked at only if the text holds one of the names (`Sends.message`); each check is a search in the text.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import PROPERTIES_BYTES_MAX
from gantrymq.model.message import DELAYED, HALF, PLAIN
from gantrymq.model.tables import message_rows, retained_rows

TIMER_PROPERTIES: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")
OFFSET_DIGITS_MAX: Final = 19
TIME_DIGITS_MAX: Final = 18
"""Of a time in ms that has room in eight bytes."""
RESERVED_BYTES: Final = 640
"""Names of the dispatch properties (96), UNIQ_KEY (44), CLUSTER with the longest name (264), REAL_TOPIC and its like (200)."""
LMQ_MAX: Final = 64
"""Light queues that one message may name: as many as stand in a record's properties."""

_RETAIN_IT: Final = props.RETAIN_IT + "\x01"
_RETAIN: Final = props.RETAIN + "\x01"
_QOS: Final = props.QOS + "\x01"
_EXPIRES_AT: Final = props.EXPIRES_AT + "\x01"
_DISPATCH: Final = props.MULTI_DISPATCH + "\x01"
_DISPATCH_MARKS: Final = (_DISPATCH, props.MULTI_QUEUE_OFFSET + "\x01", "GANTRY_DISPATCH_MORE\x01")


def value_of(text: str, mark: str) -> str:
    """Value of the last pair whose name is `mark` without its end, or an empty string."""
    at = text.rfind(mark)
    while at > 0 and text[at - 1] != "\x02":  # found inside a longer name or a value
        at = text.rfind(mark, 0, at)
    if at < 0:
        return ""
    at += len(mark)
    end = text.find("\x02", at)
    return text[at:] if end < 0 else text[at:end]


def without(text: str, mark: str) -> str:
    """The text without any pair of that name; `mark` as in `value_of`. Every pair ends in U+0002."""
    return "".join([pair + "\x02" for pair in text.split("\x02") if pair and not pair.startswith(mark)])


def priority_queue(value: str, queues: int, otherwise: int) -> int:
    """Queue of a message with a priority (RocketMQ 5.4, RIP-80): queue n holds priority n, the last one all above it."""
    try:
        priority = int(value)
    except ValueError:
        return otherwise
    return min(priority, queues - 1) if priority >= 0 else otherwise


def light_queues(text: str) -> tuple[str, tuple[str, ...]]:
    """(the text without dispatch properties, the client's light queues that they name); raises MESSAGE_ILLEGAL, NAME_INVALID.

    Offsets, and queues of the broker's own, come from a record that was read and is sent again: they are left out.
    """
    found = value_of(text, _DISPATCH)
    for mark in _DISPATCH_MARKS:
        text = without(text, mark)
    own = (names.OWN_LIGHT_PREFIX, names.OWN_ROWS_PREFIX)
    lmq = tuple([name for name in dict.fromkeys(found.split(",")) if not name.startswith(own)])
    if not found or not lmq:
        return text, ()
    for name in lmq:
        if not name.startswith(names.LMQ_PREFIX):
            raise GantryError(
                ErrorCode.MESSAGE_ILLEGAL,
                f"property {props.MULTI_DISPATCH} names {name[:80]!r}; allowed are names that begin with {names.LMQ_PREFIX}",
            )
        names.check_topic(name)
    if len(lmq) > LMQ_MAX:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"a message enters at most {LMQ_MAX} light queues, not {len(lmq)}")
    size = len(text.encode("utf-8", "surrogatepass")) + sum([len(name) + OFFSET_DIGITS_MAX + 2 for name in lmq])
    if size + RESERVED_BYTES > PROPERTIES_BYTES_MAX:
        raise GantryError(
            ErrorCode.PROPERTIES_TOO_LARGE,
            f"the message is illegal: its properties, the {len(lmq)} light queues and their offsets exceed "
            f"{PROPERTIES_BYTES_MAX} bytes",
        )
    return text, lmq


def retained(text: str, topic: str, flags: int) -> tuple[str, str]:
    """(the text as it is stored, key of the row) of a message that its sender wants to be retained; the key is empty for another. It then is the row, too
    (model/tables/message_rows.py). Raises MESSAGE_ILLEGAL, NAME_INVALID, PROPERTIES_TOO_LARGE."""
    wanted = value_of(text, _RETAIN_IT)
    text = without(text, _RETAIN_IT)
    if wanted != "1":
        return text, ""
    if flags & sysflag.COMPRESSED:
        raise GantryError(
            ErrorCode.MESSAGE_ILLEGAL, f"{props.RETAIN_IT}: MQTT clients get bodies as they are, not compressed"
        )
    place = retained_rows.mqtt_topic(topic, value_of(text, props.TAGS + "\x01"))
    qos, expires = value_of(text, _QOS), value_of(text, _EXPIRES_AT)
    expires_ms = int(expires) if expires.isascii() and expires.isdigit() and len(expires) <= TIME_DIGITS_MAX else 0
    key = retained_rows.row_key(place)
    head = retained_rows.row_head(place, int(qos) if qos in ("0", "2") else 1, b"", expires_ms)
    row = message_rows.row_pair(key, head).decode()
    text = f"{without(text, _RETAIN)}{_RETAIN}1\x02{row}"
    if len(text.encode("utf-8", "surrogatepass")) + retained_rows.PAIRS_RESERVE > PROPERTIES_BYTES_MAX:
        raise GantryError(
            ErrorCode.PROPERTIES_TOO_LARGE,
            f"the message is illegal: its properties and what retains it exceed {PROPERTIES_BYTES_MAX} bytes",
        )
    return text, key


def kind_of(text: str, attempts: int = 0) -> int:
    """PLAIN, DELAYED or HALF. `attempts`: how often the message was consumed in vain before."""
    delay = value_of(text, props.DELAY + "\x01")
    prepared = value_of(text, props.TRAN_MSG + "\x01").lower() == "true"
    if prepared and not (
        attempts and is_level(delay)
    ):  # clients before 4.6.1 send a half message's retry with its TRAN_MSG
        return HALF  # RocketMQ: a delay of a half message is ignored
    if is_level(delay) or any(value_of(text, f"{name}\x01") for name in TIMER_PROPERTIES):
        return DELAYED
    return PLAIN


def is_level(value: str) -> bool:
    """True for a delay level above 0; anything else is no delay (Message.getDelayTimeLevel)."""
    try:
        return int(value) > 0
    except ValueError:
        return value not in ("", "0")
