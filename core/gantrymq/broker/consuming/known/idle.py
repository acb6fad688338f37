"""Cursors at rest: three integers each, where an object with its window would take 700 bytes.

A cursor of a light queue of which everything before its place is done, and that nobody watches, is no more than its row in table `cursor`
and these: the light queue, its place (the window's floor, which is the next offset, too) and the delivered mark. It has an object of its
own from its first use until it rests again (`Cursors.awake`, `Cursors.rest`). One cursor of each light queue can rest: a queue of a
session or of AMQP has no other; the sessions of one filter, which share a queue, keep theirs.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.acks import AckKind
from gantrymq.broker.port import SHARED_GROUP
from gantrymq.model.dialect import quick_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PAGE_SHIFT: Final = 4
PAGE: Final = 1 << PAGE_SHIFT
"""Ids per page: dense ones cost 34 bytes each, one alone in its page as much as an object would."""
PAGE_MASK: Final = PAGE - 1
LIGHT, FLOOR, MARKED = range(3)
WIDTH: Final = 3
_EMPTY: Final = array("q", bytes(8 * WIDTH * PAGE))
_NO_IDS: Final = array("q", bytes(8 * PAGE))


def may_rest(light: int, group: str) -> bool:
    """Shared subscriptions are counted one by one, and what pop consumers have is known by cursor."""
    return light != 0 and group != SHARED_GROUP and not group.startswith("pop:")


class IdleCursors:
    """By id; `rows`: table `cursor`, live."""

    def __init__(self) -> None:
        self.rows: Mapping[str, bytes] = {}
        self._pages: dict[int, array[int]] = {}
        self._by_light: dict[int, array[int]] = {}
        self.count = 0

    def put(self, cursor_id: int, light: int, floor: int, marked: int) -> bool:
        """One comes to rest; False: another one of its queue does already."""
        if self.of_light(light):
            return False
        page = self._pages.get(cursor_id >> PAGE_SHIFT)
        if page is None:
            page = self._pages[cursor_id >> PAGE_SHIFT] = _EMPTY[:]
        at = (cursor_id & PAGE_MASK) * WIDTH
        page[at + LIGHT], page[at + FLOOR], page[at + MARKED] = light, floor, marked
        ids = self._by_light.get(light >> PAGE_SHIFT)
        if ids is None:
            ids = self._by_light[light >> PAGE_SHIFT] = _NO_IDS[:]
        ids[light & PAGE_MASK] = cursor_id
        self.count += 1
        return True

    def place(self, cursor_id: int) -> tuple[int, int, int] | None:
        """(light queue, floor, mark) of one that rests."""
        page = self._pages.get(cursor_id >> PAGE_SHIFT)
        if page is None:
            return None
        at = (cursor_id & PAGE_MASK) * WIDTH
        return (page[at], page[at + FLOOR], page[at + MARKED]) if page[at] else None

    def move(self, cursor_id: int, floor: int, marked: int) -> None:
        """The place of one that rests is another one."""
        page, at = self._pages[cursor_id >> PAGE_SHIFT], (cursor_id & PAGE_MASK) * WIDTH
        page[at + FLOOR], page[at + MARKED] = floor, marked

    def of_light(self, light: int) -> int:
        """Id of the one of that queue, or 0."""
        ids = self._by_light.get(light >> PAGE_SHIFT)
        return ids[light & PAGE_MASK] if ids is not None else 0

    def names(self, cursor_id: int) -> tuple[str, str]:
        """(queue, group), out of its row."""
        queue, group, _ = quick_json(self.rows[str(cursor_id)])
        return queue, group

    def take_out(self, cursor_id: int) -> None:
        """It does not rest any more."""
        number = cursor_id >> PAGE_SHIFT
        page, at = self._pages[number], (cursor_id & PAGE_MASK) * WIDTH
        light = page[at]
        page[at] = page[at + FLOOR] = page[at + MARKED] = 0
        if not any(page[::WIDTH]):
            del self._pages[number]
        ids = self._by_light[light >> PAGE_SHIFT]
        ids[light & PAGE_MASK] = 0
        if not any(ids):
            del self._by_light[light >> PAGE_SHIFT]
        self.count -= 1

    def ids(self) -> Iterator[int]:
        """Of all; nothing may come or go meanwhile."""
        for number, page in self._pages.items():
            for at in range(PAGE):
                if page[at * WIDTH]:
                    yield (number << PAGE_SHIFT) + at

    def replay(self, kind: AckKind, cursor_id: int, offsets: Sequence[int]) -> bool:
        """Apply an entry of an acknowledgement record, if the cursor is at rest behind it, too; False: it needs its window."""
        place = self.place(cursor_id)
        if place is None:
            return False
        _, floor, marked = place
        if kind is AckKind.MARK:
            marked = max(marked, offsets[0])
        elif kind is AckKind.RANGE and offsets[0] <= floor:
            floor = max(floor, offsets[1] + 1)
        elif kind is AckKind.LIST:
            for offset in offsets:
                if offset > floor:
                    return False
                floor += offset == floor
        else:
            return False
        self.move(cursor_id, floor, marked)
        return True
