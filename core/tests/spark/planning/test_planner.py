"""What a batch reads, against a fake of the cluster's ends."""

from collections.abc import Mapping

import pytest

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark.planning.filters import Narrowing
from gantrymq.spark.planning.offsets import DataLossError, OptionError
from gantrymq.spark.planning.options import parse
from gantrymq.spark.planning.planner import LATEST_AGE_S, TOPICS_AGE_S, Planner

Q0, Q1, Q2 = (MessageQueue("t", "b", n) for n in range(3))


class FakeEnds:
    """Each queue's message of offset n was stored at 10 n milliseconds and has 100 bytes."""

    def __init__(self) -> None:
        self.ends = {Q0: (0, 100), Q1: (50, 150)}
        self.asked = 0
        self.failing = 0
        self.later = 0
        self.committed: list[dict[MessageQueue, int]] = []

    def topics(self) -> list[str]:
        return sorted({queue.topic for queue in self.ends} | {"%RETRY%g", "TBW102", "rmq_sys_gantry_ack"})

    def offsets_at(self, queues: dict[MessageQueue, str], times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        places = {queue: (times[queue] + 9) // 10 for queue in queues}
        return {queue: min(max(at, self.ends[queue][0]), self.ends[queue][1]) for queue, at in places.items()}

    def record_bytes(
        self, queues: dict[MessageQueue, str], at: Mapping[MessageQueue, int], group: str
    ) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 100)

    def stored_at(
        self, queues: dict[MessageQueue, str], at: Mapping[MessageQueue, int], group: str
    ) -> dict[MessageQueue, int]:
        """The message at offset n was stored at 10 n, and later by `later` in a topic that was made anew."""
        there = {queue: at[queue] for queue in queues if self.ends[queue][0] <= at[queue] < self.ends[queue][1]}
        return {queue: 10 * offset + self.later for queue, offset in there.items()}

    def commit(self, queues: dict[MessageQueue, str], offsets: Mapping[MessageQueue, int], group: str) -> None:
        if self.failing:
            raise GantryError(ErrorCode.UNAVAILABLE, "down")
        self.committed.append({queue: offsets[queue] for queue in queues})

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
    chosen = {} if options.keys() & {"subscribePattern", "assign"} else {"topic": "t"}
    return Planner(parse({**chosen, **options}), ends, clock or Clock())


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
    monkeypatch.setattr("gantrymq.spark.planning.planner.time.sleep", pauses.append)
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

    monkeypatch.setattr("gantrymq.spark.planning.planner.time.sleep", sleep)
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

    monkeypatch.setattr("gantrymq.spark.planning.planner.time.sleep", sleep)
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


def test_assigned_queues_only(ends: FakeEnds) -> None:
    assert ranges(planner(ends, assign='{"t": [1]}')) == [(1, 50, 150)]
    assert ranges(planner(ends, assign='{"t": {"b": [0]}}')) == [(0, 0, 100)]
    with pytest.raises(OptionError, match="assign names queue t/7, which does not exist; there is t/b/0, t/b/1"):
        planner(ends, assign='{"t": [7]}').batch()


def test_topics_of_a_pattern_join_a_running_query(ends: FakeEnds) -> None:
    clock = Clock()
    plan = planner(ends, clock, subscribePattern="t.*", startingOffsets="earliest")
    start = plan.latest(plan.initial(), 0)
    assert start == {Q0: 100, Q1: 150}
    new = MessageQueue("t2", "b", 0)
    ends.ends |= {new: (3, 8), MessageQueue("other", "b", 0): (0, 9), MessageQueue("%DLQ%t", "b", 0): (0, 9)}
    clock.now += TOPICS_AGE_S
    end = plan.latest(start, 0)
    assert end == {**start, new: 8}
    assert [(r.topic, r.start, r.end) for r in plan.ranges(start, end)] == [("t2", 3, 8)]
    with pytest.raises(OptionError, match="subscribePattern is 'nothing': no topic matches"):
        planner(ends, subscribePattern="nothing").batch()


def test_a_pattern_never_matches_what_belongs_to_the_broker(ends: FakeEnds) -> None:
    assert {each.topic for each in planner(ends, subscribePattern=".*").batch()} == {"t"}


def test_a_batch_between_times(ends: FakeEnds) -> None:
    assert ranges(planner(ends, startingTimestamp="705")) == [(0, 71, 100), (1, 71, 150)]
    both = {"startingOffsetsByTimestamp": '{"t": {"0": 700}}', "endingOffsetsByTimestamp": '{"t": {"b": {"1": 600}}}'}
    assert ranges(planner(ends, **both)) == [(0, 70, 100), (1, 50, 60)]
    assert ranges(planner(ends, endingTimestamp="9999")) == [(0, 0, 100), (1, 50, 150)]


def test_a_start_behind_all_messages(ends: FakeEnds) -> None:
    with pytest.raises(
        OptionError, match=r"startingTimestamp of t/b/0 is 1200, but it has no message.*ByTimestampStrategy"
    ):
        planner(ends, startingTimestamp="1200").batch()
    late = {"startingTimestamp": "1200", "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(planner(ends, **late)) == [(1, 120, 150)]
    assert planner(ends, **late).initial() == {Q0: 100, Q1: 120}


def test_few_messages_wait_for_more_or_for_the_delay(ends: FakeEnds) -> None:
    clock = Clock()
    plan = planner(ends, clock, minOffsetsPerTrigger="50", maxTriggerDelay="60s")
    start = plan.initial()
    ends.ends[Q0] = (0, 110)
    first = plan.latest(start, 0)
    assert first[Q0] == 110  # the first batch of a query waits for nothing
    ends.ends[Q0] = (0, 130)
    clock.now += 59
    assert plan.latest(first, 0) == first
    clock.now += 1
    assert plan.latest(first, 0)[Q0] == 130
    ends.ends[Q0] = (0, 180)
    clock.now += 1
    assert plan.latest({Q0: 130, Q1: 150}, 0)[Q0] == 180


def test_available_now_waits_for_nothing(ends: FakeEnds) -> None:
    plan = planner(ends, startingOffsets="earliest", minOffsetsPerTrigger="500")
    plan.freeze()
    start = plan.initial()
    middle = plan.latest(start, 150)
    assert plan.latest(middle, 150) == {Q0: 100, Q1: 150} != middle


def test_bytes_limit_a_micro_batch(ends: FakeEnds) -> None:
    plan = planner(ends, startingOffsets="earliest", maxBytesPerTrigger="5000")
    start = plan.initial()
    end = plan.latest(start, 0)
    assert sum(end[queue] - start[queue] for queue in end) == 50
    end = plan.latest(start, 20)
    assert sum(end[queue] - start[queue] for queue in end) == 20
    tiny = planner(ends, startingOffsets="earliest", maxBytesPerTrigger="1")
    assert sum(tiny.latest(start, 0).values()) == sum(start.values()) + 1


def test_partitions_of_a_batch(ends: FakeEnds) -> None:
    assert len(ranges(planner(ends, minPartitions="7"))) >= 7
    assert ranges(planner(ends, maxRecordsPerPartition="50")) == [(0, 0, 50), (0, 50, 100), (1, 50, 100), (1, 100, 150)]


def test_offsets_are_kept_for_the_group_when_spark_asks_for_more(ends: FakeEnds) -> None:
    plan = planner(ends, startingOffsets="earliest", commitOffsets="true", consumerGroup="g")
    start = plan.initial()
    end = plan.latest(start, 20)
    assert ends.committed == [start]
    plan.latest(end, 20)
    plan.latest(end, 20)
    assert ends.committed == [start, end]
    ends.failing = 1
    plan.latest({Q0: 100, Q1: 150}, 20)  # for looking at only: no query ends by it
    assert ends.committed == [start, end]
    planner(ends).latest(start, 20)
    assert ends.committed == [start, end]


def test_a_narrowed_batch(ends: FakeEnds) -> None:
    def narrowed(**more: object) -> list[tuple[int, int, int]]:
        found = planner(ends).batch(Narrowing(**more))
        return [(entry.queue_id, entry.start, entry.end) for entry in found]

    assert narrowed(queues=frozenset({1})) == [(1, 50, 150)]
    assert narrowed(topics=frozenset({"u"})) == []
    assert narrowed(first=60, end=90) == [(0, 60, 90), (1, 60, 90)]
    assert narrowed(from_ms=1100) == [(1, 110, 150)]
    assert narrowed(until_ms=500) == [(0, 0, 50)]


def test_a_queue_that_was_made_anew_is_told_by_what_the_query_read_last(ends: FakeEnds) -> None:
    start, end = {Q0: 40, Q1: 60}, {Q0: 50, Q1: 60}
    plan = planner(ends)
    plan.initial()
    marks = plan.marks({}, {}, start)
    assert marks == {Q0: 390, Q1: 590}
    assert plan.marks(marks, start, end) == {Q0: 490, Q1: 590}
    assert [(each.start, each.end) for each in plan.ranges(start, end, marks)] == [(40, 50)]
    ends.later = 7
    with pytest.raises(
        DataLossError,
        match=r"queue 0: the message at offset 39 was stored at 1970-01-01T00:00:00.390\+00:00 when.*made anew",
    ):
        planner(ends).ranges(start, end, marks)
    lenient = planner(ends, failOnDataLoss="false")
    assert [(each.start, each.end) for each in lenient.ranges(start, end, marks)] == [(0, 50)]
    ends.ends[Q0] = (45, 100)  # expired: nothing to tell it by
    assert [(each.start, each.end) for each in lenient.ranges(start, end, marks)] == [(45, 50)]
    assert [(each.start, each.end) for each in planner(ends).ranges({Q0: 45}, {Q0: 50}, marks)] == [(45, 50)]
