"""What a pop would give out of one queue: found first, with nothing changed, so that a read that waits for the disk can be repeated.

A redelivered record shows in its field RECONSUMETIMES how many times it was delivered before; everything else is as stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.broker.consuming.cursors import GONE
from gantrymq.model import sysflag
from gantrymq.model.properties import OWN_CRC_SIZE, has_own_crc, own_crc
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.entries.quarantine import Bad
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.store.message_store import MessageStore
    from gantrymq.store.queues.consume_queue import Unit

SPAN_MAX: Final = 8192
"""Offsets of one answer lie no further apart: batch acknowledgements name them by bits from the first one on."""

RECONSUME_AT: Final = 72
"""With IPv4 hosts; each IPv6 host adds 12."""


HOLES_MAX: Final = 16_384
"""Lost entries passed over in one pop."""


class Pick(Protocol):
    """A filter over queue units. `step`: units that one call gets at most; `scan_max`: units looked at for one pop; where they end,
    the next one goes on."""

    step: int
    scan_max: int

    def __call__(self, units: Sequence[Unit]) -> tuple[list[int], int]:
        """Indexes of the units that pass, and how many units were looked at (from the first on; at least one)."""


class Selection:
    """`offsets`: what is given out, ascending; the first `back` of them had come back. `gone`: offsets whose record is lost; `bad`: damaged.
    `end`: next offset afterwards; new ones below it that are not given out did not pass the filter. `counts`: deliveries so far by
    offset, of those that had any. `pieces`: their records, `size` bytes together. `queue_end`: the queue's next offset."""

    __slots__ = ("back", "bad", "counts", "end", "gone", "offsets", "pieces", "queue_end", "size")

    def __init__(self) -> None:
        self.offsets: Sequence[int] = ()
        self.back = 0
        self.gone: list[int] = []
        self.bad: list[Bad] = []
        self.end = 0
        self.counts: dict[int, int] = {}
        self.pieces: list[bytes] = []
        self.size = 0
        self.queue_end = 0


def select(
    cursors: Cursors, store: MessageStore, cursor: Cursor, returned: list[int], count: int, bytes_max: int, pick: Pick | None, end: int
) -> Selection:  # fmt: skip
    """At most `count` entries and `bytes_max` bytes, at least one if any is ready. `returned`: what came back, ascending; `end`: the
    queue's. Raises `Cold`."""
    if pick is None and not returned and (quick := _quick(cursors, store, cursor, count, bytes_max, end)) is not None:
        return quick
    found = Selection()
    window = cursor.window
    found.end = window.next_offset
    offsets: Sequence[int] = ()
    units: list[Unit] = []
    if returned:
        limit = returned[0] + SPAN_MAX
        back = [offset for offset in returned[:count] if offset < limit]
        units = [(cursors.units(cursor, offset, 1) or GONE)[0] for offset in back]
        found.gone = [
            offset for offset, unit in zip(back, units, strict=True) if unit[1] == HOLE_SIZE or unit[0] >= GONE[0][0]
        ]
        if found.gone:
            lost = set(found.gone)
            units = [unit for offset, unit in zip(back, units, strict=True) if offset not in lost]
            back = [offset for offset in back if offset not in lost]
        found.back = len(back)
        offsets = back
        end = min(end, limit)
    room = count - len(offsets)
    if room > 0 and window.next_offset < end:
        offsets, units = _fresh(cursors, cursor, found, list(offsets), units, room, pick, end)
    if units:
        _read(cursors, store, cursor, found, offsets, units, bytes_max)
    return found


def _quick(
    cursors: Cursors, store: MessageStore, cursor: Cursor, count: int, bytes_max: int, end: int
) -> Selection | None:
    """The ordinary case: new entries only, none lost, moved or compacted."""
    window = cursor.window
    at = window.next_offset
    if window.counts or at < cursor.recovered_below or cursor.queue in cursors.moved.queues:
        return None
    queue = store.queue(cursor.topic, cursor.queue_id)
    if queue is None or store.compacted.queues or at >= end:
        return None
    read = store.read_span(queue, at, min(count, end - at), bytes_max)
    if read is None:
        return None
    found = Selection()
    found.pieces, taken, found.size = read
    found.end = at + taken
    found.offsets = range(at, found.end)
    return found


def _first(cursors: Cursors, cursor: Cursor, end: int) -> int:
    """Where new entries begin: what retention deleted meanwhile is passed over, but for what it moved because it was held."""
    at = cursor.window.next_offset
    first = min(cursors.first(cursor), end)
    if at >= first:
        return at
    moved = cursors.moved.queues.get(cursor.queue, ())
    return min([offset for offset in moved if at <= offset < first], default=first)


