"""Kills and power losses between any two changes of the disk: what waited comes at least once, and never before its time."""

from __future__ import annotations

import random
from copy import copy

import pytest

from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import recall
from tests.broker.waiting_node import WaitingNode
from tests.store.crash_states import MODES, CrashFiles, cut_everywhere

STEPS = 14


class Story:
    """Sends at levels and with times, recalls some, lets time pass."""

    def __init__(self, files: CrashFiles, seed: int) -> None:
        self.files = files
        self.clock = ManualClock()
        self.lot = random.Random(seed)
        self.due: dict[bytes, int] = {}
        """Body to the earliest time when it may come, of everything that was sent."""
        self.kept: set[bytes] = set()
        """What was acknowledged as flushed and not recalled."""
        self.recalled: set[bytes] = set()

    def run(self) -> None:
        node = WaitingNode(self.files, self.clock)
        fresh: list[tuple[bytes, Message]] = []
        for step in range(STEPS):
            for _ in range(self.lot.randrange(1, 4)):
                body = b"%d" % len(self.due)
                if self.lot.random() < 0.5:
                    self.due[body] = self.clock.now_ms() + 1_000
                    node.later(body, DELAY=1)
                else:
                    delay = self.lot.randrange(1, 4_000)
                    self.due[body] = self.clock.now_ms() + delay
                    fresh.append(
                        (body, node.send_later(body, TIMER_DELAY_MS=delay, big="x" * self.lot.randrange(9_000))[1])
                    )
            if self.lot.random() < 0.5:
                node.flush()
                self.kept = {body for body in self.due if body not in self.recalled}
            if fresh and self.lot.random() < 0.3:
                self.recall(node, *self.lot.choice(fresh))
            node.wait(self.lot.choice((50, 400, 1_500)))
            if step % 4 == 3:
                node.background()
        node.stop()

    def recall(self, node: WaitingNode, body: bytes, message: Message) -> None:
        at_ms = int(message.property("TIMER_OUT_MS") or 0) + 1
        if at_ms <= self.clock.now_ms():
            return
        before = set(self.kept)
        self.kept.discard(body)  # from here on it may be gone
        answers: list[object] = []
        recall(node, "t", f"U{body.decode()}", at_ms, "g", b"\x7f\0\0\x01\0\0\0\0", answers.append)
        node.turn.run_until_quiet()
        if answers == [True]:
            node.flush()
            self.recalled.add(body)
        else:
            self.kept = before

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        """Raises AssertionError for a message that is lost, early, or came though it was recalled."""
        clock = copy(self.clock)
        node = WaitingNode(files, clock)
        for message in node.records():
            assert message.store_ms >= self.due[message.body], message.body
        node.wait(10_100)
        for message in node.records():
            assert message.store_ms >= self.due[message.body], message.body
        bodies = set(node.bodies())
        assert self.kept <= bodies, self.kept - bodies
        assert not self.recalled & bodies
        assert node.broker.delays.levels.pending() == node.broker.delays.timers.pending() == 0
        node.stop()
        again = WaitingNode(node.files, clock)
        before = again.bodies()
        again.wait(10_100)
        assert again.bodies() == before


def test_what_waits_survives_a_crash() -> None:
    cut_everywhere(lambda files: Story(files, 1), 1, 17, ("killed", *MODES))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [2, 3])
def test_what_waits_survives_a_crash_at_any_moment(seed: int) -> None:
    cut_everywhere(lambda files: Story(files, seed), seed, 1, ("killed", *MODES))


def test_a_recalled_message_stays_recalled_when_its_order_is_all_that_is_left() -> None:
    """Killed between the order and what settles the message: the next life reads the order."""
    node = WaitingNode(MemoryFileSystem())
    _, message = node.send_later(b"x", TIMER_DELAY_MS=60_000)
    node.later(b"y", TIMER_DELAY_MS=60_000)
    at_ms = int(message.property("TIMER_OUT_MS")) + 1
    node.broker.cursors.settled.take_bodies = lambda: []  # type: ignore[method-assign]
    answers: list[object] = []
    recall(node, "t", "Ux", at_ms, "g", b"\x7f\0\0\x01\0\0\0\0", answers.append)
    node.turn.run_until_quiet()
    assert answers == [True]
    again = node.reborn(clean=False)
    assert again.broker.delays.timers.pending() == 1
    again.wait(70_000)
    assert again.bodies() == [b"y"]
