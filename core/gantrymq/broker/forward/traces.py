"""What is left of queues that have moved: what their source still has to say of them here, and what other groups still have to hear.

Both are rows (table `forward`), so that they outlive a start of this group and the absence of another. `cluster/forward/ending.py` sees to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gantrymq.broker.tables.forward_table import CAME, ENDED, TABLE
from gantrymq.broker.tables.group_tables import MOVED_TABLE

if TYPE_CHECKING:
    from gantrymq.broker.forward.sending import Sending
    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Done
    from gantrymq.broker.tables.tables import Row, Rows


class Came(NamedTuple):
    """A queue that came: its number at the group where it was, the move's name there, and how often it had moved then."""

    light: int
    move: str
    moves: int


class Traces:
    """See the module."""

    def __init__(self, broker: Context, sending: Sending) -> None:
        self._broker = broker
        self._sending = sending
        self._came: dict[int, dict[str, Came]] = {}
        """By id in the cluster and source: that one has not said that its part is gone."""
        self._ended: dict[int, set[str]] = {}
        """By id in the cluster: groups that may still say that it has gone on from there."""

    def open(self) -> None:
        """As Part.open."""
        for key, value in self._broker.tables.rows(TABLE).items():
            if key.startswith(CAME):
                source, _, name = key[len(CAME) :].rpartition("/")
                self._came.setdefault(int(name), {})[source] = Came(*json.loads(value))
            elif key.startswith(ENDED):
                self._ended[int(key[len(ENDED) :])] = set(json.loads(value))

    def close(self) -> None:
        """As Part.close."""

    # What came.

    def came(self, source: str, name: int, came: Came) -> Row:
        """It does, with the piece that has this row."""
        self._came.setdefault(name, {})[source] = came
        return TABLE, f"{CAME}{source}/{name}", json.dumps(came).encode()

    def settled(self, source: str, names: Iterable[int]) -> None:
        """That source has deleted what it had, or they did not come."""
        rows: Rows = []
        for name in names:
            sources = self._came.get(name, {})
            if sources.pop(source, None) is not None:
                rows.append((TABLE, f"{CAME}{source}/{name}", None))
            if not sources:
                self._came.pop(name, None)
        if rows:
            self._broker.put_rows(rows)

    def unsettled(self, source: str) -> list[tuple[int, Came]]:
        """Queues that came from there, and of which it has not said that its part is gone."""
        return [(name, sources[source]) for name, sources in self._came.items() if source in sources]

    def moves_of(self, name: int) -> int:
        """How often a queue had moved when it came here last, of those moves that its source has not heard to be over; it may be gone since."""
        return max([came.moves for came in self._came.get(name, {}).values()], default=0)

    # What has ended.

    def ended(self, name: int) -> None:
        """A queue that had come here is there no more."""
        rows: Rows = [(MOVED_TABLE, str(name), None)]
        if self._sending.peers:
            self._ended[name] = set(self._sending.peers)
            rows.append(self._ended_row(name))
        self._broker.put_rows(rows, together=True)

    def _ended_row(self, name: int) -> Row:
        left = self._ended.get(name)
        return TABLE, f"{ENDED}{name}", json.dumps(sorted(left)).encode() if left else None

    def untold(self, group: str) -> list[int]:
        """Queues of whose end it has not heard."""
        return [name for name, groups in self._ended.items() if group in groups]

    def told(self, group: str, names: Sequence[int]) -> None:
        """It says of them no more that they have gone on."""
        for name in names:
            groups = self._ended.get(name, set())
            groups.discard(group)
            if not groups:
                self._ended.pop(name, None)
        self._broker.put_rows([self._ended_row(name) for name in names])

    # Other groups.

    def groups(self) -> set[str]:
        """All of which something is left."""
        return {group for groups in (*self._came.values(), *self._ended.values()) for group in groups}

    def forget(self, group: str) -> None:
        """The cluster has forgotten it."""
        self.settled(group, [name for name, _ in self.unsettled(group)])
        if names := self.untold(group):
            self.told(group, names)

    def when_flushed(self, token: Any, on_done: Done) -> None:
        """Answers when all that is stored now is on the disk."""
        flushed = partial(_answer, on_done)
        self._broker.gate.park(self._broker.store.written_position, flushed, token, None, strict=True)
        self._broker.request_flush()


def _answer(on_done: Done, token: Any, result: Any) -> None:
    on_done(token, result)
