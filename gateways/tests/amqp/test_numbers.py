"""Numbers under RabbitMQ's names."""

from __future__ import annotations

from gantrymq.metrics import Metrics
from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.management.numbers import PERIOD_MS, Numbers
from gateways.tests.amqp.peer import Server, publish


def shown(metrics: Metrics) -> dict[str, str]:
    lines = [line.rpartition(" ") for line in metrics.render().splitlines() if not line.startswith("#")]
    return {name.removeprefix("rabbitmq_"): value for name, _, value in lines}


def test_what_a_dashboard_of_rabbitmq_asks_for() -> None:
    server = Server(config=AmqpConfig(heartbeat=0))
    metrics, objects = Metrics(), Metrics()
    Numbers(server.gateway, server.wheel).start(metrics, objects)
    peer = server.client(1, 2)
    for queue in ("a", "b"):
        peer.declare(queue)
    peer.call("basic.qos", 0, 2, False)
    peer.call("basic.consume", 0, "a", "c", False, False, False, False, [])
    for queue in ("a", "a", "a", "b", "b"):
        peer.ask(publish(1, "", queue, b"x"))
    peer.call("basic.ack", 1, False)
    server.wheel.advance(PERIOD_MS)
    server.settle()
    found = shown(metrics)
    identity = next(name for name in found if name.startswith("identity_info"))
    assert found.pop(identity) == "1"
    assert 'rabbitmq_cluster="gantrymq@localhost"' in identity
    assert found.pop('build_info{product_name="RabbitMQ",rabbitmq_version="4.0.5"}') == "1"
    assert found == {
        "connections": "1", "channels": "2", "consumers": "1", "queues": "2", "queue_consumers": "1",
        "queue_messages_ready": "2", "queue_messages_unacked": "2", "queue_messages": "4",
        "global_messages_received_total": "5", "global_messages_acknowledged_total": "1",
    }  # fmt: skip
    assert shown(objects) == {
        f'queue_{name}{{vhost="/",queue="{queue}"}}': value
        for queue, values in (("a", "0221"), ("b", "2020"))
        for name, value in zip(("messages_ready", "messages_unacked", "messages", "consumers"), values, strict=True)
    }
