"""Leases of a gateway process over several broker groups: each is taken at its name's home, and moves when that is another group.

A deputy gives those that may be had there while the home is away or hangs; they go home when it is back (`place_of`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.port import Done, lease_name
from gantrymq.cluster.group import RETRY_MS, ask_owner, place_of
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Gathering, Steps, pause, run

if TYPE_CHECKING:
    from gantrymq.broker.tables.slots import Under
    from gantrymq.cluster.group import Cluster, Group, Place

MOVED_AT_ONCE: Final = 128
"""Homes computed in one go: some 5 us each with three groups."""


class _Lease:
    """`epoch`: what the door knows; `inner`: what its group calls it now, another after the group was away or the lease moved."""

    __slots__ = ("deputy", "epoch", "group", "inner", "of_slot", "on_lost")

    def __init__(self, group: Group, epoch: int, inner: int, on_lost: Callable[[str], None], deputy: bool) -> None:
        self.group = group
        self.epoch = epoch
        self.inner = inner
        self.on_lost = on_lost
        self.deputy = deputy
        """Another group may give it while its home is away."""
        self.of_slot = True
        """It ends at its group when the name's slot goes elsewhere: that one gave it as the slot's owner."""


class ClusterLeases:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held: dict[str, _Lease] = {}
        self._asked: Counter[tuple[int, str]] = Counter()
        """Open questions for a lease, by group and name: what one that hangs gives late is given back before anything is moved there."""
        self._moving = False
        self._again = False
        self._waiting = False

    def forget(self) -> None:
        """Every group is gone."""
        self._held.clear()

    def take(
        self, name: str, force: bool, on_lost: Callable[[str], None], token: Any, on_done: Done, deputy: bool = False
    ) -> None:
        """As LeasePort.take_lease. Held here at a group that is no longer the name's home: moved later, and decided there."""
        run(self._take(name, force, on_lost, deputy), partial(on_done, token))

    def _take(self, name: str, force: bool, on_lost: Callable[[str], None], deputy: bool) -> Steps:
        asked_under: Under | None = None

        def at(group: Group, under: Under | None) -> Call:
            nonlocal asked_under
            asked_under = under
            old = self._held.get(name)
            if old is not None and old.group is not group:
                if not force:
                    raise GantryError(ErrorCode.LEASE_HELD, f"{name} is held by another connection")
                self._drop(name, old)
                old.on_lost(name)
            return partial(self._ask, group, under, name, force)

        def give_back(group: Group, inner: int) -> None:
            group.port.drop_lease(name, inner)

        group, inner = yield from ask_owner(self._cluster, lease_name(name), at, give_back, deputy)
        epoch = self._cluster.number()
        self._held[name] = lease = _Lease(group, epoch, inner, on_lost, deputy)
        lease.of_slot = asked_under is not None
        if deputy and self._is_away(name):  # its home came back meanwhile
            self.rehome()
        return epoch

    def _ask(self, group: Group, under: Under | None, name: str, force: bool, token: Any, on_done: Done) -> None:
        self._asked[group.index, name] += 1

        def answered(token: Any, result: Any) -> None:
            self._asked[group.index, name] -= 1
            if not self._asked[group.index, name]:
                del self._asked[group.index, name]
            on_done(token, result)
            lease = self._held.get(name)
            if lease is not None and lease.group is not group:  # a deputy's, and this one was late
                self.rehome()

        group.port.take_lease(name, force, partial(self._lost_at, group), token, answered, under=under)

    def is_free(self, name: str, token: Any, on_done: Done) -> None:
        """As LeasePort.is_free: only a home that all gateways have found (again) knows it."""
        place = self._place(name, False)
        if place is None or not place[0].settled or name in self._held:
            on_done(token, False)
        else:
            home, under = place
            question = partial(home.port.is_free, name, under=under)
            self._cluster.decisions.ask(home, question)(token, lambda token, result: on_done(token, _free(result)))

    def _lost_at(self, group: Group, name: str) -> None:
        lease = self._held.get(name)
        if lease is None or lease.group is not group:
            return
        if lease.of_slot and self._cluster.slots.owner(lease_name(name)) != group.name:
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
                under = self._cluster.slots.under(lease_name(name))
                is_deputy = (
                    lease.deputy and under is not None and self._cluster.slots.owner(lease_name(name)) != group.name
                )
                yield from self._take_again(name, lease, (group, None if is_deputy else under))

    def _take_again(self, name: str, lease: _Lease, place: Place) -> Steps:
        group, under = place
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
                if lease.group is not group:
                    lease.group.port.drop_lease(name, lease.inner)
                lease.on_lost(name)
            return
        if self._held.get(name) is not lease:  # given up meanwhile
            group.port.drop_lease(name, inner)
            return
        if lease.group is not group:
            lease.group.port.drop_lease(name, lease.inner)
        lease.group, lease.inner, lease.of_slot = group, inner, under is not None

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
                yield partial(_gather, calls) if calls else pause(self._cluster.turn.in_slices)

    def _is_away(self, name: str) -> bool:
        lease = self._held.get(name)
        place = self._place(name, lease.deputy) if lease is not None else None
        if lease is None or place is None or place[0] is lease.group:
            return False
        return (place[0].index, name) not in self._asked

    def _place(self, name: str, deputy: bool) -> Place | None:
        try:
            return place_of(self._cluster, lease_name(name), deputy)
        except GantryError:
            return None

    def _run(self, name: str, token: Any, on_done: Done) -> None:
        lease = self._held.get(name)
        place = self._place(name, lease.deputy) if lease is not None else None
        if lease is None or place is None or (place[0].index, name) in self._asked:
            on_done(token, None)
        else:
            run(self._take_again(name, lease, place), partial(on_done, token))

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


def _free(result: Any) -> Any:
    """Who does not decide does not know."""
    return False if isinstance(result, GantryError) and result.code is ErrorCode.NOT_OWNER else result


def _gather(calls: Sequence[Callable[[Any, Done], None]], token: Any, on_done: Done) -> None:
    """A failed move is tried again when groups come or leave the next time."""
    Gathering(calls, lambda results: on_done(token, None))
