"""Binary headers of sends, decoded by their likeness to earlier ones.

A producer's headers differ in the queue, the time of birth and the properties; the other eleven fields stay as they are, and so do the places of
all of them while the lengths do. So a header is compared, piece by piece, with the layout of an earlier one of the same length: four comparisons
instead of fourteen fields (13 us a message down to 7, the whole path, against 7 with JSON). What is not alike goes the general way, and is
remembered for the next.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantrymq.remoting.headers import SendHeaderV2

LAYOUTS_MAX: Final = 1024
"""Layouts of the process, forgotten all at once beyond it: half a mebibyte with `LAYOUT_BYTES_MAX`."""
LAYOUT_BYTES_MAX: Final = 512
"""Constant parts of a header that is worth remembering; the group's and the topic's names are all that makes them long."""
DIGITS_MAX: Final = 18
"""Of a number; what is longer is looked at by the general way."""
_KEY_BYTES: Final = 48
"""Bytes behind the lengths that tell layouts of one length apart: those of different groups."""
_VARIES: Final = (b"e", b"g", b"i")
"""Queue, time of birth, properties."""

_Layout = tuple[int, bytes, int, int, bytes, int, int, bytes, int, int, bytes, int, SendHeaderV2]


class BinarySends:
    """Layouts by length and first bytes of a header."""

    __slots__ = ("_layouts",)

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, bytes], _Layout] = {}

    def find(self, header: bytes, begin: int) -> SendHeaderV2 | None:
        """The send's header if it is like one that was learned; `begin`: where the fields begin, behind their length."""
        layout = self._layouts.get((len(header), header[begin : begin + _KEY_BYTES]))
        if layout is None:
            return None
        at, first, queue, to, second, born, to2, third, text, to3, fourth, end, like = layout
        if (
            at != begin
            or header[at:queue] != first
            or header[to:born] != second
            or header[to2:text] != third
            or header[to3:end] != fourth
        ):
            return None
        queue_digits, born_digits = header[queue:to], header[born:to2]
        # int() takes more than Java does (spaces, underscores, signs): the general way says what is wrong with those.
        if not (queue_digits.isdigit() and born_digits.isdigit()):
            return None
        return SendHeaderV2(
            like.topic, int(queue_digits), like.sys_flag, int(born_digits), like.flag, header[text:to3].decode(),
            like.producer_group, like.default_topic, like.default_queues, like.reconsume_times, like.unit_mode,
            like.reconsume_times_max, like.batch, like.broker_name,
        )  # fmt: skip

    def learn(self, header: bytes, begin: int, parsed: SendHeaderV2) -> None:
        """Remember the layout of a header that the general way took and understood."""
        places: dict[bytes, tuple[int, int]] = {}
        at, end = begin, len(header)
        while at < end:
            name_end = at + 2 + int.from_bytes(header[at : at + 2], "big")
            size = int.from_bytes(header[name_end : name_end + 4], "big")
            name = header[at + 2 : name_end]
            if name in places:
                return  # of a field that comes twice the last one counts
            at = name_end + 4 + size
            places[name] = (name_end + 4, at)
        if at != end or [name for name in places if name in _VARIES] != [*_VARIES]:
            return
        (queue, to), (born, to2), (text, to3) = (places[name] for name in _VARIES)
        parts = header[begin:queue], header[to:born], header[to2:text], header[to3:end]
        if (
            sum(map(len, parts)) > LAYOUT_BYTES_MAX
            or not 0 < to - queue <= DIGITS_MAX
            or not 0 < to2 - born <= DIGITS_MAX
        ):
            return
        if to3 == text:  # empty properties are none
            return
        if len(self._layouts) >= LAYOUTS_MAX:
            self._layouts.clear()
        like = msgspec.structs.replace(parsed, properties=None)
        self._layouts[len(header), header[begin : begin + _KEY_BYTES]] = (
            begin, parts[0], queue, to, parts[1], born, to2, parts[2], text, to3, parts[3], end, like,
        )  # fmt: skip
