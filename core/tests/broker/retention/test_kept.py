"""Topics whose records are not kept by time: when a segment goes early, and for whom it stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gantrymq.administration.overview import Overview
from gantrymq.administration.reading import Reading
from gantrymq.broker.port import EARLIEST, END, FOR_EXCHANGE, FOR_QUEUE, Outcome, Route
from gantrymq.broker.retention.kept import KeptByTime
from gantrymq.broker.retention.retention import Retention
from gantrymq.broker.topics import TopicConfig
from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq.model.message import DELAYED, Message
from gantrymq.model.tables import message_rows
from gantrymq.net.testing import ManualClock
from gantrymq.store.config import StoreConfig
from gantrymq.store.schedule import TIMER_TOPIC
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KEEP, SEGMENT, KeepingNode, now
from tests.broker.pop.test_pops import acknowledge, place_of, pop

THREE_DAYS = replace(KEEP, file_reserved_hours=72, delete_when="4")


class ExchangeNode(KeepingNode):
    """`keep_exchange_records` false, or as given; `wanted`: what connected consumer groups subscribe to."""

    def __init__(
        self,
        files: MemoryFileSystem,
        clock: ManualClock | None = None,
        config: StoreConfig = THREE_DAYS,
        exchanges: bool = False,
    ) -> None:
        super().__init__(files, clock, config)
        self.wanted: Mapping[str, set[str]] = {}
        kept = KeptByTime(self.broker, exchanges, lambda: self.wanted)
        self.retention = Retention(self.broker, self.store, now, kept)

    def again(self, clean: bool = False, exchanges: bool = False) -> ExchangeNode:
        if clean:
            self.stop()
        files = self.files if clean else self.files.after_process_crash()
        return ExchangeNode(files, self.clock, exchanges=exchanges)

    def goes(self, hours: float = 0) -> bool:
        """Whether every segment goes but the one that is written."""
        self.retain(hours)
        return self.store.log_min_position == self.store.written_position // SEGMENT * SEGMENT

    def queue(self, tag: str = "a") -> int:
        light = self.call("create_light")
        self.call("add_route", Route("r" + tag, "prefix", None, tag, light))
        cursor: int = self.call("open_cursor", f"~{light}", "amqp", END).cursor
        return cursor

    def acknowledge(self, cursor: int, every: int = 1) -> None:
        for offset, _ in self.drain(cursor):
            if every == 1 or offset % every:
                self.port.settle([(cursor, offset, Outcome.ACK)])
        self.turn.run_until_quiet()


def exchange(exchanges: bool = False) -> tuple[ExchangeNode, int]:
    """A node with exchange `t` and a queue that gets what begins with `a`."""
    node = ExchangeNode(MemoryFileSystem(), exchanges=exchanges)
    node.call("ensure_topic", "t", FOR_EXCHANGE)
    return node, node.queue()


def test_what_all_queues_acknowledged_goes_at_once_and_at_any_hour() -> None:
    node, cursor = exchange()
    node.send(400, "a")
    node.acknowledge(cursor)
    node.clock.advance(60_000)
    assert node.goes()
    assert node.store.log_min_position > 0
    for clean in (True, False):
        node = node.again(clean)
        assert node.drain(cursor) == []
        node.send(60, "a")
        node.acknowledge(cursor)
        assert node.goes()


def test_by_default_everything_is_kept_for_its_time() -> None:
    node, cursor = exchange(exchanges=True)
    node.send(400, "a")
    node.acknowledge(cursor)
    assert node.retain(hours=71) == 0
    node = node.again(exchanges=True)
    assert node.retain() == 0
    node = node.again(exchanges=False)
    assert node.goes()


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_attribute_of_a_topic_wins(exchanges: bool) -> None:
    node, cursor = exchange(exchanges)
    node.broker.topics.create(TopicConfig("t", attributes={"keep.records": "true" if not exchanges else "false"}))
    node.send(400, "a")
    node.acknowledge(cursor)
    assert node.goes() if exchanges else node.retain() == 0
    node = node.again(exchanges=exchanges)
    if not exchanges:
        assert node.retain() == 0
        node.broker.topics.create(TopicConfig("t"))  # without the attribute it is an exchange's again
        assert node.goes()


def test_the_attribute_may_be_true_or_false() -> None:
    node, _ = exchange()
    with pytest.raises(GantryError, match=r"keep\.records=no: allowed are true and false"):
        node.broker.topics.create(TopicConfig("t", attributes={"keep.records": "no"}))


def test_who_makes_a_topic_decides_what_it_is_made_for() -> None:
    node = ExchangeNode(MemoryFileSystem())
    node.call("ensure_topic", "exchange", FOR_EXCHANGE)
    node.call("ensure_topic", "queue", FOR_QUEUE)
    node.call("ensure_topic", "other", True)
    node.call("ensure_topic", "rmq_sys_amqp_direct", FOR_EXCHANGE)
    origins = {"published": "amqp", "mqtt": "mqtt", "native": ""}
    for name, origin in origins.items():
        properties = props.encode([(props.ORIGIN, origin)]) if origin else b""
        node.call("submit", [Message(name, b"x", properties, queue_id=0)])
    expected = {
        "exchange": True, "queue": True, "published": True, "rmq_sys_amqp_direct": True, "other": False, "mqtt": False, "native": False,
    }  # fmt: skip
    for _ in range(2):
        found = {name: node.broker.topics.topics[name].config.for_exchanges for name in expected}
        assert found == expected
        for name in expected:  # as somebody does who changes its queues
            node.broker.topics.create(TopicConfig(name, 8, 8))
        node.turn.run_until_quiet()
        node = node.again()
    assert node.broker.topics.made_for_queues == 0


def test_what_a_queue_has_not_acknowledged_stays_and_nobody_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    node, cursor = exchange()
    other = node.queue("ab")
    bodies = node.send(400, "ab")
    node.acknowledge(cursor)
    assert node.retain() == 0
    assert node.retention.staying == ""
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    node = node.again()
    assert node.retain() == 0
    assert [body for _, body in node.drain(other)] == bodies
    node.port.settle([(other, offset, Outcome.ACK) for offset in range(len(bodies))])
    node.turn.run_until_quiet()
    assert node.retain() == 0  # it is looked at once a minute
    node.wheel.advance(60_000)
    assert node.goes()


@pytest.mark.parametrize("clean", [True, False])
def test_few_that_are_left_are_moved(clean: bool) -> None:
    node, cursor = exchange()
    bodies = node.send(400, "a")
    node.acknowledge(cursor, every=50)
    assert node.retain() >= 5
    assert node.retention.moved >= 5
    node = node.again(clean)
    assert [body for _, body in node.drain(cursor)] == bodies[::50]


def test_a_record_of_a_topic_that_is_kept_keeps_its_segment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node, cursor = exchange()
    node.send(150, "a")
    node.send(1, topic="sensors")
    node.send(400, "a")
    node.acknowledge(cursor)
    assert node.retain() == 2
    assert node.retain() == 0
    assert len([text for text in caplog.messages if "it has records of topic sensors" in text]) == 1
    assert [unit[0] >= node.store.log_min_position for unit in node.store.units("sensors", 0, 0, 2)] == [True]
    node = node.again()
    assert node.retain(hours=71) == 0
    assert node.retain(hours=1) == 0  # not at this hour
    node.broker.delete_topic("sensors")
    node.turn.run_until_quiet()
    assert node.retain() >= 5


def test_a_topic_with_a_shorter_time_of_its_own_keeps_no_longer() -> None:
    node, cursor = exchange()
    node.broker.topics.create(TopicConfig("u", attributes={"reserve.time": "3600000"}))
    node.send(1, topic="u")
    node.send(400, "a")
    node.acknowledge(cursor)
    assert node.retain() == 0
    assert node.goes(hours=2)


def test_a_consumer_group_keeps_what_lies_behind_its_offset() -> None:
    node, cursor = exchange()
    node.send(400, "a")
    node.acknowledge(cursor)
    node.broker.commits.commit("spring", "t", 0, 399)
    node.broker.commits.commit("summer", "t", 0, 150)
    assert node.retain() == 2
    assert node.store.units("t", 0, 150, 1)
    node.wheel.advance(1_000)
    node.turn.run_until_quiet()
    node = node.again()
    assert node.retain() == 0
    node.broker.commits.commit("summer", "t", 0, 400)
    assert node.goes()
    node.send(400, "a")
    node.acknowledge(cursor)
    node.broker.commits.commit("spring", "t", 0, 800)
    assert node.retain() == 0
    node.clock.advance(73 * 3_600_000)
    node.retention._store.config = replace(THREE_DAYS, delete_when="always")
    node.send(80, "a")
    assert node.retain() > 0  # what a group left behind is kept for that time, as everywhere


def test_a_group_without_an_offset_keeps_all_while_it_is_connected() -> None:
    node, cursor = exchange()
    node.send(400, "a")
    node.acknowledge(cursor)
    node.wanted = {"t": {"new"}}
    assert node.retain() == 0
    node.wanted = {"u": {"new"}}
    assert node.goes()


def test_after_a_start_nothing_goes_early_for_a_minute() -> None:
    """Until then nobody knows who was connected."""
    node, cursor = exchange()
    node.send(400, "a")
    node.acknowledge(cursor)
    node = node.again()
    node.retention.start()
    node.wheel.advance(50_000)
    assert node.retain() == 0
    assert node.retention.deleted == 0
    node.wheel.advance(10_000)
    assert node.goes()


def test_pop_consumers_keep_what_they_have_not_popped() -> None:
    node, cursor = exchange()
    node.broker.topics.create(TopicConfig("t", 1, 1))
    node.send(400, "a")
    node.acknowledge(cursor)
    place_of(node)
    assert node.retain() == 0
    for _ in range(100):
        popped = pop(node)
        acknowledge(node, [message.queue_offset for message in popped])
        if not popped:
            break
    assert node.goes()


def test_who_may_keep_positions_in_memory_finds_them() -> None:
    node, cursor = exchange()
    node.send(400, "a")
    node.acknowledge(cursor)
    tap = node.call("open_tap", lambda records: None)
    for topic in ("t", None):
        node.call("add_volatile", tap, 1, "prefix", topic, "a")
        assert node.retain() == 0
    node.call("add_volatile", tap, 1, "prefix", "u", "a")
    assert node.goes()


def test_a_subscription_over_a_topics_queue_keeps_what_it_has_not_done() -> None:
    node, cursor = exchange()
    node.send(1, "z")
    hook = node.call("open_cursor", "t/0", "ce:1", EARLIEST).cursor
    bodies = node.send(400, "a")
    node.acknowledge(cursor)
    assert node.retain() == 0
    node = node.again()
    assert [body for _, body in node.drain(hook)][1:] == bodies


def test_delayed_messages_and_rows_of_messages_are_still_there() -> None:
    node, cursor = exchange()
    at_ms = node.clock.now_ms() + 2 * 3_600_000
    properties = props.encode([(props.TAGS, "a"), ("TIMER_DELIVER_MS", str(at_ms))])
    later = Message("t", b"later", properties, "a", queue_id=0)
    later.kind = DELAYED
    node.call("submit", [later])
    row = Message("t", b"lamp", message_rows.row_pair("k", b"H"), queue_id=0)
    row.lmq = message_rows.queues_of("mqtt_retained")
    node.call("submit", [row])
    node.send(400, "a")
    node.acknowledge(cursor)
    assert TIMER_TOPIC in node.store.topics()
    assert node.goes()
    node = node.again()
    assert node.broker.tables.rows("mqtt_retained")["k"] == b"Hlamp"
    node.wheel.advance(2 * 3_600_000 + 2_000)
    node.turn.run_until_quiet()
    assert [body for _, body in node.drain(cursor)] == [b"later"]


def test_a_stream_keeps_all_it_has() -> None:
    node, cursor = exchange()
    stream = node.queue("ab")
    bodies = node.send(200, "ab")
    node.acknowledge(cursor)
    seen = node.drain(stream)
    node.port.settle([(stream, offset, Outcome.RELEASE) for offset, _ in seen])  # nobody is ever done with it
    node.turn.run_until_quiet()
    assert node.retain() == 0
    assert [body for _, body in node.drain(stream)] == bodies


def trail(node: KeepingNode) -> list[bytes]:
    reading = Reading(node.broker)
    begin, end = reading.trail(names.AUDIT_TOPIC)
    units = reading.trail_units(names.AUDIT_TOPIC, begin, end - begin)
    assert len(units) == end - begin
    found = node.store.get_many([(position, size) for position, size, _ in units])
    return [message.body for message in found if message is not None]


def owed(node: KeepingNode) -> int:
    """What `gantry broker drain` waits for."""
    overview = Overview(node.broker, Reading(node.broker), lambda group: (), lambda topic: False)
    steps = overview.steps(True, {"waiting": {}})
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            ready: int = stop.value["backlog"]["ready"]
            return ready


@pytest.mark.parametrize("clean", [True, False])
def test_the_audit_trail_outlives_its_segments_until_its_time_is_over(clean: bool) -> None:
    node, cursor = exchange()
    events = [b"event%d" % number for number in range(8)]
    for event in events:
        node.call("submit", [Message(names.AUDIT_TOPIC, event, queue_id=0)])
        node.send(100, "a")
    node.acknowledge(cursor)
    assert node.goes()
    assert node.retention.moved >= 7
    assert trail(node) == events
    assert not [queue for _, queue, _ in node.retention.pins.top if queue.startswith(names.AUDIT_TOPIC)]
    assert owed(node) == 0  # else a broker that is to be drained would wait for it
    node = node.again(clean)
    assert trail(node) == events
    node.clock.advance(36 * 3_600_000)
    node.call("submit", [Message(names.AUDIT_TOPIC, b"later", queue_id=0)])
    node.send(400, "a")
    node.acknowledge(cursor)
    assert node.goes()
    assert trail(node) == [*events, b"later"]
    node.clock.advance(36 * 3_600_000)
    node.send(400, "a")
    node.acknowledge(cursor)
    assert node.goes()
    assert trail(node)[-1:] == [b"later"]
    assert node.broker.cursors.moved.count == 1
    node = node.again(clean)
    assert trail(node) == [b"later"]


def test_without_the_setting_the_audit_trail_has_no_cursor() -> None:
    node, cursor = exchange(exchanges=True)
    node.call("submit", [Message(names.AUDIT_TOPIC, b"event", queue_id=0)])
    node.send(400, "a")
    node.acknowledge(cursor)
    assert node.retain() == 0
    assert not node.broker.cursors.of_queue(f"{names.AUDIT_TOPIC}/0")
    assert trail(node) == [b"event"]


def test_idle_topics_are_asked_without_holding_up_the_loop() -> None:
    """Files of topics that nobody used since the start are opened in a thread."""
    node, cursor = exchange()
    for number in range(20):
        node.send(1, topic=f"kept{number}", size=10)
    node.send(400, "a")
    node.acknowledge(cursor)
    node = node.again(clean=True)
    node.read_cold()
    assert node.retain() == 0
    for number in range(20):
        node.broker.delete_topic(f"kept{number}")
    node.turn.run_until_quiet()
    assert node.retain() >= 5
