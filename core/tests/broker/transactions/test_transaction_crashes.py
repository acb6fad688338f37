"""Invariant I8 through power losses at any write and kills at any moment: a half message is never visible before its commit, becomes
visible at most once, and keeps the fate that the log has once given it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gantrymq.broker.transactions.half_messages import HALF_TOPIC
from gantrymq.model.errors import GantryError
from gantrymq.model.message import HALF, Message
from tests.broker.node import Node
from tests.broker.node import decide as decide_on
from tests.store.crash_states import CrashFiles, cut_everywhere, lies_found

COMMIT, ROLLBACK = True, False


def visible(node: Node) -> list[bytes]:
    units = node.store.units("orders", 0, 0, 10_000)
    return [message.body for message in node.store.get_many([unit[:2] for unit in units]) if message is not None]


def send_half(node: Node, body: bytes, lot: random.Random) -> tuple[Message, list[Any]]:
    unique = f"u{body.decode()}"
    text = f"TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01{unique}\x02"
    message = Message("orders", body * lot.randrange(1, 400), text.encode(), "", (unique,), 0)
    message.body = body + b"." * lot.randrange(300)
    message.kind = HALF
    return message, node.start("submit", [message])


def decide(node: Node, offset: int, position: int, fate: bool) -> list[Any]:
    """The answers, possibly later; a refusal is one."""
    box: list[Any] = []
    try:
        decide_on(node, "g", offset, position, fate, True, None, lambda token, result: box.append(result))
    except GantryError as error:
        box.append(error)
    node.turn.run_until_quiet()
    return box


class Story:
    """Sends half messages and decides on them, some of them twice and differently, some in one turn with others."""

    def __init__(self, files: CrashFiles, sync: bool, seed: int, steps: int) -> None:
        self.files = files
        self.steps = steps
        self.sync = sync
        self.lot = random.Random(seed)
        self.asked: dict[bytes, set[bool]] = {}
        """Fates that were asked for."""
        self.promised: dict[bytes, bool] = {}
        """Fates whose answer waited for the flush."""
        self.kept: set[bytes] = set()
        """Half messages that were acknowledged as flushed."""

    def settle(self, halves: list[tuple[bytes, list[Any]]], fates: list[tuple[bytes, bool, list[Any]]]) -> None:
        for body, box in halves:
            if box and isinstance(box[0][0], int):
                self.kept.add(body)
        for body, fate, box in fates:
            if box and box[0] is None:
                self.promised[body] = fate

    def run(self) -> None:
        lot = self.lot
        node = Node(self.files, self.sync)
        node.call("ensure_topic", "orders", True)
        open_: list[Message] = []
        for step in range(self.steps):
            sent, fates = [], []
            for number in range(lot.randrange(1, 4)):
                message, box = send_half(node, b"%d-%d" % (step, number), lot)
                sent.append((message.body, box))
                open_.append(message)
                self.asked[message.body] = set()
            for _ in range(lot.randrange(4)):
                message = lot.choice(open_)
                fate = lot.random() < 0.6
                self.asked[message.body].add(fate)
                fates.append((message.body, fate, decide(node, message.queue_offset, message.physical_offset, fate)))
            if lot.random() < 0.5:
                node.flush()
                self.settle(sent, fates)
            if lot.random() < 0.2:
                node.background()
            if lot.random() < 0.1:
                node.wheel.advance(31_000)

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        """Raises AssertionError for anything that I8 forbids."""
        node = Node(files, self.sync)
        seen = visible(node)
        assert len(seen) == len(set(seen)), "visible twice"
        for body in seen:
            assert COMMIT in self.asked[body], f"{body!r} is visible, nobody committed it"
            assert self.promised.get(body, COMMIT) is COMMIT, f"{body!r} was rolled back"
        offered = {half.unique: half for half, _ in node.broker.transactions.undecided(0, 1000)[0]}
        for body, fate in self.promised.items():
            assert b"u" + body.partition(b".")[0] not in {unique.encode() for unique in offered}, (
                f"{body!r} is undecided again"
            )
            assert (body in seen) is fate
        for body in self.kept - self.promised.keys():
            if ROLLBACK not in self.asked[body]:
                assert body in seen or "u" + body.partition(b".")[0].decode() in offered, f"{body!r} is lost"
        assert len(offered) == node.broker.transactions.pending
        expected = {body.partition(b".")[0] for body in seen}
        for unit_offset in range(node.store.max_offset(HALF_TOPIC, 0)):
            found = node.broker.transactions.read(unit_offset)
            assert found is not None
            message, position = found
            name = message.body.partition(b".")[0]
            fate = lot.random() < 0.5
            box = decide(node, unit_offset, position, fate)
            if message.property("UNIQ_KEY") in offered and fate:
                expected.add(name)
            node.flush()
            assert box, "no answer"
        assert {body.partition(b".")[0] for body in visible(node)} == expected
        assert len(visible(node)) == len(expected)
        again = Node(node.files.after_process_crash(), self.sync)
        assert sorted(visible(again)) == sorted(visible(node))
        assert again.broker.transactions.pending == 0
        assert again.broker.transactions.undecided(0, 1000)[0] == []


@pytest.mark.parametrize("sync", [False, True])
def test_one_fate_through_a_power_loss(sync: bool) -> None:
    cut_everywhere(lambda files: Story(files, sync, 1, 10), 1, 7)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("seed", [2, 3])
def test_one_fate_whatever_the_moment(seed: int, sync: bool) -> None:
    """Every third write; the two seeds begin at different ones."""
    cut_everywhere(lambda files: Story(files, sync, seed, 25), seed, 3)


def test_a_disk_that_lies_is_found_out() -> None:
    assert lies_found(lambda files: Story(files, True, 5, 10), 5, 3) > 3


@pytest.mark.parametrize("seed", range(6))
def test_a_decision_that_was_cut_between_any_two_bytes(seed: int) -> None:
    """The log ends at any byte of the batch that holds a commit and its notes, and a rollback beside it."""
    lot = random.Random(seed)
    files = CrashFiles()
    node = Node(files, False)
    node.call("ensure_topic", "orders", True)
    first, second, third = [send_half(node, b"%d" % number, lot)[0] for number in range(3)]
    before = node.store.written_position
    boxes: list[Any] = []
    for message, fate in ((first, COMMIT), (second, ROLLBACK)):
        decide_on(
            node,
            "g",
            message.queue_offset,
            message.physical_offset,
            fate,
            True,
            None,
            lambda token, result: boxes.append(result),
        )
    node.turn.run_until_quiet()
    assert boxes == [None, None]
    end = node.store.written_position
    whole = files.after_process_crash()
    path = next(path for path in whole._names if "commitlog" in path.parts)
    outcomes = set()
    for cut in range(before, end + 1, 1 + seed):
        state = whole.after_process_crash()
        data = state._names[path].data
        data[cut:] = bytes(len(data) - cut)
        opened = Node(state, False)
        seen = visible(opened)
        undecided = [half.offset for half, _ in opened.broker.transactions.undecided(0, 9)[0]]
        assert (first.queue_offset in undecided) is (seen == [])
        assert third.queue_offset in undecided
        outcomes.add((len(seen), second.queue_offset in undecided))
        for message in (first, second, third):
            decide(opened, message.queue_offset, message.physical_offset, COMMIT)
        again = visible(opened)
        assert len(again) == len(set(again))
        assert sorted(again) == sorted(
            {first.body, third.body} | ({second.body} if second.queue_offset in undecided else set())
        )
    assert outcomes == {(0, True), (1, True), (1, False)}
