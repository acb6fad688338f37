"""What a real broker's timercheck and timer log say, and what they become here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.config import BrokerOptions
from gantrymq.broker.delay.timer_search import SEARCHES_MAX
from gantrymq.broker.delay.timers import ODD_STEP, Timers
from gantrymq.broker.rocketmq import config_files as cf
from gantrymq.broker.rocketmq.config_export import EXPORT_MS, ConfigExport, Ends
from gantrymq.broker.rocketmq.timer_takeover import (
    CHECK,
    UNIT,
    TimerCheck,
    TimerTakeover,
    parse_check,
    remove_wheel,
    wheel_units,
)
from gantrymq.model.dialect import read_json
from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.names import SCHEDULE_TOPIC
from gantrymq.net.testing import ManualClock
from gantrymq.store.schedule import TIMER_TOPIC
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import ROOT
from tests.broker.waiting_node import WaitingNode

STORE = ROOT / "store"
CONFIG = STORE / "config"


def put(files: MemoryFileSystem, path: Path, data: bytes) -> None:
    files.make_dirs(path.parent)
    handle = files.open(path, True)
    files.truncate(handle, 0)
    files.pwrite(handle, data, 0)
    files.close(handle)


def unit(at_ms: int, position: int, magic: int = 1, size: int = 99) -> bytes:
    return UNIT.pack(52, -1, magic, at_ms - 700, 700, position, size, 0, 0)


class Life(WaitingNode):
    """A node with its export, as broker_service.py puts them together."""

    def prepare(self) -> None:
        ends = Ends(self.store.topics(), self.store.queues_of, self.store.max_offset)
        self.export.import_rows(self.broker.tables, ends)
        timers = self.export.others_timers
        takeover = TimerTakeover(self.files, STORE, self.store, timers) if timers is not None else None
        self.broker.delays.take_over(self.export.others_levels, takeover)

    def __init__(self, files: Any, clock: Any = None) -> None:
        clock = clock or ManualClock()
        self.export = ConfigExport(files, ROOT, clock)
        self.options = BrokerOptions(on_delays_settled=self.export.delays_changed)
        super().__init__(files, clock)
        self.export.start(self.broker.tables, self.wheel, lambda work: work())
        self.export.keep_delays(self.broker.delays.floors)
        self.wait(EXPORT_MS + 50)

    def stop(self) -> None:
        self.broker.close()
        self.export.finish()
        self.store.close()

    def offsets(self) -> Any:
        return read_json(self.files.snapshot()[CONFIG / cf.DELAYS])["offsetTable"]

    def check(self) -> TimerCheck:
        found = parse_check(self.files.snapshot()[CONFIG / cf.TIMERS])
        assert found is not None
        return found


def positions(node: WaitingNode) -> list[int]:
    return [found[0] for found in node.store.units(TIMER_TOPIC, 0, 0, 1000)]


def left_by_another(node: Life) -> MemoryFileSystem:
    """Stopped; nothing of ours says what was delivered any more."""
    node.stop()
    return node.files  # type: ignore[no-any-return]


def test_the_layouts() -> None:
    assert (CHECK.size, UNIT.size) == (56, 52)
    check = TimerCheck(1, 2, 3, 4, 5, 6, 7)
    assert parse_check(check.to_bytes()) == check
    assert len(check.to_bytes()) == 4096
    assert parse_check(check.to_bytes()[:32]) == TimerCheck(1, 2, 3, 4)
    assert parse_check(b"") is None


def test_a_timer_log_is_read_to_its_end() -> None:
    files = MemoryFileSystem()
    first, second = STORE / "timerlog" / ("0" * 20), STORE / "timerlog" / ("0" * 18 + "52")
    put(files, first, unit(5_000, 10) + unit(6_000, 20, 3) + bytes(UNIT.size))
    put(files, second, unit(7_000, 30) + b"\x00\x00\x00\x08\xbb" + bytes(60))
    put(files, STORE / "timerlog" / "notes", unit(1, 1))
    assert [found[:3] for found in wheel_units(files, STORE)] == [(5_000, 1, 10), (6_000, 3, 20), (7_000, 1, 30)]
    remove_wheel(files, STORE)
    assert files.list_dir(STORE / "timerlog") == []


def test_what_stands_on_the_wheel_is_owed_and_nothing_else() -> None:
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    for number in range(6):
        node.later(b"%d" % number, TIMER_DELIVER_MS=start + 100_000 + number * 2_000)
    where = positions(node)
    files = left_by_another(node)
    # 0 was delivered, 1 stands on the wheel, 2 was rolled from an earlier time that has passed, 3 stands there as rolled;
    # 4 and 5 were not read yet.
    read_ms = start + 50_000
    log = [
        unit(read_ms - 1_000, where[0]),
        unit(start + 101_000, where[1]),
        unit(read_ms - 5_000, where[2], 3),
        unit(read_ms, where[3], 3),
    ]
    put(files, STORE / "timerlog" / ("0" * 20), b"".join(log))
    put(files, STORE / "timerwheel", bytes(100))
    put(files, CONFIG / cf.TIMERS, TimerCheck(read_ms, 208, 4, 4).to_bytes())
    again = Life(files, node.clock)
    assert again.broker.delays.timers.pending() == 4
    assert again.check().queue_offset == 1
    assert again.files.list_dir(STORE / "timerlog") == []  # they would fire again if a real broker came back
    assert not again.files.exists(STORE / "timerwheel")
    again.wait(200_000)
    assert again.bodies() == [b"1", b"3", b"4", b"5"]
    third = Life(left_by_another(again), node.clock)
    third.wait(20_000)
    assert third.bodies() == [b"1", b"3", b"4", b"5"]


def test_without_a_timer_log_the_records_tell() -> None:
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    for number in range(3):
        node.later(b"%d" % number, TIMER_DELIVER_MS=start + 100_000 + number * 2_000)
    files = left_by_another(node)
    put(files, CONFIG / cf.TIMERS, TimerCheck(start + 101_000, 52, 3, 3).to_bytes())
    again = Life(files, node.clock)
    again.wait(200_000)
    assert again.bodies() == [b"1", b"2"]


def test_an_order_to_recall_on_the_wheel_is_carried_out() -> None:
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    node.later(b"x", TIMER_DELIVER_MS=start + 100_500)
    node.later(b"y", TIMER_DELIVER_MS=start + 100_500)
    node.broker.delays.timers.known = lambda *arguments: []  # type: ignore[method-assign]
    node.later(b"0", TIMER_DELIVER_MS=start + 100_001, TIMER_DEL_UNIQKEY="t+Ux", UNIQ_KEY="Ux")
    where = positions(node)
    files = node.files.after_process_crash()  # a clean stop would append them again
    log = [unit(start + 100_000, where[0]), unit(start + 100_000, where[1]), unit(start + 100_000, where[2], 5)]
    put(files, STORE / "timerlog" / ("0" * 20), b"".join(log))
    put(files, CONFIG / cf.TIMERS, TimerCheck(start, 156, 3, 3).to_bytes())
    again = Life(files, node.clock)
    again.wait(101_000)
    assert again.bodies() == [b"y"]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("between", [0, ODD_STEP + 1])
def test_an_order_to_recall_counts_though_its_message_became_due_meanwhile(
    between: int, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other broker had taken it in time; ours looks at all that it left before it delivers the first."""
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    node.later(b"x", TIMER_DELIVER_MS=start + 100_500)
    node.later(b"y", TIMER_DELIVER_MS=start + 100_500)
    for _ in range(between):
        node.later(b"between", TIMER_DELIVER_MS=start + 100_500)
    node.broker.delays.timers.known = lambda *arguments: []  # type: ignore[method-assign]
    node.later(b"0", TIMER_DELIVER_MS=start + 100_001, TIMER_DEL_UNIQKEY="t+Ux", UNIQ_KEY="Ux")
    files = node.files.after_process_crash()
    if not indexed:
        monkeypatch.setattr(Timers, "known", lambda *arguments: None)
    put(files, CONFIG / cf.TIMERS, TimerCheck(start, 0, 0, 0).to_bytes())
    node.clock.advance(200_000)
    again = Life(files, node.clock)
    again.wait(5_000)
    assert sorted(again.bodies()) == [b"between"] * between + [b"y"]


