"""Deletions of thousands of rows, a slice at a time (deletions.py says what goes).

The first batch decides; a start that finds it alone finishes the rest. Offsets are not seen from then on (offsets.py). Until the last slice is
written, whoever makes something of the same name again, or commits an offset that is about to go, has the rest written first: what he makes is
never taken for what goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gantrymq.broker.parts import Context
    from gantrymq.broker.tables.tables import Rows

SLICED_MIN: Final = 1_000
"""Offsets, or queues and cursors to look through, from which a deletion is made in slices; a smaller one is one batch."""
STEP_EVERY_MS: Final = 5
"""Twenty thousand offsets take half a second, of which the loop works a fifth."""


class Deleting:
    """The deletions under way. Loop thread."""

    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self.jobs: dict[tuple[str, str], Iterator[Rows]] = {}
        """By table (`topic` or `group`) and name, the rows that are still to be written."""
        self.going: dict[tuple[str, str], tuple[str, str]] = {}
        """Table and name of all that goes, a topic's retry topics as well, to the key of its job."""
        self._armed = False
        self._writing = False

    def begin(self, table: str, names: Sequence[str], first: Rows, rest: Iterator[Rows]) -> None:
        """Write the rows that decide, and then the rest. `names`: what is deleted, and what goes with it."""
        self._put(first)
        key = table, names[0]
        self.jobs[key] = rest
        self.going.update({(table, name): key for name in names})
        self._arm()

    def _put(self, rows: Rows) -> None:
        self._writing = True
        try:
            self._broker.put_rows(rows)
        finally:
            self._writing = False

    def _arm(self) -> None:
        if self.jobs and not self._armed:
            self._armed = True
            wheel = self._broker.wheel
            wheel.call_at(wheel.now_ms() + STEP_EVERY_MS, self._step)

    def _step(self, _now_ms: int) -> None:
        self._armed = False
        if not self.jobs:
            return
        key = next(iter(self.jobs))
        rows = next(self.jobs[key], None)
        if rows is None:
            self._end(key)
        elif rows:
            self._put(rows)
        self._arm()

    def _end(self, key: tuple[str, str]) -> Iterator[Rows]:
        for name in [name for name, job in self.going.items() if job == key]:
            del self.going[name]
        return self.jobs.pop(key)

    def finish(self, table: str, name: str) -> None:
        """Write at once what is left of it."""
        key = self.going.get((table, name))
        if key is not None:
            self._put([row for rows in self._end(key) for row in rows])

    def finish_all(self) -> None:
        """At a stop."""
        for table, name in list(self.jobs):
            self.finish(table, name)

    def before_rows(self, rows: Rows) -> None:
        """Called while there are jobs, before rows are handed over."""
        if self._writing:
            return
        for table, key, value in rows:
            if (table, key) in self.going:
                self.finish(table, key)
            elif table == "request_mode" and value is not None:
                topic, _, group = key.partition("@")
                self.before_offset(topic, group)
            elif table == "cursor" and value is not None and b'"pop:' in value:
                self.finish_all()  # of a topic or group that goes, perhaps

    def before_offset(self, topic: str, group: str) -> None:
        """Called while there are jobs, before an offset is committed (or a mode is set, whose key is the same)."""
        self.finish("topic", topic)
        self.finish("group", group)