def _fresh(
    cursors: Cursors,
    cursor: Cursor,
    found: Selection,
    offsets: list[int],
    units: list[Unit],
    room: int,
    pick: Pick | None,
    end: int,
) -> tuple[Sequence[int], list[Unit]]:
    """Add new entries to those that had come back."""
    at = _first(cursors, cursor, end)
    if pick is None:
        stop = min(end, at + HOLES_MAX)
        while room > 0 and at < stop:
            fresh = cursors.units(cursor, at, min(room, end - at))
            if not fresh:
                break
            run = range(at, at + len(fresh))
            at = found.end = run.stop
            if not offsets and all(unit[1] != HOLE_SIZE for unit in fresh):
                return run, fresh
            taken = [(offset, unit) for offset, unit in zip(run, fresh, strict=True) if unit[1] != HOLE_SIZE]
            offsets = offsets + [offset for offset, _ in taken]
            units = units + [unit for _, unit in taken]
            room -= len(taken)
        return offsets, units
    moved = cursors.moved.queues.get(cursor.queue)
    stop = min(end, at + pick.scan_max)
    while at < stop and room > 0:
        step = cursors.units(cursor, at, min(pick.step, stop - at))
        if not step:
            break
        passed, looked = pick(step)
        if moved:  # a moved record's wrapping says nothing about its tag or properties: the client filters it
            passed = sorted({*passed, *[index for index in range(looked) if at + index in moved]})
        chosen = passed[:room]
        offsets += [at + index for index in chosen]
        units = units + [step[index] for index in chosen]
        room -= len(chosen)
        at += looked if room else chosen[-1] + 1
    found.end = at
    return offsets, units


def _read(
    cursors: Cursors, store: MessageStore, cursor: Cursor, found: Selection, offsets: Sequence[int], units: list[Unit], bytes_max: int
) -> None:  # fmt: skip
    window = cursor.window
    moved = cursor.queue in cursors.moved.queues
    recovered = cursor.recovered_below
    if moved:
        taken = cursors.within(units, bytes_max)
        pieces = _moved_records(cursors, store, cursor, found, offsets[:taken], units[:taken])
    else:
        pieces, taken = store.read_units(cursor.topic, cursor.queue_id, offsets, units, bytes_max)
        for offset, unit, piece in zip(offsets, units, pieces, strict=False):
            if not piece:
                what, is_unit = store.fault(unit)
                if what:
                    found.bad.append((offset, unit, what, is_unit))
                else:
                    found.gone.append(offset)
    left = [offset for offset, piece in zip(offsets, pieces, strict=False) if piece]
    found.back = sum([offset < window.next_offset for offset in left])
    if taken < len(offsets):  # what does not fit stays where it is
        found.end = min(found.end, max(offsets[taken], window.next_offset))
    found.pieces = [piece for piece in pieces if piece]
    if window.counts or offsets[0] < recovered:
        found.counts = {offset: times for offset in left if (times := window.deliveries(offset, recovered))}
        counts = found.counts
        found.pieces = [
            with_count(piece, counts[offset]) if offset in counts else piece
            for offset, piece in zip(left, found.pieces, strict=True)
        ]
    found.offsets = left
    found.size = sum(map(len, found.pieces))


def _moved_records(
    cursors: Cursors, store: MessageStore, cursor: Cursor, found: Selection, offsets: Sequence[int], units: list[Unit]
) -> list[bytes]:
    """A piece for each, empty where its record is lost or damaged."""
    messages = store.get_many([(unit[0], unit[1]) for unit in units])
    found.bad = cursors.quarantined.damaged(cursor, offsets, units, messages)
    bad = {entry[0] for entry in found.bad}
    pieces = []
    for offset, message in zip(offsets, messages, strict=True):
        whole = message is not None and offset not in bad
        if message is None and offset not in bad:
            found.gone.append(offset)
        pieces.append(record.encode(message) if whole and message is not None else b"")
    return pieces


def with_count(piece: bytes, more: int) -> bytes:
    """The record with `more` added to its reconsume times. The CRC of the body does not cover them, one of the whole record is made anew."""
    flags = piece[record.SYS_FLAG_AT + 3]
    at = RECONSUME_AT + 12 * bool(flags & sysflag.BORN_HOST_V6) + 12 * bool(flags & sysflag.STORE_HOST_V6)
    times = int.from_bytes(piece[at : at + 4], "big", signed=True) + more
    made = piece[:at] + times.to_bytes(4, "big", signed=True) + piece[at + 4 :]
    if not has_own_crc(piece):
        return made
    return made[:-OWN_CRC_SIZE] + own_crc([made[:-OWN_CRC_SIZE], b""], separated=True)
