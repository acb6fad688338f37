"""Power loss between any two writes, then new messages at the same queue offsets: all of them are delivered (DESIGN, light queues and
acknowledgements): an acknowledgement that outlived its message would swallow the next one."""

from __future__ import annotations

import random

import pytest

from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.model.message import Message
from tests.broker.node import Node
from tests.store.crash_states import CrashFiles, cut_everywhere, lies_found

HUGE = 1 << 30


class Story:
    """Sends, delivers, settles and purges in one light queue and one queue of the topic, one step after the other."""

    def __init__(self, files: CrashFiles, sync: bool, seed: int, steps: int) -> None:
        self.files = files
        self.steps = steps
        self.sync = sync
        self.lot = random.Random(seed)
        self.kept: set[bytes] = set()
        """Bodies that were acknowledged as flushed, and not settled since."""
        self.settled: set[bytes] = set()
        self.number = 0
        self.ready = False

    def send(self, node: Node, count: int) -> None:
        messages = []
        for _ in range(count):
            self.number += 1
            messages.append(Message("t", b"%d" % self.number, b"TAGS\x01a\x02", "a", (), 0))
        bodies = [message.body for message in messages]
        box = node.start("submit", messages)
        if self.lot.random() < 0.5:
            node.flush()
            assert box
            self.kept.update(body for body in bodies if body not in self.settled)

    def run(self) -> None:
        node = Node(self.files, self.sync)
        light = node.call("create_light")
        node.call("add_route", Route("r", "prefix", None, "a", light))
        node.call("ensure_topic", "t", True)
        cursors = [node.call("open_cursor", queue, "g", EARLIEST).cursor for queue in (f"~{light}", "t/0")]
        node.flush()
        self.ready = True
        for _ in range(self.steps):
            self.send(node, self.lot.randrange(1, 4))
            cursor = self.lot.choice(cursors)
            if self.lot.random() < 0.1:
                self.kept.clear()  # which queue still has what: only the other checks apply from here on
                node.call("purge", cursor)
            got = node.call("acquire", cursor, 1, self.lot.randrange(1, 4), HUGE)
            done = [delivery for delivery in got if self.lot.random() < 0.7]
            bodies = {delivery.message.body for delivery in done}
            self.settled |= bodies  # from here on it may be gone, and until it is flushed it may come again
            self.kept -= bodies
            node.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in done])
            node.turn.run_until_quiet()
            if self.lot.random() < 0.2:
                node.background()

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        """Raises AssertionError if anything that must be delivered is not."""
        node = Node(files, self.sync)
        if not self.ready:
            return
        fresh = [b"new %d" % number for number in range(self.number + 5)]
        for body in fresh:
            node.start("submit", [Message("t", body, b"TAGS\x01a\x02", "a", (), 0)])
        node.flush()
        for queue in ("~1", "t/0"):
            cursor = node.call("open_cursor", queue, "g", EARLIEST).cursor
            got = node.call("acquire", cursor, 1, 4096, HUGE)
            bodies = [delivery.message.body for delivery in got]
            assert bodies[-len(fresh) :] == fresh, f"{queue}: {set(fresh) - set(bodies)} swallowed"
            old = bodies[: -len(fresh)]
            assert self.kept <= set(old), f"{queue}: {self.kept - set(old)} lost"
            numbers = [int(body) for body in old]
            assert numbers == sorted(set(numbers))
            assert not numbers or numbers[-1] <= self.number


@pytest.mark.parametrize("sync", [False, True])
def test_new_messages_at_old_offsets_are_delivered(sync: bool) -> None:
    cut_everywhere(lambda files: Story(files, sync, 1, 12), 1, 5)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("seed", "stride"), [(2, 1), (3, 2)])
def test_new_messages_at_old_offsets_are_delivered_whatever_the_moment(seed: int, stride: int, sync: bool) -> None:
    cut_everywhere(lambda files: Story(files, sync, seed, 30), seed, stride)


def test_a_disk_that_lies_is_found_out() -> None:
    assert lies_found(lambda files: Story(files, True, 5, 12), 5, 5) > 5
