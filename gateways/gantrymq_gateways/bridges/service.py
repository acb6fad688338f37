"""The bridges of one gateway process: read from the file that `mqtt.bridges` names, each a task."""

from __future__ import annotations

import socket
from pathlib import Path

from gantrymq.model.errors import ConfigError
from gantrymq.services import ServiceContext
from gantrymq_gateways.bridges.mosquitto import BridgeFileError, parse
from gantrymq_gateways.bridges.mqtt import Bridge
from gantrymq_gateways.mqtt.gateway import MqttGateway


class Bridges:
    """See the module."""

    def __init__(self, context: ServiceContext, gateway: MqttGateway, path: str) -> None:
        """Raises ConfigError for a file that cannot be read."""
        try:
            found = parse(Path(path).read_text(encoding="utf-8"), socket.gethostname())
        except (OSError, ValueError) as error:
            raise ConfigError(f"mqtt.bridges = {path}: {_reason(error)}") from error
        self._bridges = [
            Bridge(
                connection,
                gateway.shell.port,
                gateway.topics,
                gateway.rules,
                gateway.shell.name,
                number,
                gateway.limits_now().packet_bytes_max,
                gateway.shell.clock.now_ms,
            )
            for number, connection in enumerate(found.connections)
        ]
        for bridge in self._bridges:
            context.spawn(bridge.run)

    async def stop(self) -> None:
        """Say goodbye on the other sides."""
        for bridge in self._bridges:
            await bridge.stop()


def _reason(error: Exception) -> str:
    if isinstance(error, BridgeFileError):
        return str(error)
    return getattr(error, "strerror", None) or str(error)
