"""What a message says about where it was published to: names that stand for the default exchange, native tags of routing keys."""

from __future__ import annotations

from typing import Final

from gantrymq.model import names

KIND: Final = "amqp"
DEFAULT_EXCHANGE: Final = "(default)"
"""The default exchange in `Message.exchange` and in expressions: its own name is empty."""

DIRECT_TOPIC: Final = "rmq_sys_amqp_direct"
"""Where records for queues without a topic of their own lie (exclusive, auto-delete, not durable, server-named): tag = queue."""


def tag_of(key: str) -> str:
    """Native tag of a routing key: words between the dots; an empty key has none. Raises NAME_INVALID."""
    return names.encode_tag(key.split(".")) if key else ""
