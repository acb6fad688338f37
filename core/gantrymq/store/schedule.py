"""When a waiting message is due, as its queue unit says it instead of the tag's hash.

`SCHEDULE_TOPIC_XXXX`: store time + the level's delay, as in a real broker. `rmq_sys_wheel_timer`: the time itself, negative for an order
to recall one; a real broker keeps the tag's hash there and never looks at it, so a code below 2^32 means that the record must be asked.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from gantrymq.model import properties as props
from gantrymq.model.names import SCHEDULE_TOPIC, java_hash

if TYPE_CHECKING:
    from gantrymq.model.message import Message

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
WAITING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's messageDelayLevel; level 1 is the first."""
LEVELS_MAX: Final = 64
"""Each level is a queue; RocketMQ's clients name them by a small number."""
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"[1-9][0-9]{0,8}[smhd]\Z")

PRECISION_MS: Final = 1000
"""RocketMQ's timerPrecisionMs: TIMER_OUT_MS is the begin of the second behind which a timer fires."""
CODE_MIN: Final = 1 << 32
"""A tag's hash lies below, a time after February 1970 above."""

MARK: Final = "\x02"
"""First character of `Message.tag` of a message on its way to a waiting topic; no tag holds it, because it ends a property."""


TIMER_MARK: Final = MARK + "T"
"""Begin of such a tag for a timer; TIMER_OUT_MS and a space follow."""


def delays_of(text: str) -> tuple[int, ...]:
    """Milliseconds per level of a text like `DELAY_LEVELS`. Raises ValueError."""
    words = text.split()
    if not 1 <= len(words) <= LEVELS_MAX or not all(_LEVEL.match(word) for word in words):
        raise ValueError(
            f"{text!r:.200}: allowed are 1 to {LEVELS_MAX} of a number and s, m, h or d, such as {DELAY_LEVELS[:9]!r}"
        )
    return tuple([int(word[:-1]) * _UNIT_MS[word[-1]] for word in words])


DELAYS_MS: Final = delays_of(DELAY_LEVELS)


def number_of(text: str) -> int:
    """A Java long, or -1 for what is none or negative."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1


def schedule_code(message: Message, delays_ms: tuple[int, ...] = DELAYS_MS) -> int:
    """Unit code of a record of the schedule topic: store time + the delay of its DELAY level, in ms; without a level the tag's hash.

    Higher levels count as the highest (RocketMQ: ConsumeQueue dispatch, ScheduleMessageService.computeDeliverTimestamp).
    """
    level = number_of(props.find(message.properties, props.DELAY))
    if level <= 0:
        return java_hash(message.tag)
    return message.store_ms + delays_ms[min(level, len(delays_ms)) - 1]


def timer_code(message: Message) -> int:
    """Unit code of a record of the timer topic: when it is due; negative if it recalls another; without TIMER_OUT_MS the tag's hash."""
    out_ms = number_of(message.property("TIMER_OUT_MS"))
    if out_ms < 0:
        return java_hash(message.tag)
    if message.property("TIMER_DEL_UNIQKEY"):
        return -out_ms - PRECISION_MS
    for name, unit in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 1)):
        delay = number_of(message.property(name))
        if delay >= 0:
            return due_ms(out_ms, message.store_ms + delay * unit)
    return due_ms(out_ms, number_of(message.property("TIMER_DELIVER_MS")))


def due_ms(out_ms: int, exact_ms: int) -> int:
    """The exact time if it lies in the second behind `out_ms`, else that second's end, when a real broker delivers."""
    return exact_ms if out_ms <= exact_ms <= out_ms + PRECISION_MS else out_ms + PRECISION_MS


def waiting_code(message: Message, delays_ms: tuple[int, ...]) -> int:
    """Unit code of a record of either topic."""
    return schedule_code(message, delays_ms) if message.topic == SCHEDULE_TOPIC else timer_code(message)


@cache
def level_tag(level: int) -> str:
    """`Message.tag` that gives a message of this level its code when it is appended."""
    return f"{MARK}D{level}"


def timer_tag(out_ms: int, exact_ms: int, delay_ms: int) -> str:
    """As `level_tag`, for a timer due at `exact_ms`, or `delay_ms` behind its store time if that is not negative."""
    return f"{TIMER_MARK}{out_ms} {exact_ms} {delay_ms}"


def recall_tag(out_ms: int) -> str:
    """As `level_tag`, for an order to recall."""
    return f"{MARK}R{out_ms}"


def code_of_tag(tag: str, store_ms: int, delays_ms: tuple[int, ...]) -> int:
    """The code that a tag made here stands for; the same as `waiting_code` of the record."""
    kind, text = tag[1], tag[2:]
    if kind == "D":
        return store_ms + delays_ms[min(int(text), len(delays_ms)) - 1]
    if kind == "R":
        return -int(text) - PRECISION_MS
    out_ms, exact_ms, delay_ms = [int(word) for word in text.split(" ")]
    return due_ms(out_ms, store_ms + delay_ms if delay_ms >= 0 else exact_ms)
