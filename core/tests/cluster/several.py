"""Several broker groups as gateways see them: with slots and forward queues, and calls whose answers may wait for other groups."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.port import END, Route
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.cluster.port import ClusterPort
from tests.cluster.forward.forward_site import ForwardSite

PULLED_MS = 500
"""By then every group has what was published at the others."""


class Several(ForwardSite):
    """See the module. Gateways know all groups from the beginning."""

    def gateway(self, *names: str) -> ClusterPort:
        port = super().gateway(*names)
        for group in port.groups:
            group.settled = True
        return port

    def call(self, port: ClusterPort, method: str, *args: Any) -> Any:
        box: list[Any] = []
        getattr(port, method)(*args, None, lambda token, result: box.append(result))
        self.run()
        for _ in range(200):
            if box:
                return box[0]
            self.wait(50)
        raise AssertionError(method)

    def name_at(self, owner: str, prefix: str) -> str:
        """A name that begins so and whose owner is that group."""
        table = self.table()
        names = (f"{prefix}{number}" for number in range(10_000))
        return next(name for name in names if table.slots[slot_of(name)].owner == owner)

    def queue_at(self, port: ClusterPort, owner: str, number: int = 0) -> tuple[int, int]:
        """As `tests.cluster.site.queue`, with that owner."""
        box: list[Any] = []
        port.create_light(None, lambda token, result: box.append(result), name=self.name_at(owner, f"q{number}/"))
        self.run()
        (light,) = box
        info = self.call(port, "open_cursor", f"~{light}", "g", END)
        assert self.call(port, "add_route", Route(f"r{number}", "prefix", None, "a", light)) is None
        return light, info.cursor
