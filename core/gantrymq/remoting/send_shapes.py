"""Headers of sends, decoded by their likeness to earlier ones.

A producer's headers differ in the queue, the time of birth, the UNIQ_KEY and the opaque; all else stays as it is, and so do the places of these
four while their lengths do. So a header is cut at the places of an earlier one of the same length, and what stands between them is compared: one
call of C instead of a decoder for fourteen fields (0.6 us a message instead of 1.8, JSON and binary alike). What was made from the constant parts,
here and by who builds messages, is kept with them. What is not alike goes the general way, and is remembered for the next.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.remoting.headers import SendHeaderV2

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES_MAX: Final = 1024
"""Of the process, forgotten all at once beyond it: two mebibytes with `HEADER_BYTES_MAX`. A connection keeps the last one that it used."""
SHAPES_PER_START: Final = 2
"""Of headers that begin alike, the newest: those with different tags. More of them would be compared in vain where each message has its own."""
HEADER_BYTES_MAX: Final = 1024
"""Of a header that is worth remembering; names and properties are all that makes one long."""
START: Final = slice(21, 69)
"""Bytes that tell shapes of one length apart: those of different groups and topics. Behind the opaque of a binary header."""

QUEUE_IDS: Final = {b"%d" % number: number for number in range(1024)}
"""Queue ids as they are written: a topic has at most 1,024 queues."""

OPAQUE_MAX: Final = 0x7FFFFFFF
_UNIQ_KEY: Final = "UNIQ_KEY\x01"
_BINARY: Final = 1 << 24
"""In the marker of a frame: the header is binary."""
_BINARY_OPAQUE: Final = slice(5, 9)
"""Behind code, language and version."""
# The last group of each is a part that varies: queue, time of birth, UNIQ_KEY, opaque.
_JSON_PARTS: Final = (
    rb'"e":"([0-9]{1,4})"', rb'"g":"([0-9]{1,18})"', rb"UNIQ_KEY\\u0001([0-9A-Za-z]+)\\u0002", rb'"opaque":([0-9]{1,10})[,}]',
)  # fmt: skip
_BINARY_PARTS: Final = (
    rb"\x00\x01e\x00\x00\x00[\x01-\x04]([0-9]{1,4})\x00", rb"\x00\x01g\x00\x00\x00[\x01-\x12]([0-9]{1,18})\x00", rb"UNIQ_KEY\x01([0-9A-Za-z]+)\x02",
)  # fmt: skip
_FINDERS: Final = {
    0: [re.compile(part) for part in _JSON_PARTS], _BINARY: [re.compile(part) for part in _BINARY_PARTS],
}  # fmt: skip


class SendShape:
    """The parts of a header that do not vary. `marker`: second word of its frame."""

    __slots__ = (
        "_born",
        "_born_ms",
        "_constant",
        "_opaque_first",
        "_unpack",
        "after",
        "before",
        "header",
        "language",
        "marker",
        "plan",
        "version",
    )

    def __init__(
        self, marker: int, header: bytes, places: list[slice], parsed: SendHeaderV2, sender: tuple[int, int]
    ) -> None:
        """`places`: of queue, time of birth, UNIQ_KEY and opaque in `header`. `sender`: language and version."""
        self.marker = marker
        self.language, self.version = sender
        self.header = parsed
        self.before, self.after = _around(parsed.properties or "")
        """The properties without the value of UNIQ_KEY."""
        self.plan: Any = None
        """Made and used by who builds messages."""
        ordered = sorted(places, key=lambda place: int(place.start))
        self._opaque_first = ordered[0] is places[3]
        layout, at = ">", 0
        for place in ordered:
            number = place == _BINARY_OPAQUE and marker & _BINARY
            layout += f"{place.start - at}s" + ("i" if number else f"{place.stop - place.start}s")
            at = place.stop
        form = Struct(f"{layout}{len(header) - at}s")
        self._unpack = form.unpack_from
        self._constant = form.unpack(header)[::2]
        self._born = b""
        self._born_ms = 0

    def match(self, data: bytes, at: int, body_at: int, end: int) -> Alike | None:
        """The send whose header begins at `at`, if it is like this one; `marker` was compared."""
        first, one, second, two, third, three, fourth, four, fifth = self._unpack(data, at)
        if (first, second, third, fourth, fifth) != self._constant:
            return None
        if self._opaque_first:
            opaque, queue, born, unique = one, two, three, four
        else:
            queue, born, unique, opaque = one, two, three, four
        queue_id = QUEUE_IDS.get(queue)
        # An UNIQ_KEY of letters and digits means the same in JSON, and nothing else, whatever it is.
        if queue_id is None or not unique.isalnum():
            return None
        if born != self._born:
            if not born.isdigit():  # int() takes more than Java does
                return None
            self._born, self._born_ms = born, int(born)
        if self.marker < _BINARY:
            if not opaque.isdigit() or opaque[0] == 0x30:
                return None
            opaque = int(opaque)
            if opaque > OPAQUE_MAX:
                return None
        return self, queue_id, self._born_ms, unique, opaque, data[body_at:end]


Alike = tuple[SendShape, int, int, bytes, int, bytes]
"""A send: its shape, queue, time of birth, UNIQ_KEY, opaque, body."""


def header_of(sent: Alike) -> SendHeaderV2:
    """The header that the general way would have made."""
    shape, queue_id, born_ms, unique, _, _ = sent
    text = f"{shape.before}{unique.decode()}{shape.after}"
    return msgspec.structs.replace(shape.header, queue_id=queue_id, born_ms=born_ms, properties=text)


def _around(text: str) -> tuple[str, str]:
    """The text before and after the value of UNIQ_KEY."""
    at = text.index(_UNIQ_KEY) + len(_UNIQ_KEY)
    return text[:at], text[text.index("\x02", at) :]


class SendShapes:
    """Those of all connections, by length and first bytes of a header."""

    __slots__ = ("_count", "_starts")

    def __init__(self) -> None:
        self._starts: dict[tuple[int, bytes], list[SendShape]] = {}
        self._count = 0

    def find(self, marker: int, data: bytes, at: int, body_at: int, end: int) -> Alike | None:
        """The send whose header begins at `at`, if it is like one that was learned."""
        for shape in self._starts.get((marker, data[at + START.start : at + START.stop]), ()):
            sent = shape.match(data, at, body_at, end)
            if sent is not None:
                return sent
        return None

    def learn(
        self,
        marker: int,
        header: bytes,
        parsed: SendHeaderV2,
        sender: tuple[int, int],
        decode: Callable[[bytes], tuple[SendHeaderV2 | None, int]],
    ) -> SendShape | None:
        """Remember the shape of a header that the general way understood as `parsed`. `decode`: that way; it has to understand a header
        with other values in the places that were found exactly so."""
        places = _places(marker, header) if START.stop <= len(header) <= HEADER_BYTES_MAX else None
        if places is None:
            return None
        values = [header[place] for place in places]
        others = [b"1" * len(value) for value in values]
        queue, born, unique, number = others
        text, old = parsed.properties or "", values[2].decode()
        wanted = int.from_bytes(number, "big") if marker & _BINARY else int(number)
        probe = bytearray(header)
        for place, value in zip(places, others, strict=True):
            probe[place] = value
        expected = msgspec.structs.replace(
            parsed, queue_id=int(queue), born_ms=int(born),
            properties=text.replace(f"{_UNIQ_KEY}{old}\x02", f"{_UNIQ_KEY}{unique.decode()}\x02"),
        )  # fmt: skip
        named = text.startswith(_UNIQ_KEY) or f"\x02{_UNIQ_KEY}" in text  # and is no end of a longer name
        if not named or text.count(_UNIQ_KEY) != 1 or decode(bytes(probe)) != (expected, wanted):
            return None
        shape = SendShape(marker, header, places, parsed, sender)
        self._keep(shape, header)
        return shape

    def forget(self) -> None:
        """Know none."""
        self._starts.clear()
        self._count = 0

    def _keep(self, shape: SendShape, header: bytes) -> None:
        if self._count >= SHAPES_MAX:
            self.forget()
        shapes = self._starts.setdefault((shape.marker, header[START]), [])
        if len(shapes) >= SHAPES_PER_START:
            del shapes[0]
            self._count -= 1
        shapes.append(shape)
        self._count += 1


def _places(marker: int, header: bytes) -> list[slice] | None:
    """Where queue, time of birth, UNIQ_KEY and opaque stand; None if one of them is not there exactly once."""
    places: list[slice] = []
    for finder in _FINDERS[marker & _BINARY]:
        found = list(finder.finditer(header))
        if len(found) != 1:
            return None
        places.append(slice(*found[0].span(1)))
    if marker & _BINARY:
        places.append(_BINARY_OPAQUE)
    queue, born, unique, opaque = [int(place.start) for place in places]
    # Java's fields are in alphabetical order, those of others at least sorted; the opaque stands behind or before them.
    return places if queue < born < unique and not queue < opaque < unique else None
