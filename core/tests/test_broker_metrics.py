"""Topics, groups and lag as Prometheus reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gantrymq import broker_metrics
from gantrymq.broker import lags
from gantrymq.broker.rocketmq.stats import TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from gantrymq.broker.topics import TopicConfig
from gantrymq.broker_metrics import BrokerMetrics
from gantrymq.metrics import SECONDS, Histogram, Metrics
from gantrymq.model.message import Message
from gantrymq.remoting.json_bodies import ConsumerData, Heartbeat, ProducerData, Subscription
from gantrymq.remoting.server.clients.registry import Clients
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node


class World:
    def __init__(self, topics_max: int = 100, groups_max: int = 100) -> None:
        self.files = MemoryFileSystem()
        self.node = Node(self.files, False)
        self.clients = Clients()
        self.doors: Any = SimpleNamespace(
            clients=self.clients,
            groups=SimpleNamespace(configs={}),
            sends=SimpleNamespace(dead_letters=SimpleNamespace(value=0)),
            pulls=SimpleNamespace(waiting=0),
        )
        self.metrics = Metrics()
        BrokerMetrics(
            self.node.broker, self.doors, self.metrics, (topics_max, groups_max), Histogram(SECONDS)
        ).register()

    def send(self, topic: str, count: int, queue: int = 0) -> None:
        broker = self.node.broker
        if broker.topics.get(topic) is None:
            broker.topics.create(TopicConfig(topic, 4, 4))
        broker.submit([Message(topic, b"x", queue_id=queue) for _ in range(count)], None, lambda token, results: None)
        self.node.turn.run_until_quiet()
        broker.stats._item(TOPIC_PUT_NUMS, topic).add(count)  # type: ignore[union-attr]  # units are written later
        broker.stats._item(TOPIC_PUT_SIZE, topic).add(count * 100)  # type: ignore[union-attr]

    def scrape(self) -> dict[str, dict[str, float]]:
        """Family name to {values of topic, group and le joined: value}, through the reference parser."""
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(self.metrics.render()):
            for sample in family.samples:
                key = "/".join(
                    [
                        sample.labels[each]
                        for each in ("topic", "consumer_group", "le", "outcome")
                        if each in sample.labels
                    ]
                )
                assert key not in found.setdefault(sample.name, {}), (sample.name, key)
                found[sample.name][key] = sample.value
        return found


class FakeMember:
    language, version, beat_ms = 0, 477, 0

    def consumers_changed(self, group: str) -> None:
        pass


@pytest.fixture
def world() -> World:
    return World()


def test_rates_lag_and_totals(world: World) -> None:
    world.send("orders", 5)
    world.send("orders", 2, queue=1)
    world.send("bills", 1)
    broker = world.node.broker
    broker.offsets.commit("g1", "orders", 0, 3)
    broker.offsets.commit("g2", "orders", 0, 5)
    broker.offsets.commit("g2", "orders", 1, 2)
    broker.stats.read("orders", "g1", 3, 300)
    found = world.scrape()
    assert found["rocketmq_messages_in_total"] == {"orders": 7, "bills": 1}
    assert found["rocketmq_throughput_in_total"] == {"orders": 700, "bills": 100}
    assert found["rocketmq_messages_out_total"] == {"orders/g1": 3}
    assert found["rocketmq_throughput_out_total"] == {"orders/g1": 300}
    assert found["rocketmq_consumer_lag_messages"] == {"orders/g1": 4}  # g2 is behind nothing
    assert found["gantry_lag_messages"] == {"": 4}
    assert found["gantry_lag_places"] == {"": 2}
    assert found["rocketmq_topic_number"] == {"": 2}
    assert found["rocketmq_storage_size"][""] > 0
    assert found["gantry_put_messages_total"] == {"": 8}
    assert found["gantry_append_batch_messages_bucket"]["+Inf"] >= 3


def test_system_topics_are_left_out(world: World) -> None:
    world.send("orders", 1)
    for name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"):
        world.node.broker.stats._item(TOPIC_PUT_NUMS, name).add(9)  # type: ignore[union-attr]
        world.node.broker.offsets.commit("g", name, 0, 0)
    found = world.scrape()
    assert found["rocketmq_messages_in_total"] == {"orders": 1}
    assert "rocketmq_consumer_lag_messages" not in found


def test_cardinality_is_bounded_and_what_is_left_out_is_counted() -> None:
    world = World(topics_max=2, groups_max=3)
    for number in range(5):
        world.send(f"t{number}", number + 1)
        world.node.broker.offsets.commit("g", f"t{number}", 0, 0)
    found = world.scrape()
    assert found["rocketmq_messages_in_total"] == {"t4": 5, "t3": 4}
    assert found["rocketmq_consumer_lag_messages"] == {"t4/g": 5, "t3/g": 4, "t2/g": 3}
    assert found["gantry_lag_messages"] == {"": 15}
    found = world.scrape()  # totals stand before the sources: they tell of the scrape before
    assert found["gantry_metrics_topics_left_out"] == {"": 3}
    assert found["gantry_metrics_groups_left_out"] == {"": 2}


def test_topics_that_nobody_used_are_opened_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "OPENED_MAX", 2)
    world = World()
    for number in range(5):
        world.send(f"t{number}", 1)
        world.node.broker.offsets.commit("g", f"t{number}", 0, 0)
    world.node.broker.store._queues.write_pending()
    world.node.broker.store.used_topics.clear()  # type: ignore[attr-defined]  # as after a start
    shown = [len(world.scrape().get("rocketmq_consumer_lag_messages", ())) for _ in range(4)]
    assert shown == [2, 4, 5, 5]
    assert len(world.node.broker.store.used_topics) == 5
    assert world.scrape()["gantry_metrics_lags_unknown"] == {"": 0}


def test_clients_and_conflicts(world: World) -> None:
    def beat(client_id: str, tags: str) -> None:
        member: Any = FakeMember()
        data = ConsumerData("g", subscription_data_set=[Subscription("orders", tags)])
        world.clients.heartbeat(member, Heartbeat(client_id, [ProducerData("p")], [data]), 0, 477)

    beat("one", "a")
    beat("two", "b")
    found = world.scrape()
    assert found["rocketmq_producer_connections"] == {"": 2}
    assert found["rocketmq_consumer_connections"] == {"g": 2}
    assert found["gantry_group_subscription_conflicts"] == {"g": 1}


def test_pieces_are_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "ROWS_PER_PIECE", 2)
    for number in range(5):
        world.send(f"t{number}", 1)
    rows = [piece.count("\n") for piece in world.metrics.pieces() if piece.startswith("rocketmq_messages_in_total{")]
    assert rows == [2, 2, 1]
