"""Messages for later: the eighteen delay levels and arbitrary times of delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.model.errors import ErrorCode

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.model.message import Message


class Delays:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def divert(self, message: Message) -> ErrorCode | None:
        """Rewrite the message for the topic where it waits; its queue in its own topic is chosen already."""
        return ErrorCode.MESSAGE_ILLEGAL

    def open(self) -> None:
        """See `parts.Part`."""

    def close(self) -> None:
        """See `parts.Part`."""
