"""What a check of a store found, and how it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

Tell = Callable[[str, int, int], None]
"""`tell(what, done, in all)`: now and then."""


SHOWN_MAX: Final = 100
"""Findings that are kept; the rest is counted."""


@dataclass(slots=True)
class Report:
    """What was found. `damage`: (kind, where, text); `notes`: what is worth knowing and no damage."""

    directory: str
    clean: bool
    running: int = 0
    """Process id of the broker that works with the directory; 0: none does."""
    log_begin: int = 0
    log_end: int = 0
    records: int = 0
    units: int = 0
    light_units: int = 0
    index_entries: int = 0
    compacted_records: int = 0
    recovered_from: int = -1
    """Queues and index above it would be made again from the log; -1: nothing would."""
    damage_count: int = 0
    damage: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def bad(self, kind: str, where: str, text: str) -> None:
        self.damage_count += 1
        if len(self.damage) < SHOWN_MAX:
            self.damage.append({"kind": kind, "where": where, "text": text})

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "directory": self.directory, "ok": not self.damage_count, "cleanStop": self.clean, "running": self.running, "logBegin": self.log_begin,
            "logEnd": self.log_end, "records": self.records, "queueUnits": self.units, "lightUnits": self.light_units, "indexEntries": self.index_entries, "compactedRecords": self.compacted_records,
            "recoveredFrom": self.recovered_from, "damageCount": self.damage_count, "damage": self.damage, "notes": self.notes,
        }  # fmt: skip
