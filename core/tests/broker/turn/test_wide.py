"""A record with more queues than a turn fills is dispatched over several: order, answers and phases are as if it had been one."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from gantrymq.broker.port import EARLIEST, Route
from gantrymq.broker.turn import submitted
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, full_disk
from tests.broker.turn.test_submitted import Sender

QUEUES = 30
WIDE_ABOVE = 8
SHARE = 5


class WideNode(Node):
    """Topic `wide` goes to thirty light queues, `last` and `first` to one of them, `alone` to one of its own."""

    def prepare(self) -> None:
        self.broker._wide.above = WIDE_ABOVE

    def routes_made(self) -> list[int]:
        lights = [self.call("create_light") for _ in range(QUEUES + 1)]
        for number, light in enumerate(lights[:QUEUES]):
            self.call("add_route", Route(f"r{number}", "prefix", "wide", "", light))
        for topic, light in (("first", lights[0]), ("last", lights[QUEUES - 1]), ("alone", lights[QUEUES])):
            self.call("add_route", Route(topic, "prefix", topic, "", light))
        return lights

    def having(self, lights: list[int]) -> list[int]:
        """How many entries each queue has."""
        return [self.store.light_visible_end(light) for light in lights]

    def bodies(self, light: int) -> list[bytes]:
        return [self.store.get(position).body for position, _, _ in self.store.light_units(light, 0, 1000)]


@pytest.fixture
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted, "ENTRIES_PER_TURN", 40)
    monkeypatch.setattr(submitted, "WHOLE_ENTRIES_MAX", 40)
    monkeypatch.setattr(submitted, "ENTRIES_PER_SHARE", SHARE)


@pytest.fixture
def node(small_turns: None) -> WideNode:
    return WideNode(MemoryFileSystem(), sync=False)


def test_its_queues_get_it_over_several_turns_and_it_is_answered_after_the_last(node: WideNode) -> None:
    lights = node.routes_made()[:QUEUES]
    sender, other = Sender(node, "wide"), Sender(node, "alone")
    sender.send(b"w")
    seen = []
    while not sender.results:
        other.send(b"o%d" % len(seen))
        node.turn.run()
        seen.append(sum(node.having(lights)))
        assert len(other.results) == len(seen), "nobody else waits"
    assert node.store.max_offset("wide", 0) == 1
    assert seen[0] == 0, "the turn that writes it fills no queue"
    assert max(after - before for before, after in pairwise(seen)) <= SHARE
    assert seen[-1] == QUEUES
    assert seen[-2] < QUEUES, "answered in the turn in which the last queue got it"
    assert sender.results == [(0, [0])]
    assert node.store.dispatched_position == node.store.written_position
    assert {tuple(node.bodies(light)) for light in lights} == {(b"w",)}


def test_what_goes_to_a_queue_that_has_not_got_it_waits_and_stands_behind_it(node: WideNode) -> None:
    lights = node.routes_made()
    wide, last, first = Sender(node, "wide"), Sender(node, "last"), Sender(node, "first")
    wide.send(b"w")
    node.turn.run()
    node.turn.run()
    assert 0 < sum(node.having(lights)) < QUEUES
    last.send(b"behind")
    first.send(b"its queue has it")
    node.turn.run()
    assert first.results
    assert not last.results
    node.turn.run_until_quiet()
    assert last.results
    assert node.bodies(lights[QUEUES - 1]) == [b"w", b"behind"]
    assert node.bodies(lights[0]) == [b"w", b"its queue has it"]


def test_batches_of_its_sender_stay_in_order_and_wide_records_follow_one_another(node: WideNode) -> None:
    lights = node.routes_made()[:QUEUES]
    senders = [Sender(node, "wide"), Sender(node, "wide")]
    for step in range(3):
        for number, sender in enumerate(senders):
            sender.send(b"%d.%d" % (number, step), b"%d.%d+" % (number, step))
    node.turn.run_until_quiet()
    for number, sender in enumerate(senders):
        assert [token for token, _ in sender.results] == [0, 1, 2]
        stored = [body for body in node.bodies(lights[0]) if body.startswith(b"%d." % number)]
        assert stored == [message.body for message in sender.sent]
    assert len({tuple(node.bodies(light)) for light in lights}) == 1


def in_one_piece(node: WideNode, batch: list[Message], box: list[Any]) -> None:
    node.broker.submit(batch, None, lambda token, results: box.append(results), object(), whole=True)


def with_rows(node: WideNode, batch: list[Message], box: list[Any]) -> None:
    rows = [("mine", "key", b"value")]
    node.broker.submit_with(batch, None, lambda token, results: box.append(results), object(), (), rows)


@pytest.mark.parametrize("submit", [in_one_piece, with_rows])
def test_a_batch_in_one_piece_does_not_wait_for_it_and_stands_behind_it_nevertheless(
    node: WideNode, submit: Any
) -> None:
    lights = node.routes_made()
    wide = Sender(node, "wide")
    woken: list[int] = []
    cursor = node.call("open_cursor", f"~{lights[QUEUES - 1]}", "g", EARLIEST).cursor
    node.port.watch(cursor, lambda number: woken.append(number))
    node.turn.run_until_quiet()
    wide.send(b"w")
    node.turn.run()
    box: list[Any] = []
    submit(
        node, [Message("alone", b"0", queue_id=0), *[Message("last", body, queue_id=0) for body in (b"1", b"2")]], box
    )
    node.turn.run()
    assert box == [[0, 0, 1]]
    assert node.bodies(lights[QUEUES - 1]) == [b"w", b"1", b"2"]
    assert node.having(lights[: QUEUES - 1]) == [1] * (QUEUES - 1)
    node.turn.run_until_quiet()
    assert wide.results == [(0, [0])]
    assert woken == [cursor]


def test_a_queue_that_is_deleted_meanwhile_does_not_come_back(node: WideNode) -> None:
    lights = node.routes_made()
    wide = Sender(node, "wide")
    wide.send(b"w")
    node.turn.run()
    gone = lights[QUEUES - 1]
    node.port.delete_light(gone, None, lambda token, result: None)
    node.turn.run_until_quiet()
    assert wide.results == [(0, [0])]
    assert gone not in node.store.light_ids()
    assert sum(node.having(lights)) == QUEUES - 1


@pytest.mark.parametrize("turns", range(1, 9))
def test_a_turn_that_fails_leaves_nobody_unanswered_and_no_queue_without_it(node: WideNode, turns: int) -> None:
    lights = node.routes_made()[:QUEUES]
    wide, other = Sender(node, "wide"), Sender(node, "alone")
    with full_disk(node.files) if turns == 1 else full_disk(MemoryFileSystem()):
        wide.send(b"w")
        node.turn.run()
    for _ in range(turns - 1):
        node.turn.run()
    with full_disk(node.files):
        other.send(b"refused")
        node.turn.run()
    assert other.results == [(0, [ErrorCode.STORE_FULL])]
    stored = node.store.max_offset("wide", 0)
    assert stored == (turns > 1)
    assert node.having(lights) == [stored] * QUEUES
    assert len(wide.results) == 1
    wide.send(b"again")
    node.turn.run_until_quiet()
    assert node.having(lights) == [stored + 1] * QUEUES


def test_one_that_fits_no_record_is_refused_and_the_next_one_is_not(node: WideNode) -> None:
    lights = node.routes_made()[:QUEUES]
    wide = Sender(node, "wide")
    box: list[Any] = []
    batch = [
        Message("wide", b"1", queue_id=0),
        Message("wide", b"2", queue_id=0),
        Message("wide", b"3", queue_id=0),
    ]
    batch[1].flag = 1 << 40
    node.port.submit(batch, None, lambda token, results: box.append(results), wide)
    node.turn.run_until_quiet()
    assert box == [[0, ErrorCode.MESSAGE_ILLEGAL, 1]]
    assert {tuple(node.bodies(light)) for light in lights} == {(b"1", b"3")}


def test_a_stop_while_it_is_under_way_gives_it_to_all_its_queues(node: WideNode) -> None:
    lights = node.routes_made()[:QUEUES]
    wide = Sender(node, "wide")
    wide.send(b"w")
    node.turn.run()
    node.turn.run()
    node.stop()
    assert len(wide.results) == 1
    again = WideNode(node.files, sync=False)
    assert again.report.clean
    assert again.having(lights) == [1] * QUEUES


def test_with_synchronous_flush_its_answer_waits_for_the_disk_too(small_turns: None) -> None:
    node = WideNode(MemoryFileSystem(), sync=True)
    node.routes_made()
    wide = Sender(node, "wide")
    wide.send(b"w")
    node.turn.run_until_quiet()
    assert not wide.results
    node.flush()
    assert wide.results == [(0, [0])]


@pytest.mark.parametrize("seed", range(12))
def test_every_queue_is_in_the_order_of_the_log_whatever_comes_between_and_through_a_crash(
    small_turns: None, seed: int
) -> None:
    random = Random(seed)
    node = WideNode(MemoryFileSystem(), sync=bool(seed % 2))
    lights = node.routes_made()
    senders = [Sender(node, topic) for topic in ("wide", "wide", "first", "last", "alone")]
    for step in range(random.randrange(20, 60)):
        sender = random.choice(senders)
        if random.random() < 0.1:
            node.broker.submit([Message(sender.topic, b"x%d" % step, queue_id=0) for _ in range(2)], None,
                               lambda token, results: None, object(), whole=True)  # fmt: skip
        else:
            sender.send(*[b"%d" % step for _ in range(random.randrange(1, 4))])
        for _ in range(random.randrange(3)):
            node.turn.run()
        if random.random() < 0.2:
            node.store.run_background(1000)
        if random.random() < 0.05:
            node.background()
    if random.random() < 0.3:
        node.turn.run_until_quiet()
    node.store.flush()
    written = node.store.written_position
    again = WideNode(node.files.after_process_crash(), sync=False)
    assert again.store.written_position >= written
    counts = {topic: again.store.max_offset(topic, 0) for topic in ("wide", "first", "last", "alone")}
    expected = [counts["wide"]] * QUEUES + [counts["alone"]]
    expected[0] += counts["first"]
    expected[QUEUES - 1] += counts["last"]
    assert again.having(lights) == expected
    for light in lights:
        positions = [position for position, _, _ in again.store.light_units(light, 0, 1000)]
        assert positions == sorted(set(positions))
    for light in lights[1 : QUEUES - 1]:
        assert again.store.light_units(light, 0, 1000) == again.store.light_units(lights[1], 0, 1000)
