"""The CloudEvents door as a service (entry point `gantrymq.services`)."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gantrymq.model.errors import ConfigError
from gantrymq.model.limits import MessageConfig
from gantrymq.model.settings import setting
from gantrymq.net.host_names import HostNames
from gantrymq.net.loopback import is_loopback, warn_if_open
from gantrymq.services import ServiceContext
from gantrymq_gateways.cloudevents.door import EventDoor
from gantrymq_gateways.cloudevents.long_topics import LongTopics
from gantrymq_gateways.cloudevents.publish import Publisher
from gantrymq_gateways.cloudevents.push.client import SinkClient
from gantrymq_gateways.cloudevents.push.delivery import DeliveryConfig, PushHost
from gantrymq_gateways.cloudevents.push.resolver import Resolver, lookup_in_thread
from gantrymq_gateways.cloudevents.push.retry import RetryPolicy
from gantrymq_gateways.cloudevents.registry import Registry
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard, parse_networks
from gantrymq_gateways.cloudevents.surroundings import Surroundings
from gantrymq_gateways.cloudevents.wire.constants import DELIVERY_TIMEOUT_MS
from gantrymq_gateways.cloudevents.wire.event import is_uri_reference

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S: Final = 2.0
"""The door opens without the table of subscriptions if the broker takes longer; it is read as soon as that is there."""


@dataclass(frozen=True, slots=True)
class CloudEventsConfig:
    """Section `cloudevents`."""

    port: int = setting(8080, "HTTP port; 0 takes a free one", least=0, most=65535)
    enabled: bool = setting(True, "false: the door is off")
    allow_anonymous: bool = setting(
        False, "let clients of other machines in, too; those of this machine may always come"
    )
    source: str = setting("//gantrymq", "`source` of events made from messages that were none (a URI-reference)")
    subscriptions_max: int = setting(
        1_000, "each has a place per queue and up to 4 MiB of events waiting", least=0, most=100_000
    )
    requests_per_subscription_max: int = setting(16, "deliveries of one subscription in flight", least=1, most=10_000)
    requests_max: int = setting(
        256, "deliveries of the process in flight; each subscription may have one", least=1, most=10_000
    )
    delivery_timeout_ms: int = setting(
        DELIVERY_TIMEOUT_MS, "one attempt, from connecting to the end of the answer", least=100, most=300_000
    )
    retry_first_ms: int = setting(1_000, "before the second attempt; doubled each time", least=1, most=3_600_000)
    retry_max_ms: int = setting(60_000, "longest time between two attempts", least=1, most=86_400_000)
    retry_after_max_ms: int = setting(600_000, "longest Retry-After that is honoured", least=0, most=86_400_000)
    allow_http_sinks: bool = setting(False, "sinks without TLS although the door is not on loopback")
    sink_networks: str = setting(
        "", "networks (CIDR, comma-separated) for sinks beside public ones (and loopback for a door there)"
    )

    def __post_init__(self) -> None:
        if not is_uri_reference(self.source):
            raise ValueError(
                f"source = {self.source!r}: allowed are URI-references (RFC 3986), such as //example.com/orders"
            )
        try:
            parse_networks(self.sink_networks)
        except ValueError as error:
            raise ValueError(
                f"sink_networks = {self.sink_networks!r}: allowed are networks such as 10.0.0.0/8, separated by commas ({error})"
            ) from None
        if self.retry_first_ms > self.retry_max_ms:
            raise ValueError(
                f"retry_first_ms, retry_max_ms = {(self.retry_first_ms, self.retry_max_ms)}: "
                "allowed is a first wait that is not longer than the longest"
            )


class CloudEventsService:
    """HTTP door and webhook deliveries."""

    name = "cloudevents"
    default_port = 8080
    alpn = ("http/1.1",)
    config: type = CloudEventsConfig
    extra_sections: ClassVar[dict[str, type]] = {"message": MessageConfig}

    def __init__(self) -> None:
        self._registry: Registry | None = None
        self._client: SinkClient | None = None

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        """See `Service`."""
        config: CloudEventsConfig = context.config
        port = context.port
        if port is None:
            raise ConfigError("cloudevents: the door needs a broker in this process or --nameserver")
        loopback = is_loopback(context.host)
        guard = SinkGuard(loopback, loopback or config.allow_http_sinks, parse_networks(config.sink_networks))
        resolver = Resolver(context.wheel, lookup_in_thread(asyncio.get_running_loop()))
        client = SinkClient(context.wheel, guard, resolver, config.delivery_timeout_ms)
        policy = RetryPolicy(config.retry_first_ms, config.retry_max_ms, config.retry_after_max_ms)
        around = Surroundings(context.clock, context.turn, context.wheel, random.SystemRandom().random)
        delivery = DeliveryConfig(config.source, policy, config.requests_per_subscription_max, config.requests_max)
        topics = LongTopics(port)
        topics.start()
        host = PushHost(port, topics, client, around, delivery)
        registry = Registry(host, guard, lambda: secrets.token_hex(12), config.subscriptions_max)
        if (metrics := context.shared.get("metrics")) is not None:
            registry.show_numbers(metrics)
        loaded = asyncio.Event()
        authority = context.shared.get("auth")
        if authority is not None:
            registry.ask(authority)
        registry.start(loaded.set)
        try:
            await asyncio.wait_for(loaded.wait(), LOAD_TIMEOUT_S)
        except TimeoutError:
            log.warning("cloudevents: the broker is not reachable yet; requests are answered 503 until it is")
        self._registry, self._client = registry, client
        message: MessageConfig = context.sections["message"]
        publisher = Publisher(port, topics, around, lambda: message.within(port.body_bytes_max()))
        names = HostNames(context.host, context.host_names)
        doors = context.asking(lambda: EventDoor(publisher, registry, names, config.allow_anonymous, authority))
        bound: Any = await context.listen(doors, context.host, config.port)
        if config.allow_anonymous and authority is None:
            warn_if_open(log, self.name, bound, "cloudevents.allow_anonymous=true")
        return [bound]

    async def drain(self, deadline_s: float) -> None:
        """Stop delivering; what is in flight is given back and delivered again later."""
        if self._registry is not None:
            self._registry.stop()
        if self._client is not None:
            self._client.close()

    async def stop(self) -> None:
        """See `Service`."""
        await self.drain(0)


def factory() -> CloudEventsService:
    """The entry point."""
    return CloudEventsService()
