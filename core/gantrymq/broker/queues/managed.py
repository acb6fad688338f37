"""One queue with a policy: what is counted and remembered of it in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.priorities import PriorityWindow
from gantrymq.broker.queues.sums import BodyBytes
from gantrymq.broker.queues.unique import UniqueKeys
from gantrymq.model import properties as props
from gantrymq.model.message import Message

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.model.queue_policy import Policy

_EXPIRES: Final = props.EXPIRES_AT.encode() + b"\x01"
_PRIORITY: Final = props.PRIORITY.encode() + b"\x01"
NEVER: Final = 1 << 62


class ManagedQueue:
    """See the module. `on_work(queue, reason, offsets)`: entries that are out of everybody's reach and are to be finished;
    `on_due(queue)`: look at what has expired, and how long it is; `end`: the queue's maximum offset."""

    __slots__ = (
        "coming",
        "cursor",
        "expiries",
        "is_due",
        "is_held_up",
        "is_trying",
        "kept",
        "keys",
        "on_due",
        "on_work",
        "overdue",
        "place",
        "policy",
        "scan_at",
        "scan_end",
        "sizes",
        "timer_ms",
        "used_ms",
    )

    def __init__(
        self,
        cursor: Cursor,
        policy: Policy,
        end: int,
        on_work: Callable[[ManagedQueue, str, Sequence[int]], None],
        on_due: Callable[[ManagedQueue], None],
    ) -> None:
        self.cursor = cursor
        self.policy = policy
        self.on_work = on_work
        self.on_due = on_due
        self.place = cursor.window.floor
        """Entries below it that were ready had not outlived `message_ttl_ms` or are gone: they entered in the order of their offsets."""
        self.expiries: list[tuple[int, int]] = []
        """Heap of (milliseconds since the epoch, offset) of messages with an expiry of their own."""
        self.overdue: set[int] = set()
        """...of which these were in flight when their time came."""
        self.kept: deque[tuple[str, int]] = deque()
        """(reason, offset) of dead letters that nothing takes, of a queue that keeps them."""
        self.is_held_up = False
        """There are so many that consumers get nothing."""
        self.is_due = False
        """What has expired or is too much goes in a moment."""
        self.is_trying = False
        """A timer tries them again."""
        self.scan_at = self.place
        self.scan_end = end
        """Entries from `scan_at` to here were there before the start: their own expiries are still to be read."""
        self.sizes = BodyBytes(self.place, end) if policy.max_bytes is not None else None
        cursor.window.weigh_by(self._size_of if self.sizes is not None else None)
        self.keys: UniqueKeys | None = None
        """Where the policy wants each key once."""
        self.coming = 0
        """Messages that this turn is about to append."""
        self.timer_ms = NEVER
        self.used_ms = 0
        """When somebody used it last (monotonic)."""

    # As broker.consuming.cursors.Managed.

    def came_back(self, offsets: Sequence[int]) -> None:
        """Entries were returned: those that came too often go; the others may have expired meanwhile."""
        window, limit = self.cursor.window, self.policy.delivery_limit
        if limit is not None:
            out = [at for at in offsets if window.counts.get(at, 0) > limit and window.take_out(at)]
            if out:
                self.on_work(self, "delivery_limit", out)
        if self.policy.drops_head:
            self.on_due(self)
        if self.policy.message_ttl_ms is not None and offsets[0] < self.place:
            self.place = min(offsets)
            self.on_due(self)
        if self.overdue:
            late = self.overdue.intersection(offsets)
            self.overdue -= late
            for offset in late:
                heappush(self.expiries, (0, offset))
            if late:
                self.on_due(self)

    def rejects(self, offset: int) -> bool:
        """An entry in flight is rejected; True where it has a dead letter."""
        if not self.policy.dead_kind:
            return False
        del self.cursor.window.inflight[offset]
        self.on_work(self, "rejected", [offset])
        return True

    # What enters.

    def entered(self, message: Message, offset: int) -> bool:
        """A record entered at that offset. True: it has an expiry of its own."""
        if self.sizes is not None:
            self.sizes.new.add(len(message.body))
        if self.keys is not None:
            self.keys.note(message, offset)
        self.note_priority(message, offset)
        if _EXPIRES not in message.properties:
            return False
        return self.note_expiry(message, offset)

    def note_priority(self, message: Message, offset: int) -> None:
        """Serve it before others, if it has a priority and the queue has any."""
        window = self.cursor.window
        if isinstance(window, PriorityWindow) and _PRIORITY in message.properties:
            text = props.find(message.properties, props.PRIORITY)
            if text.isdecimal() and text.isascii() and len(text) <= 9:
                window.put(offset, int(text))

    def note_expiry(self, message: Message, offset: int) -> bool:
        """Remember when it expires, if it does."""
        text = props.find(message.properties, props.EXPIRES_AT)
        if not text.isdecimal() or not text.isascii() or len(text) > 18:
            return False
        heappush(self.expiries, (int(text), offset))
        return True

    def ready(self, end: int) -> int:
        """Entries that could be acquired; `end`: the queue's maximum offset."""
        return self.cursor.window.ready(end)

    def ready_bytes(self, end: int) -> int:
        """Bytes of their bodies."""
        if self.sizes is None:
            return 0
        window = self.cursor.window
        self.sizes.trim(window.floor)
        return self.sizes.between(window.next_offset, end) + window.extra_bytes()

    def _size_of(self, offset: int) -> int:
        return self.sizes.between(offset, offset + 1) if self.sizes is not None else 0
