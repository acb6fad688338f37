"""Numbers under RabbitMQ's names, for dashboards and alerts made for it (`amqp.rabbitmq_metrics`). They stand beside ours, on the metrics door."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from gantrymq.metrics import head, labels_text
from gantrymq.net.procedures.driver import Steps, run
from gantrymq_gateways.amqp.management import views

if TYPE_CHECKING:
    from gantrymq.metrics import Metrics
    from gantrymq.net.api import Wheel
    from gantrymq_gateways.amqp.gateway import Gateway

log = logging.getLogger(__name__)

PERIOD_MS: Final = 5_000
"""How often the queues' messages are counted, as RabbitMQ does."""


READY_TEXT: Final = "Messages ready to be delivered to consumers"
UNACKED_TEXT: Final = "Messages delivered to consumers but not yet acknowledged"
DEPTH_TEXT: Final = "Sum of ready and unacknowledged messages - total queue depth"
CONSUMERS_TEXT: Final = "Consumers on a queue"

BY_QUEUE: Final[tuple[tuple[str, str, Callable[[tuple[str, int, int, int]], int]], ...]] = (
    ("rabbitmq_queue_messages_ready", READY_TEXT, lambda row: row[1]),
    ("rabbitmq_queue_messages_unacked", UNACKED_TEXT, lambda row: row[2]),
    ("rabbitmq_queue_messages", DEPTH_TEXT, lambda row: row[1] + row[2]),
    ("rabbitmq_queue_consumers", CONSUMERS_TEXT, lambda row: row[3]),
)
"""Name, help and value of what each queue has."""


class Numbers:
    """See the module. Connections, channels and consumers are those of this process; queues and their messages, of all."""

    def __init__(self, gateway: Gateway, wheel: Wheel) -> None:
        self._gateway = gateway
        self._wheel = wheel
        self._ready = self._unacked = 0
        self._queues: list[tuple[str, int, int, int]] = []
        """Labels, ready and unacknowledged messages, consumers."""

    def start(self, metrics: Metrics, objects: Metrics) -> None:
        """Show them, each queue's on the page of `objects`, and count from now on."""
        objects.add_source(self._by_queue)
        gateway = self._gateway
        node = gateway.node
        identity = {"rabbitmq_node": node, "rabbitmq_cluster": node, "rabbitmq_cluster_permanent_id": node}
        metrics.read("rabbitmq_identity_info", "RabbitMQ node & cluster identity info", lambda: 1, **identity)
        build = {"rabbitmq_version": gateway.config.version, "product_name": gateway.config.product}
        metrics.read("rabbitmq_build_info", "RabbitMQ & Erlang/OTP version info", lambda: 1, **build)
        for name, text, source in (
            ("rabbitmq_connections", "Connections currently open", lambda: len(views.connections(gateway))),
            ("rabbitmq_channels", "Channels currently open", self._channels),
            ("rabbitmq_consumers", "Consumers currently connected", self._consumers),
            ("rabbitmq_queues", "Queues available", lambda: len(views.visible_queues(gateway))),
            ("rabbitmq_queue_consumers", CONSUMERS_TEXT, self._consumers),
            ("rabbitmq_queue_messages_ready", READY_TEXT, lambda: self._ready),
            (
                "rabbitmq_queue_messages_unacked",
                UNACKED_TEXT,
                lambda: self._unacked,
            ),
            (
                "rabbitmq_queue_messages",
                DEPTH_TEXT,
                lambda: self._ready + self._unacked,
            ),
        ):
            metrics.read(name, text, source)
        received = "Total number of messages received from publishers"
        metrics.read("rabbitmq_global_messages_received_total", received, lambda: gateway.received, "counter")
        settled = "Total number of messages acknowledged, rejected or given back by consumers"
        metrics.read("rabbitmq_global_messages_acknowledged_total", settled, lambda: gateway.settled, "counter")
        self._tick(0)

    def _channels(self) -> int:
        return sum([len(door.channels) for door in views.connections(self._gateway)])

    def _consumers(self) -> int:
        return sum([1 for _ in views.consumer_views(self._gateway)])

    def _tick(self, _now_ms: int) -> None:
        if self._gateway.stopped:
            return
        if self._gateway.ready:
            run(self._count(), self._counted, Exception)
        else:
            self._later()

    def _count(self) -> Steps:
        found = yield from views.queue_views(self._gateway, views.visible_queues(self._gateway))
        return [
            (
                labels_text((("vhost", each["vhost"]), ("queue", each["name"]))),
                each["messages_ready"], each["messages_unacknowledged"], each["consumers"],
            )
            for each in found
        ]  # fmt: skip

    def _by_queue(self) -> Iterator[str]:
        rows = self._queues
        for name, text, value in BY_QUEUE:
            yield head(name, "gauge", text)
            for first in range(0, len(rows), views.SLICE):
                part = rows[first : first + views.SLICE]
                yield "".join([f"{name}{{{row[0]}}} {value(row)}\n" for row in part])

    def _counted(self, result: Any) -> None:
        if isinstance(result, Exception):
            log.debug("amqp: messages of queues could not be counted: %s", result)
        else:
            self._queues = result
            self._ready = sum([ready for _, ready, _, _ in result])
            self._unacked = sum([unacked for _, _, unacked, _ in result])
        self._later()

    def _later(self) -> None:
        self._wheel.call_at(self._wheel.now_ms() + PERIOD_MS, self._tick)
