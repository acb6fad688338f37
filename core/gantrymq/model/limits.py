"""Limits that hold at every door, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gantrymq.model.settings import setting

TOPIC_BYTES_MAX: Final = 127
"""RocketMQ's record V1 stores the topic length in one byte and its TopicValidator allows 127."""

GROUP_BYTES_MAX: Final = 255
"""RocketMQ's limit for consumer and producer group names."""

TAG_BYTES_MAX: Final = 4096
"""Longer tags are refused: a tag takes part in every routing decision (docs/mapping)."""

PROPERTIES_BYTES_MAX: Final = 32767
"""The record stores the length of the properties in a signed 16-bit field."""

BODY_BYTES_CEILING: Final = 15 * 1024 * 1024
"""Largest body, and the limit of a directory that was always ours: one Remoting frame is at most 16 MiB, header included."""

BODY_BYTES_ROCKETMQ: Final = 4 * 1024 * 1024
"""RocketMQ's maxMessageSize default: the limit of a directory that was taken over from it, until somebody sets another."""

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest Remoting frame, as in RocketMQ's NettyDecoder."""

DISPATCH_INLINE_MAX: Final = 64
"""Light queues named in the record's own properties; more stand in continuation records."""

LONG_TOPIC_PREFIX: Final = 94
"""An encoded topic over `TOPIC_BYTES_MAX` keeps this many characters before `_` and 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class MessageConfig:
    """Section `message`: what holds at every door. Processes of one installation should agree about it."""

    body_bytes_max: int | None = setting(None, least=64 * 1024, most=BODY_BYTES_CEILING)
    """Largest body, at every door alike. Not set: 15 MiB, and 4 MiB where a broker's directory was taken over from RocketMQ; of several brokers the
    smallest. It shrinks so that one record fits into a log segment."""

    def within(self, announced: int) -> int:
        """The limit of a door whose brokers announce theirs."""
        return announced if self.body_bytes_max is None else min(self.body_bytes_max, announced)
