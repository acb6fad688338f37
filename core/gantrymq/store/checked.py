"""Reads that look at every record before they hand it out: size, magic, form, CRC, and that it is the record that its queue names.

So are read all records that this process did not write a short while ago: what lies behind the log's hot end, until a queue's reader has
looked at it once, and again whenever the disk itself had to be read. A record takes 1 us, a GiB of bodies 0.2 s.
"""

from __future__ import annotations

from errno import EBADMSG, EIO, ENODATA, EUCLEAN
from typing import TYPE_CHECKING, Final

from gantrymq.model import sysflag
from gantrymq.model.limits import FRAME_BYTES_MAX
from gantrymq.model.names import LMQ_PREFIX
from gantrymq.store.cold import Cold
from gantrymq.store.log import record
from gantrymq.store.log.commit_log import GAP_BYTES_MAX
from gantrymq.store.queues.compaction import VIRTUAL
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantrymq.store.cold import Want
    from gantrymq.store.damage import DamageList
    from gantrymq.store.log.commit_log import CommitLog
    from gantrymq.store.queues.consume_queue import Unit

RECORD_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""No record is larger: a frame has to carry it, and what retention moves has little more around it. So a damaged size costs no read of a segment."""
LOOKED_AT_MAX: Final = 512
"""Records looked at in one answer: half a millisecond. The next pull goes on behind them."""
NO_UNIT: Final = "the unit names no record of the log"
NO_ENTRY: Final = "the unit names a record that says nothing of this offset of the light queue"
NOT_READ: Final = "the disk cannot read it"
_UNREAD: Final = b"\0"
"""In place of what the disk cannot read: no record is so short."""


def is_unreadable(error: OSError) -> bool:
    """Whether a read failed because of the place that it read: other places may be read."""
    return error.errno in (EIO, ENODATA, EBADMSG, EUCLEAN)


class CheckedReads:
    """`read(position, count)`: bytes of the log or of a compacted file. `end()`: the log's."""

    def __init__(
        self, log: CommitLog, read: Callable[[int, int], bytes], end: Callable[[], int], damage: DamageList
    ) -> None:
        self._log = log
        self._read = read
        self._end = end
        self._damage = damage

    def read(
        self, topic: str, queue_id: int, offsets: Sequence[int], units: Sequence[Unit], bytes_max: int
    ) -> tuple[list[bytes], int]:
        """A piece for each unit, empty where there is no whole record, and the number of units covered: at least one, then as many as
        `bytes_max` allows. `offsets`: of the units. What is damaged is told, unless `topic` is empty. May raise `Cold`, with all that is.
        """
        wanted: list[tuple[int, int]] = []
        total = 0
        for position, size, _ in units:
            named = self.names_a_record(position, size)
            if named and total and total + size > bytes_max:
                break
            wanted.append((position, size) if named else (0, 0))
            total += size if named else 0
        pieces = self._read_all(wanted)
        name = topic.encode()
        for index, (position, size, _) in enumerate(units[: len(wanted)]):
            if not wanted[index][1]:
                if topic and not self._is_gone(position, size):
                    self._damage.found(position, size, f"{topic}/{queue_id}", offsets[index], NO_UNIT, True)
                continue
            if record.is_at(pieces[index], size, position, name, queue_id, offsets[index]):
                continue
            what, is_unit = self._what(pieces[index], position, size, topic, queue_id, offsets[index])
            if what:
                pieces[index] = b""
            if what and topic:
                self._damage.found(position, size, f"{topic}/{queue_id}", offsets[index], what, is_unit)
        return pieces, len(wanted)

    def all_whole(
        self, topic: str, queue_id: int, offsets: Sequence[int], places: Sequence[int], sizes: Sequence[int], base: int,
        pieces: Sequence[bytes],
    ) -> bool:  # fmt: skip
        """Whether what was read of the units of these offsets, neighbours perhaps in one piece, are their records; nothing is told."""
        which = at = 0
        name = topic.encode()
        for index, offset in enumerate(offsets):
            size, piece = sizes[index], pieces[which]
            data = piece if len(piece) == size else piece[at : at + size]
            at += size
            if at >= len(piece):
                which, at = which + 1, 0
            position = base + places[index]
            if record.is_at(data, size, position, name, queue_id, offset):
                continue
            if position >= VIRTUAL or self._what(data, position, size, topic, queue_id, offset)[0]:
                return False
        return True

    def fault(self, unit: Unit) -> tuple[str, bool]:
        """Why the unit's record could not be had, and whether that is the unit's fault; empty: it was lost, or deleted by retention. May
        raise `Cold`."""
        position, size, _ = unit
        if not self.names_a_record(position, size):
            return ("", False) if self._is_gone(position, size) else (NO_UNIT, True)
        data = self._bytes(position, size)
        if not data and position >= VIRTUAL:
            return "", False
        what, is_unit = self._what(data, position, size, "", -1, -1)
        return (what, is_unit) if what else ("it is not the record that the queue names", True)

    def is_whole(self, position: int, size: int) -> bool:
        """Whether a whole record stands at a position. `size`: what is believed; the record's own counts. May raise `Cold`."""
        head = self._bytes(position, record.PREFIX.size)
        own = int.from_bytes(head[:4], "big")
        if position < VIRTUAL and self.names_a_record(position, own):
            size = own
        return (
            self.names_a_record(position, size)
            and not self._what(self._bytes(position, size), position, size, "", -1, -1)[0]
        )

    def names_a_record(self, position: int, size: int) -> bool:
        """Whether a record of that size could stand there."""
        if not record.RECORD_SIZE_MIN <= size <= min(self._log.file_size, RECORD_BYTES_MAX):
            return False
        if position >= VIRTUAL:
            return position < VIRTUAL << 1  # twice that: the unit of an offset that the queue no longer has
        return self._log.min_position <= position and position + size <= self._end()

    def _is_gone(self, position: int, size: int) -> bool:
        """No damage: the offset is a hole, below the log's begin, or not in the queue any more."""
        if size == HOLE_SIZE or (position == VIRTUAL << 1 and not size):
            return True
        return size >= record.RECORD_SIZE_MIN and 0 <= position < self._log.min_position

    def _what(self, data: bytes, position: int, size: int, topic: str, queue_id: int, offset: int) -> tuple[str, bool]:
        what = record.fault(data, size) if data != _UNREAD else NOT_READ
        if what:
            return what, False
        its_topic, its_queue, its_offset, its_position = record.place_of(data)
        if its_position != position and position < VIRTUAL:
            return f"the record says that it stands at {its_position}", True
        if queue_id < 0:
            return "", False
        if data[record.SYS_FLAG_AT + 3] & sysflag.TRANSACTION_PREPARED:
            return record.PREPARED, False
        if (its_topic, its_queue, its_offset) == (topic, queue_id, offset):
            return "", False
        if topic.startswith(LMQ_PREFIX):
            right = record.is_entry(record.properties_of(data, 0, size), topic, offset)
            return ("", False) if right else (NO_ENTRY, True)
        return f"the unit names the record of {its_topic}/{its_queue}, offset {its_offset}", True

    def _bytes(self, position: int, count: int) -> bytes:
        try:
            return self._read(position, count)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return _UNREAD

    def _read_all(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """Each record alone, near ones read at once where the disk can."""
        ranges: list[list[int]] = []
        places: list[tuple[int, int]] = []
        file_size = self._log.file_size
        end = -1
        for position, size in wanted:
            near = 0 <= position - end <= GAP_BYTES_MAX and position // file_size == (end - 1) // file_size
            if size and (not near or not ranges or position >= VIRTUAL):
                ranges.append([position, position])
            if size:
                end = ranges[-1][1] = position + size
            places.append((len(ranges) - 1, position - ranges[-1][0] if size else 0))
        read: list[bytes] = []
        cold: list[Want] = []
        for begin, stop in ranges:
            try:
                read.append(self._bytes(begin, stop - begin))
            except Cold as error:
                cold += error.wanted
                read.append(b"")
        pieces: list[bytes] = []
        for (which, at), (position, size) in zip(places, wanted, strict=True):
            try:
                alone = size and read[which] == _UNREAD
                pieces.append(self._bytes(position, size) if alone else read[which][at : at + size] if size else b"")
            except Cold as error:
                cold += error.wanted
        if cold:
            raise Cold(cold)
        return pieces
