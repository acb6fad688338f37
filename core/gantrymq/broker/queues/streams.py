"""Streams: queues whose entries stay when they are read. Age and size cut their beginning.

Nothing of a stream is ever in flight: its cursor's floor is where it begins, and what lies above is alive. Nothing is kept per entry: sizes are those
of the queue's units, and when its oldest was stored says its record. Limits are looked at from time to time, and when somebody asks for counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.scans import Scans
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.parts import Context
    from gantrymq.model.queue_policy import Policy

CHECK_MS: Final = 250
"""How often some are looked at."""
AT_ONCE: Final = 64
"""...and how many: a millisecond where each is cut, some 50 us where none is."""
UNITS_STEP: Final = 4096
"""Units that one look reads: a millisecond."""


class Stream:
    """One of them. As broker.consuming.roles.Managed: what never was in flight does not come back."""

    __slots__ = ("counted", "cursor", "policy", "size", "young_ms")

    def __init__(self, cursor: Cursor, policy: Policy) -> None:
        self.cursor = cursor
        self.policy = policy
        self.counted = cursor.window.floor
        """Entries below it are in `size`, as far as they are still there."""
        self.size = 0
        self.young_ms = 0
        """Before this time nothing is too old."""

    def came_back(self, offsets: Sequence[int]) -> None:
        """See Managed."""

    def rejects(self, offset: int) -> bool:
        """See Managed."""
        return False


class Streams:
    """See the module. `attempt`: call, and once more when the disk has what it reads; `count(reason, entries)`."""

    def __init__(
        self, broker: Context, attempt: Callable[[Callable[[], None]], None], count: Callable[[str, int], None]
    ) -> None:
        self._broker = broker
        self._attempt = attempt
        self._count = count
        self._by_light: dict[int, Stream] = {}
        self._armed = False

    def keep(self, cursor: Cursor, policy: Policy) -> None:
        """From now on these are its limits, if any."""
        stream = cursor.managed = Stream(cursor, policy)
        self._by_light.pop(cursor.light, None)
        if policy.max_bytes is not None or policy.message_ttl_ms is not None:
            self._by_light[cursor.light] = stream
        if self._by_light and not self._armed:
            self._armed = True
            self._arm()

    def forget(self, stream: Stream) -> None:
        """Its cursor is deleted, or has another policy."""
        if self._by_light.get(stream.cursor.light) is stream:
            del self._by_light[stream.cursor.light]

    def _arm(self) -> None:
        wheel = self._broker.wheel
        wheel.call_at(wheel.now_ms() + CHECK_MS, self._check)

    def _check(self, _now_ms: int) -> None:
        """Whoever was looked at stands behind the others."""
        for light in list(islice(self._by_light, AT_ONCE)):
            stream = self._by_light.pop(light)
            self._by_light[light] = stream
            self.cut_now(stream)
        self._armed = bool(self._by_light)
        if self._armed:
            self._arm()

    def cut_now(self, stream: Stream) -> None:
        """Take away what is too much or too old, a step of it."""
        self._attempt(partial(self._cut, stream))

    def _cut(self, stream: Stream) -> None:
        if self._by_light.get(stream.cursor.light) is not stream:
            return
        cursor, cursors = stream.cursor, self._broker.cursors
        first, end = cursor.window.floor, cursors.end(cursor)
        if stream.policy.max_bytes is not None and not self._counted(stream, end):
            self._broker.turn.in_slices(partial(self.cut_now, stream))
            return
        old, young_ms = self._too_old(stream, first, end)
        large, freed = self._too_large(stream, first, end, old)
        upto, reason = (large, "maxlen") if large > old else (old, "expired")
        stream.young_ms = young_ms
        if upto <= first:
            return
        stream.size -= freed
        cursors.skip(cursor, first, upto - 1)
        self._count(reason, upto - first)
        if upto - first >= UNITS_STEP:
            self._broker.turn.in_slices(partial(self.cut_now, stream))

    def _counted(self, stream: Stream, end: int) -> bool:
        """Add what came; False: there is more than one look takes."""
        if stream.counted >= end:
            return True
        units = self._broker.cursors.raw_units(stream.cursor, stream.counted, UNITS_STEP)
        stream.counted += len(units)
        stream.size += _size(units)
        return stream.counted >= end or not units

    def _too_old(self, stream: Stream, first: int, end: int) -> tuple[int, int]:
        """Up to where it is, and before which time nothing else is."""
        ttl_ms, now_ms = stream.policy.message_ttl_ms, self._broker.clock.now_ms()
        if ttl_ms is None or now_ms < stream.young_ms or first >= end:
            return first, stream.young_ms
        scans = Scans(self._broker.cursors, self._broker.store)
        upto = min(scans.by_time(stream.cursor, now_ms - ttl_ms), first + UNITS_STEP)
        left = scans.scan(stream.cursor, upto, 1, 1).deliveries if upto < end else []
        return upto, left[0].message.store_ms + ttl_ms + 1 if left else 0

    def _too_large(self, stream: Stream, first: int, end: int, old: int) -> tuple[int, int]:
        """Up to where it is too much, and the bytes that go with that or with what is too old. The newest stays."""
        limit = stream.policy.max_bytes
        if limit is None or (stream.size <= limit and old <= first):
            return first, 0
        at, freed = first, 0
        for unit in self._broker.cursors.raw_units(stream.cursor, first, UNITS_STEP):
            if at >= old and (stream.size - freed <= limit or at >= end - 1):
                break
            freed += _size([unit])
            at += 1
        return at, freed


def _size(units: Sequence[tuple[int, int, int]]) -> int:
    return sum([size for _, size, _ in units if size != HOLE_SIZE])
