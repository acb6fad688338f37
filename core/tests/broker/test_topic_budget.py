"""Topics that come into being by themselves: no connection and no door uses them up for everybody."""

from __future__ import annotations

import pytest

from gantrymq.broker.topic_budget import CONNECTION_TOPICS, CONNECTIONS_MAX, TopicBudget
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node


class Rig:
    def __init__(self, topics_max: int = 10_000) -> None:
        self.now_ms = 0
        self.there = 0
        self.refused: list[GantryError] = []
        self.budget = TopicBudget(topics_max, lambda: self.now_ms)

    def make(self, count: int, door: str, connection: object = None) -> int:
        """Topics that came into being, of so many tried."""
        before = self.there
        for number in range(count):
            try:
                self.budget.check(f"t{number}", self.there, door, connection)
            except GantryError as error:
                self.refused.append(error)
                continue
            self.budget.made(door, connection)
            self.there += 1
        return self.there - before


def test_a_connection_makes_a_hundred_and_then_one_a_second() -> None:
    rig = Rig()
    assert rig.make(1_000, "mqtt", "a") == CONNECTION_TOPICS
    assert {error.code for error in rig.refused} == {ErrorCode.TOPIC_LIMIT}
    assert "gantry topic create t999" in rig.refused[-1].text
    assert rig.make(10, "mqtt", "b") == 10
    rig.now_ms += 3_000
    assert rig.make(100, "mqtt", "a") == 3
    rig.now_ms += 1_000_000
    assert rig.make(1_000, "mqtt", "a") == CONNECTION_TOPICS


def test_a_door_makes_half_and_all_doors_nine_tenths() -> None:
    rig = Rig(1_000)
    assert rig.make(900, "mqtt") == 500
    assert rig.make(900, "amqp") == 400
    assert rig.make(1, "native") == 0


def test_few_are_everybodys() -> None:
    rig = Rig(10)
    assert rig.make(10, "mqtt") == 10


def test_connections_are_forgotten() -> None:
    rig = Rig(1_000_000)
    for number in range(3 * CONNECTIONS_MAX):
        assert rig.make(1, "mqtt", number) == 1
        assert len(rig.budget) <= CONNECTIONS_MAX
    rig.now_ms += 1_000
    rig.make(1, "mqtt", "last")
    assert len(rig.budget) == 1


@pytest.mark.parametrize("origin", ["mqtt", "native"])
def test_one_publisher_leaves_topics_for_the_others(origin: str) -> None:
    node = Node(MemoryFileSystem(), False)
    flood, other = object(), object()
    properties = b"GANTRY_ORIGIN\x01mqtt\x02" if origin == "mqtt" else b""

    def publish(names: list[str], sender: object) -> list[object]:
        box: list[list[object]] = []
        batch = [Message(name, b"", properties) for name in names]
        node.port.submit(batch, None, lambda token, results: box.append(results), sender)
        node.turn.run_until_quiet()
        return box[0]

    made = publish([f"top{number}" for number in range(300)], flood)
    assert made == [0] * CONNECTION_TOPICS + [ErrorCode.TOPIC_LIMIT] * (300 - CONNECTION_TOPICS)
    assert publish(["mine"], other) == [0]
    assert node.call("ensure_topic", "declared", True).name == "declared"
    assert publish(["top0", "declared"], flood) == [1, 0]  # topics that exist are there for everybody
