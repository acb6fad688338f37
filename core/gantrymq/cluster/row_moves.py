"""Rows of tables follow the slots of their names: what lies at a broker group that is not their owner moves there, and so empties one that is to leave.

Every gateway process does it for the tables that it uses, one at a time for each table: who takes its lease. Two at once would each take what the other has
moved for deleted. A row that changes on its way is moved again. Rows of queues go with their queues (cluster/forward/moving.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.tables.group_tables import STAYING_TABLES
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import TABLE as POLICIES
from gantrymq.model.queue_policy import policy_from
from gantrymq.net.procedures.driver import Steps, pause, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.cluster.group import Cluster, Group
    from gantrymq.cluster.leases import ClusterLeases
    from gantrymq.cluster.tables import ClusterTables

ROWS_AT_ONCE: Final = 256
"""Rows moved in one call; a session or queue is some 300 bytes."""
ROWS_BYTES: Final = 4 << 20
"""Bytes of rows moved in one call; a single larger one moves alone."""
KEYS_PER_TURN: Final = 1_000
"""Keys whose home is looked up in one go: some 3 ms."""
AGAIN_MS: Final = 1_000
"""Between two rounds while rows move: gateways that have not heard of it yet still write there."""
LAST_ROUND_MS: Final = 10_000
"""Behind the last change of slots or groups: by then every gateway has heard of it."""


class RowMoves:
    """See the module."""

    def __init__(self, cluster: Cluster, tables: ClusterTables, leases: ClusterLeases) -> None:
        self._cluster = cluster
        self._tables = tables
        self._leases = leases
        self._due = False
        self._busy = False
        """A round is under way, or was a moment ago."""
        self._last_round_ms = 0
        """When one more is due; 0: none."""

    def check(self) -> None:
        """Groups came, left, or are being emptied, or slots have other owners."""
        self._due = True
        self._last_round_ms = self._cluster.wheel.now_ms() + LAST_ROUND_MS
        self._begin()

    def _begin(self) -> None:
        if self._due and not self._busy and len(self._cluster.ready_groups()) > 1:
            self._due, self._busy = False, True
            run(self._work(), self._ended)

    def _ended(self, moved: Any) -> None:
        """`moved`: some rows; or a group was lost, and the rest is done when it is back."""
        self._due |= bool(moved) or any(group.draining for group in self._cluster.ready_groups())
        self._later(self._again)

    def _later(self, call: Callable[[int], None]) -> None:
        wheel = self._cluster.wheel
        wheel.call_at(wheel.now_ms() + AGAIN_MS, call)

    def _again(self, now_ms: int) -> None:
        if self._last_round_ms and now_ms >= self._last_round_ms:
            self._due, self._last_round_ms = True, 0
        if self._last_round_ms and not self._due:
            self._later(self._again)
            return
        self._busy = False
        self._begin()

    def _work(self) -> Steps:
        """Returns whether rows moved, or another gateway moves them."""
        moved = False
        for table in self._tables.names():
            for group in (yield from self._elsewhere(table)):
                if table in STAYING_TABLES and not group.draining:
                    continue
                moved |= yield from self._alone(group, table)
        return moved

    def _home(self, table: str, key: str) -> Group | None:
        """None: its home is not in use, or is being emptied itself."""
        try:
            home = self._tables.home(table, key)
        except GantryError:
            return None
        return None if home.draining else home

    def _elsewhere(self, table: str) -> Steps:
        """Groups that have rows of other groups' names, as far as this process knows."""
        found: dict[int, Group] = {}
        for number, (key, index) in enumerate(self._tables.places(table)):
            if number % KEYS_PER_TURN == KEYS_PER_TURN - 1:
                yield pause(self._next_turn)
            group = self._cluster.groups[index]
            if index not in found and group.ready and self._home(table, key) not in {None, group}:
                found[index] = group
        return list(found.values())

    def _next_turn(self, go_on: Callable[[], None]) -> None:
        wheel = self._cluster.wheel
        wheel.call_at(wheel.now_ms() + 1, lambda now_ms: go_on())

    def _alone(self, group: Group, table: str) -> Steps:
        name = f"rows/{group.name}/{table}"
        try:
            epoch: int = yield partial(self._leases.take, name, False, _lost)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:  # another gateway is at it
                return True
            raise
        try:
            return (yield from self._move_table(group, table))
        finally:
            self._leases.drop(name, epoch)

    def _move_table(self, group: Group, table: str) -> Steps:
        # First: rows of queues go with their queues (broker/forward/arriving.py). Moved here as well, they would be taken for deleted.
        policies: dict[str, bytes] = yield partial(group.port.watch_table, POLICIES, None)
        queues = {policy_from(value).row for value in policies.values()}
        rows: dict[str, bytes] = yield partial(group.port.watch_table, table, None)
        batches: dict[int, list[tuple[str, bytes]]] = {}
        moved = False
        for number, (key, value) in enumerate(rows.items()):
            if number % KEYS_PER_TURN == KEYS_PER_TURN - 1:
                yield pause(self._next_turn)
            home = self._home(table, key)
            if home is None or home is group or (table, key) in queues:
                continue
            moved = True
            batch = batches.setdefault(home.index, [])
            batch.append((key, value))
            if len(batch) >= ROWS_AT_ONCE or sum([len(one) for _, one in batch]) >= ROWS_BYTES:
                yield from self._move(table, group, home, batches.pop(home.index))
        for index, batch in batches.items():
            yield from self._move(table, group, self._cluster.groups[index], batch)
        return moved

    def _move(self, table: str, source: Group, home: Group, rows: list[tuple[str, bytes]]) -> Steps:
        """There first, then away here: a crash in between leaves both, and the next round goes on."""
        new: list[bool] = yield partial(home.port.put_if, table, [(key, None, value) for key, value in rows])
        newer = [
            (key, value)
            for (key, value), was_new in zip(rows, new, strict=True)
            if not was_new and self._tables.place_of(table, key) == source.index  # written here after it had moved
        ]
        if newer:
            yield partial(home.port.put, table, newer)
        removed: list[bool] = yield partial(source.port.put_if, table, [(key, value, None) for key, value in rows])
        undone = [
            (key, value, None)
            for (key, value), was_new, was_removed in zip(rows, new, removed, strict=True)
            if was_new and not was_removed  # changed or deleted here meanwhile
        ]
        if undone:
            yield partial(home.port.put_if, table, undone)


def _lost(_name: str) -> None:
    """Whoever has the lease then finds what is left."""
