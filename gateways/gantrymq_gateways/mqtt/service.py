"""The MQTT door as a service (entry-point group `gantrymq.services`)."""

from __future__ import annotations

from ipaddress import ip_address

import anyio

from gantrymq.model.errors import GantryError
from gantrymq.model.limits import MessageConfig
from gantrymq.services import ServiceContext
from gantrymq_gateways.mqtt.adapter import MqttDoor
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.gateway import MqttGateway, Shell


class MqttService:
    """See `gantrymq.services.Service`."""

    name = "mqtt"
    default_port = 1883
    config: type = MqttConfig
    extra_sections: dict[str, type]

    def __init__(self) -> None:
        self.extra_sections = {"message": MessageConfig}
        self._gateway: MqttGateway | None = None

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        config: MqttConfig = context.config
        if context.port is None:
            raise RuntimeError("the mqtt service starts after the broker")
        shell = Shell(context.port, context.clock, context.turn, context.wheel)
        gateway = self._gateway = MqttGateway(
            shell,
            config,
            config.allow_anonymous or _is_loopback(context.host),
            context.sections["message"].body_bytes_max,
        )
        answered = anyio.Event()
        failures: list[GantryError] = []

        def ready(error: GantryError | None) -> None:
            if error is not None:
                failures.append(error)
            answered.set()

        gateway.on_ready = ready
        gateway.start()
        await answered.wait()
        if failures:
            raise failures[0]
        return [await context.listen(lambda: MqttDoor(gateway), context.host, config.port)]

    async def drain(self, deadline_s: float) -> None:
        """Nothing to wait for: the shell has closed the connections, and what was not acknowledged is sent again."""

    async def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def factory() -> MqttService:
    """What the entry point names."""
    return MqttService()
