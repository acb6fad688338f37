"""Leases of a gateway process over several broker groups: each is taken at its name's home, and moves when that is another group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.port import Done
from gantrymq.cluster.group import RETRY_MS, ask_owner
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Gathering, Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.tables.slots import Under
    from gantrymq.cluster.group import Cluster, Group

MOVED_AT_ONCE: Final = 128
"""Homes computed in one go: some 5 us each with three groups."""


class _Lease:
    """`epoch`: what the door knows; `inner`: what its group calls it now, another after the group was away or the lease moved."""

    __slots__ = ("epoch", "group", "inner", "on_lost")

    def __init__(self, group: Group, epoch: int, inner: int, on_lost: Callable[[str], None]) -> None:
        self.group = group
        self.epoch = epoch
        self.inner = inner
        self.on_lost = on_lost


class ClusterLeases:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held: dict[str, _Lease] = {}
        self._moving = False
        self._again = False
        self._waiting = False

    def forget(self) -> None:
        """Every group is gone."""
        self._held.clear()

    def take(self, name: str, force: bool, on_lost: Callable[[str], None], token: Any, on_done: Done) -> None:
        """As LeasePort.take_lease. Held here at a group that is no longer the name's home: moved later, and decided there."""
        run(self._take(name, force, on_lost), partial(on_done, token))

    def _take(self, name: str, force: bool, on_lost: Callable[[str], None]) -> Steps:
        def at(group: Group, under: Under | None) -> Call:
            old = self._held.get(name)
            if old is not None and old.group is not group:
                if not force:
                    raise GantryError(ErrorCode.LEASE_HELD, f"{name} is held by another connection")
                self._drop(name, old)
                old.on_lost(name)
            return partial(group.port.take_lease, name, force, partial(self._lost_at, group), under=under)

        def give_back(group: Group, inner: int) -> None:
            group.port.drop_lease(name, inner)

        group, inner = yield from ask_owner(self._cluster, _key(name), at, give_back)
        epoch = self._cluster.number()
        self._held[name] = _Lease(group, epoch, inner, on_lost)
        return epoch

    def is_free(self, name: str, token: Any, on_done: Done) -> None:
        """As LeasePort.is_free: only a home that all gateways have found (again) knows it."""
        home = self._home(name)
        if home is None or not home.settled or name in self._held:
            on_done(token, False)
        else:
            question = partial(home.port.is_free, name, under=self._cluster.slots.under(_key(name)))
            self._cluster.decisions.ask(home, question)(token, lambda token, result: on_done(token, _free(result)))

    def _lost_at(self, group: Group, name: str) -> None:
        lease = self._held.get(name)
        if lease is None or lease.group is not group:
            return
        if self._cluster.slots.known and self._cluster.slots.owner(_key(name)) != group.name:
            self.rehome()  # with its slot: the new owner decides
            return
        del self._held[name]
        lease.on_lost(name)

    def drop(self, name: str, epoch: int) -> None:
        """As LeasePort.drop_lease."""
        lease = self._held.get(name)
        if lease is not None and lease.epoch == epoch:
            self._drop(name, lease)

    def _drop(self, name: str, lease: _Lease) -> None:
        del self._held[name]
        lease.group.port.drop_lease(name, lease.inner)

    def restore(self, group: Group) -> Steps:
        """The group is back: take again what was taken there. Who took it meanwhile keeps it."""
        for name, lease in list(self._held.items()):
            if lease.group is group and self._held.get(name) is lease:
                yield from self._take_again(name, lease, group)

    def _take_again(self, name: str, lease: _Lease, group: Group) -> Steps:
        under = self._cluster.slots.under(_key(name))
        try:
            inner: int = yield partial(group.port.take_lease, name, False, partial(self._lost_at, group), under=under)
        except GantryError as error:
            if error.code is ErrorCode.NOT_OWNER:
                self._again_later()
                return
            if error.code is not ErrorCode.LEASE_HELD:
                raise
            if self._held.get(name) is lease:
                del self._held[name]
                lease.on_lost(name)
            return
        if self._held.get(name) is not lease:  # given up meanwhile
            group.port.drop_lease(name, inner)
            return
        if lease.group is not group:
            lease.group.port.drop_lease(name, lease.inner)
        lease.group, lease.inner = group, inner

    def rehome(self) -> None:
        """Groups came or left: leases whose home is another group now are taken there. One that is held there already is lost."""
        self._again = True
        if not self._moving:
            self._moving = True
            run(self._move(), self._moved)

    def _move(self) -> Steps:
        while self._again:
            self._again = False
            names = list(self._held)
            for first in range(0, len(names), MOVED_AT_ONCE):
                part = names[first : first + MOVED_AT_ONCE]
                calls = [partial(self._run, name) for name in part if self._is_away(name)]
                yield partial(_gather, calls)

    def _is_away(self, name: str) -> bool:
        lease = self._held.get(name)
        return lease is not None and self._home(name) not in (None, lease.group)

    def _home(self, name: str) -> Group | None:
        try:
            return self._cluster.home(_key(name))
        except GantryError:
            return None

    def _run(self, name: str, token: Any, on_done: Done) -> None:
        lease, home = self._held.get(name), self._home(name)
        if lease is None or home is None:
            on_done(token, None)
        else:
            run(self._take_again(name, lease, home), partial(on_done, token))

    def _moved(self, result: Any) -> None:
        self._moving = False

    def _again_later(self) -> None:
        """The owner of a lease's slot has not heard yet that it is, or waits for the metadata group."""
        if not self._waiting:
            self._waiting = True
            self._cluster.wheel.call_at(self._cluster.wheel.now_ms() + RETRY_MS, self._wait_is_over)

    def _wait_is_over(self, now_ms: int) -> None:
        self._waiting = False
        self.rehome()


def _key(name: str) -> str:
    """The name of a lease among all names."""
    return f"lease/{name}"


def _free(result: Any) -> Any:
    """Who does not decide does not know."""
    return False if isinstance(result, GantryError) and result.code is ErrorCode.NOT_OWNER else result


def _gather(calls: Sequence[Callable[[Any, Done], None]], token: Any, on_done: Done) -> None:
    """A failed move is tried again when groups come or leave the next time."""
    Gathering(calls, lambda results: on_done(token, None))
