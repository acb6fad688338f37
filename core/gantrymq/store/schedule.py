"""Delay levels as a real broker's log holds them: the queue units of `SCHEDULE_TOPIC_XXXX` carry the time of delivery as tag code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.model import properties as props
from gantrymq.model.names import java_hash

if TYPE_CHECKING:
    from gantrymq.model.message import Message

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's messageDelayLevel; level 1 is the first."""
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DELAYS_MS: Final = [int(text[:-1]) * _UNIT_MS[text[-1]] for text in DELAY_LEVELS.split()]


def schedule_code(message: Message) -> int:
    """Tag code of a record of the schedule topic: store time + the delay of its DELAY level, in ms; without a level the tag's hash.

    Higher levels count as the highest (RocketMQ: ConsumeQueue dispatch, ScheduleMessageService.computeDeliverTimestamp).
    """
    text = props.find(message.properties, props.DELAY)
    level = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0
    if level <= 0:
        return java_hash(message.tag)
    return message.store_ms + DELAYS_MS[min(level, len(DELAYS_MS)) - 1]
