"""Timers in the long run: rolling, entries that are done already, cold records, a real broker's units, moved records."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.broker import Broker
from gantrymq.broker.delay import timer_search
from gantrymq.broker.delay import timers as module
from gantrymq.broker.delay.timer_slots import SCAN_STEP
from gantrymq.broker.delay.timers import UNITS_STEP
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.store.checkpoints.snapshot_file import SnapshotFiles
from gantrymq.store.schedule import TIMER_TOPIC
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import ROOT, recall
from tests.broker.waiting_node import WaitingNode

HOUR_MS = 3_600_000


@pytest.fixture
def node() -> WaitingNode:
    return WaitingNode(MemoryFileSystem())


def window_of(node: WaitingNode) -> tuple[int, int]:
    cursor = node.broker.delays.timers.cursor
    assert cursor is not None
    return cursor.window.floor, cursor.window.next_offset


def test_the_oldest_are_appended_again_before_the_window_grows_long(
    node: WaitingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPAN_MIN", 100)
    node.later(b"far", TIMER_DELAY_MS=HOUR_MS, KEYS="k", own="1")
    for number in range(150):
        node.later(b"%d" % number, TIMER_DELAY_MS=500)
    node.wait(1_000)
    floor, following = window_of(node)
    assert following - floor <= 1
    assert floor >= 150
    assert node.broker.delays.timers.pending() == 1
    again = node.reborn()
    again.wait(HOUR_MS - 10_000)
    assert b"far" not in again.bodies()
    again.wait(11_000)
    (far,) = [message for message in again.records() if message.body == b"far"]
    assert (far.property("KEYS"), far.property("own"), far.property("TIMER_ROLL_TIMES")) == ("k", "1", "1")


def test_a_rolled_message_can_be_recalled(node: WaitingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPAN_MIN", 100)
    _, message = node.send_later(b"far", TIMER_DELAY_MS=HOUR_MS)
    for number in range(150):
        node.later(b"%d" % number, TIMER_DELAY_MS=500)
    node.wait(1_000)
    answers: list[object] = []
    at_ms = int(message.property("TIMER_OUT_MS")) + 1
    recall(node, "t", "Ufar", at_ms, "g", message.born_host, answers.append)
    node.turn.run_until_quiet()
    assert answers == [True]
    node.wait(HOUR_MS)
    assert b"far" not in node.bodies()


def test_a_second_recall_does_not_search_the_slots(node: WaitingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    _, message = node.send_later(b"x", TIMER_DELAY_MS=HOUR_MS)
    at_ms = int(message.property("TIMER_OUT_MS")) + 1
    answers: list[object] = []
    monkeypatch.setattr(node.broker.delays.timers._slots, "around", None)  # millions may lie in them
    for _ in range(2):
        recall(node, "t", "Ux", at_ms, "g", message.born_host, answers.append)
        node.turn.run_until_quiet()
    assert answers == [True, False]


def without_index(node: WaitingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index files that knew the messages are gone."""
    monkeypatch.setattr(node.store, "query", lambda *arguments: [])


