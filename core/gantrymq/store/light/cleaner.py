"""Space of light queues, used again: the oldest segment of the stream goes, and what lives in it is written at the end.

A queue's oldest runs become its *moved beginning*, a chain of their own (`front` in the table) that readers look at first; newer
runs stay where they are and point to places that are gone, which readers know by the stream's begin. Units move in the order of
their offsets and neighbours are put together, so an idle queue shrinks to one run. A queue of which nothing lives leaves a moved run
without units that says where its offsets go on, so that the stream alone always tells. Cleaning begins when the stream is twice what its
live entries need and never writes more than flushes wrote: however wrong that estimate is, the cost at most doubles.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.light.table import FLOOR, FRONT, NONE, PAGE, PAGE_MASK, PAGE_SHIFT, TAIL, WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.store.light.stream import LightStream
    from gantrymq.store.light.table import LightTable

log = logging.getLogger(__name__)

SLACK_SEGMENTS: Final = 4
"""The stream is let alone up to twice its live entries and so many segments."""
FRAMES_PER_STEP: Final = 256
"""Looked at in one step: a slow broker's are small."""


class LightCleaner:
    """Part of `LightQueues`. `step` after each flush, when nothing is pending."""

    def __init__(
        self,
        lights: LightStream,
        table: LightTable,
        live_units: Callable[[], int],
        move_begin: Callable[[int], None],
        forget_trail: Callable[[int], None],
    ) -> None:
        self._lights = lights
        self._table = table
        self._live_units = live_units
        self._move_begin = move_begin
        self._forget_trail = forget_trail
        self._at = -1
        """Where the next frame of the segment is read; -1: no segment is being cleaned."""
        self._found: dict[int, list[tuple[int, bytes]]] = {}
        """Live runs of the segment by queue: (first offset, units), in the order of the stream."""
        self._moved_again: set[int] = set()
        """Queues whose moved beginning lies in the segment, in part."""
        self._todo: list[int] | None = None
        self._seen_end = 0
        self._stopped = False
        self._credit = 0
        """Bytes that flushes wrote and cleaning has not matched."""

    @property
    def _limit(self) -> int:
        lights = self._lights
        return lights.begin - lights.begin % lights.segment_size + lights.segment_size

    def step(self) -> None:
        """Work in the measure of what the flush wrote; about 2 ms for 128 KiB."""
        lights = self._lights
        written = max(lights.end - self._seen_end, 0)
        self._credit = min(self._credit + written, 2 * lights.segment_size)
        self._seen_end = lights.end
        for _ in range(1 + 2 * written // lights.frame_room):
            if self._at < 0:
                if self._stopped or not self._is_due():
                    return
                self._at = lights.begin
            self._slice()

    def _slice(self) -> None:
        lights = self._lights
        if self._todo is None:
            if self._collect():
                self._todo = list(self._found)
            return
        if self._credit <= 0 and self._todo:
            return
        before = lights.end
        self._move()
        self._credit -= lights.end - before
        self._seen_end = lights.end
        if not self._todo:
            self._move_begin(self._limit)
            self._at, self._todo = -1, None
            self._found, self._moved_again = {}, set()

    def _is_due(self) -> bool:
        lights = self._lights
        stream = lights.end - lights.begin
        words = len(self._table.pages) * PAGE * lights.run_head
        if stream <= 2 * (self._live_units() * UNIT_SIZE + words) + SLACK_SEGMENTS * lights.segment_size:
            return False
        return self._credit > 0 and self._limit < lights.end - lights.end % lights.segment_size

    def _collect(self) -> bool:
        """Look at some frames; True at the end of the segment."""
        lights = self._lights
        stop = self._at + lights.frame_room
        for _ in range(FRAMES_PER_STEP):
            frame = lights.frame_at(self._at) if self._at < self._limit else None
            if frame is None:
                if self._at < self._limit and lights.read_bytes(self._at, 1):
                    log.error(
                        "%s: bad frame at %d; nothing is cleaned before the next start", lights.directory, self._at
                    )
                    self._stopped, self._at, self._found = True, -1, {}
                    return False
                return True
            self._check(frame[0], frame[-1])
            if self._at >= stop:
                break
        return False

    def _check(self, count: int, body: bytes) -> None:
        lights = self._lights
        pages = self._table.pages
        for light, first, place, units, moved in lights.runs_of(count, body):
            page = pages.get(light >> PAGE_SHIFT)
            if page is None:
                continue
            slot = (light & PAGE_MASK) * WIDTH
            if page[slot] < 0:
                continue
            if first + units <= page[slot + FLOOR]:
                if first + units == page[slot]:
                    self._found.setdefault(light, [])  # what says where its offsets go on
                continue
            if moved:
                if self._at + lights.frame_head + place <= page[slot + FRONT]:
                    self._moved_again.add(light)
                    self._found.setdefault(light, [])
                continue
            data = body[place + lights.run_head : place + lights.run_head + units * UNIT_SIZE]
            self._found.setdefault(light, []).append((first, data))
        self._at += lights.frame_head + len(body)

    def _move(self) -> None:
        """Write one frame of moved beginnings."""
        lights, todo = self._lights, self._todo
        assert todo is not None
        runs: list[bytes] = []
        fronts: list[tuple[int, int]] = []
        length = 0
        while todo:
            light = todo[-1]
            pieces = self._pieces(light)
            size = sum([lights.run_head + len(data) for _, data, _ in pieces])
            if length and length + size > lights.frame_room:
                break
            if size > lights.frame_room:
                self._move_large(light, pieces)
                todo.pop()
                break
            for first, data, previous in pieces:
                fronts.append((light, length))
                runs.append(lights.moved_run(light, first, previous, data))
                length += lights.run_head + len(data)
            todo.pop()
        if runs:
            self._write(runs, length, fronts)

    def _write(self, runs: list[bytes], length: int, fronts: list[tuple[int, int]]) -> int:
        """Write a frame; `fronts`: queue and place of runs that are their queue's moved beginning now. Returns where it begins."""
        lights = self._lights
        start = lights.write_frame(runs, length, lights.log_position, lights.log_position)
        for light, place in fronts:
            page, slot = self._table.slot(light)
            page[slot + FRONT] = start + lights.frame_head + place
            self._table.dirty.add(light >> PAGE_SHIFT)
            self._forget_trail(light)
        return start

    def _move_large(self, light: int, pieces: list[tuple[int, bytes, int]]) -> None:
        """A beginning that fits no frame: a chain of frames."""
        lights = self._lights
        step = (lights.frame_room - lights.run_head) // UNIT_SIZE
        for first, data, previous in pieces:
            units = len(data) // UNIT_SIZE
            for at in range(0, units, step):
                # The beginning as it was counts up to the last frame: a crash may come before it.
                part = at + step < units
                run = lights.moved_run(
                    light, first + at, previous, data[at * UNIT_SIZE : (at + step) * UNIT_SIZE], part
                )
                previous = self._write([run], len(run), [] if part else [(light, 0)]) + lights.frame_head

    def _pieces(self, light: int) -> list[tuple[int, bytes, int]]:
        """(first offset, units, previous) of the run that carries on the queue's moved beginning; none if nothing must be kept."""
        lights = self._lights
        page, slot = self._table.slot(light)
        floor, front = page[slot + FLOOR], page[slot + FRONT] if page[slot + FRONT] >= lights.begin else NONE
        if page[slot] < 0:
            return []
        parts: list[bytes] = []
        first = end = -1
        previous = front
        if front != NONE:
            old_first, _, old_count = lights.read_run_at(front, light)
            end = old_first + old_count
            if light in self._moved_again or end <= floor:
                previous = NONE
                for run_first, data in lights.chain(light, front, floor):
                    first = run_first if first < 0 else first
                    parts.append(data)
        for run_first, data in self._found[light]:
            low = max(floor, end, run_first)
            units = len(data) // UNIT_SIZE
            if low >= run_first + units:
                continue
            if end >= 0 and parts and low > end:
                parts.append(lights.holes(low - end))
            first = low if first < 0 else first
            parts.append(data[(low - run_first) * UNIT_SIZE :])
            end = run_first + units
        if not parts:
            known = page[slot + TAIL] >= self._limit or (front >= self._limit and end == page[slot])
            return [] if known else [(page[slot], b"", NONE)]
        return [(first, b"".join(parts), previous)]
