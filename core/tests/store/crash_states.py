"""What a power cut may leave of a disk in memory: every state of it, or one drawn by lot.

The rules are those of a page cache over a journal. A page of 4 KiB holds, for each page by itself, what was synced last or any
version that it had since; the page that was on its way may be cut at a sector. A file's length changes in order. A name made,
renamed or removed since its directory was synced may be either. `MemoryFileSystem.after_power_loss` is the other model, which
keeps or loses whole writes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gantrymq.store.testing import SECTOR, MemoryFileSystem, PowerCut, _apply, _Inode

PAGE = 4096

Pieces = list[tuple[int, int, bytes | None]]
"""(page, at, data) of writes and (-1, length, None) of changed lengths, in their order."""


def pieces_of(inode: _Inode) -> Pieces:
    found: Pieces = []
    for at, change in inode.unsynced:
        if change is None:
            found.append((-1, at, None))
            continue
        done = 0
        while done < len(change):
            room = PAGE - (at + done) % PAGE
            found.append(((at + done) // PAGE, at + done, change[done : done + room]))
            done += room
    return found


@dataclass
class Loss:
    """The choices that make a state: versions kept by (file, page), and the names that were changed in time."""

    versions: dict[tuple[Path, int], int]
    names: dict[Path, bool] = field(default_factory=dict)
    torn: tuple[Path, int] | None = None
    """This page's newest kept version came only in part."""
    torn_bytes: int = SECTOR


class CrashFiles(MemoryFileSystem):
    """A disk in memory whose power losses can be enumerated."""

    @classmethod
    def of(cls, other: MemoryFileSystem) -> CrashFiles:
        mine = cls()
        mine.__dict__.update(other.__dict__)
        return mine

    def after_process_crash(self) -> CrashFiles:
        return CrashFiles.of(super().after_process_crash())

    def after_power_loss(self, keep: Callable[[Path, int], list[bool]], torn_bytes: int = -1) -> CrashFiles:
        return CrashFiles.of(super().after_power_loss(keep, torn_bytes))

    def choices(self) -> tuple[dict[tuple[Path, int], int], list[Path]]:
        """How many versions each page has had since the last sync, and the names that are open."""
        versions: dict[tuple[Path, int], int] = {}
        inodes = {**self._durable_names, **self._names}
        for path, inode in sorted(inodes.items()):
            for page, _, _ in pieces_of(inode):
                versions[path, page] = versions.get((path, page), 0) + 1
        names = [path for path in sorted(inodes) if self._names.get(path) is not self._durable_names.get(path)]
        return versions, names

    def state(self, loss: Loss) -> CrashFiles:
        other = CrashFiles()
        other._directories = set(self._directories)
        other._boots = self._boots + 1
        names = dict(self._durable_names)
        for path, kept in loss.names.items():
            if kept and path in self._names:
                names[path] = self._names[path]
            elif kept:
                names.pop(path, None)
        for path, inode in names.items():
            copy = other._names[path] = _Inode()
            copy.data = bytearray(inode.durable)
            self._fill(path, inode, copy, loss)
            copy.durable = bytes(copy.data)
        other._durable_names = dict(other._names)
        return other

    def _fill(self, path: Path, inode: _Inode, copy: _Inode, loss: Loss) -> None:
        seen: dict[int, int] = {}
        for page, at, data in pieces_of(inode):
            seen[page] = seen.get(page, 0) + 1
            kept = loss.versions.get((path, page), 0)
            if seen[page] > kept:
                continue
            if data is not None and seen[page] == kept and loss.torn == (path, page):
                data = data[: max(0, (at // SECTOR + 1) * SECTOR - at + loss.torn_bytes - SECTOR)]
            _apply(copy.data, at, data)

    def count_states(self) -> int:
        versions, names = self.choices()
        total = 1 << len(names)
        for count in versions.values():
            total *= count + 1
        return total

    def all_states(self) -> Iterator[CrashFiles]:
        """Every combination (without torn pages, which `drawn` adds)."""
        versions, names = self.choices()
        pages = list(versions)
        for picked in itertools.product(*[range(versions[page] + 1) for page in pages]):
            for kept in itertools.product((False, True), repeat=len(names)):
                chosen = dict(zip(pages, picked, strict=True))
                yield self.state(Loss(chosen, dict(zip(names, kept, strict=True))))

    def drawn(self, lot: random.Random) -> CrashFiles:
        """One state; a third of them with a torn page."""
        versions, names = self.choices()
        share = lot.choice((0.1, 0.5, 0.9))
        picked = {
            page: count if lot.random() < share else lot.randrange(count + 1) if lot.random() < share else 0
            for page, count in versions.items()
        }
        loss = Loss(picked, {name: lot.random() < share for name in names})
        pages = [place for place, count in picked.items() if count and place[1] >= 0]
        if pages and lot.random() < 0.33:
            loss.torn, loss.torn_bytes = lot.choice(pages), lot.randrange(0, PAGE, SECTOR)
        return self.state(loss)


class LyingFiles(CrashFiles):
    """Says that everything is on stable storage, and has put nothing there: whoever checks for losses must find some."""

    def datasync(self, handle: int) -> None:
        self._change("datasync", self._handles[handle][0])

    def sync_dir(self, path: Path) -> None:
        self._change("sync_dir", path)

    def sync_all(self, path: Path) -> None:
        self._change("sync_all", path)


def draw_mode(files: CrashFiles, mode: str, lot: random.Random) -> CrashFiles:
    """`lost`, `kept`: nothing or everything unsynced; `pages`: as drawn; `writes`: whole writes, by lot; `killed`: the process alone ended."""
    if mode == "pages":
        return files.drawn(lot)
    if mode == "killed":
        return files.after_process_crash()
    keep: dict[str, Any] = {
        "lost": lambda path, count: [False] * count,
        "kept": lambda path, count: [True] * count,
        "writes": lambda path, count: [lot.random() < 0.5 for _ in range(count)],
    }
    return files.after_power_loss(keep[mode], lot.choice((-1, SECTOR)))


MODES = ("lost", "kept", "pages", "writes")


class Story(Protocol):
    """A life that the cut ends, and what must hold in the next one."""

    def run(self) -> None: ...

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        """Raises AssertionError for anything that must not be."""


def cut_everywhere(
    story_on: Callable[[CrashFiles], Story], seed: int, stride: int, modes: Sequence[str] = MODES
) -> None:
    """Cut a story short at every `stride`-th change of its disk, and look at each state that may leave."""
    for cut, files, story in _cuts(story_on, seed, stride, CrashFiles):
        for mode in modes:
            story.after_the_cut(draw_mode(files, mode, random.Random(cut)), random.Random(cut))


def lies_found(story_on: Callable[[CrashFiles], Story], seed: int, stride: int) -> int:
    """The same on a disk that lies: how often the story noticed."""
    found = 0
    for cut, files, story in _cuts(story_on, seed, stride, LyingFiles):
        try:
            story.after_the_cut(draw_mode(files, "lost", random.Random(cut)), random.Random(cut))
        except AssertionError:
            found += 1
    return found


def _cuts(
    story_on: Callable[[CrashFiles], Story], seed: int, stride: int, kind: type[CrashFiles]
) -> Iterator[tuple[int, CrashFiles, Story]]:
    probe = CrashFiles()
    story_on(probe).run()
    for cut in range(seed % stride, len(probe.operations), stride):
        files = kind()
        files.power_cut_at = cut
        story = story_on(files)
        try:
            story.run()
        except PowerCut:
            yield cut, files, story
        else:
            raise AssertionError(f"change {cut} of the disk never came")
