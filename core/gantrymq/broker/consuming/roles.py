"""What cursors ask of others: a reader of queues, a queue's policy, the consumers' seats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message


class QueueReader(Protocol):
    """What cursors read."""

    def visible_end(self, topic: str, queue_id: int) -> int: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]: ...

    def light_visible_end(self, light: int) -> int: ...

    def light_units(self, light: int, offset: int, count: int) -> list[tuple[int, int, int]]: ...

    def get_many(self, refs: list[tuple[int, int]], unreadable: list[int] | None = None) -> list[Message | None]: ...

    def get_entries(self, refs: list[tuple[int, int]]) -> list[Message | None]: ...

    def fault(self, unit: tuple[int, int, int]) -> tuple[str, bool]: ...

    def is_fresh(self, position: int) -> bool: ...

    def note_damage(self, unit: tuple[int, int, int], queue: str, offset: int, what: str, is_unit: bool) -> None: ...


class Managed(Protocol):
    """A queue with a policy, as its cursor sees it."""

    def came_back(self, offsets: Sequence[int]) -> None:
        """Entries were returned and are ready; some may be taken out at once."""

    def rejects(self, offset: int) -> bool:
        """An entry in flight is rejected. True: it goes to the dead letters, and is done when it is there."""


class Seated(Protocol):
    """Who consumes from a cursor (broker/consuming/seats.py), as it sees them."""

    ranks: dict[int, int]
    """Of ports whose consumers do not have rank 0."""
    serve_the_rest: Callable[[Any], None]
    """Called with the cursor when ports of a higher rank were woken, and others wait."""

    def count(self) -> int:
        """Consumers of all ports."""

    def first(self, ports: Collection[int]) -> list[int]:
        """Those of the highest rank."""


def parse_queue(queue: str) -> tuple[int, str, int]:
    """(light id, "", 0) of `~<id>`, or (0, topic, queue id) of `<topic>/<id>`. Raises ILLEGAL_ARGUMENT."""
    if queue.startswith("~") and queue[1:].isdecimal() and int(queue[1:]):
        return int(queue[1:]), "", 0
    topic, slash, number = queue.rpartition("/")
    if not slash or not topic or not number.isdecimal():
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT, f"queue name {queue!r} is neither ~<light id> nor <topic>/<queue id>"
        )
    return 0, topic, int(number)