def test_a_recall_that_the_index_knows_nothing_of_searches_in_slices(
    node: WaitingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5 * SCAN_STEP
    _, message = node.send_later(b"x", TIMER_DELAY_MS=HOUR_MS)
    slots = node.broker.delays.timers._slots
    at_ms = node.clock.now_ms() + HOUR_MS
    for offset in range(count):  # of the same quarter of an hour; none of them is in the queue
        slots.add(at_ms + 2_000 + offset % 500, 1_000_000 + offset)
    without_index(node, monkeypatch)
    out_ms = int(message.property("TIMER_OUT_MS")) + 1
    answers: list[object] = []
    recall(node, "t", "Uy", out_ms, "g", message.born_host, answers.append)
    assert node.turn.run_until_quiet() >= count // SCAN_STEP
    assert answers == [False]
    recall(node, "t", "Ux", out_ms, "g", message.born_host, answers.append)
    assert answers == [False], "it is looked for in later turns"
    node.turn.run_until_quiet()
    assert answers == [False, True]
    assert node.broker.delays.timers.pending() == count


def test_a_search_reads_few_records_in_a_slice_and_waits_for_cold_ones(
    node: WaitingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * timer_search.READ_STEP
    messages = [node.send_later(b"%d" % number, TIMER_DELAY_MS=HOUR_MS)[1] for number in range(count)]
    without_index(node, monkeypatch)
    read: list[int] = []
    real = node.store.get_many

    def get_many(refs: Any) -> Any:
        read.append(len(refs))
        return real(refs)

    monkeypatch.setattr(node.store, "get_many", get_many)
    answers: list[object] = []
    out_ms = int(messages[-1].property("TIMER_OUT_MS")) + 1
    recall(node, "t", f"U{count - 1}", out_ms, "g", messages[-1].born_host, answers.append)
    node.turn.run_until_quiet()
    assert answers == [True]
    assert max(read) <= timer_search.READ_STEP
    assert sum(read) >= count


def test_only_so_many_recalls_wait_for_their_search(node: WaitingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    _, message = node.send_later(b"x", TIMER_DELAY_MS=HOUR_MS)
    without_index(node, monkeypatch)
    answers: list[object] = []
    out_ms = int(message.property("TIMER_OUT_MS")) + 1
    for _ in range(timer_search.SEARCHES_MAX + 1):
        recall(node, "t", "Uy", out_ms, "g", message.born_host, answers.append)
    assert answers == [ErrorCode.BUSY]
    node.turn.run_until_quiet()
    assert answers == [ErrorCode.BUSY] + [False] * timer_search.SEARCHES_MAX


def test_an_order_from_before_the_start_is_carried_out_though_the_index_is_gone(
    node: WaitingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, message = node.send_later(b"x", TIMER_DELAY_MS=HOUR_MS)
    without_index(node, monkeypatch)
    at_ms = int(message.property("TIMER_OUT_MS")) + 1
    node.later(b"0", UNIQ_KEY="Ux", TIMER_DEL_UNIQKEY="t+Ux", TIMER_DELIVER_MS=at_ms)
    node.turn.run_until_quiet()
    assert node.broker.delays.timers.pending() == 0
    node.wait(HOUR_MS + 1_000)
    assert node.bodies() == []


def test_a_message_that_is_recalled_while_it_is_rolled_does_not_come(
    node: WaitingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPAN_MIN", 100)
    _, message = node.send_later(b"far", TIMER_DELAY_MS=HOUR_MS)
    timers = node.broker.delays.timers
    answers: list[object] = []
    at_ms = int(message.property("TIMER_OUT_MS")) + 1
    real = timers._roll_done

    def between(offsets: list[int], results: Any) -> None:
        """The copy is in the log, and nobody knows it yet."""
        node.broker.delays.timers.recall(offsets, 10_000)
        answers.append(offsets)
        real(offsets, results)

    monkeypatch.setattr(timers, "_roll_done", between)
    for number in range(150):
        node.later(b"%d" % number, TIMER_DELAY_MS=500)
    node.wait(1_000)
    assert answers, "nothing was rolled"
    assert timers.pending() == 0
    recall(node, "t", "Ufar", at_ms, "g", message.born_host, answers.append)
    node.turn.run_until_quiet()
    assert answers[-1] is False
    node.wait(HOUR_MS)
    assert b"far" not in node.bodies()


def test_recalled_entries_do_not_stay_in_the_slots(node: WaitingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPAN_MIN", 20)
    timers = node.broker.delays.timers
    for number in range(40):
        _, message = node.send_later(b"%d" % number, TIMER_DELAY_MS=HOUR_MS)
        at_ms = int(message.property("TIMER_OUT_MS")) + 1
        recall(node, "t", f"U{number}", at_ms, "g", message.born_host, lambda result: None)
        node.turn.run_until_quiet()
        assert timers.pending() == 0
        assert timers._slots.count <= 22
    node.wait(HOUR_MS + 1_000)
    assert node.bodies() == []


def test_a_start_reads_the_queue_in_slices() -> None:
    node = WaitingNode(MemoryFileSystem())
    for first in range(0, 3 * UNITS_STEP, 500):
        batch = []
        for number in range(first, first + 500):
            message = Message("t", b"", b"TIMER_DELAY_MS\x01%d\x02" % (HOUR_MS + number), "", (), 0)
            message.kind = 1
            batch.append(message)
        node.call("submit", batch)
    node.stop()
    again = WaitingNode.__new__(WaitingNode)
    steps: list[int] = []
    original = module.Timers._read

    def counted(timers: module.Timers) -> bool:
        before = timers._seen
        more = original(timers)
        steps.append(timers._seen - before)
        return more

    module.Timers._read = counted  # type: ignore[method-assign]
    try:
        again.__init__(node.files, node.clock)  # type: ignore[misc]
    finally:
        module.Timers._read = original  # type: ignore[method-assign]
    assert max(steps) == UNITS_STEP
    assert sum(steps) == 3 * UNITS_STEP == again.broker.delays.timers._slots.count


def test_cold_records_are_fetched_and_nothing_is_lost() -> None:
    node = WaitingNode(MemoryFileSystem())
    bodies = {b"%d" % number for number in range(30)}
    for body in bodies:
        node.later(body, TIMER_DELAY_MS=5_000)
    for body in (b"l1", b"l2", b"l3"):
        node.later(body, DELAY=3)
    node.send(200, topic="other")
    node.stop()
    again = WaitingNode(node.files, node.clock)
    node.files.is_cold = lambda path, at: "commitlog" in str(path) or "consumequeue" in str(path)
    cold = again.read_cold()
    fetched = 0
    for _ in range(400):
        again.wait(50)
        while cold.queued:
            callback, value = again.posted.get(timeout=30)
            callback(value)
            again.turn.run_until_quiet()
            fetched += 1
    assert fetched > 0
    node.files.is_cold = lambda path, at: False
    again.store.read_without_waiting(None)
    cold.stop()
    assert sorted(again.bodies()) == sorted([*bodies, b"l1", b"l2", b"l3"])
    assert [body for body in again.bodies() if body.startswith(b"l")] == [b"l1", b"l2", b"l3"]


def test_units_with_a_real_brokers_hashes_are_asked_for_their_time() -> None:
    node = WaitingNode(MemoryFileSystem())
    for number in range(100):
        node.later(b"%d" % number, TIMER_DELAY_MS=5_000 + number, TAGS="a")
    node.stop()
    again = WaitingNode(node.files, node.clock)
    timers = again.broker.delays.timers
    units = again.store.units

    def hashed(topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        found = units(topic, queue_id, offset, count)
        return [(position, size, 97) for position, size, _ in found] if topic == TIMER_TOPIC else found

    again.store.units = hashed  # type: ignore[method-assign]
    timers._rebuild()
    again.turn.run_until_quiet()
    assert timers.pending() == 100
    again.wait(4_900)
    assert again.bodies() == []
    again.wait(250)
    assert again.bodies() == [b"%d" % number for number in range(100)]


def test_what_is_on_its_way_is_not_fired_again_when_the_slots_are_filled_anew() -> None:
    node = WaitingNode(MemoryFileSystem())
    node.broker.gate.set_open(False)
    node.broker.topics.strict = True
    message = Message("t", b"x", b"TIMER_DELAY_MS\x012000\x02", "", (), 0)
    message.kind = 1
    node.start("submit", [message])
    node.flush()
    node.wait(2_100)
    timers = node.broker.delays.timers
    assert len(timers._inflight) == 1
    timers._rebuild()
    node.turn.run_until_quiet()
    node.wait(2_000)
    node.flush()
    assert node.bodies() == [b"x"]
    assert timers.pending() == 0


def test_a_snapshot_holds_what_was_delivered_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Broker.open

    def opened(broker: Broker, *arguments: Any) -> None:
        broker.keep_snapshots(SnapshotFiles(broker.store.files, ROOT / "gantry" / "snapshots"))
        original(broker, *arguments)

    monkeypatch.setattr(Broker, "open", opened)
    node = WaitingNode(MemoryFileSystem())
    for number in range(300):
        node.later(b"%d" % number, TIMER_DELAY_MS=20_000 if number % 3 else 1_000)
    node.wait(2_000)
    assert len(node.bodies()) == 100
    assert node.broker.snapshots is not None
    node.broker.snapshots.write_now()
    node.later(b"behind it", TIMER_DELAY_MS=1_000)
    node.wait(1_500)
    again = node.reborn(clean=False)
    cursor = again.broker.delays.timers.cursor
    assert cursor is not None
    assert cursor.window.returned == []  # a million pending ones make no list
    assert again.broker.delays.timers.pending() == 200
    again.wait(20_000)
    assert len(again.bodies()) == len(set(again.bodies())) == 301
