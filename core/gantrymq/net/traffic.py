"""Counters of a process's connections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.metrics import Metrics


class Traffic:
    """Counters of the process's connections; plain attributes because they are touched per receive."""

    __slots__ = ("accepted", "bytes_in", "bytes_out", "connections", "failed", "refused", "stalled")

    def __init__(self) -> None:
        self.accepted = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self.failed = 0
        self.refused = 0
        self.stalled = 0

    def count_refused(self) -> None:
        """Somebody did not become a connection."""
        self.refused += 1

    def show(self, metrics: Metrics) -> None:
        """Register them."""
        metrics.read("gantry_connections", "Open connections", lambda: self.connections)
        for name, text in (
            ("accepted", "Connections accepted"),
            ("refused", "Connections refused at a limit, or because TLS failed"),
            ("stalled", "Connections closed because the peer stopped reading"),
            ("failed", "Connections closed because a door raised"),
        ):
            metrics.read(f"gantry_connections_{name}_total", text, partial(getattr, self, name), "counter")
        metrics.read("gantry_received_bytes_total", "Bytes received", lambda: self.bytes_in, "counter")
        metrics.read("gantry_sent_bytes_total", "Bytes handed to the network", lambda: self.bytes_out, "counter")
