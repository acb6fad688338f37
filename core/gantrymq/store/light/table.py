"""The table of light queues: seven integers each, in memory and in a file (docs/formats/light.md).

      next     offset that the next entry takes; -2: the queue was deleted
      tail     stream position of its newest run, -1 none
      floor    entries below it are trimmed
      front    newest run of its moved beginning, -1 none (light/cleaner.py)
      near     newest run whose number divides by 64
      far      newest run whose number divides by 4,096
      number   of the newest run

Sixty-four queues are a page: one array in memory, one block of 4 KiB in the file, which has two places for each page. A snapshot
writes the pages that changed into the places that the snapshot before it does not use, a few at a time while the store works, and
becomes true with one write of the head. Frames behind the head's stream position say what came later; they hold whole states,
so a page that is newer than the head is no harm.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gantrymq.store.files import FileSystem

PAGE_SHIFT: Final = 6
PAGE: Final = 1 << PAGE_SHIFT
"""Queues per page. Ids are dense, so pages are well filled; a page whose queues are all deleted is given back."""
PAGE_MASK: Final = PAGE - 1
NEXT, TAIL, FLOOR, FRONT, NEAR, FAR, NUMBER = range(7)
WIDTH: Final = 7
NONE: Final = -1
DELETED: Final = -2
EMPTY: Final = array("q", (0, NONE, 0, NONE, NONE, NONE, 0) * PAGE)
GONE: Final = array("q", (DELETED, NONE, 0, NONE, NONE, NONE, 0) * PAGE)

BLOCK: Final = 4096
BLOCK_HEAD: Final = Struct(">4sIqqii")
"""Magic, CRC of the rest, generation, page number, 1: dropped (else 0), 0."""
BLOCK_MAGIC: Final = b"GLP1"
HEAD: Final = Struct(">4sIqqqqqI")
"""Magic, CRC of the rest, generation, stream end, log position, begin of the stream, pairs of blocks in use, XOR of the pages' CRCs."""
HEAD_MAGIC: Final = b"GLT2"
_CRC_FROM: Final = 8
_READ_BYTES: Final = 1024 * 1024
_CRC_BITS: Final = 32
_CRC_MASK: Final = (1 << _CRC_BITS) - 1


