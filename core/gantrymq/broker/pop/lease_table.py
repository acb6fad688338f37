"""Leases across a clean restart: table `pop_lease`, one row per cursor in use, written at the stop and deleted at the start.

Receipts then stay good, consumers are not given again what they are working on, and what was never delivered does not count as
delivered, though the delivered mark is ahead of it. After a crash there are no rows, and everything unacknowledged comes back at once. A row: `next` (the window's next offset), `recovered` (offsets below
were possibly delivered before an earlier crash), `stopped` (the time), `ordered`, `attempt`, and leases as [pop time, deadline
(milliseconds since the epoch), runs of offsets as first, last, first, last, ...].
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gantrymq.broker.pop.leases import Lease, Place

TABLE: Final = "pop_lease"

ROW_RUNS_MAX: Final = 50_000
"""Runs in one row, some 1.5 MiB; the leases beyond it end with the stop."""


def runs_of(offsets: Iterable[int]) -> list[int]:
    """First and last offset of each run, ascending."""
    runs: list[int] = []
    for offset in offsets:
        if runs and runs[-1] == offset - 1:
            runs[-1] = offset
        else:
            runs += [offset, offset]
    return runs


def row_of(place: Place, leases: Iterable[Lease], now_ms: int, wall_ms: int, tick_ms: int) -> bytes | None:
    """The row of a place; None if it has nothing to say. `now_ms`: the wheel's time, `wall_ms` the clock's."""
    inflight = place.cursor.window.inflight
    kept: list[Any] = []
    room = ROW_RUNS_MAX
    for lease in leases:
        runs = runs_of(sorted([offset for offset in lease.offsets if inflight.get(offset) == lease.id]))
        room -= len(runs) // 2
        if lease.pop_ms and runs and room >= 0:
            kept.append([lease.pop_ms, wall_ms + lease.tick * tick_ms - now_ms, runs])
    if not kept and place.cursor.window.marked <= place.cursor.window.next_offset:
        return None
    value = {
        "next": place.cursor.window.next_offset,
        "ordered": place.ordered,
        "attempt": place.attempt,
        "recovered": place.cursor.recovered_below,
        "stopped": wall_ms,
        "leases": kept,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def leases_of(value: dict[str, Any]) -> list[tuple[int, int, list[int]]]:
    """(pop time, deadline, offsets) of each lease in a row. Of a row without `stopped`, an older version's, the deadline alone counts."""
    found: list[tuple[int, int, list[int]]] = []
    for pop_ms, due_ms, runs in value["leases"]:
        offsets: list[int] = []
        for first, last in zip(runs[::2], runs[1::2], strict=True):
            offsets += range(first, last + 1)
        found.append((pop_ms, due_ms, offsets))
    return found
