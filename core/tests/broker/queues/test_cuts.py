"""A queue with a limit, and requeued messages, through a power cut or a kill at any change of the disk."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gantrymq.broker.port import EARLIEST, Outcome
from gantrymq.model.errors import ErrorCode
from gantrymq.model.queue_policy import Policy
from tests.broker.queues.test_engine import HUGE, Queue, QueueNode, message
from tests.store.crash_states import MODES, CrashFiles, cut_everywhere

LIMIT = 5


class Story:
    """Numbers go into a queue, some are taken, and of these some acknowledged, some given back, and some are their holder's that goes."""

    policy: Policy | None = None

    def __init__(self, files: CrashFiles, seed: int, steps: int, killed: bool) -> None:
        self.files = files
        self.killed = killed
        """The process ends, and not the power: what was given out is known to have been."""
        self.steps = steps
        self.lot = random.Random(seed)
        self.ready = False
        """The queue is there."""
        self.sent = 0
        self.kept: list[int] = []
        """Stored, as their sender was told."""
        self.open: list[tuple[int, list[Any]]] = []
        """(first number, answers) of what was sent."""
        self.refused: set[int] = set()
        self.held: list[Any] = []
        self.seen: set[int] = set()
        self.acked: set[int] = set()
        self.dropped: set[int] = set()
        """By the limit, as soon as the broker is asked for what makes them too many."""

    def run(self) -> None:
        node = QueueNode(self.files, sync=True)
        queue = Queue(node, "a", self.policy)
        node.flush()
        self.ready = True
        for _ in range(self.steps):
            self.step(node, queue)
            self.answers()

    def step(self, node: QueueNode, queue: Queue) -> None:
        kind = self.lot.randrange(6)
        if kind <= 1:
            first, self.sent = self.sent, self.sent + self.lot.randrange(1, 4)
            self.cut_down()
            batch = [message("a", body_of(number)) for number in range(first, self.sent)]
            self.open.append((first, node.start("submit", batch)))
        elif kind == 2:
            # What is not flushed is delivered nevertheless.
            self.held += queue.take(self.lot.randrange(1, 4))
            self.seen |= {number_of(delivery) for delivery in self.held}
        elif kind == 3 and self.held:
            self.lot.shuffle(self.held)
            some, self.held = self.held[:2], self.held[2:]
            outcome = self.lot.choice((Outcome.ACK, Outcome.REQUEUE))
            if outcome is Outcome.ACK:
                self.acked |= {number_of(delivery) for delivery in some}
            self.cut_down()
            queue.settle(some, outcome)
        elif kind == 4 and self.lot.random() < 0.3:
            self.held = []
            self.cut_down()
            node.port.release(1)
            node.turn.run_until_quiet()
        elif kind == 5:
            node.flush()
            if self.lot.random() < 0.3:
                node.background()

    def cut_down(self) -> None:
        """Before the broker is asked."""

    def answers(self) -> None:
        while self.open and self.open[0][1]:
            first, (results,) = self.open.pop(0)
            for number, result in enumerate(results, first):
                if result is ErrorCode.QUEUE_FULL:
                    self.refused.add(number)
                else:
                    assert isinstance(result, int)
                    self.kept.append(number)

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        if not self.ready:
            return
        self.answers()
        node = QueueNode(files, sync=True)
        cursor = node.call("open_cursor", "~1", "g", EARLIEST).cursor
        node.now(100)
        found = node.call("acquire", cursor, 1, 100, HUGE)
        numbers = [number_of(delivery) for delivery in found]
        assert numbers == sorted(set(numbers)), "out of order, or twice"
        assert not self.refused.intersection(numbers)
        assert all(number < self.sent for number in numbers)
        if self.killed:
            unmarked = {number_of(delivery) for delivery in found if delivery.count == 1}
            assert not unmarked & self.seen, "came again without a word"
        self.holds(numbers)

    def holds(self, numbers: list[int]) -> None:
        """What the queue must have."""
        assert set(self.kept) - self.acked <= set(numbers), "lost"


class DropHead(Story):
    policy = Policy(max_length=LIMIT)

    def cut_down(self) -> None:
        held = {number_of(delivery) for delivery in self.held}
        ready = [number for number in range(self.sent) if number not in self.acked | self.dropped | held]
        self.dropped.update(ready[:-LIMIT])

    def holds(self, numbers: list[int]) -> None:
        assert len(numbers) <= LIMIT
        for number in set(self.kept) - self.acked - self.dropped:
            newer = [other for other in numbers if other > number]
            assert number in numbers or len(newer) == LIMIT, "the newest are not there"


class DropHeadByBytes(DropHead):
    policy = Policy(max_bytes=LIMIT * 200)


class Refusing(Story):
    policy = Policy(max_length=LIMIT, overflow="reject-publish")


def body_of(number: int) -> bytes:
    return b"%d" % number + b"-" * (200 - len(b"%d" % number))


def number_of(delivery: Any) -> int:
    return int(delivery.message.body.rstrip(b"-"))


ENDS = pytest.mark.parametrize("modes", [MODES, ("killed",)], ids=["power", "kill"])
STORIES = pytest.mark.parametrize("kind", [Story, DropHead, DropHeadByBytes, Refusing])


@ENDS
@STORIES
def test_nothing_is_lost_or_doubled(kind: type[Story], modes: tuple[str, ...]) -> None:
    cut_everywhere(lambda files: kind(files, 1, 40, "killed" in modes), 1, 5, modes)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@ENDS
@STORIES
@pytest.mark.parametrize("seed", range(2, 4))
def test_nothing_is_lost_or_doubled_whatever_the_moment(kind: type[Story], modes: tuple[str, ...], seed: int) -> None:
    cut_everywhere(lambda files: kind(files, seed, 60, "killed" in modes), seed, 1, modes)
