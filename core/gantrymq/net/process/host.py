"""What all connections of a process share: its limits, and who holds how much of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gantrymq.net.api import Wheel
from gantrymq.net.held.addresses import Addresses
from gantrymq.net.held.inbound import Inbound
from gantrymq.net.held.limits import PumpLimits
from gantrymq.net.held.outbound import Ledger
from gantrymq.net.held.rates import Meters
from gantrymq.net.rotation import Rotation
from gantrymq.net.traffic import Traffic
from gantrymq.net.trim import Trimmer
from gantrymq.net.turn import LoopTurn

if TYPE_CHECKING:
    from gantrymq.metrics import Metrics

log = logging.getLogger(__name__)


class Holding(Protocol):
    """What is needed of `pump.Pump`."""

    def count_outbound(self) -> None: ...

    def held_share_bytes(self) -> int: ...

    def cut_off(self, why: str) -> None: ...


class PumpHost:
    """What all pumps of a process share."""

    __slots__ = (
        "_recounted",
        "address_rates",
        "addresses",
        "at_write",
        "holding",
        "inbound",
        "ledger",
        "limits",
        "refusing",
        "rotation",
        "traffic",
        "trimmer",
        "user_rates",
        "wheel",
    )

    def __init__(
        self, turn: LoopTurn, wheel: Wheel, limits: PumpLimits, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        """`clock_s` tells how long a door has worked."""
        self.at_write = turn.at_write
        self.rotation = Rotation(turn, clock_s)
        self.wheel = wheel
        self.limits = limits
        self.traffic = Traffic()
        self.addresses = Addresses(limits.address_connections_max)
        self.address_rates = Meters(limits.address_rates, wheel.now_ms, "server.address")
        self.user_rates = Meters(limits.user_rates, wheel.now_ms, "auth.user")
        self.holding: set[Holding] = set()
        """Connections whose peers had not taken all of it when they were last looked at."""
        self.ledger = Ledger()
        """What is held for these; never less than what is held now."""
        self._recounted = -1
        self.inbound = Inbound(limits.inbound_bytes_process_max, limits.frame_timeout_ms)
        self.trimmer = Trimmer(wheel, lambda: self.inbound.held_bytes + self.ledger.held_bytes)
        self.refusing: set[tuple[str, int]] = set()
        """Settings and doors of which a refusal was logged; the next one is logged after the number of connections fell again."""

    def show(self, metrics: Metrics) -> None:
        """Register what all connections count."""
        self.traffic.show(metrics)
        text = "Bytes held for peers that have not taken them yet, of large writes and for slow readers"
        metrics.read("gantry_outbound_held_bytes", text, lambda: self.ledger.held_bytes)
        text = "Bytes held of requests that are not whole or not handled yet"
        metrics.read("gantry_inbound_held_bytes", text, lambda: self.inbound.held_bytes)
        text = "Connections refused for the rates and numbers of their address or user"
        for name, meters in (("address", self.address_rates), ("user", self.user_rates)):
            metrics.read(
                "gantry_connections_over_rate_total", text, partial(getattr, meters, "refused"), "counter", of=name
            )
        text = "Connections ended for a request that took too long, or had the most where all held too much"
        metrics.read("gantry_connections_unfinished_total", text, lambda: self.inbound.shown_out, "counter")

    def admit(self, peer: str, live: Collection[object]) -> bool:
        """Whether one more connection fits, beside those of its door, `live`."""
        limits = self.limits
        for setting, door, there, most in (
            ("server.connections_max", 0, self.traffic.connections, limits.connections_max),
            ("server.door_connections_max", id(live), len(live), limits.door_connections_max),
        ):
            if there >= most:
                self.traffic.refused += 1
                if (setting, door) not in self.refusing:
                    self.refusing.add((setting, door))
                    log.warning("%s: refused, %s (%d) is reached; so are others from now on", peer, setting, most)
                return False
            if self.refusing and there < most - most // 20:
                self.refusing.discard((setting, door))
        return True

    def bound_all(self) -> None:
        """Keep what is held for all slow readers within the process's limit."""
        limit, ledger = self.limits.outbound_bytes_process_max, self.ledger
        if ledger.held_bytes <= limit:
            return
        self._recount()
        for pump in sorted(self.holding, key=lambda pump: pump.held_share_bytes(), reverse=True):
            if ledger.held_bytes <= limit:
                return
            pump.cut_off(f"the most of {ledger.held_bytes}, over server.outbound_bytes_process_max")

    def is_pressed(self) -> bool:
        """Half of what may be held for all slow readers is."""
        half, ledger = self.limits.outbound_bytes_process_max // 2, self.ledger
        if ledger.held_bytes <= half:
            return False
        if self._recounted != self.rotation.turn.number:
            self._recount()
        return ledger.held_bytes > half

    def _recount(self) -> None:
        self._recounted = self.rotation.turn.number
        for pump in list(self.holding):
            pump.count_outbound()
