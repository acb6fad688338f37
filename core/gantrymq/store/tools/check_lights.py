"""Checking light queues, without changing them: the stream's frames, the table, and every entry against the log, both ways.

Recovery is applied in memory: `LightQueues.open` runs on files that forget whatever it removes. A record below the stream's log
position must stand in each light queue that it names, unless the queue was deleted or consumers have trimmed it; every entry of a queue
must name such a record. Per queue the two sides are counted and summed in two passes; only a queue that differs is looked at entry by entry.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.names import OWN_LIGHT_PREFIX, java_hash, light_id
from gantrymq.store.light.queues import LIGHT_MAX, LightQueues
from gantrymq.store.light.table import FLOOR, FRONT, NONE, PAGE, PAGE_MASK, PAGE_SHIFT, WIDTH
from gantrymq.store.log import record
from gantrymq.store.log.commit_log import file_name, positions_in
from gantrymq.store.log.groups import DISPATCH_TOPIC, continuation_pairs, origin_of
from gantrymq.store.log.recovery import check_record
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from gantrymq.store.tools.inspect import ForgetfulFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.model.message import Message
    from gantrymq.store.queues.consume_queue import Unit
    from gantrymq.store.tools.inspect import StoreImage
    from gantrymq.store.tools.report import Report, Tell

UNITS_AT_ONCE: Final = 4096
CODES_MAX: Final = 100_000
"""Tags whose code is remembered."""
_MASK: Final = (1 << 62) - 1
_ZEROS: Final = array("q", bytes(16 * PAGE))
"""Per queue of a page: number of entries, sum of their hashes."""


def pairs_of(message: Message) -> list[tuple[int, int]]:
    """(light queue, offset) pairs in a record's own properties."""
    pairs = []
    for name, offset in record.dispatch_of(message.dispatch)[0]:
        if name.startswith(OWN_LIGHT_PREFIX):
            try:
                pairs.append((light_id(name), offset))
            except ValueError:
                continue
    return pairs


