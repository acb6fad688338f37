"""What a log lacks of what had been on stable storage: segments that are gone, or shorter than they were.

A store that starts without them would begin a second history, so it refuses to; with `accept_loss` it goes on: a missing segment is replaced by
one that is a single blank record, so that no position is used twice and the log stays readable for everybody; of a short one what
follows its last record is damage (recovery.py). Where the oldest segments are missing the log begins behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gantrymq.store.log import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gantrymq.store.files import FileSystem


class Gap(NamedTuple):
    """Bytes [start, end) of the log that are not there; `short`: the segment is, up to `start`."""

    start: int
    end: int
    short: bool


def gaps_of(lengths: Mapping[int, int], file_size: int, begin: int, flushed: int) -> list[Gap]:
    """What is missing below `flushed`. `lengths`: of the segments there are, by their first position; `begin`: where the log began, -1: not
    known."""
    if flushed <= max(begin, 0):
        return []
    last = (flushed - 1) // file_size * file_size
    first = begin if begin >= 0 else min(lengths, default=last)
    gaps: list[Gap] = []
    for base in range(first, last + 1, file_size):
        end = min(base + file_size, flushed)
        if base not in lengths:
            if gaps and not gaps[-1].short and gaps[-1].end == base:
                gaps[-1] = Gap(gaps[-1].start, end, False)
            else:
                gaps.append(Gap(base, end, False))
        elif lengths[base] < end - base:
            gaps.append(Gap(base + lengths[base], end, True))
    return gaps


def describe(gaps: list[Gap], file_size: int) -> str:
    """The gaps in words."""
    parts = []
    for gap in gaps:
        first, last = gap.start // file_size * file_size, (gap.end - 1) // file_size * file_size
        if gap.short:
            parts.append(f"segment {first:020d} ends after {gap.start - first} bytes of {gap.end - first}")
        elif first == last:
            parts.append(f"segment {first:020d} is missing")
        else:
            parts.append(f"segments {first:020d} to {last:020d} are missing")
    return "; ".join(parts)


def fill(files: FileSystem, directory: Path, bases: list[int], gaps: list[Gap], file_size: int) -> list[int]:
    """Put blank segments where some are missing, behind the first one that is there, and give short ones their length. Returns the segments
    that there are now. Done again after a crash it does the same."""
    files.make_dirs(directory)  # it may be gone as a whole
    files.sync_dir(directory.parent)
    made = set(bases)
    for gap in gaps:
        first, last = gap.start // file_size * file_size, (gap.end - 1) // file_size * file_size
        if not gap.short and not any(base < first for base in bases):
            if any(base > first for base in bases):
                continue
            first = last  # nothing at all is left: positions go on behind what was lost
        for base in range(first, last + 1, file_size):
            handle = files.open(directory / f"{base:020d}", True)
            try:
                if not gap.short:
                    files.pwrite(handle, record.blank(file_size), 0)
                files.truncate(handle, file_size)
                files.datasync(handle)
            finally:
                files.close(handle)
            made.add(base)
    files.sync_dir(directory)
    return sorted(made)
