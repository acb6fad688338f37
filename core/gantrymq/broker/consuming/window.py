"""AckWindow: one group's place in one queue.

Below `floor` everything is done; `next_offset` was never acquired; in between an entry is done (one bit), in flight, or
returned (served before anything newer, lowest offset first). Pure: no clock, no I/O. What must survive a restart is what
`settle`, `mark` and `skip_to` change; the caller writes it to the log (broker/consuming/acks.py) and replays it through the same methods.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

MARK_STEP = 1_000
"""The delivered mark runs ahead by the consumers' credit window, so that one record covers that many deliveries; by no more than this."""


def _refuse(*arguments: Any) -> NoReturn:
    raise TypeError("the empty table of idle windows is shared: give the window one of its own")


class _NoTable(dict[int, int]):
    """Of every window that has nothing: of a million queues most are idle. `AckWindow.hold` and `count` make a table when there is something."""

    __setitem__ = __ior__ = update = setdefault = _refuse


class _NoList(list[int]):
    __setitem__ = __iadd__ = append = extend = insert = _refuse


NO_TABLE: dict[int, int] = _NoTable()
NO_LIST: list[int] = _NoList()
NO_BITS = bytearray()


class AckWindow:
    """See the module. Offsets are queue offsets. Others change `inflight` and `counts` by `hold` and `count` alone, and replace `returned`."""

    __slots__ = (
        "_base",
        "_bits",
        "_extra",
        "ahead",
        "counts",
        "floor",
        "inflight",
        "marked",
        "next_offset",
        "returned",
        "weigh",
    )

    def __init__(self, start: int) -> None:
        self.floor = start
        self.next_offset = start
        self.marked = start
        """Offsets below it were possibly delivered before a crash."""
        self.inflight = NO_TABLE
        """Offset to holder."""
        self.returned = NO_LIST
        """Sorted ascending."""
        self.counts = NO_TABLE
        """Deliveries so far, only of offsets that came back or are in flight again."""
        self.ahead: set[int] | None = None
        """Offsets from `next_offset` on that were taken out (`take_out`): whoever comes there passes over them."""
        self.weigh: Callable[[int], int] | None = None
        """Bytes of an entry, for whoever asks for `extra_bytes`."""
        self._extra: int | None = 0
        """These, kept up to date; None: to be summed again."""
        self._bits = NO_BITS
        """One bit per entry from `_base` on: done out of order."""
        self._base = start & ~7

    def hold(self, offsets: Iterable[int], holder: int) -> None:
        """These are in flight."""
        if self.inflight is NO_TABLE:
            self.inflight = dict.fromkeys(offsets, holder)
        else:
            self.inflight.update(dict.fromkeys(offsets, holder))

    def count(self, offset: int, deliveries: int) -> None:
        """It was delivered so often."""
        if self.counts is NO_TABLE:
            self.counts = {}
        self.counts[offset] = deliveries

    def unacked(self) -> int:
        """Entries in flight."""
        return len(self.inflight)

    def is_at_rest(self) -> bool:
        """Everything before the next offset is done: the floor and the mark say it all."""
        return (
            type(self) is AckWindow
            and self.floor == self.next_offset
            and not (self.inflight or self.returned or self.counts or self.ahead)
            and self.weigh is None
        )

    def ready(self, queue_end: int) -> int:
        """Entries that could be acquired now, `queue_end` being the queue's maximum offset."""
        ready = len(self.returned) + max(0, queue_end - self.next_offset)
        return ready - len(self.ahead) if self.ahead else ready

    def extra_bytes(self) -> int:
        """Bytes of the ready entries below `next_offset`, less those of entries from there on that are not ready."""
        if self._extra is None:
            self._extra = self._weighed()
        return self._extra

    def weigh_by(self, weigh: Callable[[int], int] | None) -> None:
        """From now on `extra_bytes` is counted by it."""
        self.weigh = weigh
        self._extra = None

    def weigh_again(self) -> None:
        """The bytes of some entries are known now, or others than before."""
        self._extra = None

    def _weighed(self) -> int:
        weigh = self.weigh
        return sum(map(weigh, self.returned)) - sum(map(weigh, self.ahead or ())) if weigh is not None else 0

    def _count_in(self, offset: int) -> None:
        if self.weigh is not None and self._extra is not None:
            self._extra += self.weigh(offset)

    def _count_out(self, offset: int) -> None:
        if self.weigh is not None and self._extra is not None:
            self._extra -= self.weigh(offset)

    def is_ready(self, offset: int) -> bool:
        """Whether that entry, which the queue has, could be acquired."""
        if offset >= self.next_offset:
            return not self.ahead or offset not in self.ahead
        at = bisect_left(self.returned, offset)
        return at < len(self.returned) and self.returned[at] == offset

    def urgent(self, count: int) -> list[int]:
        """Up to `count` ready entries that are served before all others, in that order; see priorities.py."""
        return []

    def acquired_end(self) -> int:
        """Nothing from here on was ever delivered, or is done."""
        return max(self.next_offset, max(self.ahead) + 1) if self.ahead else self.next_offset

    def take_out(self, offset: int) -> bool:
        """Take a ready entry, anywhere in the queue, out of everybody's reach; `done_out` finishes it. False if it is not ready."""
        if offset < self.next_offset:
            return self.recall(offset)
        if self.ahead is None:
            self.ahead = set()
        if offset in self.ahead:
            return False
        self.ahead.add(offset)
        self._count_out(offset)
        return True

    def done_out(self, offset: int) -> None:
        """As `done` of an entry that was taken out: what lies before it is still to come."""
        following = self.next_offset
        self.done(offset)
        if offset >= following:
            self.next_offset = max(following, self.floor)
            self._passed(following)

    def pass_over(self) -> None:
        """The next new offset was taken out: go on behind it."""
        if self.ahead and self.next_offset in self.ahead:
            self.ahead.discard(self.next_offset)
            self._count_in(self.next_offset)
        self.next_offset += 1

    def pass_ahead(self) -> None:
        """The next new offset was not taken out: whoever asks for one entry must not get none for those before it."""
        ahead, since = self.ahead, self.next_offset
        if ahead and since in ahead:
            at = since + 1
            while at in ahead:
                at += 1
            self.next_offset = at
            self._passed(since)

    def _passed(self, since: int) -> None:
        """The next offset was `since`: forget what lies between. It costs the smaller of what was passed and what was taken out, so that entries
        which end one by one do not cost the square of their number."""
        ahead = self.ahead
        if not ahead or since >= self.next_offset:
            return
        if self.next_offset - since < len(ahead):
            gone = [offset for offset in range(since, self.next_offset) if offset in ahead]
        else:
            gone = [offset for offset in ahead if offset < self.next_offset]
        ahead.difference_update(gone)
        if self.weigh is not None:
            for offset in gone:
                self._count_in(offset)
        if not ahead:
            self.ahead = None

    def take_returned(self, holder: int, count: int) -> list[int]:
        """Up to `count` returned offsets, lowest first, now in flight."""
        offsets = self.returned[:count]
        del self.returned[:count]
        if self.weigh is not None:
            for offset in offsets:
                self._count_out(offset)
        self.hold(offsets, holder)
        return offsets

    def take_next(self, holder: int) -> int:
        """The next new offset, now in flight; the caller has checked that it exists and has marked it."""
        offset = self.next_offset
        self.next_offset = offset + 1
        if self.inflight is NO_TABLE:
            self.inflight = {}
        self.inflight[offset] = holder
        return offset

    def take_run(self, holder: int, count: int) -> range:
        """As `take_next`, `count` times at once."""
        first = self.next_offset
        self.next_offset = first + count
        run = range(first, first + count)
        if self.inflight:
            self.inflight.update(dict.fromkeys(run, holder))
        else:
            self.inflight = dict.fromkeys(run, holder)
        return run

    def take_chosen(self, holder: int, offsets: Sequence[int], end: int) -> None:
        """New entries that passed a filter, now in flight; the others below `end`, its next offset, are the caller's to finish."""
        self.next_offset = end
        self.hold(offsets, holder)

    def recall(self, offset: int) -> bool:
        """Take an offset out of the returned ones; False if it is not among them."""
        at = bisect_left(self.returned, offset)
        if at == len(self.returned) or self.returned[at] != offset:
            return False
        del self.returned[at]
        self._count_out(offset)
        return True

    def deliveries(self, offset: int, recovered_below: int) -> int:
        """How many times `offset` was delivered before; offsets below `recovered_below` count as delivered once."""
        count = self.counts.get(offset, 0)
        return count if count or offset >= recovered_below else 1

    def done(self, offset: int) -> bool:
        """Mark done; False if it was done already or lies beyond what was ever acquired. Replay may finish what is not in flight."""
        if offset < self.floor:
            return False
        self.inflight.pop(offset, None)
        if self.counts:
            self.counts.pop(offset, None)
        if offset >= self.next_offset:
            self.next_offset = offset + 1
        if offset == self.floor:
            self.floor = offset + 1
            if self._bits:
                self._advance()
            return True
        index = (offset - self._base) >> 3
        if not self._bits:
            self._base, self._bits = self.floor & ~7, bytearray()
            index = (offset - self._base) >> 3
        if index >= len(self._bits):
            self._bits.extend(bytes(index + 1 - len(self._bits)))
        bit = 1 << (offset & 7)
        if self._bits[index] & bit:
            return False
        self._bits[index] |= bit
        return True

    def done_range(self, first: int, last: int) -> None:
        """Mark `first..last` done, both included, whatever their number."""
        first = max(first, self.floor)
        if first > last:
            return
        for table in (self.inflight, self.counts):
            if last - first < len(table):
                for offset in range(first, last + 1):
                    table.pop(offset, None)
            elif table:
                for offset in [offset for offset in table if first <= offset <= last]:
                    del table[offset]
        following = self.next_offset
        self.next_offset = max(following, last + 1)
        self._passed(following)
        if first == self.floor:
            self.floor = last + 1
            if self._bits:
                self._advance()
        else:
            self._fill(first, last + 1)

    def drop(self, first: int, last: int) -> int:
        """Done without having been consumed: `first..last`, none of it in flight; the number that was still to come."""
        self._extra = None
        left = sum([not self.is_done(offset) for offset in range(first, last + 1)])
        self.returned = [offset for offset in self.returned if not first <= offset <= last]
        self.done_range(first, last)
        return left

    def is_done(self, offset: int) -> bool:
        """True below the floor and for entries done out of order."""
        if offset < self.floor:
            return True
        index = (offset - self._base) >> 3
        return index < len(self._bits) and bool(self._bits[index] & (1 << (offset & 7)))

    def give_back(self, offset: int, delivered: bool) -> bool:
        """From in flight to returned, its count raised if it was delivered; False if it was not in flight."""
        if self.inflight.pop(offset, None) is None:
            return False
        if delivered:
            self.count(offset, self.counts.get(offset, 0) + 1)
        self.bring_back(offset)
        return True

    def bring_back(self, offset: int) -> None:
        """An entry that is nobody's is ready again."""
        self._count_in(offset)
        if not self.returned:
            self.returned = [offset]
        elif offset > self.returned[-1]:
            self.returned.append(offset)
        else:
            insort(self.returned, offset)

    def give_back_many(self, offsets: list[int]) -> None:
        """As `give_back` of delivered entries, all of them in flight, ascending; one pass, however much has returned before."""
        self._take_back(offsets)

    def give_back_all(self, holder: int) -> list[int]:
        """Everything that `holder` has in flight, ascending, as delivered and returned; in one pass, however much it is."""
        offsets = sorted([offset for offset, by in self.inflight.items() if by == holder])
        self._take_back(offsets)
        return offsets

    def _take_back(self, offsets: list[int]) -> None:
        if not offsets:
            return
        inflight = self.inflight
        counts = self.counts = {} if self.counts is NO_TABLE else self.counts
        for offset in offsets:
            del inflight[offset]
            counts[offset] = counts.get(offset, 0) + 1
        self._extra = None
        self.returned = sorted([*self.returned, *offsets])

    def skip_to(self, queue_end: int) -> int:
        """Drop everything that is ready (not what is in flight); the number dropped."""
        self._extra = None
        dropped = self.ready(queue_end)
        for offset in self.returned:
            self.done(offset)
        self.returned.clear()
        self.done_range(self.next_offset, queue_end - 1)
        return dropped

    def cut(self, end: int) -> None:
        """Offsets from `end` on were never acquired: the queue lost the records that had them, or only the mark was there."""
        self._extra = None
        self.marked = min(self.marked, end)
        if end >= self.next_offset:
            return
        self.next_offset = end
        self.floor = min(self.floor, end)
        keep = end - self._base
        if keep > 0:
            del self._bits[(keep + 7) >> 3 :]
            if keep & 7 and len(self._bits) > keep >> 3:
                self._bits[-1] &= (1 << (keep & 7)) - 1
        else:
            self._bits.clear()
            self._base = end & ~7
        self.ahead = {offset for offset in self.ahead if offset < end} if self.ahead else None
        self.inflight = {offset: holder for offset, holder in self.inflight.items() if offset < end}
        self.returned = [offset for offset in self.returned if offset < end]
        self.counts = {offset: count for offset, count in self.counts.items() if offset < end}

    def recover(self) -> None:
        """After replay: what was in flight or possibly delivered and is not done comes back, lowest first."""
        self.inflight = NO_TABLE
        self.ahead, self._extra = None, None
        self.returned = [
            offset for offset in range(self.floor, self.next_offset) if not self.is_done(offset)
        ] or NO_LIST
        self.counts = self.counts or NO_TABLE
        if not self.returned:
            self.floor = max(self.floor, self.next_offset)
            self._bits = NO_BITS

    def undone(self, first: int, end: int) -> list[int]:
        """Offsets of `first..end-1` that are not done."""
        edge = self._base + len(self._bits) * 8
        found = [offset for offset in range(max(first, self.floor), min(end, edge)) if not self.is_done(offset)]
        found += range(max(first, self.floor, edge), end)
        return found

    def dump(self) -> tuple[int, int, int, int, bytes, dict[int, int]]:
        """State for a snapshot; `load` takes it back: floor, next offset, mark, first offset of the bits, bits, counts."""
        return self.floor, self.next_offset, self.marked, self._base, bytes(self._bits), dict(self.counts)

    @classmethod
    def load(cls, state: tuple[int, int, int, int, bytes, dict[int, int]]) -> AckWindow:
        """A window as `dump` saw it; nothing is in flight."""
        floor, next_offset, marked, base, bits, counts = state
        window = cls(floor)
        window.next_offset, window.marked, window._base = next_offset, marked, base
        window._bits = bytearray(bits)
        window.counts = dict(counts)
        return window

    def _fill(self, first: int, end: int) -> None:
        """Set the bits of `first..end-1`, whole bytes at a time (a purge may cover millions)."""
        if first >= end:
            return
        if not self._bits:
            self._base, self._bits = self.floor & ~7, bytearray()
        size = ((end - 1 - self._base) >> 3) + 1
        if size > len(self._bits):
            self._bits.extend(bytes(size - len(self._bits)))
        whole_first, whole_end = (first + 7) & ~7, end & ~7
        for offset in range(first, min(whole_first, end)):
            self._bits[(offset - self._base) >> 3] |= 1 << (offset & 7)
        if whole_first < whole_end:
            begin = (whole_first - self._base) >> 3
            count = (whole_end - whole_first) >> 3
            self._bits[begin : begin + count] = b"\xff" * count
        for offset in range(max(whole_end, whole_first), end):
            self._bits[(offset - self._base) >> 3] |= 1 << (offset & 7)

    def _advance(self) -> None:
        """Move the floor over entries done out of order and drop the bits below it."""
        bits, floor = self._bits, self.floor
        index = (floor - self._base) >> 3
        size = len(bits)
        while index < size:
            byte = bits[index]
            if not byte & (1 << (floor & 7)):
                break
            if byte == 0xFF and not floor & 7:
                floor += 8
                index += 1
            else:
                floor += 1
                index = (floor - self._base) >> 3
        self.floor = floor
        drop = min((floor - self._base) >> 3, size)
        if drop:
            del bits[:drop]
            self._base += drop << 3
        if self.ahead and floor > self.next_offset:
            following = self.next_offset
            self.next_offset = floor
            self._passed(following)
        if floor >= self.next_offset and not self.ahead:
            bits.clear()
