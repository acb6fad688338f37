"""Service `amqp`: AMQP 0-9-1 on port 5672."""

from __future__ import annotations

import logging
import platform
import secrets
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final

import anyio

from gantrymq import __version__
from gantrymq.broker.port import LogPort
from gantrymq.metrics import Metrics
from gantrymq.model.limits import MessageConfig
from gantrymq.net.listen import ListenError
from gantrymq.net.loopback import is_loopback, warn_if_open
from gantrymq.net.places import join_address
from gantrymq.services import ServiceContext
from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.door import AmqpDoor
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.management.numbers import Numbers
from gantrymq_gateways.amqp.management.site import ManagementSite
from gantrymq_gateways.amqp.messages.publish import Unstored
from gantrymq_gateways.amqp.wire.constants import CAPABILITIES
from gantrymq_gateways.amqp.wire.events import Settings
from gantrymq_gateways.amqp.wire.values import Field, Table

MANAGEMENT_PORT: Final = 15672
"""RabbitMQ's, which tools take if nobody tells them another."""

ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""How a door that is bound to every address is reached from its own process."""

log = logging.getLogger(__name__)


def new_token() -> str:
    """22 characters for server-made names: 128 bits, so that nobody guesses another's reply queue."""
    return secrets.token_urlsafe(16)


def server_properties(config: AmqpConfig, cluster: str) -> Table:
    """What connection.start says about us, in RabbitMQ's terms."""
    capabilities = [(name, Field("t", True)) for name in CAPABILITIES]
    texts = {
        "cluster_name": cluster,
        "copyright": "Apache License 2.0",
        "information": f"GantryMQ {__version__}",
        "platform": f"Python {platform.python_version()}",
        "product": config.product,
        "version": config.version,
    }
    table: Table = [("capabilities", Field("F", capabilities))]
    return table + [(name, Field("S", value.encode())) for name, value in texts.items()]


class Offer:
    """What the next connection is offered. A connection that goes on keeps to the limit of bodies as it is then: a broker that takes less may join."""

    def __init__(self, settings: Settings, message: MessageConfig, port: LogPort) -> None:
        self._settings = replace(settings, body_bytes_now=self._limit)
        self._message = message
        self._port = port

    def _limit(self) -> int:
        return self._message.within(self._port.body_bytes_max())

    def now(self) -> Settings:
        """The same object as long as nothing changes."""
        limit = self._limit()
        if limit != self._settings.body_bytes_max:
            self._settings = replace(self._settings, body_bytes_max=limit)
        return self._settings


class AmqpService:
    """See `services.Service`."""

    name = "amqp"
    default_port = 5672
    alpn = ("amqp",)
    config = AmqpConfig
    extra_sections: dict[str, type]

    def __init__(self) -> None:
        self.extra_sections = {"message": MessageConfig}
        self._gateway: Gateway | None = None
        self._bridges: Any = None

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        """See Service."""
        config: AmqpConfig = context.config
        if context.port is None:
            raise RuntimeError("the amqp service needs a broker: start it after one or with --nameserver")
        gateway = Gateway(config, context.port, context.clock, context.turn, context.wheel, new_token)
        gateway.node = "gantrymq@" + context.host
        self._gateway = gateway
        if (authority := context.shared.get("auth")) is not None:
            gateway.authenticate_by(authority)
        started = anyio.Event()
        failures: list[Exception] = []

        def on_started(error: Exception | None) -> None:
            if error is not None:
                failures.append(error)
            started.set()

        gateway.start(on_started)
        await started.wait()
        if failures:
            raise failures[0]
        context.port.watch_state(gateway.broker_state)
        metrics = context.shared.get("metrics")
        if metrics is not None:
            text = "Copies of traced AMQP messages that found no place"
            metrics.read("gantry_amqp_trace_dropped_total", text, lambda: gateway.trace_dropped.value, "counter")
            text = "Published AMQP messages that were not stored, or not yet, by why"
            for why in Unstored:
                value = partial(gateway.unstored.__getitem__, why)
                metrics.read("gantry_amqp_unstored_total", text, value, "counter", outcome=why.value)
        if config.rabbitmq_metrics and metrics is not None:
            Numbers(gateway, context.wheel).start(metrics, context.shared.get("metrics_per_object") or Metrics())
        settings = Settings(
            properties=server_properties(config, "gantrymq@" + context.host),
            channel_max=config.channel_max,
            frame_max=config.frame_max,
            heartbeat_s=config.heartbeat,
        )
        message: MessageConfig = context.sections["message"]
        offer = Offer(settings, message, context.port)
        bound: tuple[str, int] = await context.listen(
            context.asking(lambda: AmqpDoor(gateway, offer.now())), context.host, config.port
        )
        if not config.loopback_guest_only and gateway.authority is None:
            warn_if_open(log, self.name, bound, "amqp.loopback_guest_only=false")
        self._start_bridges(context, bound)
        return [bound, *await self._start_management(context, gateway)]

    def _start_bridges(self, context: ServiceContext, bound: tuple[str, int]) -> None:
        """Those that are rows now, and later."""
        kept = import_module("gantrymq_gateways.bridges.kept")
        here = join_address(ANY.get(bound[0], bound[0]), bound[1])
        around = kept.Surroundings(
            context.port, here, context.config.bridge_secrets, f"{context.host}:{bound[1]}", context.clock.now_ms
        )
        self._bridges = kept.Keeper(around)
        context.spawn(self._bridges.run)

    async def _start_management(self, context: ServiceContext, gateway: Gateway) -> list[tuple[str, int]]:
        """The management API. Where nobody chose its port, one that is in use is no reason not to start."""
        config: AmqpConfig = context.config
        port = config.management_port
        if port is None:
            if config.port != self.default_port or not is_loopback(context.host):
                return []
            port = MANAGEMENT_PORT
        site = ManagementSite(gateway, context.host, context.host_names)
        try:
            doors = context.asking(lambda: site.door(context.clock.monotonic_ms, context.turn.in_slices))
            return [await context.listen(doors, context.host, port)]
        except ListenError as error:
            if config.management_port is not None:
                raise
            log.warning("no management API: %s (amqp.management_port chooses another port)", error.strerror)
            return []

    async def drain(self, deadline_s: float) -> None:
        """See Service. The shell calls `shutdown` of every door."""
        if self._bridges is not None:
            await self._bridges.stop()

    async def stop(self) -> None:
        """See Service."""
        self._bridges = None
        if self._gateway is not None:
            self._gateway.stopped = True
            if self._gateway.authority is not None:
                self._gateway.authority.unwatch(self._gateway.rights_changed)
            self._gateway = None


def factory() -> Any:
    """Entry point of group `gantrymq.services`."""
    return AmqpService()
