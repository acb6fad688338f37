"""What a batch reads, against a fake of the cluster's ends."""

import pytest

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark.offsets import DataLossError, OptionError
from gantrymq.spark.options import parse
from gantrymq.spark.planning import LATEST_AGE_S, Planner

Q0, Q1, Q2 = (MessageQueue("t", "b", n) for n in range(3))


class FakeEnds:
    def __init__(self) -> None:
        self.ends = {Q0: (0, 100), Q1: (50, 150)}
        self.asked = 0
        self.failing = 0

    def queues(self, topics: tuple[str, ...]) -> dict[MessageQueue, str]:
        return {queue: "host:1" for queue in self.ends if queue.topic in topics}

    def offsets(self, queues: dict[MessageQueue, str], code: RequestCode) -> dict[MessageQueue, int]:
        self.asked += 1
        if self.failing:
            self.failing -= 1
            raise GantryError(ErrorCode.UNAVAILABLE, "down")
        return {queue: self.ends[queue][code == RequestCode.GET_MAX_OFFSET] for queue in queues}


@pytest.fixture
def ends() -> FakeEnds:
    return FakeEnds()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def planner(ends: FakeEnds, clock: Clock | None = None, **options: str) -> Planner:
    return Planner(parse({"topic": "t", **options}), ends, clock or Clock())


def ranges(planner: Planner) -> list[tuple[int, int, int]]:
    return [(entry.queue_id, entry.start, entry.end) for entry in planner.batch()]


def test_a_batch_reads_everything(ends: FakeEnds) -> None:
    assert ranges(planner(ends)) == [(0, 0, 100), (1, 50, 150)]