def test_more_orders_than_searches_are_all_carried_out_before_anything_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    count = SEARCHES_MAX + 6
    for number in range(count):
        node.later(b"%d" % number, TIMER_DELIVER_MS=start + 100_500)
    node.later(b"y", TIMER_DELIVER_MS=start + 100_500)
    node.broker.delays.timers.known = lambda *arguments: []  # type: ignore[method-assign]
    for number in range(count):
        key = f"U{number}"
        node.later(b"0", TIMER_DELIVER_MS=start + 100_001, TIMER_DEL_UNIQKEY=f"t+{key}", UNIQ_KEY=key)
    files = node.files.after_process_crash()
    monkeypatch.setattr(Timers, "known", lambda *arguments: None)
    put(files, CONFIG / cf.TIMERS, TimerCheck(start, 0, 0, 0).to_bytes())
    node.clock.advance(200_000)
    again = Life(files, node.clock)
    again.wait(20_000)
    assert again.bodies() == [b"y"]


def test_levels_go_on_where_delay_offsets_say() -> None:
    node = Life(MemoryFileSystem())
    for number in range(4):
        node.later(b"%d" % number, DELAY=3)
    node.later(b"l1", DELAY=1)
    files = left_by_another(node)
    put(files, CONFIG / cf.DELAYS, b'{"dataVersion":{"counter":9},"offsetTable":{3:2\n\t}}')
    again = Life(files, node.clock)
    again.wait(20_000)
    assert again.bodies() == [b"l1", b"2", b"3"]  # of level 1 that broker had delivered nothing
    assert again.offsets() == {"1": 1, "3": 4}


