"""What was confirmed at any group, for any gateway, is in a queue of another group before somebody reads there: a fence through both.

It asks each source how far its forward queue reaches now, and the owner to say when it has so much.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Call, Gathering, Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.port import Done
    from gantrymq.cluster.group import Cluster, Group

ASKED_MAX: Final = 4
"""How often an owner is asked, half a second each time (`receiving.AWAIT_MS`, so short that it is not taken for one that hangs): a disk may stall for a second."""
LATE_MS: Final = 3_000
"""So long nobody waits for an owner that did not catch up with a source in time: the two may not reach each other, and every read would wait."""


class Fence:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._late: dict[tuple[int, int], int] = {}
        """By source and owner: until when nobody waits, where the owner did not catch up in time."""

    def pass_through(self, owner: Group | None, token: Any, on_done: Done) -> None:
        """To a queue's owner, if it has one. `on_done(token, whether others were asked)`, after two seconds at most; at once where no other group is
        in use."""
        if owner is None:
            on_done(token, False)
            return
        now_ms = self._cluster.wheel.now_ms()
        sources = [
            group
            for group in self._cluster.ready_groups()
            if group is not owner and not group.hangs and self._late.get((group.index, owner.index), 0) <= now_ms
        ]
        calls: list[Call] = [partial(self._run, source, owner) for source in sources]
        Gathering(calls, lambda results: on_done(token, bool(results)))

    def _run(self, source: Group, owner: Group, token: Any, on_done: Done) -> None:
        run(self._wait(source, owner), partial(on_done, token))

    def _wait(self, source: Group, owner: Group) -> Steps:
        ask = self._cluster.decisions.ask
        try:
            life, offset = yield ask(source, partial(source.port.forward_end, owner.name))
            for _ in range(ASKED_MAX):
                is_there: bool = yield ask(owner, partial(owner.port.await_forward, source.name, life, offset))
                if is_there:
                    self._late.pop((source.index, owner.index), None)
                    return
        except GantryError:
            return  # whoever reads there hears of it himself
        self._late[source.index, owner.index] = self._cluster.wheel.now_ms() + LATE_MS
