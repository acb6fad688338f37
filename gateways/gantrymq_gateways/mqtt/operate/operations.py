"""What operators see and do at one gateway, together: gate, bans and the console."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final

from gantrymq.broker.port import BrokerPort
from gantrymq.metrics import Metrics
from gantrymq.net.procedures.driver import Steps, call
from gantrymq.services import Clock
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.operate import console
from gantrymq_gateways.mqtt.operate.console import Console, operator_of
from gantrymq_gateways.mqtt.operate.gate import BAN_TABLE, Flapping, Gate, host_of

log = logging.getLogger(__name__)

BANS_REMOVED_MAX: Final = 1_000
"""Rows of bans that are over, removed at one time."""

Changed = Callable[[str, str, str], None]
"""`changed(who, action, resource)`; `who`: as the command says, empty if it does not."""


class Operations:
    """One gateway's. `doors()`: its connections (`console.Shown`); `changed` is told of what an operator did here, for the audit trail."""

    def __init__(
        self,
        port: BrokerPort,
        clock: Clock,
        config: MqttConfig,
        name: str,
        doors: Callable[[], list[Any]],
        changed: Changed,
    ) -> None:
        self._port = port
        self._clock = clock
        self._name = name
        self.gate = Gate(
            config.connections_max, config.connections_per_address_max, config.connect_rate_max, clock.monotonic_ms()
        )
        self._config = config
        self._flapping = Flapping(config.flapping_max, config.flapping_window_s)
        self.flapped = 0
        """Clients banned for it."""
        self._doors = doors
        self._changed = changed
        self.console = Console(port, name, clock.now_ms, doors, self._kicked)
        self._live = False

    def show(self, metrics: Metrics) -> None:
        """Register what is counted."""
        gate = self.gate
        metrics.read("gantry_mqtt_clients", "Clients that are let in", lambda: gate.connected)
        text = "Clients banned for a while because they came and went too often (mqtt.flapping_max)"
        metrics.read("gantry_mqtt_flapping_bans_total", text, lambda: self.flapped, "counter")
        text = "Clients refused by a limit of connections or a ban"
        metrics.read("gantry_mqtt_connects_refused_total", text, lambda: gate.refused, "counter")

    def begin(self) -> Steps:
        """The tables; then bans hold and questions are answered."""
        bans = yield call(self._port.watch_table, BAN_TABLE, self._ban_changed)
        yield call(self._port.watch_table, console.TABLE, self.console.changed)
        self.gate.bans.load(bans)
        self._live = True
        self._port.take_lease(
            console.LEASE_PREFIX + self._name, True, lambda name: None, None, lambda token, result: None
        )
        self.console.begin()

    def lost(self) -> None:
        """The broker went away."""
        self._live = False

    def stop(self) -> None:
        """The server stops."""
        if self._live:
            self.console.end()
        self._live = False

    def sweep(self) -> None:
        """Now and then."""
        if self._live:
            self.console.sweep()
            over = self.gate.bans.over(self._clock.now_ms())[:BANS_REMOVED_MAX]
            if over:
                self._port.put_if(BAN_TABLE, over, None, lambda token, result: None)

    def left(self, client_id: str) -> None:
        """A client's connection ended: who comes and goes too often is banned for a while."""
        config, now_ms = self._config, self._clock.now_ms()
        if not self._flapping.left(client_id, now_ms):
            return
        self.flapped += 1
        text = f"over {config.flapping_max} connections within {config.flapping_window_s} s (mqtt.flapping_max)"
        log.warning("client %s: banned for %d s: %s", client_id, config.flapping_ban_s, text)
        row = {"until": now_ms + config.flapping_ban_s * 1000, "reason": text, "at": now_ms}
        key, value = f"client:{client_id}", json.dumps(row).encode()
        self.gate.bans.changed(key, value)
        self._port.put(BAN_TABLE, [(key, value)], None, lambda token, result: None)

    def banned(self, client_id: str, user: str, peer: str) -> str:
        """Why a client may not be here; empty: it may."""
        ban = self.gate.bans.find(client_id, user, host_of(peer), self._clock.now_ms())
        if ban is None:
            return ""
        return f"banned: {ban.reason}" if ban.reason else "banned"

    def _kicked(self, who: str, client: str) -> None:
        self._changed(who, "kick", f"client {client}")

    def _ban_changed(self, key: str, value: bytes | None) -> None:
        self.gate.bans.changed(key, value)
        if value is None:
            self._changed("", "unban", key)
            return
        self._changed(operator_of(json.loads(value)), "ban", key)
        for door in self._doors():
            facts = door.facts()
            if facts and self.banned(facts["client"], facts["user"], facts["peer"]):
                door.kick("banned by an operator")