class LightTable:
    """Pages in memory and the file behind them. Loop thread only, but for what `finish` returns."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._handle = -1
        self.pages: dict[int, array[int]] = {}
        self.dirty: set[int] = set()
        """Pages that changed since the last snapshot took them."""
        self._places: dict[int, int] = {}
        """Page number to block and CRC of its newest snapshot."""
        self._sum = 0
        """XOR of those CRCs: a damaged block must not let an older one pass for the newest."""
        self._new_name = False
        self._head_side = 0
        """Of the next head: not that of the newest one."""
        self._pairs = 1
        """Pairs of blocks in the file; pair 0 holds the heads."""
        self._free: list[int] = []
        self._dropped: list[int] = []
        """Pairs whose pages were dropped by the snapshot under way."""
        self.generation = 0
        self.published = 0
        """Newest generation that is on stable storage; set by the thread that runs what `finish` returned."""
        self._todo: list[int] = []
        self._head: tuple[int, int, int] | None = None
        self._unpublished: Callable[[], int] | None = None
        self.was_published = False
        """`load` found that there has been a head, valid or not."""

    # --- in memory

    def page(self, number: int) -> array[int]:
        """A page, made if there is none."""
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = EMPTY[:]
        return page

    def slot(self, light: int) -> tuple[array[int], int]:
        """(page, index of the queue's first column)."""
        return self.page(light >> PAGE_SHIFT), (light & PAGE_MASK) * WIDTH

    def live_units(self) -> int:
        """Entries that are not trimmed."""
        return sum([sum(page[NEXT::WIDTH]) - sum(page[FLOOR::WIDTH]) + page[NEXT::WIDTH].count(DELETED) * -DELETED
                    for page in self.pages.values()])  # fmt: skip

    # --- snapshots

    @property
    def busy(self) -> bool:
        """A snapshot is being written or waits for `published`."""
        return self._head is not None or self.published < self.generation

    def begin(self, end: int, log_position: int, stream_begin: int) -> None:
        """Begin a snapshot of the table as the stream up to `end` made it; records below `log_position` are in it."""
        self.generation += 1
        self._free += self._dropped
        self._dropped = []
        self._todo = list(self.dirty)
        self.dirty.clear()
        self._head = (end, log_position, stream_begin)

    def step(self, pages: int) -> bool:
        """Write up to so many pages; True when all are written. No queue may have pending units."""
        todo = self._todo
        for _ in range(min(pages, len(todo))):
            number = todo[-1]
            page = self.pages.get(number)
            if page is not None:
                self._write_page(number, page)
            todo.pop()
        return not todo

    def _write_page(self, number: int, page: array[int]) -> None:
        place = self._places.get(number, -1)
        gone = page[NEXT::WIDTH].count(DELETED) == PAGE
        if place < 0 and gone:
            del self.pages[number]
            return
        block = place >> _CRC_BITS ^ 1 if place >= 0 else (self._free[-1] if self._free else self._pairs) * 2
        packed = page[:]
        packed.byteswap()
        tail = BLOCK_HEAD.pack(BLOCK_MAGIC, 0, self.generation, number, gone, 0)[_CRC_FROM:] + packed.tobytes()
        crc = crc32(tail)
        self._files.pwrite(self._open(), BLOCK_MAGIC + crc.to_bytes(4, "big") + tail, block * BLOCK)
        self._pairs = max(self._pairs, block // 2 + 1)
        if place >= 0:
            self._sum ^= place & _CRC_MASK
        elif self._free and self._free[-1] == block // 2:
            self._free.pop()
        if gone:
            del self.pages[number], self._places[number]
            self._dropped.append(block // 2)
        else:
            self._places[number] = block << _CRC_BITS | crc
            self._sum ^= crc

    def finish(self) -> Callable[[], int] | None:
        """Once every page is written: what makes the snapshot true. Any thread runs it, when the stream is on stable storage as far as
        it is written now and the log as far as it is dispatched; it returns where the stream begins for the snapshot."""
        if self._todo:
            return None
        if self._head is None:  # the one before may have failed for want of space
            return self._unpublished if self.published < self.generation else None
        end, log_position, stream_begin = self._head
        handle = self._open()
        generation, pairs, total, new_name = self.generation, self._pairs, self._sum, self._new_name
        side = self._head_side
        self._head_side = 1 - side
        self._head = None
        self._new_name = False

        def publish() -> int:
            tail = HEAD.pack(HEAD_MAGIC, 0, generation, end, log_position, stream_begin, pairs, total)[_CRC_FROM:]
            self._files.datasync(handle)
            head = HEAD_MAGIC + crc32(tail).to_bytes(4, "big") + tail
            self._files.pwrite(handle, head, side * BLOCK)
            self._files.datasync(handle)
            if new_name:
                self._files.sync_dir(self._path.parent)
            self.published = generation
            return stream_begin

        self._unpublished = publish
        return publish

    def _open(self) -> int:
        if self._handle < 0:
            self._new_name = not self._files.exists(self._path)
            self._handle = self._files.open(self._path, True)
        return self._handle

    # --- opening

    def load(self) -> tuple[int, int, int] | None:
        """(stream end, log position, stream begin) of the newest snapshot, whose pages are in memory then; None: `discard` it."""
        if not self._files.exists(self._path):
            return None
        handle = self._open()
        heads = []
        for side in range(2):
            data = self._files.pread(handle, HEAD.size, side * BLOCK)
            self.was_published = self.was_published or any(data)
            if len(data) == HEAD.size:
                magic, crc, generation, end, log_position, begin, pairs, total = HEAD.unpack(data)
                if magic == HEAD_MAGIC and crc == crc32(data[_CRC_FROM:]):
                    heads.append((generation, end, log_position, begin, pairs, total, side))
        if not heads:
            return None
        generation, end, log_position, begin, pairs, total, side = max(heads)
        if not self._load_pages(handle, generation, pairs) or self._sum != total:
            return None
        self._head_side = 1 - side
        self.published = self.generation
        return end, log_position, begin

    def _load_pages(self, handle: int, generation: int, pairs: int) -> bool:
        """False: a page is lost; the table must be made from the stream."""
        self._pairs = pairs
        self.generation = generation
        step = _READ_BYTES // (2 * BLOCK)
        for first in range(1, pairs, step):
            count = min(step, pairs - first)
            data = memoryview(self._files.pread(handle, count * 2 * BLOCK, first * 2 * BLOCK))
            for index in range(count):
                newest, found = -1, (0, 0, 0, 0)
                for side in range(2):
                    at = (index * 2 + side) * BLOCK
                    block = data[at : at + BLOCK_HEAD.size + EMPTY.itemsize * len(EMPTY)]
                    if len(block) < BLOCK_HEAD.size:
                        continue
                    magic, crc, made, number, dropped, _ = BLOCK_HEAD.unpack_from(block)
                    if magic != BLOCK_MAGIC or crc != crc32(block[_CRC_FROM:]):
                        continue
                    self.generation = max(self.generation, made)  # one that was never published is not used again
                    if newest < made <= generation:
                        newest, found = made, (number, dropped, side, crc)
                if newest < 0:
                    return False
                number, dropped, side, crc = found
                if dropped:
                    self._free.append(first + index)
                    continue
                at = (index * 2 + side) * BLOCK + BLOCK_HEAD.size
                page = array("q")
                page.frombytes(data[at : at + EMPTY.itemsize * len(EMPTY)])
                page.byteswap()
                self.pages[number] = page
                self._places[number] = ((first + index) * 2 + side) << _CRC_BITS | crc
                self._sum ^= crc
        return True

    def discard(self) -> None:
        """Empty the table, whose file the caller removes before anything is written: what it says is not so."""
        self.close()
        self.published = self.generation
        self._sum = 0
        self.pages.clear()
        self.dirty.clear()
        self._places.clear()
        self._free = []
        self._dropped = []
        self._todo = []
        self._head = None
        self._pairs = 1

    def close(self) -> None:
        if self._handle >= 0:
            self._files.close(self._handle)
            self._handle = -1
