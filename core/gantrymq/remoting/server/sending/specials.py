"""What a sender's properties ask for beyond storing the message: later delivery, a transaction, light queues of its own.

Looked at only if the text holds one of the names (`Sends.message`); each check is a search in the text.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import PROPERTIES_BYTES_MAX
from gantrymq.model.message import DELAYED, HALF, PLAIN

TIMER_PROPERTIES: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")
OFFSET_DIGITS_MAX: Final = 19
RESERVED_BYTES: Final = 640
"""Names of the dispatch properties (96), UNIQ_KEY (44), CLUSTER with the longest name (264), REAL_TOPIC and its like (200)."""
LMQ_MAX: Final = 64
"""Light queues that one message may name: as many as stand in a record's properties."""

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
