"""How much of the log each queue and session holds back, the limit of a session's backlog, and what light queues need no more.

A queue *pins* the log from its oldest entry that somebody has not acknowledged up to the log's end: segments before it may go.
The bytes of a session's backlog are summed only where they could reach the limit, each entry once.
"""

from __future__ import annotations

import heapq
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.acks import encode_range
from gantrymq.broker.consuming.known.table import KEEPER
from gantrymq.broker.retention.live import CURSOR_US, READ_US, UNIT_US, UNITS_STEP
from gantrymq.broker.slices import Slices, patient
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.metrics import Metrics

log = logging.getLogger(__name__)

SHOWN_MAX: Final = 100
"""Queues and sessions with a metric of their own: those that pin most. A million label sets would help nobody."""
SESSION_GROUPS: Final = "mqtt:"
"""Groups whose backlog is limited: MQTT sessions."""
ENTRY_BYTES_MAX: Final = BODY_BYTES_CEILING + 64 * 1024
"""No entry is larger; a backlog of fewer than limit / this cannot exceed the limit and is not summed."""
FAMILY: Final = "gantry_pinned_bytes"
OVER_TABLE: Final = "mqtt_over"
"""Sessions that are to end because of their backlog: client id -> JSON {"entries": so many, "text": which limit}. Gateways watch it."""
DISCONNECT: Final = "disconnect"
NEWEST: Final = "drop_newest"


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Of the backlog of one filter of a session; 0: none. `..._full`: drop_oldest, drop_newest or disconnect."""

    bytes_max: int = 0
    bytes_full: str = "drop_oldest"
    messages_max: int = 0
    messages_full: str = "drop_oldest"


class Pins:
    """`append_now` writes an acknowledgement record; `trim(light, offset)` gives back the space of a light queue's entries below;
    `over(client id, row)`: the session is to end; `name_of(queue)`: what people call it."""

    def __init__(
        self,
        cursors: Cursors,
        append_now: Callable[[bytes], None],
        trim: Callable[[int, int], None],
        limits: SessionLimits,
        over: Callable[[str, bytes], None],
        name_of: Callable[[str], str] = str,
    ) -> None:
        self._cursors = cursors
        self._trim = trim
        self._append_now = append_now
        self.limits = limits
        self._over = over
        self._sums: dict[int, tuple[int, int, int]] = {}
        """Cursor to (from, to, bytes) of its entries."""
        self._name_of = name_of
        self.top: list[tuple[int, str, str]] = []
        """(bytes, queue, group), most first."""
        self.dropped = 0
        """Entries dropped because of the limit since the start."""

    def run(self, log_end: int) -> Slices[None]:
        """One pass over all cursors."""
        top: list[tuple[int, str, str]] = []
        for cursor_id in self._cursors.ids():
            if light := self._cursors.has_nothing(cursor_id):
                yield CURSOR_US
                self._trim(light, self._cursors.floor_of_light(light))
                self._sums.pop(cursor_id, None)
                continue
            cursor = self._cursors.awake(cursor_id)
            if cursor is None:
                continue
            yield CURSOR_US
            if cursor.light:
                self._trim(cursor.light, self._cursors.floor_of_light(cursor.light))
            if cursor.window.floor >= self._cursors.live_end(cursor):
                self._sums.pop(cursor_id, None)
                self._cursors.rest(cursor)
                continue
            yield READ_US
            found = cursor
            units = yield from patient(lambda: self._cursors.units(found, found.window.floor, 1))  # noqa: B023 (called at once)
            is_seen = units and units[0][1] != HOLE_SIZE and units[0][0] < log_end  # not of a compacted file
            if is_seen and cursor.group != KEEPER:
                entry = (log_end - units[0][0], cursor.queue, cursor.group)
                if len(top) < SHOWN_MAX:
                    heapq.heappush(top, entry)
                else:
                    heapq.heappushpop(top, entry)
            if cursor.group.startswith(SESSION_GROUPS) and self.limits.bytes_max:
                yield from self._limit(cursor)
            if cursor.group.startswith(SESSION_GROUPS) and self.limits.messages_max:
                self._limit_number(cursor)
            self._cursors.rest(cursor)
        for cursor_id in [cursor_id for cursor_id in self._sums if not self._cursors.has_id(cursor_id)]:
            del self._sums[cursor_id]
        self.top = [(pinned, self._name_of(queue), group) for pinned, queue, group in sorted(top, reverse=True)]

    def _limit_number(self, cursor: Cursor) -> None:
        """What is with the client stays, and counts."""
        window, end = cursor.window, self._cursors.end(cursor)
        over = window.ready(end) + window.unacked() - self.limits.messages_max
        if over <= 0:
            return
        text = f"{self.limits.messages_max} messages (broker.session_messages_max)"
        kind = "newest"
        if self.limits.messages_full == DISCONNECT:
            self._end(cursor, text)
            return
        if self.limits.messages_full == NEWEST:
            first, last = self._newest(cursor, end - over), end - 1
        else:
            kind = "oldest"
            first = max(window.inflight, default=window.floor - 1) + 1
            returned = [offset for offset in window.returned if offset >= first]
            new = over - len(returned)
            last = returned[over - 1] if new <= 0 else max(first, window.next_offset) + new - 1
            last = min(last, end - 1)
        if first <= last:
            self._drop(cursor, first, last, text, kind)

    def _newest(self, cursor: Cursor, first: int) -> int:
        """Where a drop of the newest entries begins, at best at `first`: what lies before it is to be delivered one by one."""
        window = cursor.window
        first = max(window.next_offset, first)
        for offset in range(window.next_offset, first):
            window.bring_back(offset)
        return first

    def _end(self, cursor: Cursor, text: str) -> None:
        """The session is over its limit and is to end: its gateway does that."""
        window = cursor.window
        entries = window.ready(self._cursors.end(cursor)) + window.unacked()
        row = {"entries": entries, "text": f"{text}, queue {self._name_of(cursor.queue)}"}
        self._over(cursor.group.removeprefix(SESSION_GROUPS), json.dumps(row).encode())

    def _limit(self, cursor: Cursor) -> Slices[None]:
        window = cursor.window
        if (self._cursors.end(cursor) - window.floor) * ENTRY_BYTES_MAX <= self.limits.bytes_max:
            self._sums.pop(cursor.id, None)
            return
        low, high, total = self._sums.get(cursor.id, (window.floor, window.floor, 0))
        if high <= window.floor:
            low, high, total = window.floor, window.floor, 0
        while low < window.floor:
            gone = yield from self._sizes(cursor, low, window.floor)
            total -= sum(gone)
            low += len(gone)
        while high < (end := self._cursors.end(cursor)):
            new = yield from self._sizes(cursor, high, end)
            total += sum(new)
            high += len(new)
        if total > self.limits.bytes_max:
            yield from self._shorten(cursor, high, total)
            low, high, total = window.floor, window.floor, 0  # some lay above the floor: summed anew
        self._sums[cursor.id] = (low, high, total)

    def _shorten(self, cursor: Cursor, end: int, total: int) -> Slices[None]:
        """The entries before `end` have `total` bytes, which is too much. What is with the client stays."""
        window, most = cursor.window, self.limits.bytes_max
        text = f"{most} bytes (broker.session_bytes_max)"
        if self.limits.bytes_full == DISCONNECT:
            self._end(cursor, text)
            return
        if self.limits.bytes_full == NEWEST:
            first = end
            while total > most and first > window.next_offset:
                start = max(window.next_offset, first - UNITS_STEP)
                sizes: list[int] = []
                while start + len(sizes) < first:
                    sizes += yield from self._sizes(cursor, start + len(sizes), first)
                for size in reversed(sizes):
                    if total <= most:
                        break
                    total -= size
                    first -= 1
            if first < end:
                self._drop(cursor, self._newest(cursor, first), end - 1, text, "newest")
            return
        first = last = max(window.inflight, default=window.floor - 1) + 1
        while total > most and last < end:
            for size in (yield from self._sizes(cursor, last, end)):
                if total <= most:
                    break
                total -= size
                last += 1
        if last > first:
            self._drop(cursor, first, last - 1, text, "oldest")

    def _sizes(self, cursor: Cursor, offset: int, end: int) -> Slices[list[int]]:
        count = min(UNITS_STEP, end - offset)
        units = yield from patient(lambda: self._cursors.units(cursor, offset, count))
        yield READ_US + UNIT_US * len(units)
        sizes = [size if size != HOLE_SIZE else 0 for _, size, _ in units]
        return sizes or [0] * count

    def _drop(self, cursor: Cursor, first: int, last: int, text: str, kind: str) -> None:
        count = cursor.window.drop(first, last)
        self.dropped += count
        self._append_now(encode_range(cursor.id, first, last))
        log.warning("%s, queue %s: its backlog is over %s; the %s %d entries were dropped",
                    cursor.group, cursor.queue, text, kind, count)  # fmt: skip

    def publish(self, metrics: Metrics, before: list[tuple[int, str, str]]) -> None:
        """Show `top` instead of what was shown `before`."""
        now = {(queue, group) for _, queue, group in self.top}
        for _, queue, group in before:
            if (queue, group) not in now:
                metrics.remove(FAMILY, queue=queue, group=group)
        for pinned, queue, group in self.top:
            metrics.gauge(
                FAMILY, "Log from the oldest unacknowledged entry on", queue=queue, group=group
            ).value = pinned
