"""A copy of a store directory, running or not, that starts as if its process had been killed at the end of the copying.

What is copied first may speak of nothing that is copied later than it was written: so the positions go first and the log last. Queues,
light queues and index of the copy reach at least as far as its positions say, and the log further than all of them; recovery does the
rest. The copy lies under another name until it is whole and on stable storage.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError, StoreCorruptError
from gantrymq.store.checkpoints.positions import SLOT_STRIDE, Positions
from gantrymq.store.files import OsFileSystem
from gantrymq.store.light.table import BLOCK, HEAD
from gantrymq.store.log.commit_log import positions_in
from gantrymq.store.log.missing import describe, gaps_of

Tell = Callable[[str, int, int], None]
"""`tell(what, done, in all)`: now and then."""

CHUNK: Final = 1 << 20
TRIES_MAX: Final = 10
"""Looks at what changed while it was copied; each takes milliseconds and it changes every few seconds."""
PARTIAL: Final = ".partial"
NEVER: Final = frozenset({"boot", "abort", "lock", "positions"})
"""Of the process that runs, or written by the copy itself. Without `boot` every queue is compared with the log."""


class Backup:
    """One copy of the data directory `source` to `target`, which must not exist."""

    def __init__(self, source: Path, target: Path, tell: Tell = lambda what, done, total: None) -> None:
        self._source = source
        self._target = target
        self._partial = target.with_name(target.name + PARTIAL)
        self._tell = tell
        self._done = self._total = 0
        self._made: set[Path] = set()
        self.missing = ""
        """What the log lacks, in words: the copy has all that is there, and starts as little as its source would."""

    def run(self) -> int:
        """Copy; returns the bytes copied. Raises GantryError; then the target is not there."""
        self._check()
        self._partial.mkdir(parents=True)
        try:
            self._copy_all()
            self._tell("copied", self._done, self._done)
            for directory in sorted({self._partial, *self._made}, reverse=True):
                _sync(directory)
            self._partial.rename(self._target)
            _sync(self._target.parent)
        except BaseException:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise
        return self._done

    def _check(self) -> None:
        source, target = self._source.resolve(), self._target.resolve()
        if not (source / "gantry" / "positions").exists():
            raise StoreCorruptError(f"{source} is no data directory of gantry: it has no gantry/positions")
        if target == source or source in target.parents:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{target} lies in {source}: choose another directory")
        for path in (target, self._partial):
            if path.exists():
                raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{path} exists: remove it, or choose another directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._total = sum([_blocks(path) for path in source.rglob("*")])
        free = shutil.disk_usage(target.parent).free
        if self._total > free:
            raise GantryError(
                ErrorCode.STORE_FULL, f"{target.parent} has {free} bytes free, the copy takes {self._total}"
            )

    def _copy_all(self) -> None:
        positions = self._positions()
        self._config()
        own = self._source / "gantry"
        for path in sorted(own.rglob("*")):
            relative = path.relative_to(own)
            if (
                path.is_file()
                and relative.parts[0] not in ("light", "compaction", "exports")
                and relative.name not in NEVER
            ):
                self._file(path)
        self._steady([own / "light" / "table"], self._light_table)
        self._tree(own / "light", frozenset({"table"}))
        self._steady([own / "compaction"], lambda: self._whole_tree(own / "compaction"))
        for name in ("consumequeue", "index"):
            self._tree(self._source / "store" / name)
        self._tree(self._source / "namesrv")
        self._file(self._source / "store" / "checkpoint")
        self._log(positions)
        for name in ("store", "gantry"):  # as a killed process leaves it
            path = self._partial / name / "abort"
            path.write_bytes(b"backup")
            self._made.add(path.parent)

    # --- parts that must be of one moment

    def _positions(self) -> bytes:
        """Both copies of the positions: whichever is torn, the other is not."""
        return (self._source / "gantry" / "positions").read_bytes()[: 2 * SLOT_STRIDE]

    def _steady(self, paths: list[Path], copy: Callable[[], bool]) -> None:
        if not paths[0].exists():
            return
        for _ in range(TRIES_MAX):
            if copy():
                return
        raise GantryError(ErrorCode.BUSY, f"{paths[0]} changes all the time: try again when there is less to do")

    def _config(self) -> None:
        """The files of `config`, and the notes by which a start knows that they are its own exports and no other broker's."""
        notes_path = self._source / "gantry" / "exports"

        def copy() -> bool:
            before = notes_path.read_bytes() if notes_path.exists() else b""
            self._tree(self._source / "store" / "config")
            self._file(notes_path)
            after = (self._partial / "gantry" / "exports").read_bytes() if before else b""
            return before == after and self._is_noted(after)

        self._steady([self._source / "store" / "config"], copy)

    def _is_noted(self, notes: bytes) -> bool:
        try:
            hashes: dict[str, list[str]] = json.loads(notes) if notes else {}
        except ValueError:
            return True  # a start says so
        for name, known in hashes.items():
            path = self._partial / "store" / "config" / name
            theirs = self._source / "store" / "config" / name
            if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() not in known:
                return theirs.read_bytes() == path.read_bytes()  # somebody has edited it: a start judges that
        return True

    def _light_table(self) -> bool:
        """A snapshot that becomes true while it is copied writes its head last, so the copy is one if the heads stayed."""
        path = self._source / "gantry" / "light" / "table"
        before = _heads(path)
        self._file(path)
        return before == _heads(path)

    def _whole_tree(self, directory: Path) -> bool:
        shutil.rmtree(self._partial / directory.relative_to(self._source), ignore_errors=True)
        return self._tree(directory)

    # --- copying

    def _log(self, positions: bytes) -> None:
        """The segments there are now; of those that retention removes meanwhile the copy does without."""
        files = OsFileSystem()
        directory = self._source / "store" / "commitlog"
        bases = positions_in(files, directory)
        copied = self._partial / "store" / "commitlog"
        copied.mkdir(parents=True, exist_ok=True)
        begin = next((base for base in bases if self._file(directory / f"{base:020d}")), 0)
        for base in bases:
            if base > begin and not self._file(directory / f"{base:020d}"):
                raise GantryError(ErrorCode.STORE_FAILED, f"{directory}: segment {base:020d} went while it was copied")
        target = self._partial / "gantry" / "positions"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(
            self._positions()
        )  # as they are now: where the log begins after what retention removed meanwhile
        now = Positions(files, target)
        now.open()
        now.close()
        target.write_bytes(positions)
        noted = Positions(files, target)
        noted.open()
        if noted.flushed >= 0:
            lengths = {base: path.stat().st_size for base in bases if (path := copied / f"{base:020d}").exists()}
            self.missing = describe(
                gaps_of(lengths, noted.sizes.log_file, now.begin, noted.flushed), noted.sizes.log_file
            )
            noted.begin = begin if now.begin < 0 else min(begin, now.begin)
            noted.save(noted.flushed, noted.derived, sync=True)
        noted.close()
        self._made |= {target.parent, copied}

    def _tree(self, directory: Path, without: frozenset[str] = frozenset()) -> bool:
        """Files of a directory and below. False: one went meanwhile."""
        whole = True
        if directory.exists():
            (self._partial / directory.relative_to(self._source)).mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name not in without and path.name not in NEVER:
                whole = self._file(path) and whole
        return whole

    def _file(self, path: Path) -> bool:
        """Copy what is not a hole. False: there is no such file (any more)."""
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        target_path = self._partial / path.relative_to(self._source)
        target_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            target = os.open(target_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                length = os.fstat(source).st_size
                at = _next_data(source, 0, length)
                while at < length:
                    data = os.pread(source, min(CHUNK, length - at), at)
                    if not data:
                        break
                    os.pwrite(target, data, at)
                    self._done += len(data)
                    self._tell("copied", min(self._done, self._total), self._total)
                    at = _next_data(source, at + len(data), length)
                os.ftruncate(target, length)
                os.fsync(target)
            finally:
                os.close(target)
        finally:
            os.close(source)
        directory = target_path.parent
        while directory != self._partial and directory not in self._made:
            self._made.add(directory)
            directory = directory.parent
        return True


def _next_data(handle: int, at: int, length: int) -> int:
    """Where the next byte lies that is not in a hole."""
    if at >= length:
        return length
    try:
        return os.lseek(handle, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return length
        if error.errno == errno.EINVAL:
            return at  # the file system does not tell
        raise


def _blocks(path: Path) -> int:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return min(found.st_blocks * 512, found.st_size) if path.is_file() else 0


def _heads(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [os.pread(file.fileno(), HEAD.size, side * BLOCK) for side in range(2)]


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
