"""Emptying a broker group that is to leave: rows of tables move to the owners of their slots.

Every gateway process does it for the tables that it uses, one at a time for each table: who takes its lease. Two at once would each take what the other has
moved for deleted. A row that changes on its way is moved again. Messages do not move: consumers take what is there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cluster.group import Group
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import TABLE as POLICIES
from gantrymq.model.queue_policy import policy_from
from gantrymq.net.procedures.driver import Steps, run

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster
    from gantrymq.cluster.leases import ClusterLeases
    from gantrymq.cluster.tables import ClusterTables

ROWS_AT_ONCE: Final = 256
"""Rows moved in one call; a session or queue is some 300 bytes."""
ROWS_BYTES: Final = 4 << 20
"""Bytes of rows moved in one call; a single larger one moves alone."""
AGAIN_MS: Final = 1000
"""Between two looks while a group is being emptied: gateways that have not heard of it yet still write there."""


class ClusterDrain:
    """See the module."""

    def __init__(self, cluster: Cluster, tables: ClusterTables, leases: ClusterLeases) -> None:
        self._cluster = cluster
        self._tables = tables
        self._leases = leases
        self._busy = False

    def check(self) -> None:
        """Groups came, left, or are being emptied."""
        if not self._busy and self._leaving() and self._staying():
            self._busy = True
            run(self._work(), self._ended)

    def _leaving(self) -> list[Group]:
        return [group for group in self._cluster.ready_groups() if group.draining]

    def _staying(self) -> list[Group]:
        return [group for group in self._cluster.ready_groups() if not group.draining]

    def _ended(self, result: Any) -> None:
        """Also when it failed: a group was lost, and the rest is done when it is back."""
        wheel = self._cluster.wheel
        wheel.call_at(wheel.now_ms() + AGAIN_MS, lambda now_ms: self._again())

    def _again(self) -> None:
        self._busy = False
        self.check()

    def _work(self) -> Steps:
        if not self._staying():
            return
        for group in self._leaving():
            for table in self._tables.names():
                yield from self._alone(group, table)

    def _alone(self, group: Group, table: str) -> Steps:
        name = f"drain/{group.name}/{table}"
        try:
            epoch: int = yield partial(self._leases.take, name, False, _lost)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:  # another gateway is at it
                return
            raise
        try:
            yield from self._move_table(group, table)
        finally:
            self._leases.drop(name, epoch)

    def _move_table(self, group: Group, table: str) -> Steps:
        # First: rows of queues go with their queues (broker/forward/arriving.py). Moved here as well, they would be taken for deleted.
        policies: dict[str, bytes] = yield partial(group.port.watch_table, POLICIES, None)
        queues = {policy_from(value).row for value in policies.values()}
        rows: dict[str, bytes] = yield partial(group.port.watch_table, table, None)
        batches: dict[int, list[tuple[str, bytes]]] = {}
        for key, value in rows.items():
            if (table, key) in queues:
                continue
            home = self._tables.home(table, key)
            if home is group:
                return
            batch = batches.setdefault(home.index, [])
            batch.append((key, value))
            if len(batch) >= ROWS_AT_ONCE or sum([len(one) for _, one in batch]) >= ROWS_BYTES:
                yield from self._move(table, group, home, batches.pop(home.index))
        for index, batch in batches.items():
            yield from self._move(table, group, self._cluster.groups[index], batch)

    def _move(self, table: str, source: Group, home: Group, rows: list[tuple[str, bytes]]) -> Steps:
        """There first, then away here: a crash in between leaves both, and the next look goes on."""
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
