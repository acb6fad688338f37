"""Counters of topics and groups: exact sums, rates over the rings, bounded."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.rocketmq import stats as module
from gantrymq.broker.rocketmq.stats import (
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    BrokerStats,
)
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualWheel
from tests.broker.node import Node
from tests.store.crash_states import CrashFiles


class Queue:
    """What the counters look at of a ConsumeQueue."""

    def __init__(self, topic: str) -> None:
        self.directory = Path("/consumequeue") / topic / "0"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def running(clock: ManualClock) -> tuple[BrokerStats, ManualWheel]:
    wheel = ManualWheel(clock)
    stats = BrokerStats(clock, "C")
    stats.start(wheel)
    return stats, wheel


def test_sums_and_rates(clock: ManualClock) -> None:
    stats, wheel = running(clock)
    q: Any = Queue("T")
    stats.stored(q, 30, 3000)
    assert stats.snapshots(TOPIC_PUT_NUMS, "T") == [(30, 3.0, 1.0)] * 3
    assert stats.snapshots(TOPIC_PUT_SIZE, "T") == [(3000, 300.0, 100.0)] * 3
    for _ in range(6):
        wheel.advance(10_000)
        stats.stored(q, 60, 6000)
    minute, hour, day = stats.snapshots(TOPIC_PUT_NUMS, "T") or []
    assert (minute[0], hour[0], day[0]) == (390, 390, 390)
    assert minute[1] == 6.5
    for _ in range(20):
        wheel.advance(10_000)
    minute, hour, day = stats.snapshots(TOPIC_PUT_NUMS, "T") or []
    assert (minute[0], hour[0], day[0]) == (0, 390, 390)
    wheel.advance(3_600_000)
    wheel.advance(3_600_000)
    minute, hour, day = stats.snapshots(TOPIC_PUT_NUMS, "T") or []
    assert (minute[0], hour[0], day[0]) == (0, 0, 390)
    assert stats.rate(TOPIC_PUT_NUMS, "T") == 0


def test_reads_are_counted_per_answer(clock: ManualClock) -> None:
    stats, _ = running(clock)
    stats.read("T", "G", 32, 3200)
    stats.read("T", "G", 8, 800)
    assert (stats.snapshots(GROUP_GET_NUMS, "T@G") or [])[0] == (40, 4.0, 20.0)
    assert (stats.snapshots(GROUP_GET_SIZE, "T@G") or [])[0][0] == 4000
    assert stats.snapshots(GROUP_GET_NUMS, "T@H") is None
    assert stats.days(True)[0] == 40


def test_windows_and_days(clock: ManualClock) -> None:
    stats, wheel = running(clock)
    for _ in range(12):
        stats.put_total += 100
        wheel.advance(10_000)
    assert stats.windows() == (10.0, 10.0, 10.0)
    wheel.advance(10_000)
    assert stats.windows()[0] == 0.0
    assert (stats.snapshots(BROKER_PUT_NUMS, "C") or [])[0][0] == 500
    wheel.advance(86_400_000)
    assert stats.days() == (1200, 1200, 0)
    wheel.advance(86_400_000)
    assert stats.days() == (1200, 1200, 1200)


def test_own_topics_are_not_counted_and_deleted_ones_forgotten(clock: ManualClock) -> None:
    stats, _ = running(clock)
    own: Any = Queue("rmq_sys_gantry_ack")
    stats.stored(own, 1, 100)
    stats.stored(own, 1, 100)
    assert len(stats) == 0
    q: Any = Queue("T")
    stats.stored(q, 1, 1)
    stats.read("T", "G", 1, 1)
    stats.read("T2", "G", 1, 1)
    stats.forget_topic("T")
    assert stats.snapshots(TOPIC_PUT_NUMS, "T") is None
    assert stats.snapshots(GROUP_GET_NUMS, "T2@G") is not None
    stats.stored(q, 5, 5)
    assert (stats.snapshots(TOPIC_PUT_NUMS, "T") or [])[0][0] == 5


def test_number_of_counters_is_limited(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ITEMS_MAX", 4)
    stats, wheel = running(clock)
    for number in range(10):
        q: Any = Queue(f"T{number}")
        stats.stored(q, 1, 1)
        stats.read(f"T{number}", "G", 1, 1)
    assert len(stats) == 4
    assert stats.days(True)[0] == 10  # the totals have everything
    wheel.advance(2 * 86_400_000)
    assert len(stats) == 0  # idle for a day


def test_many_counters_are_sampled_in_slices(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ITEMS_PER_SLICE", 2)
    stats, wheel = running(clock)
    queues: list[Any] = [Queue(f"T{number}") for number in range(5)]
    for q in queues:
        stats.stored(q, 7, 7)
    for _ in range(8):
        wheel.advance(10_000)
    wheel.advance(100)
    assert [(stats.snapshots(TOPIC_PUT_NUMS, f"T{number}") or [])[0][0] for number in range(5)] == [0] * 5


def test_all_counters_of_a_name_in_steps_without_a_list_of_everything(clock: ManualClock) -> None:
    """A pair per counter takes 3 ms with 80,000 of them."""
    stats, _ = running(clock)
    for number in range(4000):
        queue: Any = Queue(f"T{number}")
        stats.stored(queue, 7, 7)
    next(stats.tables(TOPIC_PUT_NUMS, 10))
    tracemalloc.start()
    try:
        tables = stats.tables(TOPIC_PUT_NUMS, 10)
        found = dict(next(tables))
        assert tracemalloc.get_traced_memory()[1] < len(stats) * 24
    finally:
        tracemalloc.stop()
    stats.forget_topic("T3999")
    for part in tables:
        found.update(part)
    assert found == {f"T{number}": 7 for number in range(3999)}


def test_a_broker_counts_what_it_stores() -> None:
    node = Node(CrashFiles(), False)
    node.store.on_units_written(node.broker.stats.stored)
    node.broker.topics.create(TopicConfig("t", 2, 2))
    messages = [Message("t", b"body", queue_id=number % 2) for number in range(10)]
    node.start("submit", messages)
    node.store.flush_derived()
    found = node.broker.stats.snapshots(TOPIC_PUT_NUMS, "t") or []
    sizes = node.broker.stats.snapshots(TOPIC_PUT_SIZE, "t") or []
    assert (found[2][0], sizes[2][0]) == (10, sum(message.size for message in messages))
    assert node.broker.stats.put_total == 10
    node.broker.delete_topic("t")
    assert node.broker.stats.snapshots(TOPIC_PUT_NUMS, "t") is None
