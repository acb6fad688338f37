"""Random histories of the broker over the real store against a model that is a list: what was appended, acknowledged, settled.

After every crash: an acknowledgement kept what its mode promises (I1), nothing is there that was not sent (I2), queues are dense and
hold what they held (I4), log, queues, light queues, index and tables agree, and recovering again changes nothing (I6).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gantrymq.broker.port import EARLIEST, Delivery, Outcome, Route
from gantrymq.model.message import Message
from gantrymq.store.message_store import MessageStore
from tests.broker.node import ROOT, SMALL, Node
from tests.store.crash_states import MODES, CrashFiles, draw_mode

TOPICS = ("t", "u")
QUEUES = 2
TAGS = ("", "a", "ab", "b", "wide")
WIDE = 66
"""Light queues of one tag: more than fit a record, so continuation records follow it."""
BODY_BYTES = (0, 1, 300, 5_000, 30_000)
EVERYTHING = 1 << 30


@dataclass
class Sent:
    """A message that was handed over."""

    message: Message
    body: bytes
    key: str
    lights: frozenset[int]
    box: list[Any]

    @property
    def end(self) -> int:
        return self.message.physical_offset + self.message.size


@dataclass
class Row:
    """A change of the table; `end`: of the append batch that holds it."""

    key: str
    value: bytes | None
    end: int
    box: list[Any]


@dataclass
class Place:
    """A cursor. `settled`: offset to the end of the log when its record was written."""

    queue: str
    cursor: int
    light: int = 0
    topic: str = ""
    queue_id: int = 0
    settled: dict[int, int] = field(default_factory=dict)
    inflight: dict[int, int] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)


class Model(RuleBasedStateMachine):
    sync: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(CrashFiles(), self.sync)
        self.sent: list[Sent] = []
        self.rows: list[Row] = []
        self.routes: list[tuple[str, int]] = []
        self.places: list[Place] = []
        self.number = 0
        self.waiting: list[list[Any]] = []
        self.seconds = 0
        """Since the last flush."""

    # --- queues

    @initialize()
    def queues(self) -> None:
        for prefix, count in (("a", 1), ("", 1), ("wide", WIDE)):
            for _ in range(count):
                self._light(prefix)
        for light in (1, 2, 3, 2 + WIDE):
            cursor = self.node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor
            self.places.append(Place(f"~{light}", cursor, light))
        for topic in TOPICS:
            self.node.call("ensure_topic", topic, True)
        cursor = self.node.call("open_cursor", "t/1", "g", EARLIEST).cursor
        self.places.append(Place("t/1", cursor, 0, "t", 1))
        self.node.flush()

    def _light(self, prefix: str) -> None:
        light = self.node.call("create_light")
        self.node.call("add_route", Route(f"r{light}", "prefix", None, prefix, light))
        self.routes.append((prefix, light))

    def _in_queue(self, place: Place) -> list[Sent]:
        if place.light:
            return [sent for sent in self.sent if place.light in sent.lights]
        return self._of(place.topic, place.queue_id)

    def _of(self, topic: str, queue_id: int) -> list[Sent]:
        return [sent for sent in self.sent if (sent.message.topic, sent.message.queue_id) == (topic, queue_id)]

    # --- what a broker is asked for

    @rule(
        batch=st.lists(
            st.tuples(
                st.sampled_from(TOPICS), st.integers(0, QUEUES - 1), st.sampled_from(TAGS), st.sampled_from(BODY_BYTES)
            ),
            min_size=1,
            max_size=5,
        )
    )
    def send(self, batch: list[tuple[str, int, str, int]]) -> None:
        fresh = []
        for topic, queue_id, tag, size in batch:
            self.number += 1
            key = f"K{self.number}"
            body = (b"%d " % self.number * (size // 2 + 1))[:size]
            properties = f"UNIQ_KEY\x01{key}\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
            message = Message(topic, body, properties.encode(), tag, (key,), queue_id)
            lights = frozenset(light for prefix, light in self.routes if tag.startswith(prefix))
            fresh.append(Sent(message, body, key, lights, []))
        box = self.node.start("submit", [sent.message for sent in fresh])
        for sent in fresh:
            sent.box = box
        self.waiting.append(box)
        self.sent += fresh
        if not self.sync:
            assert box == [[sent.message.queue_offset for sent in fresh]]

    @rule(key=st.sampled_from("xyz"), value=st.none() | st.binary(max_size=3))
    def put(self, key: str, value: bytes | None) -> None:
        box = self.node.start("put", "things", [(key, value)])
        self.rows.append(Row(key, value, self.node.store.written_position, box))

    @rule()
    def flush(self) -> None:
        self.node.flush()
        assert all(self.waiting), "not acknowledged, though flushed"
        self.waiting.clear()
        self.seconds = 0

    @rule()
    def background(self) -> None:
        """A second; the disk does not stand still for so long that senders are refused (`pending_ms_max`)."""
        self.seconds += 1
        if self.seconds >= 3:
            self.flush()
        self.node.background()

    def _ready(self, place: Place) -> list[int]:
        end = len(self._in_queue(place))
        return [offset for offset in range(end) if offset not in place.settled and offset not in place.inflight]

    @rule(which=st.integers(0, 4), count=st.integers(1, 4), holder=st.integers(1, 2))
    def acquire(self, which: int, count: int, holder: int) -> None:
        place = self.places[which]
        got: list[Delivery] = self.node.call("acquire", place.cursor, holder, count, EVERYTHING)
        queue = self._in_queue(place)
        expected = self._ready(place)[:count]
        assert [delivery.offset for delivery in got] == expected, (place.queue, expected)
        for delivery in got:
            assert delivery.message.body == queue[delivery.offset].body
            assert delivery.count > 1 or delivery.offset not in place.delivered
            place.inflight[delivery.offset] = holder
            place.delivered.add(delivery.offset)

    @precondition(lambda self: any(place.inflight for place in self.places))
    @rule(
        pick=st.randoms(use_true_random=False),
        outcome=st.sampled_from([Outcome.ACK, Outcome.ACK, Outcome.DROP, Outcome.REQUEUE]),
    )
    def settle(self, pick: random.Random, outcome: Outcome) -> None:
        place = pick.choice([place for place in self.places if place.inflight])
        offsets = [offset for offset in place.inflight if pick.random() < 0.6]
        self.node.port.settle([(place.cursor, offset, outcome) for offset in offsets])
        self.node.turn.run_until_quiet()
        for offset in offsets:
            del place.inflight[offset]
            if outcome is not Outcome.REQUEUE:
                place.settled[offset] = self.node.store.written_position

    @rule(holder=st.integers(1, 2))
    def release(self, holder: int) -> None:
        self.node.port.release(holder)
        self.node.turn.run_until_quiet()
        for place in self.places:
            place.inflight = {offset: by for offset, by in place.inflight.items() if by != holder}

    @rule()
    def rest(self) -> None:
        """As retention does now and then."""
        cursors = self.node.broker.cursors
        for cursor in list(cursors.by_id.values()):
            cursors.rest(cursor)

    @rule(which=st.integers(0, 4))
    def purge(self, which: int) -> None:
        place = self.places[which]
        ready = self._ready(place)
        assert self.node.call("purge", place.cursor) == len(ready)
        place.settled.update(dict.fromkeys(ready, self.node.store.written_position))

    @precondition(lambda self: len(self.routes) < WIDE + 6)
    @rule(prefix=st.sampled_from(TAGS))
    def another_queue(self, prefix: str) -> None:
        self._light(prefix)
        self.node.flush()

    @precondition(lambda self: len(self.routes) > WIDE)
    @rule()
    def delete_queue(self) -> None:
        _, light = self.routes.pop(WIDE // 2)
        if any(place.light == light for place in self.places):
            return
        assert self.node.call("delete_light", light) is None
        self.node.flush()
        for sent in self.sent:
            sent.lights -= {light}

    # --- ends

    @rule()
    def clean_restart(self) -> None:
        self.node.stop()
        assert self.node.files.open_handles == 0
        self._again(self.node.files.after_process_crash(), 1 << 60)
        assert self.node.report.clean

    @rule()
    def process_crash(self) -> None:
        self._again(self.node.files.after_process_crash(), self.node.store.written_position)

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 20), at_recovery=st.booleans())
    def power_loss(self, mode: str, seed: int, at_recovery: bool) -> None:
        lot = random.Random(seed)
        flushed = self.node.store.flushed_position
        files = draw_mode(self.node.files, mode, lot)
        if at_recovery:  # ...and once more while recovering from it
            MessageStore(files, ROOT, SMALL, self.node.wheel.manual_clock).load()
            files = draw_mode(files, mode, lot)
        promised = [sent for sent in self.sent if sent.end <= flushed]
        acked = [sent for sent in self.sent if sent.box]
        kept = self._again(files, flushed)
        assert promised == kept[: len(promised)]
        if self.sync:
            assert {sent.key for sent in acked} <= {sent.key for sent in kept}

    def _again(self, files: CrashFiles, at_least: int) -> list[Sent]:
        written = self.node.store.written_position
        self.node = Node(files, self.sync)
        self.waiting.clear()
        end = self.node.report.end
        assert min(at_least, written) <= end <= max(written, self.node.store.written_position)
        assert not self.node.report.quarantined
        kept = [sent for sent in self.sent if sent.end <= end]
        assert kept == self.sent[: len(kept)]
        self.sent = kept
        if self.sync:
            assert all(row.end <= end for row in self.rows if row.box)
        self.rows = [row for row in self.rows if row.end <= end]
        lost_power = end < written
        for place in self.places:
            self._find_place(place, end, lost_power)
        self._check()
        self._recover_again()
        return kept

    def _find_place(self, place: Place, end: int, lost_power: bool) -> None:
        """What was not settled is there; what was, is not, unless the record of it went with the power."""
        place.cursor = self.node.call("open_cursor", place.queue, "g", EARLIEST).cursor
        queue = self._in_queue(place)
        settled = {offset for offset, at in place.settled.items() if at <= end and offset < len(queue)}
        unsure = {offset for offset, at in place.settled.items() if at > end and offset < len(queue)}
        got: list[Delivery] = self.node.call("acquire", place.cursor, 99, 4096, EVERYTHING)
        offsets = [delivery.offset for delivery in got]
        assert offsets == sorted(set(offsets))
        assert set(range(len(queue))) - settled - unsure <= set(offsets), place.queue
        assert not settled & set(offsets), place.queue
        for delivery in got:
            assert delivery.message.body == queue[delivery.offset].body
            if not lost_power and delivery.offset in place.delivered:
                assert delivery.count > 1, "delivered before the crash, and not marked as such"
        self.node.port.settle([(place.cursor, offset, Outcome.RELEASE) for offset in offsets])
        self.node.turn.run_until_quiet()
        place.settled = {offset: place.settled[offset] for offset in range(len(queue)) if offset not in set(offsets)}
        place.inflight = {}
        place.delivered = set() if lost_power else place.delivered

    def _check(self) -> None:
        """Everything that the store can be asked, against the model."""
        store = self.node.store
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                queue = self._of(topic, queue_id)
                assert store.max_offset(topic, queue_id) == len(queue)
                units = store.units(topic, queue_id, 0, len(queue))
                assert [unit[:2] for unit in units] == [
                    (sent.message.physical_offset, sent.message.size) for sent in queue
                ]
                found = store.get_many([unit[:2] for unit in units])
                assert [message and message.body for message in found] == [sent.body for sent in queue]
        for _, light in self.routes:
            queue = [sent for sent in self.sent if light in sent.lights]
            units = store.light_units(light, 0, store.light_visible_end(light))
            assert [unit[0] for unit in units] == [sent.message.physical_offset for sent in queue], light
        for sent in self.sent[-20:]:
            found = store.query(sent.message.topic, sent.key, 10, 0, 1 << 60)
            assert [message.physical_offset for message in found] == [sent.message.physical_offset], sent.key
        table: dict[str, bytes] = {}
        for row in self.rows:
            if row.value is None:
                table.pop(row.key, None)
            else:
                table[row.key] = row.value
        assert self.node.call("watch_table", "things", None) == table

    def _recover_again(self) -> None:
        copy = self.node.files.after_process_crash()
        end = self.node.store.written_position
        store = MessageStore(copy, ROOT, SMALL, self.node.wheel.manual_clock)
        assert store.load().end == end
        once = copy.snapshot()
        third = copy.after_process_crash()
        assert MessageStore(third, ROOT, SMALL, self.node.wheel.manual_clock).load().end == end
        counters = {"positions", "checkpoint", "abort", "lock"}
        changed = [
            path for path, data in third.snapshot().items() if once.get(path) != data and path.name not in counters
        ]
        assert not changed

    @rule()
    def check(self) -> None:
        self._check()

    @invariant()
    def positions_are_in_order(self) -> None:
        store = self.node.store
        assert 0 <= store.flushed_position <= store.written_position


class SyncModel(Model):
    sync = True


EVERYDAY = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(
    max_examples=120, stateful_step_count=50, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)


def _case(model: type[Model], profile: settings) -> Any:
    case = type(f"{model.__name__}Case", (model.TestCase,), {})
    case.settings = profile
    return case


TestAsync = pytest.mark.timeout(300)(_case(Model, EVERYDAY))
TestSync = pytest.mark.timeout(300)(_case(SyncModel, EVERYDAY))
TestLongAsync = pytest.mark.slow(pytest.mark.crash(pytest.mark.timeout(300)(_case(Model, LONG))))
TestLongSync = pytest.mark.slow(pytest.mark.crash(pytest.mark.timeout(300)(_case(SyncModel, LONG))))
