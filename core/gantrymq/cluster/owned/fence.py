"""What a gateway process has published at one group is in the queues of another before it reads there: a fence through both.

It asks the source how far its forward queue reaches now, behind what was published on the same connection, and the owner to say when it has so much.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Call, Gathering, Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.port import Done
    from gantrymq.cluster.group import Cluster, Group


class Fence:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._passed: dict[tuple[int, int], int] = {}
        """By source and owner: `Group.sent` of the source when the owner had caught up with it last."""

    def pass_through(self, owner: Group | None, token: Any, on_done: Done) -> None:
        """To a queue's owner, if it has one. `on_done(token, None)`, after half a second at most; at once where nothing was published elsewhere
        since the last time."""
        if owner is None:
            on_done(token, None)
            return
        sources = [
            group
            for group in self._cluster.ready_groups()
            if group is not owner and not group.hangs and group.sent != self._passed.get((group.index, owner.index), 0)
        ]
        if not sources:
            on_done(token, None)
            return
        calls: list[Call] = [partial(self._run, source, owner) for source in sources]
        Gathering(calls, lambda results: on_done(token, None))

    def _run(self, source: Group, owner: Group, token: Any, on_done: Done) -> None:
        run(self._wait(source, owner), partial(on_done, token))

    def _wait(self, source: Group, owner: Group) -> Steps:
        sent = source.sent
        ask = self._cluster.decisions.ask
        try:
            life, offset = yield ask(source, partial(source.port.forward_end, owner.name))
            is_there: bool = yield ask(owner, partial(owner.port.await_forward, source.name, life, offset))
        except GantryError:
            return  # whoever reads there hears of it himself
        if is_there:
            self._passed[source.index, owner.index] = sent