class LightCheck:
    """One check. `saw` every record of the log in order, then `finish`; `close` at the end."""

    def __init__(self, image: StoreImage, report: Report, tell: Tell) -> None:
        self._image = image
        self._report = report
        self._tell = tell
        self._directory = image.directory.parent / "gantry" / "light"
        self._codes: dict[str, int] = {"": 0}
        self._lights: LightQueues | None = None
        self._fillers: list[tuple[int, int]] = []
        if image.files.exists(self._directory):
            self._open(image.log.limit)

    def _open(self, log_end: int) -> None:
        self.close()
        self._lights = LightQueues(ForgetfulFiles(), self._directory)
        self._lights.open(log_end, self._image.log.min_position)
        self._sums: dict[int, array[int]] = {}
        self._group: tuple[int, int, int] = (-1, 0, 0)

    def close(self) -> None:
        """Give the descriptors back."""
        if self._lights is not None:
            self._lights.close()

    def saw(self, message: Message, at: int, size: int) -> None:
        """A sound record of the log."""
        lights = self._lights
        if lights is None or at >= lights.log_position:
            return
        if message.dispatch and not message.sys_flag & 4:
            code = self._codes.get(message.tag)
            if code is None:
                if len(self._codes) >= CODES_MAX:
                    self._codes.clear()
                code = self._codes[message.tag] = java_hash(message.tag)
            self._group = (at, size, code)
            self._expect(pairs_of(message))
        elif message.topic == DISPATCH_TOPIC and origin_of(message) == self._group[0]:
            self._expect(continuation_pairs(message))

    def _expect(self, pairs: list[tuple[int, int]]) -> None:
        assert self._lights is not None
        pages, group = self._lights.table.pages, self._group
        for light, offset in pairs:
            page = pages.get(light >> PAGE_SHIFT) if 0 < light < LIGHT_MAX else None
            if page is None:
                continue  # all of its page were deleted
            slot = (light & PAGE_MASK) * WIDTH
            if page[slot] < 0 or offset < page[slot + FLOOR]:
                continue
            self._add(light, hash((*group, offset)))

    def _add(self, light: int, one: int) -> None:
        sums = self._sums.get(light >> PAGE_SHIFT)
        if sums is None:
            sums = self._sums[light >> PAGE_SHIFT] = _ZEROS[:]
        place = (light & PAGE_MASK) * 2
        sums[place] += 1
        sums[place + 1] = sums[place + 1] + one & _MASK

    def finish(self, fillers: list[tuple[int, int]]) -> None:
        """After the last record: `report.log_end` is known. `fillers`: (position, bytes) of what stands for damaged records."""
        self._fillers = fillers
        if self._lights is None:
            return
        if self._lights.log_position > self._report.log_end:  # recovery drops what speaks of lost records
            self._open(self._report.log_end)
            for at, size, message, bad in self._image.walk():
                if message is not None:
                    self.saw(message, at, size)
                elif bad is not None and not bad.lost:
                    break
        self._check_stream()
        self._check_table()
        self._check_queues()

    def _bad(self, where: str, text: str) -> None:
        self._report.bad("light", where, text)

    # --- the files

    def _check_table(self) -> None:
        lights = self._lights
        assert lights is not None
        if lights.table.was_published and lights.remade:
            self._bad(
                "gantry/light/table",
                "no whole snapshot can be read; the next start makes the table again from the stream",
            )
        elif self._image.clean and lights.end > lights.begin and not lights.table.published:
            self._bad("gantry/light/table", "it has no snapshot, although the store was closed cleanly")
        elif self._image.clean and lights.log_position < min(self._image.positions.derived, self._report.log_end):
            self._bad(
                "gantry/light",
                f"it ends at position {lights.log_position}, but queues at {self._image.positions.derived}",
            )

    def _check_stream(self) -> None:
        """Every frame up to the end; what lies behind it is a torn tail, and damage after a clean stop."""
        lights = self._lights
        assert lights is not None
        bases = positions_in(self._image.files, self._directory)
        at, told = lights.begin - lights.begin % lights.segment_size, lights.begin
        while at < lights.end:
            base = at - at % lights.segment_size
            frame = lights.frame_at(at) if base in bases else None
            if frame is not None:
                at += lights.frame_head + len(frame[-1])
            else:
                following = base + lights.segment_size
                last = following >= lights.end
                if last or following not in bases or not self._follows(following, at):
                    self._bad(
                        f"gantry/light position {at}", "no sound frame begins there; entries of light queues are lost"
                    )
                    if last:
                        return
                at = following
            if at - told > 1 << 22:
                told = at
                self._tell("light queues' stream", at - lights.begin, lights.end - lights.begin)
        base = lights.end - lights.end % lights.segment_size
        rest = lights.read_bytes(lights.end, 1 << 20).rstrip(b"\0") if base in bases else b""
        if rest and self._image.clean:
            self._bad(f"gantry/light {file_name(base)}", f"{len(rest)} bytes behind position {lights.end} are no frame")
        elif rest:
            self._report.notes.append(
                f"light queues: a torn tail of {len(rest)} bytes at {lights.end}: recovery cuts it"
            )

    def _follows(self, following: int, at: int) -> bool:
        assert self._lights is not None
        frame = self._lights.frame_at(following)
        return frame is not None and frame[1] == at

    # --- the queues

    def _check_queues(self) -> None:
        lights = self._lights
        assert lights is not None
        numbers = sorted(lights.table.pages)
        for count, number in enumerate(numbers):
            expected = self._sums.pop(number, _ZEROS)
            for index in range(PAGE):
                light = number << PAGE_SHIFT | index
                page = lights.table.pages[number]
                if page[index * WIDTH] > 0 or expected[index * 2]:
                    self._check_queue(light, expected[index * 2], expected[index * 2 + 1])
            if count % 100 == 0:
                self._tell("light queues", count, len(numbers))

    def _check_queue(self, light: int, expected: int, expected_sum: int) -> None:
        low, high = self._image.log.min_position, min(self._report.log_end, self._lights.log_position)  # type: ignore[union-attr]
        count = total = 0
        try:
            for offset, (position, size, code) in self._units(light):
                if size != HOLE_SIZE and low <= position < high:
                    count += 1
                    total = total + hash((position, size, code, offset)) & _MASK
                self._report.light_units += 1
        except StoreCorruptError as error:
            self._bad(f"light queue {light}", str(error))
            return
        if (count, total) != (expected, expected_sum):
            self._compare(light, expected, low, high)

    def _units(self, light: int) -> Iterator[tuple[int, Unit]]:
        lights = self._lights
        assert lights is not None
        offset, end = lights.min_offset(light), lights.next_offset(light)
        while offset < end:
            units = lights.read(light, offset, UNITS_AT_ONCE)
            yield from enumerate(units, offset)
            offset += len(units)

    def _compare(self, light: int, expected: int, low: int, high: int) -> None:
        lights = self._lights
        assert lights is not None
        page, slot = lights.table.slot(light)
        forgotten = sound = 0
        lead = page[slot + FRONT] != NONE
        for offset, (position, size, code) in self._units(light):
            if size == HOLE_SIZE:
                forgotten += lead  # trimmed and moved before a crash that forgot the trim
                continue
            lead = False
            if not low <= position < high:
                continue
            if self._names(light, offset, position, size, code):
                sound += 1
            elif not any(begin <= position < begin + length for begin, length in self._fillers):
                self._bad(
                    f"light queue {light} offset {offset}",
                    f"names {size} bytes at position {position}, where that record is not",
                )
        if expected > sound + forgotten:
            self._bad(f"light queue {light}", f"{expected - sound - forgotten} records of the log are not in it")

    def _names(self, light: int, offset: int, position: int, size: int, code: int) -> bool:
        found, message = check_record(self._image.log, position)
        if message is None or found != size or java_hash(message.tag) != code:
            return False
        if (light, offset) in pairs_of(message):
            return True
        at, more = position + size, record.dispatch_of(message.dispatch)[1]
        while more > 0:
            found, extra = check_record(self._image.log, at)
            if extra is None and found:  # the blank at the end of a segment
                at += found
                continue
            if extra is None or extra.topic != DISPATCH_TOPIC or origin_of(extra) != position:
                return False
            pairs = continuation_pairs(extra)
            if (light, offset) in pairs:
                return True
            more -= len(pairs)
            at += found
        return False
