"""Message types of RocketMQ 5: what a topic's attribute `message.type` takes, and which type a message has.

A broker keeps the attribute and compares nothing; RocketMQ's proxy compares (enableTopicMessageTypeCheck). `topics.check_message_type`
makes a broker do it for its Remoting producers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gantrymq.model import names
from gantrymq.model import properties as props

ATTRIBUTE: Final = "message.type"

UNSPECIFIED: Final = "UNSPECIFIED"
NORMAL: Final = "NORMAL"
FIFO: Final = "FIFO"
DELAY: Final = "DELAY"
TRANSACTION: Final = "TRANSACTION"
MIXED: Final = "MIXED"

TYPES: Final = (UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, MIXED)
"""TopicMessageType."""

TRANSFER_FLAG: Final = "TRANSFER_FLAG"
"""A message with this property is on its way from another cluster, and not compared."""

_LATER: Final = (props.DELAY, "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


def of_message(value: Callable[[str], str]) -> str:
    """Type of a message; `value(name)`: one of its properties, or an empty text (TopicMessageType.parseFromMessageProperty)."""
    if value(props.TRAN_MSG) == "true":
        return TRANSACTION
    if any(value(name) for name in _LATER):
        return DELAY
    return FIFO if value(props.SHARDING_KEY) else NORMAL


def of_topic(name: str, attributes: dict[str, str]) -> str | None:
    """Type of the messages that a topic takes: NORMAL unless it says otherwise; None: not compared."""
    if names.is_system_topic(name) or name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX, names.LMQ_PREFIX)):
        return None
    return attributes.get(ATTRIBUTE, NORMAL)


def conflict(wanted: str, found: str) -> str:
    """Why a topic of type `wanted` does not take a message of type `found`, or nothing (DefaultTopicMessageTypeValidator)."""
    if wanted in (found, MIXED):
        return ""
    return f"TopicMessageType validate failed, the expected type is {wanted}, but actual type is {found}"
