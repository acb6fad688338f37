"""Headers of acknowledgements, told by their likeness to earlier ones: pop consumers send one per message.

Those of one consumer differ in the queue, the receipt, the offset and the opaque; all else stays as it is. So a header is cut at the places of an
earlier one of the same length, as those of sends are (send_shapes.py), and one that continues a run (same queue and delivery, a higher offset)
is no more than its offset and its opaque. Of a whole delivery's, whose offsets count up, all frames are made as they should be from the first one
and compared at once. What is not alike goes the general way, and is remembered for the next.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Final

from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.send_shapes import HEADER_BYTES_MAX, OPAQUE_MAX, QUEUE_IDS
from gantrymq.remoting.shape_table import ShapeTable

if TYPE_CHECKING:
    from collections.abc import Callable

ACK_CODE: Final = int(RequestCode.ACK_MESSAGE)
ACK_START: Final = b'{"code":%d,' % ACK_CODE
"""Binary headers have no room for the code."""

COUNTED_MIN: Final = 4
"""Frames that are worth comparing at once..."""
COUNTED_MAX: Final = 32
"""...and as many as messages of one pop: what is compared in vain must not grow with what was read."""

Fields = dict[str, str]

_PREFIX: Final = Struct(">II")
"""Of a frame: length of the rest, length of the header (codec.py)."""
_OPAQUE_LARGEST: Final = b"%d" % OPAQUE_MAX
# The last group of each is a part that varies: receipt, offset, queue, opaque.
_PARTS: Final = [
    re.compile(part)
    for part in (
        rb'"extraInfo":"([!#-\[\]-~ ]+)"', rb'"offset":"([0-9]{1,18})"', rb'"queueId":"([0-9]{1,4})"', rb'"opaque":([0-9]{1,10})[,}]',
    )
]  # fmt: skip
_COLUMNS: Final = [b"".join([b"%d" % digit * width for digit in range(10)]) * (100 // width) for width in (1, 10, 100)]
"""Units, tens and hundreds of the numbers from 0 to 999."""
# start, pop time, invisible time, revive queue, mark, broker, queue, offset (ExtraInfoUtil.buildExtraInfo)
_RECEIPT: Final = re.compile(
    rb"[0-9]{1,18} ([0-9]{1,18}) -?[0-9]{1,18} [0-9]{1,4} [012] [!#-\[\]-~]+ [0-9]{1,4} ([0-9]{1,18})"
)


class Acks:
    """Acknowledgements that came behind one another: of one delivery, its offsets ascending. `opaques`: as they are written."""

    __slots__ = ("end", "head", "offsets", "opaques", "pop_ms", "queue", "shape")

    def __init__(self, shape: AckShape, queue: bytes, head: bytes, pop_ms: int) -> None:
        self.shape = shape
        self.queue = queue
        self.head = head
        """The receipts, without the offset at their end."""
        self.pop_ms = pop_ms
        self.offsets: list[int] = []
        self.opaques: list[bytes] = []
        self.end = 0
        """Where the last frame ends in the bytes that it was told from."""

    @property
    def queue_id(self) -> int:
        """The queue's number."""
        return QUEUE_IDS[self.queue]

    def goes_on(self, shape: AckShape, queue: bytes, head: bytes, offset: int) -> bool:
        """Whether an acknowledgement belongs to this run."""
        return shape is self.shape and queue == self.queue and head == self.head and offset > self.offsets[-1]

    def fields(self, offset: int) -> Fields:
        """The fields of the header that the general way would have made."""
        info = f"{self.head.decode()}{offset}"
        return self.shape.fields | {"extraInfo": info, "offset": str(offset), "queueId": self.queue.decode()}


