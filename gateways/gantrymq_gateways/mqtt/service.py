"""The MQTT door as a service (entry-point group `gantrymq.services`)."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any, Final

import anyio

from gantrymq.model.errors import GantryError
from gantrymq.model.limits import MessageConfig
from gantrymq.net.doors.first_bytes import FirstBytes, Manners
from gantrymq.net.doors.websocket import WebSocketRules
from gantrymq.net.host_names import HostNames
from gantrymq.net.loopback import networks_of, warn_if_open
from gantrymq.services import ServiceContext
from gantrymq_gateways.mqtt.adapter import MqttDoor
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.gateway import MqttGateway, Shell

log = logging.getLogger(__name__)

WEBSOCKET_PROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""Sub-protocols [MQTT-6.0.0-4]; the second is what old clients of 3.1 ask for."""


def manners_of(gateway: MqttGateway, names: HostNames) -> Manners:
    """How connections begin: with MQTT's own bytes, as a WebSocket, behind a proxy."""
    config = gateway.config
    origins = tuple([origin.strip().lower() for origin in config.websocket_origins.split(",") if origin.strip()])
    rules = WebSocketRules(config.websocket_path, WEBSOCKET_PROTOCOLS, names, origins)
    return Manners(
        lambda: MqttDoor(gateway),
        gateway.shell.clock.monotonic_ms,
        config.connect_timeout_ms,
        rules if config.websocket_path else None,
        networks_of(config.proxies),
    )


class MqttService:
    """See `gantrymq.services.Service`."""

    name = "mqtt"
    default_port = 1883
    alpn = ("mqtt", "http/1.1")
    """The second is what browsers say for a WebSocket."""
    config: type = MqttConfig
    extra_sections: dict[str, type]

    def __init__(self) -> None:
        self.extra_sections = {"message": MessageConfig}
        self._gateway: MqttGateway | None = None
        self._bridges: Any = None

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        config: MqttConfig = context.config
        if context.port is None:
            raise RuntimeError("the mqtt service starts after the broker")
        shell = Shell(context.port, context.clock, context.turn, context.wheel)
        gateway = self._gateway = MqttGateway(shell, config, context.sections["message"])
        answered = anyio.Event()
        failures: list[GantryError] = []

        def ready(error: GantryError | None) -> None:
            if error is not None:
                failures.append(error)
            answered.set()

        if (authority := context.shared.get("auth")) is not None:
            gateway.authenticate_by(authority)
        metrics = context.shared.get("metrics")
        if metrics is not None:
            gateway.show(metrics)
        gateway.start(ready)
        await answered.wait()
        if failures:
            raise failures[0]
        manners = manners_of(gateway, HostNames(context.host, context.host_names))
        bound: tuple[str, int] = await context.listen(
            context.asking(lambda: FirstBytes(manners)), context.host, config.port
        )
        if config.bridges:
            self._bridges = import_module("gantrymq_gateways.bridges.service").Bridges(context, gateway, config.bridges)
        if config.allow_anonymous:
            warn_if_open(log, self.name, bound, "mqtt.allow_anonymous=true")
        return [bound]

    async def drain(self, deadline_s: float) -> None:
        """Nothing to wait for: the shell has closed the connections, and what was not acknowledged is sent again."""

    async def stop(self) -> None:
        if self._bridges is not None:
            await self._bridges.stop()
        if self._gateway is not None:
            self._gateway.stop()


def factory() -> MqttService:
    """What the entry point names."""
    return MqttService()