def test_offsets_beyond_the_queue_mean_all_is_delivered() -> None:
    node = Life(MemoryFileSystem())
    node.later(b"x", DELAY=3)
    files = left_by_another(node)
    put(files, CONFIG / cf.DELAYS, b'{"offsetTable":{3:99}}')
    again = Life(files, node.clock)
    again.wait(20_000)
    again.later(b"y", DELAY=3)
    again.wait(11_000)
    assert again.bodies() == [b"y"]


def test_a_file_of_delay_offsets_that_means_nothing_is_refused() -> None:
    node = Life(MemoryFileSystem())
    files = left_by_another(node)
    put(files, CONFIG / cf.DELAYS, b'{"offsetTable":{"x":1}}')
    with pytest.raises(StoreCorruptError, match=r"delayOffset\.json"):
        Life(files, node.clock)


def test_what_was_delivered_is_exported_within_a_second() -> None:
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    assert node.offsets() == {}
    node.later(b"a", DELAY=1)
    node.later(b"b", DELAY=2)
    node.later(b"c", TIMER_DELIVER_MS=start + 1_500)
    node.wait(3_000)
    assert node.offsets() == {"1": 1, "2": 0}
    assert node.check().queue_offset == node.check().master_offset == 1
    assert node.check().read_ms <= node.clock.now_ms()
    assert node.check().counter > 0


def test_our_own_files_are_not_taken_for_anothers() -> None:
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    node.later(b"far", TIMER_DELIVER_MS=start + 900_000)
    node.later(b"near", TIMER_DELIVER_MS=start + 2_000)
    node.later(b"l2", DELAY=2)
    node.wait(3_000)
    again = Life(node.files.after_process_crash(), node.clock)
    assert again.export.others_timers is None
    assert again.export.others_levels is None
    again.wait(5_000)
    assert again.bodies() == [b"near", b"l2"]


def test_a_clean_stop_leaves_nothing_that_another_would_repeat() -> None:
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    node.later(b"far", TIMER_DELIVER_MS=start + 900_000, KEYS="k")
    node.later(b"near", TIMER_DELIVER_MS=start + 2_000)
    node.later(b"later", TIMER_DELIVER_MS=start + 800_000)
    node.wait(3_000)
    assert node.check().queue_offset == 0  # after a kill it would fire `near` again: at least once
    node.stop()
    assert node.check().queue_offset == 2
    again = Life(node.files, node.clock)
    rolled = again.records(TIMER_TOPIC)[-1]
    assert (rolled.body, rolled.property("TIMER_ROLL_TIMES"), rolled.property("KEYS")) == (b"far", "1", "k")
    assert rolled.property("REAL_TOPIC") == "t"
    assert again.broker.delays.timers.pending() == 2
    again.wait(900_000 - 5_000)
    assert again.bodies() == [b"near", b"later"]
    again.wait(3_000)
    assert again.bodies() == [b"near", b"later", b"far"]


def test_too_many_are_left_where_they_are(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("gantrymq.broker.delay.timers.ROLL_AT_STOP_MAX", 2)
    node = Life(MemoryFileSystem())
    start = node.clock.now_ms()
    for number in range(3):
        node.later(b"%d" % number, TIMER_DELIVER_MS=start + 900_000)
    node.later(b"near", TIMER_DELIVER_MS=start + 2_000)
    node.wait(3_000)
    node.stop()
    assert node.check().queue_offset == 0
    assert "up to 1 messages again" in caplog.text
    assert SCHEDULE_TOPIC not in Life(node.files, node.clock).store.topics()