class AckShape:
    """The parts of a header that do not vary. `marker`: second word of its frame, the header's length."""

    __slots__ = (
        "_columns",
        "_constant",
        "_counting",
        "_digits",
        "_each",
        "_first",
        "_head",
        "_lead",
        "_opaque",
        "_opaque_width",
        "_places",
        "_pop_ms",
        "_size",
        "fields",
        "group",
        "language",
        "marker",
        "topic",
        "version",
    )

    def __init__(self, header: bytes, places: list[slice], fields: Fields, sender: tuple[int, int]) -> None:
        """`places`: of receipt, offset, queue and opaque in `header`. `sender`: language and version."""
        self.marker = len(header)
        frame = _PREFIX.pack(len(header) + 4, len(header)) + header
        places = [slice(place.start + _PREFIX.size, place.stop + _PREFIX.size) for place in places]
        self.fields = fields
        self.group, self.topic = fields["consumerGroup"], fields["topic"]
        self.language, self.version = sender
        ordered = sorted(places, key=lambda place: int(place.start))
        self._places = [2 * ordered.index(place) + 1 for place in places]
        self._digits = int(places[1].stop) - int(places[1].start)
        layout, at = "", 0
        for place in ordered:
            layout += f"{place.start - at}s{place.stop - place.start}s"
            at = place.stop
        form = Struct(f"{layout}{len(frame) - at}s")
        self._first, self._each = form.unpack_from, form.iter_unpack
        self._size = form.size
        self._constant = form.unpack(frame)[::2]
        self._opaque = int(places[3].start)
        self._opaque_width = int(places[3].stop) - self._opaque
        self._counting = [int(place.stop) for place in places[:2]]
        """Where the offset ends in a frame, at the end of the receipt and by itself."""
        self._columns = _COLUMNS[: self._digits]
        self._lead = min(self._opaque, *[stop - self._digits for stop in self._counting])
        """Bytes of a frame before the first that differs in those that count up."""
        self._head = b""
        self._pop_ms = 0

    def match(self, data: bytes, at: int, run: Acks | None) -> Acks | None:
        """The acknowledgement whose frame begins at `at`, if it is like this one, and those behind it that continue its run: added to `run`
        if they continue that, else a new run. All of the first frame must be in `data`."""
        size, head = self._size, self._head
        info_at, offset_at, queue_at, opaque_at = self._places
        parts = self._first(data, at)
        offset, queue = parts[offset_at], parts[queue_at]
        # int() takes more digits than Java does
        if parts[::2] != self._constant or queue not in QUEUE_IDS or not offset.isdigit():
            return None
        if parts[info_at] != head + offset:
            if not self._receipt(parts[info_at], offset):
                return None
            head = self._head
        numbers, opaques = [int(offset)], [parts[opaque_at]]
        count = (len(data) - at) // size
        if count >= COUNTED_MIN and (counted := self._counted(data, at, count, numbers[0])):
            numbers += range(numbers[0] + 1, numbers[0] + len(counted))
            opaques = counted
        elif count > 1:
            self._follow(data, at + size, count - 1, head, queue, numbers, opaques)
        if (offset[0] == 0x30 and len(offset) > 1) or not self._are_opaques(opaques):
            return None
        if run is None or not run.goes_on(self, queue, head, numbers[0]):
            run = Acks(self, queue, head, self._pop_ms)
        run.offsets += numbers
        run.opaques += opaques
        run.end = at + size * len(numbers)
        return run

    def _follow(
        self, data: bytes, at: int, count: int, head: bytes, queue: bytes, numbers: list[int], opaques: list[bytes]
    ) -> None:
        """Add those of at most `count` frames from `at` on that continue the run, each taken apart."""
        info_at, offset_at, queue_at, opaque_at = self._places
        for parts in self._each(memoryview(data)[at : at + count * self._size]):
            offset = parts[offset_at]
            if parts[::2] != self._constant or parts[queue_at] != queue or parts[info_at] != head + offset:
                break
            number = int(offset) if offset.isdigit() else -1
            if number <= numbers[-1]:
                break
            numbers.append(number)
            opaques.append(parts[opaque_at])

    def _counted(self, data: bytes, at: int, count: int, offset: int) -> list[bytes]:
        """The opaques of at most `count` frames from `at` on, the first of which is understood and has this offset, if the others are as it
        is with their own opaques and with the offsets behind this one; empty if not. To the next thousand: three digits count."""
        size, period = self._size, int(10 ** len(self._columns))
        low, second = offset % period, at + size + self._counting[1]
        if data[second - self._digits : second] != b"%d" % (offset + 1):
            return []
        count, beyond = 1, min(count, COUNTED_MAX, period - low) + 1
        lead, middle = data[at : at + self._lead], beyond - 1
        while beyond - count > 1:  # behind those of one delivery come frames of any kind
            if data.startswith(lead, at + (middle - 1) * size):
                count = middle
            else:
                beyond = middle
            middle = (count + beyond) // 2
        if count < COUNTED_MIN:
            return []
        wanted = bytearray(data[at : at + size]) * count
        columns = self._columns if low % 100 + count > 100 else self._columns[:2]
        for stop in self._counting:
            for back, column in enumerate(columns, 1):
                wanted[stop - back :: size] = column[low : low + count]
        begin, stop, width = at + self._opaque, at + len(wanted), self._opaque_width
        opaques = [data[begin : begin + width]] * count
        if data[begin + len(wanted) - size : begin + len(wanted) - size + width] != opaques[0]:
            opaques = [data[place : place + width] for place in range(begin, stop, size)]
            for place in range(begin, begin + width):
                wanted[place - at :: size] = data[place:stop:size]
        return opaques if data.startswith(wanted, at) else []

    def _are_opaques(self, opaques: list[bytes]) -> bool:
        """All are numbers as they are written, of 31 bits; what stands in a string of digits means the same in JSON."""
        if opaques.count(opaques[0]) == len(opaques):
            opaques = opaques[:1]
        if not b"".join(opaques).isdigit() or min(opaques)[0] == 0x30:
            return False
        return self._opaque_width < len(_OPAQUE_LARGEST) or max(opaques) <= _OPAQUE_LARGEST

    def _receipt(self, info: bytes, offset: bytes) -> bool:
        """A receipt of another delivery; its last word is the offset once more."""
        found = _RECEIPT.fullmatch(info)
        if found is None or found[2] != offset:
            return False
        self._head = info[: found.start(2)]
        self._pop_ms = int(found[1])
        return True


