"""Pop consumers over the real store against a model of one queue, through expiries, stale receipts, crashes and clean restarts.

Held throughout: what was acknowledged never comes back; what was not always does, oldest first, with its count; a receipt of an
earlier delivery changes nothing; the committed offset is the first one that is not done.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gantrymq.broker.pop.leases import Place
from gantrymq.broker.pop.pops import Pops
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.message import Message
from gantrymq.model.names import java_hash
from gantrymq.store.log import record
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KeepingNode

TOPIC, GROUP = "t", "g"
TICK = 50
TAG_A = java_hash("a")


class PickA:
    step = 7
    scan_max = 50

    def __call__(self, units: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
        return [at for at, unit in enumerate(units) if unit[2] == TAG_A], len(units)


class Held:
    def __init__(self, pop_ms: int, due: int) -> None:
        self.pop_ms = pop_ms
        self.due = due


class PopMachine(RuleBasedStateMachine):
    """One group and one queue."""

    @initialize()
    def start(self) -> None:
        self.node = KeepingNode(MemoryFileSystem())
        self.node.broker.topics.create(TopicConfig(TOPIC, 1, 1))
        self.node.turn.run_until_quiet()
        self.tags: list[str] = []
        self.done: set[int] = set()
        self.held: dict[int, Held] = {}
        self.back: set[int] = set()
        self.next = 0
        self.given: dict[int, int] = {}
        """Deliveries by offset."""
        self.crashed = False
        self.receipts: list[tuple[int, int]] = []

    @property
    def pops(self) -> Pops:
        return self.node.broker.pops

    def place(self) -> Place:
        return self.pops.place(GROUP, TOPIC, 0, True)

    @rule(tags=st.lists(st.sampled_from("aab"), min_size=1, max_size=12))
    def send(self, tags: list[str]) -> None:
        batch = [Message(TOPIC, b"%d" % (len(self.tags) + i), b"TAGS\x01%b\x02" % tag.encode(), tag, (), 0)
                 for i, tag in enumerate(tags)]  # fmt: skip
        self.node.call("submit", batch)
        self.tags += tags

    @rule(
        count=st.integers(1, 9),
        ticks=st.integers(1, 8),
        filtered=st.booleans(),
        bytes_max=st.sampled_from([1, 400, 1 << 20]),
    )
    def pop(self, count: int, ticks: int, filtered: bool, bytes_max: int) -> None:
        place = self.place()
        found = self.pops.select(place, count, bytes_max, PickA() if filtered else None)
        if found is None:
            assert not self.back
            assert self.next == len(self.tags)
            return
        pop_ms = self.pops.pop_ms()
        self.pops.take(place, found, pop_ms, ticks * TICK, False, None)
        self.node.turn.run_until_quiet()
        messages, at = [], 0
        data = b"".join(found.pieces)
        while at < len(data):
            message = record.decode(data, at)
            at += message.size
            messages.append(message)
        offsets = [message.queue_offset for message in messages]
        assert offsets == list(found.offsets)
        assert len(offsets) <= count
        assert len(offsets) == 1 or len(data) <= bytes_max or not offsets
        self.check_choice(offsets, count, filtered, found.end, bytes_max)
        due = self.node.wheel.now_ms() + ticks * TICK
        for message in messages:
            offset = message.queue_offset
            assert message.body == b"%d" % offset
            assert offset not in self.done
            assert offset not in self.held
            before = self.given.get(offset, 0)
            if self.crashed:
                assert min(before, 1) <= message.reconsume_times <= max(before, 1)
            else:
                assert message.reconsume_times == before
            self.given[offset] = max(before, message.reconsume_times) + 1
            self.held[offset] = Held(pop_ms, due)
            self.receipts.append((offset, pop_ms))

    def check_choice(self, offsets: list[int], count: int, filtered: bool, end: int, bytes_max: int) -> None:
        """What came back first, lowest first; then new ones in order."""
        old = [offset for offset in offsets if offset < self.next]
        assert old == sorted(self.back)[: len(old)]
        self.back -= set(old)
        fresh = [offset for offset in offsets if offset >= self.next]
        wanted = [offset for offset in range(self.next, len(self.tags)) if not filtered or self.tags[offset] == "a"]
        assert fresh == wanted[: len(fresh)]
        if fresh:
            assert not self.back
        if len(offsets) < count and bytes_max > 400 and not filtered:
            assert not self.back
            assert end == len(self.tags)
        if end > self.next:
            self.done |= set(range(self.next, end)) - set(fresh)
            self.next = end

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """Any receipt that was ever given out."""
        offset, pop_ms = data.draw(st.sampled_from(self.receipts))
        held = self.held.get(offset)
        counts = (held is not None and held.pop_ms == pop_ms) or offset in self.back
        assert self.pops.acknowledge(self.place(), (offset,), pop_ms) == counts
        self.node.turn.run_until_quiet()
        if counts:
            self.finish(offset)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge_batch(self, data: st.DataObject) -> None:
        pop_ms = data.draw(st.sampled_from(sorted({held.pop_ms for held in self.held.values()})))
        offsets = sorted(offset for offset, held in self.held.items() if held.pop_ms == pop_ms)
        if data.draw(st.booleans()):
            offsets = sorted(data.draw(st.sets(st.sampled_from(offsets), min_size=1)))
        assert self.pops.acknowledge(self.place(), offsets, pop_ms) == len(offsets)
        self.node.turn.run_until_quiet()
        for offset in offsets:
            self.finish(offset)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), ticks=st.integers(0, 6))
    def change(self, data: st.DataObject, ticks: int) -> None:
        offset, pop_ms = data.draw(st.sampled_from(self.receipts))
        held = self.held.get(offset)
        new = self.pops.change(self.place(), offset, pop_ms, ticks * TICK)
        self.node.turn.run_until_quiet()
        if held is not None and held.pop_ms == pop_ms:
            assert new >= pop_ms
            if ticks:
                self.held[offset] = Held(new, self.node.wheel.now_ms() + ticks * TICK)
                self.receipts.append((offset, new))
            else:
                del self.held[offset]
                self.back.add(offset)
        elif offset in self.back:
            self.back.discard(offset)
            # Taken back by its last consumer; it may come back once more, with one more delivery counted.
            self.given[offset] += 1
            self.crashed = True
            self.held[offset] = Held(new, self.node.wheel.now_ms() + max(ticks, 1) * TICK)
            self.receipts.append((offset, new))
        else:
            assert new == -1

    @rule(ticks=st.integers(1, 6))
    def pass_time(self, ticks: int) -> None:
        self.node.wheel.advance(ticks * TICK)
        self.node.turn.run_until_quiet()
        now = self.node.wheel.now_ms()
        for offset in [offset for offset, held in self.held.items() if held.due <= now]:
            del self.held[offset]
            self.back.add(offset)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """A clean one keeps the leases. After a crash everything unacknowledged comes back at once; what lies behind the last
        acknowledgement is new again."""
        if clean:
            self.node.stop()
        files = self.node.files if clean else self.node.files.after_process_crash()
        self.node = KeepingNode(files, self.node.clock)
        if clean:
            return
        self.next = self.place().cursor.window.next_offset
        assert self.next >= max(self.done, default=-1) + 1
        self.held.clear()
        self.back = {offset for offset in range(self.next) if offset not in self.done}
        self.receipts.clear()
        self.crashed = True

    def finish(self, offset: int) -> None:
        self.held.pop(offset, None)
        self.back.discard(offset)
        self.done.add(offset)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "node"):
            return
        place = self.place()
        window = place.cursor.window
        floor = 0
        while floor in self.done:
            floor += 1
        assert window.floor == floor
        assert set(window.inflight) == set(self.held)
        assert window.returned == sorted(self.back)
        assert window.next_offset == self.next
        assert self.node.broker.offsets.query(GROUP, TOPIC, 0) == floor
        leases = self.pops.leases
        assert sum(lease.left for lease in leases.by_id.values()) == len(self.held)
        assert self.pops.ready(place) == len(self.back) + len(self.tags) - self.next


TestPops = PopMachine.TestCase
TestPops.settings = settings(max_examples=30, stateful_step_count=40, suppress_health_check=list(HealthCheck))
