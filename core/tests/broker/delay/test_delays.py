"""Delay levels and timers: where a message waits, when it comes, what it looks like then."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.config import TimerConfig
from gantrymq.broker.delay.levels import ANCHORS_MAX, Level, queue_of
from gantrymq.broker.delay.timers import INFLIGHT_MAX
from gantrymq.broker.due.waiting import STEP
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.model.names import SCHEDULE_TOPIC
from gantrymq.store.schedule import TIMER_TOPIC, delays_of
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.waiting_node import WaitingNode

HOUR_MS = 3_600_000


@pytest.fixture
def node() -> WaitingNode:
    return WaitingNode(MemoryFileSystem())


# What is stored.


def test_a_level_is_stored_as_a_real_broker_does(node: WaitingNode) -> None:
    assert node.later(b"x", queue_id=3, DELAY=3, TAGS="a", TIMER_DELAY_MS=5, REAL_TOPIC="forged", REAL_QID=9) == 0
    (waiting,) = node.records(SCHEDULE_TOPIC)
    assert (waiting.queue_id, waiting.tag, waiting.body) == (2, "a", b"x")
    assert waiting.property_map() == {
        "DELAY": "3", "TAGS": "a", "UNIQ_KEY": "Ux", "REAL_TOPIC": "t", "REAL_QID": "3",
    }  # fmt: skip
    unit = node.store.units(SCHEDULE_TOPIC, 2, 0, 1)[0]
    assert unit[2] == waiting.store_ms + 10_000


def test_levels_beyond_the_last_count_as_the_last(node: WaitingNode) -> None:
    node.later(b"x", DELAY=99)
    (waiting,) = node.records(SCHEDULE_TOPIC)
    assert (waiting.queue_id, waiting.property("DELAY")) == (17, "18")


def test_a_timer_is_stored_as_a_real_broker_does(node: WaitingNode) -> None:
    node.later(b"x", queue_id=1, TIMER_DELIVER_MS=node.clock.now_ms() + 2_500)
    node.later(b"y", TIMER_DELIVER_MS=node.clock.now_ms() + 3_000)  # a whole second: RocketMQ takes the one before
    node.later(b"z", TIMER_DELAY_SEC=4, TIMER_DELAY_MS=1, TIMER_DELIVER_MS=5)
    first, second, third = node.records(TIMER_TOPIC)
    assert (first.queue_id, first.property("REAL_TOPIC"), first.property("REAL_QID")) == (0, "t", "1")
    start = node.clock.now_ms()
    assert first.property("TIMER_OUT_MS") == str(start + 2_000)
    assert second.property("TIMER_OUT_MS") == str(start + 2_000)
    assert third.property("TIMER_OUT_MS") == str(start + 3_000)
    codes = [unit[2] for unit in node.store.units(TIMER_TOPIC, 0, 0, 3)]
    assert codes == [start + 2_500, start + 3_000, start + 4_000]


@pytest.mark.parametrize(
    "pairs",
    [
        {"DELAY": "soon"}, {"TIMER_DELAY_SEC": "soon"}, {"TIMER_DELIVER_MS": "1e9"}, {"TIMER_DELAY_MS": "3x"},
        {"TIMER_DELAY_SEC": 3 * 86_400 + 1}, {"TIMER_DELIVER_MS": 5, "TIMER_DEL_UNIQKEY": "t+u"},
    ],
)  # fmt: skip
def test_what_rocketmq_refuses_is_refused(node: WaitingNode, pairs: dict[str, Any]) -> None:
    assert node.later(b"x", **pairs) is ErrorCode.MESSAGE_ILLEGAL
    assert node.bodies() == []


def test_the_longest_delay_can_be_set_to_years(node: WaitingNode) -> None:
    node.broker.delays.config = TimerConfig(max_delay_s=10 * 366 * 86_400)
    assert node.later(b"x", TIMER_DELAY_SEC=9 * 366 * 86_400) == 0
    assert node.later(b"x", TIMER_DELAY_SEC=11 * 366 * 86_400) is ErrorCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("pairs", [{"TIMER_DELIVER_MS": 5}, {"TIMER_DELAY_MS": 0}, {"TIMER_DELAY_SEC": -3}, {"DELAY": "-2"},
                                   {"DELAY": 0}, {"TIMER_DELAY_MS": 9_000, "TIMER_OUT_MS": 3}])  # fmt: skip
def test_what_is_due_already_comes_at_once(node: WaitingNode, pairs: dict[str, Any]) -> None:
    node.later(b"x", **pairs)
    assert node.bodies() == [b"x"]


def test_too_many_properties_are_refused_before_they_wait(node: WaitingNode) -> None:
    assert node.later(b"x", DELAY=1, big="x" * 32_680) is ErrorCode.PROPERTIES_TOO_LARGE
    accepted, _ = node.send_later(b"x", DELAY=1, big="x" * 32_000)
    assert accepted == 0
    node.wait(1_000)
    assert [found.property("big") for found in node.records()] == ["x" * 32_000]


# What comes.


def test_levels_come_in_their_order_and_not_early(node: WaitingNode) -> None:
    for number in range(3 * STEP):
        node.later(b"%d" % number, DELAY=2)
    node.later(b"first", DELAY=1)
    node.wait(950)
    assert node.bodies() == []
    node.wait(100)
    assert node.bodies() == [b"first"]
    node.wait(3_900)
    assert node.bodies() == [b"first"]
    assert node.broker.delays.levels.pending() == 3 * STEP
    node.wait(100)
    assert node.bodies() == [b"first", *[b"%d" % number for number in range(3 * STEP)]]
    assert node.broker.delays.levels.pending() == 0
    assert node.broker.delays.floors() == ({1: 1, 2: 3 * STEP}, None)


def test_a_delivered_level_message_is_what_the_real_broker_delivers(node: WaitingNode) -> None:
    """RocketMQ clears DELAY from a map that it does not write any more: its record keeps every property (seen in 5.3.3's log)."""
    _, sent = node.send_later(b"x", queue_id=2, DELAY=1, TAGS="a", KEYS="k1 k2", own="1")
    sent_properties = sent.property_map()
    node.wait(1_000)
    (found,) = node.records()
    assert found.property_map() == sent_properties
    assert (found.topic, found.queue_id, found.tag, found.born_ms) == ("t", 2, "a", sent.born_ms)
    node.background()
    assert [message.body for message in node.store.query("t", "k2", 9, 0, 1 << 60)] == [b"x"]
    assert [message.body for message in node.store.query("t", "Ux", 9, 0, 1 << 60)] == [b"x"]


def test_timers_come_at_their_millisecond(node: WaitingNode) -> None:
    start = node.clock.now_ms()
    for number, delay in enumerate((1_730, 420, 61_000, 1_500)):
        node.later(b"%d" % number, TIMER_DELIVER_MS=start + delay)
    assert node.broker.delays.timers.pending() == 4
    times = {}
    for _ in range(1300):
        node.wait(50)
        for body in node.bodies():
            times.setdefault(body, node.clock.now_ms() - start)
    assert times == {b"1": 450, b"3": 1500, b"0": 1750, b"2": 61_000}
    assert node.broker.delays.timers.pending() == 0
    (late,) = [message for message in node.records() if message.body == b"2"]
    assert late.property("TIMER_DEQUEUE_MS") == str(start + 61_000)
    assert late.property("REAL_TOPIC") == "t"
    assert late.tag == ""


def test_routes_are_decided_when_it_comes(node: WaitingNode) -> None:
    from gantrymq.broker.port import EARLIEST, Route

    node.later(b"x", DELAY=1, TAGS="a")
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor
    assert node.call("acquire", cursor, 1, 9, 1 << 20) == []
    node.wait(1_000)
    assert [found.message.body for found in node.call("acquire", cursor, 1, 9, 1 << 20)] == [b"x"]


def test_a_senders_own_light_queues_are_entered_when_it_comes(node: WaitingNode) -> None:
    node.later(b"x", DELAY=1, INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b")
    assert node.store.max_offset("%LMQ%a", 0) == 0
    node.wait(1_000)
    assert [node.store.max_offset(f"%LMQ%{name}", 0) for name in "ab"] == [1, 1]


def test_a_burst_is_fired_in_slices(node: WaitingNode) -> None:
    start = node.clock.now_ms()
    for number in range(5 * STEP):
        node.later(b"%d" % number, TIMER_DELIVER_MS=start + 3_000)
    node.wait(2_950)
    assert node.bodies() == []
    node.wheel.advance(50)
    counts = []
    while node.turn.pending:
        before = node.store.max_offset("t", 0)
        node.turn.run()
        counts.append(node.store.max_offset("t", 0) - before)
    assert sum(counts) == 5 * STEP
    assert max(counts) <= STEP
    assert node.bodies() == [b"%d" % number for number in range(5 * STEP)]


def test_a_refusal_that_passes_is_waited_out(node: WaitingNode) -> None:
    node.later(b"1", DELAY=1)
    node.later(b"2", DELAY=1)
    node.later(b"3", TIMER_DELAY_MS=1_000)
    node.broker.full = "disk"
    node.wait(3_000)
    assert node.bodies() == []
    node.broker.full = ""
    node.wait(1_100)
    assert sorted(node.bodies()) == [b"1", b"2", b"3"]
    assert node.bodies().index(b"1") < node.bodies().index(b"2")


def test_a_refusal_that_stays_is_logged_and_ends_it(node: WaitingNode, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(STEP):
        node.later(b"%d" % number, topic="gone", DELAY=1)
    node.later(b"2", DELAY=1)
    node.later(b"3", topic="gone", TIMER_DELAY_MS=1_000)
    node.broker.delete_topic("gone")
    node.broker.topics._auto_create_max = 0
    node.wait(2_000)
    assert node.bodies() == [b"2"]
    assert f"{STEP} delayed messages dropped; the last, for topic gone: limit of topics" in caplog.text
    assert caplog.text.count(" dropped") == 2
    assert node.broker.delays.levels.pending() == node.broker.delays.timers.pending() == 0


def test_with_synchronous_flush_the_flights_are_bounded() -> None:
    node = SyncNode(MemoryFileSystem())
    start = node.clock.now_ms()
    for number in range(INFLIGHT_MAX + 3 * STEP):
        node.start("submit", [node.message(b"%d" % number, TIMER_DELIVER_MS=start + 2_000)])
    node.flush()
    node.wait(2_100)
    timers = node.broker.delays.timers
    assert INFLIGHT_MAX <= len(timers._inflight) < INFLIGHT_MAX + STEP
    while timers.pending():
        before = len(node.bodies())
        node.flush()
        node.wait(50)
        assert len(node.bodies()) - before < INFLIGHT_MAX + STEP
    node.flush()
    assert len(node.bodies()) == INFLIGHT_MAX + 3 * STEP


def test_a_clean_stop_notes_what_waits_for_the_flush() -> None:
    node = SyncNode(MemoryFileSystem())
    for pairs in ({"TIMER_DELAY_MS": 1_000}, {"DELAY": 1}):
        node.start("submit", [node.message(b"x", **pairs)])
    node.flush()
    node.wait(1_100)
    assert node.broker.delays.timers.busy
    assert node.broker.delays.levels.busy
    again = node.reborn()
    again.wait(10_000)
    assert again.bodies() == [b"x", b"x"]


class SyncNode(WaitingNode):
    def message(self, body: bytes, **pairs: Any) -> Any:
        from gantrymq.model.message import DELAYED, Message

        message = Message("t", body, props.encode({k: str(v) for k, v in pairs.items()}), "", (), 0)
        message.kind = DELAYED
        return message

    def __init__(self, files: MemoryFileSystem) -> None:
        super().__init__(files)
        self.broker.gate.set_open(False)
        self.broker.topics.strict = True


# Clocks.


@pytest.mark.parametrize("jump", [-HOUR_MS, -2_000, 2_000, HOUR_MS])
def test_a_level_waits_its_delay_however_the_wall_clock_jumps(node: WaitingNode, jump: int) -> None:
    node.later(b"before", DELAY=3)
    node.wait(4_000)
    node.jump(jump)
    node.later(b"after", DELAY=3)
    node.wait(5_900)
    assert node.bodies() == []
    node.wait(250)
    assert node.bodies() == [b"before"]
    node.wait(3_700)
    assert node.bodies() == [b"before"]
    node.wait(300)
    assert node.bodies() == [b"before", b"after"]


@pytest.mark.parametrize("jump", [-2 * HOUR_MS, -30_000])
def test_after_a_start_a_level_waits_no_longer_than_its_delay(node: WaitingNode, jump: int) -> None:
    node.later(b"x", DELAY=4)
    node.jump(jump)
    again = node.reborn()
    again.wait(29_900)
    assert again.bodies() == []
    again.wait(150)
    assert again.bodies() == [b"x"]


def test_timers_follow_the_wall_clock(node: WaitingNode) -> None:
    node.later(b"x", TIMER_DELAY_SEC=3_600)
    node.later(b"y", TIMER_DELAY_SEC=7_200)
    node.jump(HOUR_MS)  # noticed within ten seconds, whatever else happens
    node.wait(10_100)
    assert node.bodies() == [b"x"]
    node.jump(-HOUR_MS)
    node.wait(HOUR_MS // 10)
    assert node.bodies() == [b"x"]
    node.jump(3 * HOUR_MS)
    node.wait(10_100)
    assert node.bodies() == [b"x", b"y"]


def test_what_a_level_remembers_of_clocks_is_bounded() -> None:
    class Window:
        floor = 0

    class Cursor:
        window = Window()

    for delay_ms in (1_000, 60_000, 2 * HOUR_MS):
        level = Level(1, delay_ms, Cursor(), 0, 0)  # type: ignore[arg-type]
        for mono_ms in range(0, 3 * delay_ms, 50):
            level.note(mono_ms, mono_ms, mono_ms)
            if mono_ms >= delay_ms:
                level.due_at(mono_ms - delay_ms, mono_ms)
        assert len(level.anchors) <= ANCHORS_MAX + 2


# Lives.


@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_goes_on_in_the_next_life(node: WaitingNode, clean: bool) -> None:
    node.later(b"level", DELAY=3)
    node.later(b"timer", TIMER_DELAY_MS=9_500)
    node.later(b"soon", TIMER_DELAY_MS=500)
    node.wait(1_000)
    assert node.bodies() == [b"soon"]
    node.store.flush()
    again = node.reborn(clean)
    assert again.broker.delays.timers.pending() == 1
    again.wait(8_400)
    assert again.bodies() == [b"soon"]
    again.wait(700)
    assert sorted(again.bodies()) == [b"level", b"soon", b"timer"]
    third = again.reborn(clean)
    third.wait(20_000)
    assert sorted(third.bodies()) == [b"level", b"soon", b"timer"]


def test_what_became_due_while_stopped_comes_at_once(node: WaitingNode) -> None:
    node.later(b"level", DELAY=3)
    node.later(b"timer", TIMER_DELAY_MS=9_500)
    node.stop()
    node.clock.advance(HOUR_MS)
    again = WaitingNode(node.files, node.clock)
    again.wait(100)
    assert sorted(again.bodies()) == [b"level", b"timer"]


def test_queues_made_again_from_the_log_say_the_same(node: WaitingNode) -> None:
    node.later(b"level", DELAY=3)
    node.later(b"timer", TIMER_DELAY_MS=9_500)
    units = [node.store.units(SCHEDULE_TOPIC, 2, 0, 1), node.store.units(TIMER_TOPIC, 0, 0, 1)]
    node.store.flush()
    again = node.reborn(clean=False)
    assert again.report.records > 0
    assert [again.store.units(SCHEDULE_TOPIC, 2, 0, 1), again.store.units(TIMER_TOPIC, 0, 0, 1)] == units


@pytest.mark.parametrize("pairs", [{"DELAY": 18}, {"TIMER_DELAY_SEC": 3 * 86_400}])
def test_what_waits_outlasts_retention(node: WaitingNode, pairs: dict[str, Any]) -> None:
    node.broker.delays.levels.delays_ms = (*node.broker.delays.levels.delays_ms[:17], 3 * 86_400_000)
    node.store._appender.delays_ms = node.broker.delays.levels.delays_ms
    node.later(b"x", **pairs)
    node.send(300)  # five segments, which expire after an hour
    deleted = 0
    for hour in range(70):
        node.send(5, first=1000 + hour)
        deleted += node.retain(1)
    assert deleted >= 4
    assert "00000000000000000000" not in node.segments()
    assert b"x" not in node.bodies()
    again = WaitingNode(node.files.after_process_crash(), node.clock)
    again.broker.delays.levels.delays_ms = node.broker.delays.levels.delays_ms
    again.clock.advance(3 * HOUR_MS)
    again.wait(10_100)
    assert again.bodies().count(b"x") == 1


def test_settings_name_the_levels() -> None:
    with pytest.raises(ValueError, match="delay_levels"):
        TimerConfig(delay_levels="1 2")
    node = WaitingNode(MemoryFileSystem())
    node.broker.delays.levels.delays_ms = delays_of("2s 4s")
    node.store._appender.delays_ms = node.broker.delays.levels.delays_ms
    node.later(b"x", DELAY=7)
    assert node.store.max_offset(SCHEDULE_TOPIC, 1) == 1
    node.wait(3_900)
    assert node.bodies() == []
    node.wait(150)
    assert node.bodies() == [b"x"]


def test_the_queue_names_are_the_cursors() -> None:
    assert queue_of(3) == "SCHEDULE_TOPIC_XXXX/2"


def test_a_plain_message_never_meets_any_of_it(node: WaitingNode) -> None:
    node.send(10)
    assert node.broker.delays.levels.by_number == {}
    assert node.broker.delays.timers.cursor is None
    assert node.store.topics().count(TIMER_TOPIC) == 0