class AckShapes(ShapeTable[AckShape]):
    """Those of all connections."""

    __slots__ = ()

    def find(self, marker: int, data: bytes, at: int, run: Acks | None) -> Acks | None:
        """As `AckShape.match`, for any that was learned. `marker`: of the frame at `at`."""
        for shape in self._shapes.get(marker, ()):
            found = shape.match(data, at, run)
            if found is not None:
                return found
        return None

    def learn(
        self, header: bytes, fields: Fields, sender: tuple[int, int], decode: Callable[[bytes], tuple[Fields, int]]
    ) -> None:
        """Remember the shape of a header that the general way understood as `fields`. `decode`: that way; it has to understand a header
        with other values in the places that were found exactly so."""
        places = _places(header) if len(header) <= HEADER_BYTES_MAX else None
        if places is None or not {"consumerGroup", "topic"} <= fields.keys():
            return
        info, offset, queue, number = [b"1" * (place.stop - place.start) for place in places]
        probe = bytearray(header)
        for place, value in zip(places, (info, offset, queue, number), strict=True):
            probe[place] = value
        others = {"extraInfo": info.decode(), "offset": offset.decode(), "queueId": queue.decode()}
        if decode(bytes(probe)) == (fields | others, int(number)):
            self._keep(len(header), AckShape(header, places, fields, sender))


def _places(header: bytes) -> list[slice] | None:
    """Where receipt, offset, queue and opaque stand; None if one of them is not there exactly once."""
    places: list[slice] = []
    for finder in _PARTS:
        found = list(finder.finditer(header))
        if len(found) != 1:
            return None
        places.append(slice(*found[0].span(1)))
    return places
