"""What a queue decides by itself: its policy, a row of table `queue` (key: the cursor's id, in decimal; value: JSON)."""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

import msgspec

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message

TABLE: Final = "queue"
ROW_BYTES_MAX: Final = 64 * 1024
"""A policy is some names and numbers."""

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times in milliseconds; None: without. `row`: (table, key) of the door's own row, which goes with the queue."""

    name: str = ""
    """As its door calls the queue."""
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    """The queue is deleted when nobody has used it for so long."""
    max_length: int | None = None
    """Ready messages."""
    max_bytes: int | None = None
    """Their bodies."""
    overflow: Overflow = "drop-head"
    priorities: int | None = None
    """Entries with property GANTRY_PRIORITY come before those with a lower one or none; above this it counts as this."""
    delivery_limit: int | None = None
    """A message that came back more often is taken out."""
    dead_kind: str = ""
    """Whose `DeadLetters` makes the copies; empty: what is taken out is gone."""
    dead_target: dict[str, Any] = {}
    """Where to, as that kind understands it."""
    dead_keep: bool = False
    """A dead letter that nothing takes is kept out of the queue, and tried again, until something does."""
    auto_delete: bool = False
    """It goes when the last consumer that it had anywhere is gone because its gateway is; what consumers do in peace is their door's business."""
    unique_by: str = ""
    """A property: a message does not enter while one with the same value of it is in the queue."""
    stream: bool = False
    """Entries stay when they are read: `message_ttl_ms` and `max_bytes`, here of the records, cut its beginning. Nothing else counts."""
    row: tuple[str, str] | None = None

    @property
    def drops_head(self) -> bool:
        """The oldest go where there are too many."""
        return self.overflow == "drop-head" and (self.max_length is not None or self.max_bytes is not None)


_decode = msgspec.json.Decoder(Policy).decode
_encode = msgspec.json.Encoder().encode


def policy_from(data: bytes) -> Policy:
    """Raises ILLEGAL_ARGUMENT."""
    try:
        policy = _decode(data)
    except msgspec.DecodeError as error:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a queue's policy is not understood: {error}") from None
    times = (policy.message_ttl_ms, policy.expires_ms)
    numbers = (*times, policy.max_length, policy.max_bytes, policy.delivery_limit, policy.priorities)
    if len(data) > ROW_BYTES_MAX or any(number is not None and not 0 <= number < 1 << 62 for number in numbers):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"the policy of queue {policy.name!r} is out of range")
    return policy


def policy_to(policy: Policy) -> bytes:
    """Back."""
    return _encode(policy)


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of the table that cannot be read."""
    int(key)
    policy_from(value)


class DeadLetters(Protocol):
    """How one kind of queue makes its dead letters; attribute `dead_letters` of its `RouteSet`. Pure: no clock, no I/O."""

    def copy(
        self, message: Message, queue: str, target: dict[str, Any], reason: str, now_ms: int
    ) -> tuple[Message, frozenset[str]] | None:
        """The copy of a record of `queue` that is taken out because of `reason` (rejected, expired, maxlen, delivery_limit), and the queues
        that it must not enter, because it would go round for ever. None: there is none to make."""
