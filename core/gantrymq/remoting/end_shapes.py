"""Headers of decisions on transactions, told by their likeness to earlier ones: a producer sends one for each half message.

Those of one producer differ in the place of the half message, in its id, which stands there twice, and in the opaque. So a header is cut at the
places of an earlier one of the same length, as those of sends are (send_shapes.py), and decisions that came behind one another are one run.
What is not alike goes the general way, and is remembered for the next.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.send_shapes import HEADER_BYTES_MAX, OPAQUE_MAX
from gantrymq.remoting.shape_table import ShapeTable

if TYPE_CHECKING:
    from collections.abc import Callable

END_START: Final = b'{"code":%d,' % int(RequestCode.END_TRANSACTION)
"""Binary headers go the general way."""

Fields = dict[str, str]

_PREFIX: Final = Struct(">II")
"""Of a frame: length of the rest, length of the header (codec.py)."""
_OPAQUE_LARGEST: Final = b"%d" % OPAQUE_MAX
_NUMBERS: Final = ("tranStateTableOffset", "commitLogOffset")
_IDS: Final = ("msgId", "transactionId")
# The last group of each is a part that varies. Old clients leave out one of the ids.
_NUMBER_PARTS: Final = [re.compile(rb'"%b":"([0-9]{1,18})"' % name.encode()) for name in _NUMBERS]
_OPAQUE_PART: Final = re.compile(rb'"opaque":([0-9]{1,10})[,}]')
_ID_PARTS: Final = [re.compile(rb'"%b":"([0-9A-Za-z]+)"' % name.encode()) for name in _IDS]


class Ends:
    """Decisions that came behind one another and are alike. `end`: where the last frame ends in the bytes that they were told from."""

    __slots__ = ("_frames", "end", "offsets", "positions", "shape")

    def __init__(self, shape: EndShape) -> None:
        self.shape = shape
        self._frames = b""
        self.offsets: list[int] = []
        """In the half topic."""
        self.positions: list[int] = []
        """In the log."""
        self.end = 0

    def take(self, data: bytes, at: int) -> None:
        """Keep the frames, which begin at `at`: they may wait for the disk, and what was read with them must not."""
        self.end = at + self.shape.size * len(self.offsets)
        self._frames = data[at : self.end]

    def headers(self) -> list[bytes]:
        """As they came."""
        size = self.shape.size
        return [self._frames[at + _PREFIX.size : at + size] for at in range(0, len(self._frames), size)]


class EndShape:
    """The parts of a header that do not vary. `marker`: second word of its frame, the header's length; `size`: of the frame."""

    __slots__ = ("_constant", "_each", "_least", "_most", "_places", "fields", "flag", "marker", "plan", "size")

    def __init__(self, header: bytes, places: list[slice], fields: Fields, flag: int) -> None:
        """`places`: of offset, position, opaque and the ids in `header`."""
        self.marker = len(header)
        self.size = len(header) + _PREFIX.size
        self.fields = fields
        self.flag = flag
        self.plan: Any = None
        """Made and used by who handles decisions."""
        frame = _PREFIX.pack(len(header) + 4, len(header)) + header
        ordered = sorted(places, key=lambda place: int(place.start))
        self._places = [2 * ordered.index(place) + 1 for place in places]
        self._places += self._places[-1:] * (5 - len(places))
        layout, at = "", -_PREFIX.size
        for place in ordered:
            layout += f"{place.start - at}s{place.stop - place.start}s"
            at = place.stop
        form = Struct(f"{layout}{len(header) - at}s")
        self._each = form.iter_unpack
        self._constant = form.unpack(frame)[::2]
        sizes = [int(place.stop - place.start) for place in places[:3]]
        # Numbers of so many digits; what is written otherwise is not the same for all readers.
        self._least = [b"0" if size == 1 else b"1".ljust(size, b"0") for size in sizes]
        self._most = _OPAQUE_LARGEST if sizes[2] == len(_OPAQUE_LARGEST) else b"9" * sizes[2]

    def match(self, data: bytes, at: int) -> Ends | None:
        """The decision whose frame begins at `at`, if it is like this one, and those behind it that are. The first frame must be in `data`."""
        constant, size, most = self._constant, self.size, self._most
        offset_at, position_at, opaque_at, id_at, other_at = self._places
        least_offset, least_position, least_opaque = self._least
        found = Ends(self)
        offsets, positions = found.offsets, found.positions
        for parts in self._each(memoryview(data)[at : at + (len(data) - at) // size * size]):
            offset, position, opaque = parts[offset_at], parts[position_at], parts[opaque_at]
            if (
                parts[::2] != constant
                or not (offset + position + opaque).isdigit()
                or not (parts[id_at] + parts[other_at]).isalnum()
                or offset < least_offset
                or position < least_position
                or not least_opaque <= opaque <= most
            ):
                break
            offsets.append(int(offset))
            positions.append(int(position))
        if not offsets:
            return None
        found.take(data, at)
        return found


class EndShapes(ShapeTable[EndShape]):
    """Those of all connections."""

    __slots__ = ()

    def find(self, marker: int, data: bytes, at: int) -> Ends | None:
        """As `EndShape.match`, for any that was learned. `marker`: of the frame at `at`."""
        for shape in self._shapes.get(marker, ()):
            found = shape.match(data, at)
            if found is not None:
                return found
        return None

    def learn(self, header: bytes, fields: Fields, flag: int, decode: Callable[[bytes], tuple[Fields, int]]) -> None:
        """Remember the shape of a header that the general way understood as `fields`. `decode`: that way; it has to understand a header
        with other values in the places that were found exactly so."""
        found = _places(header) if len(header) <= HEADER_BYTES_MAX else None
        if found is None:
            return
        names, places = found
        probe, others = bytearray(header), {}
        for name, place in zip(names, places, strict=True):
            probe[place] = others[name] = b"1" * (place.stop - place.start)
        number = int(others.pop("opaque"))
        if decode(bytes(probe)) == (fields | {name: value.decode() for name, value in others.items()}, number):
            self._keep(len(header), EndShape(header, places, fields, flag))


def _places(header: bytes) -> tuple[list[str], list[slice]] | None:
    """Names and places of offset, position, opaque and ids; None if one of the numbers is not there exactly once, or an id is there twice."""
    names: list[str] = []
    places: list[slice] = []
    for name, finder in zip((*_NUMBERS, "opaque", *_IDS), (*_NUMBER_PARTS, _OPAQUE_PART, *_ID_PARTS), strict=True):
        found = list(finder.finditer(header))
        if len(found) > 1 or (not found and name not in _IDS):
            return None
        if found:
            names.append(name)
            places.append(slice(*found[0].span(1)))
    return names, places