def test_a_batch_between_offsets(ends: FakeEnds) -> None:
    offsets = {"startingOffsets": '{"t":{"b":{"0":40}}}', "endingOffsets": '{"t":{"b":{"0":40,"1":60}}}'}
    assert ranges(planner(ends, **offsets)) == [(1, 50, 60)]


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ('{"t":{"b":{"0":101}}}', "startingOffsets of t/b/0 is 101, but the queue ends at 100"),
        ('{"t":{"b":{"9":1}}}', "startingOffsets names t/b/9"),
        ('{"u":{"b":{"0":1}}}', "startingOffsets names topic 'u', which the option topic does not"),
    ],
)
def test_offsets_that_cannot_be(ends: FakeEnds, start: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        planner(ends, startingOffsets=start).batch()


def test_a_start_behind_the_end(ends: FakeEnds) -> None:
    offsets = {"startingOffsets": '{"t":{"b":{"0":40}}}', "endingOffsets": '{"t":{"b":{"0":30}}}'}
    with pytest.raises(OptionError, match="startingOffsets of t/b/0 is 40, but the end is 30"):
        planner(ends, **offsets).batch()


def test_expired_offsets(ends: FakeEnds) -> None:
    start = '{"t":{"b":{"1":20}}}'
    with pytest.raises(
        DataLossError, match=r"broker 'b', queue 1: offsets 20 to 49 \(30 messages\) are gone.*begins at offset 50"
    ):
        planner(ends, startingOffsets=start).batch()
    assert ranges(planner(ends, startingOffsets=start, failOnDataLoss="false")) == [(0, 0, 100), (1, 50, 150)]


def test_an_unknown_topic(ends: FakeEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("gantrymq.spark.planning.time.sleep", pauses.append)
    known = ends.queues

    def unknown(topics: tuple[str, ...]) -> dict[MessageQueue, str]:
        if len(pauses) >= tries:
            return known(topics)
        raise GantryError(ErrorCode.TOPIC_NOT_FOUND, "no route")

    ends.queues = unknown
    tries = 2  # created a moment ago
    assert len(planner(ends).batch()) == 2
    tries = 1000
    with pytest.raises(OptionError, match="topic: no route; create it first"):
        planner(ends).batch()


def test_a_stream_begins_where_it_is_told(ends: FakeEnds) -> None:
    assert planner(ends).initial() == {Q0: 100, Q1: 150}
    assert planner(ends, startingOffsets="earliest").initial() == {Q0: 0, Q1: 50}
    assert planner(ends, startingOffsets='{"t":{"b":{"0":-1}}}').initial() == {Q0: 100, Q1: 50}


def test_micro_batches_are_capped_and_reach_the_end(ends: FakeEnds) -> None:
    clock = Clock()
    plan = planner(ends, clock, startingOffsets="earliest")
    start, seen = plan.initial(), 0
    while (end := plan.latest(start, 30)) != start:
        taken = sum(entry.end - entry.start for entry in plan.ranges(start, end))
        assert 0 < taken <= 30
        seen += taken
        start = end
    assert seen == 200
    assert start == {Q0: 100, Q1: 150}
    assert plan.latest({Q0: 0, Q1: 50}, 0) == start


def test_an_idle_source_asks_the_brokers_seldom(ends: FakeEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("gantrymq.spark.planning.time.sleep", sleep)
    plan = planner(ends, clock)
    start = plan.initial()
    before, begun = ends.asked, clock.now
    for _ in range(100):
        assert plan.latest(start, 0) == start
        clock.now += 0.001
    assert ends.asked - before <= (clock.now - begun) / LATEST_AGE_S + 1
    plan.latest(start, 0)
    asked = ends.asked
    assert plan.latest({Q0: 0, Q1: 50}, 10) != {Q0: 0, Q1: 50}  # a backlog needs no waiting and no asking
    assert ends.asked == asked


def test_what_comes_while_it_waits_is_found(ends: FakeEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        assert 0 < seconds <= LATEST_AGE_S
        ends.ends[Q0] = (0, 101)

    monkeypatch.setattr("gantrymq.spark.planning.time.sleep", sleep)
    plan = planner(ends)
    start = plan.initial()
    assert plan.latest(start, 0) == start
    assert plan.latest(start, 0)[Q0] == 101


def test_new_queues_begin_at_their_oldest_message(ends: FakeEnds) -> None:
    plan = planner(ends)
    start = plan.initial()
    ends.ends[Q2] = (5, 9)
    end = plan.latest(start, 0)
    assert end[Q2] == 9
    assert [(r.queue_id, r.start, r.end) for r in plan.ranges(start, end)] == [(2, 5, 9)]
    assert [(r.queue_id, r.start, r.end) for r in planner(ends).ranges(start, end)] == [(2, 5, 9)]  # after a restart


def test_available_now_stops_at_what_was_there(ends: FakeEnds) -> None:
    plan = planner(ends, startingOffsets="earliest")
    plan.freeze()
    start = plan.initial()
    ends.ends[Q0] = (0, 500)
    ends.ends[Q2] = (0, 10)
    while (end := plan.latest(start, 60)) != start:
        start = end
    assert start == {Q0: 100, Q1: 150}


def test_a_broker_that_goes_back_is_data_loss(ends: FakeEnds) -> None:
    ends.ends[Q0] = (0, 70)
    text = r"queue 0: offsets 70 to 99 \(30 messages\) are gone: the broker ends at offset 70"
    with pytest.raises(DataLossError, match=text):
        planner(ends).latest({Q0: 100, Q1: 150}, 0)
    assert planner(ends, failOnDataLoss="false").latest({Q0: 100, Q1: 150}, 0) == {Q0: 100, Q1: 150}


def test_a_queue_that_is_gone(ends: FakeEnds) -> None:
    plan = planner(ends)
    del ends.ends[Q1]
    with pytest.raises(DataLossError, match=r"queue 1: offsets 60 to 99 .* does not exist any more"):
        plan.ranges({Q0: 0, Q1: 60}, {Q0: 10, Q1: 100})
    lenient = planner(ends, failOnDataLoss="false")
    assert [r.queue_id for r in lenient.ranges({Q0: 0, Q1: 60}, {Q0: 10, Q1: 100})] == [0]
    assert lenient.latest({Q0: 100, Q1: 60}, 0) == {Q0: 100, Q1: 60}


def test_brokers_that_restart_are_waited_for(ends: FakeEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("gantrymq.spark.wire.time.sleep", pauses.append)
    ends.failing = 3
    assert planner(ends).initial() == {Q0: 100, Q1: 150}
    assert pauses == [0.1, 0.2, 0.4]


def test_a_nameserver_that_has_forgotten_the_topic_is_waited_for(
    ends: FakeEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.spark.wire.time.sleep", lambda _: None)
    plan = planner(ends)
    start = plan.initial()
    known, answers = ends.queues, iter([True, True, False])

    def queues(topics: tuple[str, ...]) -> dict[MessageQueue, str]:
        if next(answers, False):
            raise GantryError(ErrorCode.TOPIC_NOT_FOUND, "no route")
        return known(topics)

    monkeypatch.setattr(ends, "queues", queues)
    ends.ends[Q0] = (0, 120)
    assert plan.latest(start, 0)[Q0] == 120


def test_progress_shows_the_newest(ends: FakeEnds) -> None:
    assert planner(ends).newest() == {Q0: 100, Q1: 150}
