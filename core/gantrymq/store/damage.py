"""Damaged records that somebody met: `D/gantry/damage` (docs/operations/store-tools.md).

    {"verified": where the verification goes on, "records": [[position, size, queue, offset, is_unit, what, found ms, skipped], ...],
     "gone": [[position, size, what, found ms], ...]}

Nothing is derived from the file but what people are shown: an entry that is missing is found again when its record is read. What is gone
from the log (set aside by a start, or its segment was missing) nobody can meet again; it is listed until somebody skips it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.store.files import read_small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gantrymq.store.files import FileSystem

log = logging.getLogger(__name__)

DAMAGE_MAX: Final = 10_000
"""Records listed, at some 500 bytes each; more than these are counted only. A disk with more of them is to be replaced."""

Key = tuple[int, str, int]
"""Position of a bad record, "" and -1; of a queue unit that names none: what it says, queue and offset."""


def key(position: int, queue: str, offset: int, is_unit: bool) -> Key:
    """Of damage met at that offset of a queue. Units that name no record may all say the same position."""
    return (position, queue, offset) if is_unit else (position, "", -1)


@dataclass(slots=True)
class Damaged:
    """A record that cannot be read (`is_unit`: or a queue's unit that does not name one). `queue`: `<topic>/<queue id>` or `~<light id>` where it
    was met first, empty: by the verification; `offset`: in that queue, -1: not known."""

    position: int
    size: int
    queue: str
    offset: int
    is_unit: bool
    what: str
    found_ms: int
    skipped: bool = False
    gone: bool = False
    """Something without meaning stands there now."""

    @property
    def key(self) -> Key:
        """What makes it the same damage when it is met again."""
        return key(self.position, self.queue, self.offset, self.is_unit)


class DamageList:
    """One per store. Loop thread; `save` any one thread."""

    def __init__(self, files: FileSystem, path: Path, now_ms: Callable[[], int]) -> None:
        self._files = files
        self._path = path
        self._now_ms = now_ms
        self.entries: dict[Key, Damaged] = {}
        self.total = 0
        """Found since the start, each once as long as it is listed."""
        self.verified = 0
        """Position up to which the present round of the verification has come."""
        self.dirty = False

    def found(self, position: int, size: int, queue: str, offset: int, what: str, is_unit: bool) -> None:
        """Somebody met it; said and counted once."""
        entry = Damaged(position, size, queue, offset, is_unit, what, self._now_ms())
        if entry.key in self.entries:
            return
        self.total += 1
        if len(self.entries) < DAMAGE_MAX:
            self.entries[entry.key] = entry
            self.dirty = True
        if len(self.entries) < DAMAGE_MAX or self.total % DAMAGE_MAX == 0:
            log.error(
                "%s at position %d (%d bytes) is damaged (%s%s): %s; it is left out, and kept for those who acknowledge (gantry store damage list)",
                "unit for the record" if is_unit else "record", position, size, queue or "met by the verification",
                f", offset {offset}" if offset >= 0 else "", what,
            )  # fmt: skip

    def quarantined(self, position: int, size: int, what: str) -> None:
        """A start has put something without meaning there, and said so in the log."""
        entry = Damaged(position, size, "", -1, False, what, self._now_ms(), gone=True)
        self.total += 1
        if entry.key in self.entries or len(self.entries) < DAMAGE_MAX:
            self.entries[entry.key] = entry
            self.dirty = True

    def at(self, position: int, queue: str = "", offset: int = -1) -> list[Damaged]:
        """What is listed with that position, and with that queue (`-`: none) and offset where they are given."""
        return [
            entry
            for entry in self.entries.values()
            if entry.position == position and queue in ("", entry.queue or "-") and offset in (-1, entry.offset)
        ]

    def forget(self, entry: Damaged) -> None:
        """It is whole again, or gone with its segment."""
        if self.entries.pop(entry.key, None) is not None:
            self.dirty = True

    def skip(self, entry: Damaged) -> None:
        """Nobody waits for it any more; what is gone is listed no more."""
        if entry.gone:
            self.forget(entry)
        entry.skipped = self.dirty = True

    def move_to(self, position: int) -> None:
        """How far the verification is."""
        self.verified = position
        self.dirty = True

    def load(self) -> None:
        """Read the file; what cannot be read is as if nothing had been listed."""
        data = read_small(self._files, self._path)
        if data is None:
            return
        try:
            value = json.loads(data)
            entries = [
                Damaged(int(position), int(size), str(queue), int(offset), bool(is_unit), str(what), int(ms), bool(skipped))
                for position, size, queue, offset, is_unit, what, ms, skipped in value["records"][:DAMAGE_MAX]
            ]  # fmt: skip
            entries += [
                Damaged(int(position), int(size), "", -1, False, str(what), int(ms), gone=True)
                for position, size, what, ms in value.get("gone", ())[: DAMAGE_MAX - len(entries)]
            ]
            self.verified = int(value["verified"])
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            log.warning("%s is unreadable (%s): damaged records are listed when they are met again", self._path, error)
            return
        self.entries = {entry.key: entry for entry in entries}

    def text(self) -> bytes:
        """What `save` writes."""
        self.dirty = False
        rows = [
            [entry.position, entry.size, entry.queue, entry.offset, entry.is_unit, entry.what, entry.found_ms, entry.skipped]
            for entry in self.entries.values()
            if not entry.gone
        ]  # fmt: skip
        gone = [[one.position, one.size, one.what, one.found_ms] for one in self.entries.values() if one.gone]
        return json.dumps({"verified": self.verified, "records": rows, "gone": gone}).encode()

    def save(self, text: bytes) -> None:
        """Put `text()` on stable storage. Raises OSError."""
        made = self._path.with_name(self._path.name + ".tmp")
        handle = self._files.open(made, True)
        try:
            self._files.truncate(handle, 0)
            self._files.pwrite(handle, text, 0)
            self._files.datasync(handle)
        finally:
            self._files.close(handle)
        self._files.rename(made, self._path)
