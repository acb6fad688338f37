"""What a channel has published and answered since tx.select: kept until tx.commit, which is one batch of the log.

Acknowledged deliveries stay in the channel's ledger until then, so a rollback or a lost channel forgets nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.broker.port import Outcome
from gantrymq_gateways.amqp.wire.constants import PRECONDITION_FAILED, RESOURCE_ERROR, AmqpError

if TYPE_CHECKING:
    from collections.abc import Collection

    from gantrymq.model.message import Message
    from gantrymq_gateways.amqp.wire.events import Publish

MESSAGES_MAX: Final = 10_000
ANSWERS_MAX: Final = 100_000
"""What one batch of the log may hold (broker/queues/companions.py)."""


class Transaction:
    """What a channel has done since tx.select, tx.commit or tx.rollback."""

    __slots__ = ("_bytes_max", "_size", "answers", "messages", "returns", "traced")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self.messages: list[Message] = []
        self.returns: dict[int, Publish] = {}
        """The mandatory ones by their place."""
        self.traced: list[Publish] = []
        """Those to copy to the firehose when they are committed."""
        self.answers: dict[int, Outcome] = {}
        """By delivery tag."""

    def publish(self, message: Message, mandatory: Publish | None, size: int) -> None:
        """Raises AmqpError."""
        if self._size + size > self._bytes_max or len(self.messages) >= MESSAGES_MAX:
            text = f"a transaction has at most {MESSAGES_MAX} messages and {self._bytes_max} octets (amqp.tx_bytes_max)"
            raise AmqpError(RESOURCE_ERROR, text)
        self._size += size
        if mandatory is not None:
            self.returns[len(self.messages)] = mandatory
        self.messages.append(message)

    def answer(self, open_tags: Collection[int], tag: int, multiple: bool, outcome: Outcome) -> None:
        """Raises AmqpError. `open_tags`: of the channel, rising; those answered in this transaction are unknown."""
        if multiple:
            tags = [other for other in open_tags if (not tag or other <= tag) and other not in self.answers]
        else:
            tags = [tag]
        if tag and (tag in self.answers or tag not in open_tags):
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        if not tag and not multiple:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        if len(self.answers) + len(tags) > ANSWERS_MAX:
            raise AmqpError(RESOURCE_ERROR, f"a transaction has at most {ANSWERS_MAX} acknowledgements")
        self.answers.update(dict.fromkeys(tags, outcome))
