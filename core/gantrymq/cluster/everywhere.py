"""What really goes to every group: taps, volatile routes, watches of tables. To those in use, to those that come into use meanwhile, and later to those
that are still joining."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.port import Done
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Gathering, Steps, run

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster, Group


class Everywhere:
    """`call(group)` must come out the same when it is done twice. `on_done` gets None or the first failure.

    A group that is lost meanwhile is no failure: what is open in this process is opened there when it is back. A group that answers slowly holds
    up this call until its connection is given up, and nothing else.
    """

    __slots__ = ("_call", "_cluster", "_done", "_error", "_on_done", "_reached")

    def __init__(self, cluster: Cluster, call: Callable[[Group], Steps], on_done: Callable[[Any], None]) -> None:
        self._cluster = cluster
        self._call = call
        self._on_done = on_done
        self._done: set[tuple[int, int]] = set()
        self._error: GantryError | None = None
        self._reached = 0
        self._go()

    def _go(self) -> None:
        groups = [group for group in self._cluster.ready_groups() if (group.index, group.attempt) not in self._done]
        if not groups or self._error is not None:
            self._finish()
            return
        self._done.update([(group.index, group.attempt) for group in groups])

        def ask(group: Group, token: Any, done: Done) -> None:
            run(self._call(group), partial(done, token))

        Gathering([partial(ask, group) for group in groups], partial(self._answered, groups))

    def _answered(self, groups: list[Group], results: list[Any]) -> None:
        for group, result in zip(groups, results, strict=True):
            if not isinstance(result, GantryError):
                self._reached += 1
            elif group.port.up and self._error is None:
                self._error = result
        self._go()

    def _finish(self) -> None:
        if self._error is None and not self._reached:
            self._error = GantryError(ErrorCode.UNAVAILABLE, "no broker group is connected")
        if self._error is None:
            for group in self._cluster.joining:
                group.later(self._call)
        self._on_done(self._error)
