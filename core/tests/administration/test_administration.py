"""The administration without a wire: what is made, changed and deleted by people; refusals; numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.administration.administration import Administration
from gantrymq.administration.figures import Ends, store_ms
from gantrymq.administration.offsets import OFFSET_MAX, client_targets, offset_by_time, reset_targets
from gantrymq.administration.reading import Steps
from gantrymq.administration.topics import TOPICS_PER_REQUEST_MAX
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.groups import GroupConfig
from tests.remoting.bench import Bench, send


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def administration(bench: Bench) -> Administration:
    return bench.doors.administration


def worked_off(steps: Steps[Any]) -> Any:
    """What the steps return, on a disk that is never cold."""
    while True:
        try:
            assert next(steps) is None
        except StopIteration as end:
            return end.value


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(GantryError) as caught:
        call()
    return caught.value.code


def test_a_topic_is_made_changed_and_deleted(bench: Bench, administration: Administration) -> None:
    topics = administration.topics
    topics.create([topics.config("orders", (4, 4), 6, 0, False, ["+message.type=FIFO,+gantry.note=a"])])
    made = bench.broker.topics.topics["orders"].config
    assert (made.read_queues, made.attributes) == (4, {"message.type": "FIFO", "gantry.note": "a"})
    end = bench.store.written_position
    topics.create([topics.config("orders", (4, 4), 6, 0, False, [])])
    bench.turn.run_until_quiet()
    position = bench.store.written_position
    assert position >= end
    topics.create([topics.config("orders", (4, 4), 6, 0, False, [])])
    bench.turn.run_until_quiet()
    assert bench.store.written_position == position  # nothing changed: no record
    topics.create([topics.config("orders", (8, 8), 4, 0, False, ["-gantry.note"])])
    changed = bench.broker.topics.topics["orders"].config
    assert (changed.read_queues, changed.perm, changed.attributes) == (8, 4, {"message.type": "FIFO"})
    topics.delete("orders")
    topics.delete("never there")
    assert "orders" not in bench.broker.topics.topics


def test_all_topics_or_none(bench: Bench, administration: Administration) -> None:
    topics = administration.topics
    good = topics.config("good", (1, 1), 6, 0, False, [])
    bad = topics.config("bad", (0, 1 << 20), 6, 0, False, [])
    assert code_of(lambda: topics.create([good, bad])) is ErrorCode.ILLEGAL_ARGUMENT
    assert "good" not in bench.broker.topics.topics
    assert code_of(lambda: topics.create([good] * (TOPICS_PER_REQUEST_MAX + 1))) is ErrorCode.ILLEGAL_ARGUMENT


@pytest.mark.parametrize(
    ("name", "perm", "changes", "code"),
    [
        ("a b", 6, [], ErrorCode.NAME_INVALID), ("SCHEDULE_TOPIC_XXXX", 6, [], ErrorCode.ILLEGAL_ARGUMENT),
        ("t", 8, [], ErrorCode.ILLEGAL_ARGUMENT), ("t", 6, ["+cleanup.policy=NEVER"], ErrorCode.ILLEGAL_ARGUMENT),
        ("t", 6, ["+unheard.of=1"], ErrorCode.ILLEGAL_ARGUMENT), ("t", 6, ["message.type=FIFO"], ErrorCode.ILLEGAL_ARGUMENT),
    ],
)  # fmt: skip
def test_what_no_topic_may_be(
    administration: Administration, name: str, perm: int, changes: list[str], code: ErrorCode
) -> None:
    assert code_of(lambda: administration.topics.config(name, (1, 1), perm, 0, False, changes)) is code


@pytest.mark.parametrize(
    ("name", "code"),
    [(" ", "ILLEGAL_ARGUMENT"), ("rmq_sys_gantry_ack", "NO_PERMISSION"), ("SCHEDULE_TOPIC_XXXX", "ILLEGAL_ARGUMENT")],
)
def test_what_cannot_be_deleted(administration: Administration, name: str, code: str) -> None:
    assert code_of(lambda: administration.topics.delete(name)).name == code


def test_groups_all_or_none(administration: Administration) -> None:
    groups = administration.groups
    assert code_of(lambda: groups.update([GroupConfig("one"), GroupConfig("not a name")])) is ErrorCode.NAME_INVALID
    assert groups.get("one") is None
    version = groups.version
    groups.update([GroupConfig("one", retry_max_times=3), GroupConfig("two")])
    assert (groups.configs["one"].retry_max_times, sorted(groups.configs), groups.version) == (
        3,
        ["one", "two"],
        version + 2,
    )


def filled(bench: Bench, count: int = 10) -> None:
    link = bench.connect()
    for number in range(count):
        send(link, b"%d" % number, e=0)
        bench.clock.advance(1_000)


def test_offsets_are_set_by_time_and_place(bench: Bench, administration: Administration) -> None:
    filled(bench)
    offsets, reading = administration.offsets, bench.doors.reading
    topic = offsets.topic("T")
    start = store_ms(reading, "T", 0, 0)
    assert [offset_by_time(reading, "T", 0, at) for at in (0, start + 3_500, -1)] == [0, 4, 10]
    assert reset_targets(reading, topic, start + 3_500, 0, None) == {0: 4}
    assert reset_targets(reading, topic, 0, 0, 7) == {0: 7}
    assert reset_targets(reading, topic, -1, -1, None)[0] == 10
    assert code_of(lambda: reset_targets(reading, topic, 0, 99, None)) is ErrorCode.ILLEGAL_ARGUMENT
    assert code_of(lambda: reset_targets(reading, topic, 0, 0, 11)) is ErrorCode.ILLEGAL_ARGUMENT
    assert code_of(lambda: offsets.check_group("nobody")) is ErrorCode.GROUP_NOT_FOUND
    assert code_of(lambda: offsets.topic("nothing")) is ErrorCode.TOPIC_NOT_FOUND
    assert client_targets(reading, "g", topic, 0, False) is None
    offsets.reset("g", "T", {queue: 5 if not queue else 0 for queue in range(topic.config.write_queues)})
    assert bench.broker.offsets.query("g", "T", 0) == 5
    back, forward = client_targets(reading, "g", topic, 0, False), client_targets(reading, "g", topic, -1, False)
    assert back is not None
    assert forward is not None
    assert (back[0], forward[0]) == (0, 5)
    forced = client_targets(reading, "g", topic, -1, True)
    assert forced is not None
    assert forced[0] == 10


def test_offsets_are_copied_and_compared(bench: Bench, administration: Administration) -> None:
    filled(bench)
    offsets = administration.offsets
    offsets.reset("a", "T", {0: 4})
    offsets.reset("b", "T", {0: 6})
    assert offsets.correction("b", "T", ()) == {0: 4}
    assert offsets.correction("a", "T", ()) == {0: 4}
    assert offsets.correction("b", "T", ("a",)) == {0: 6}
    assert offsets.correction("a", "T", ("a",)) == {0: OFFSET_MAX}
    offsets.clone("a", "copy", "", False)
    assert bench.broker.offsets.query("copy", "T", 0) == 4
    assert code_of(lambda: offsets.clone("a", "not a name", "", False)) is ErrorCode.NAME_INVALID


def test_numbers_of_a_group(bench: Bench, administration: Administration) -> None:
    filled(bench)
    figures = administration.figures
    administration.offsets.reset("g", "T", {0: 4})
    (lag, *_) = worked_off(figures.lags("g", "T"))
    assert (lag.queue_id, lag.end, lag.committed) == (0, 10, 4)
    assert lag.consumed_ms == store_ms(bench.doors.reading, "T", 0, 3)
    assert worked_off(figures.lags("g", "nothing")) == []
    row = worked_off(figures.group_row("g", Ends(bench.doors.reading)))
    assert (row.group, row.lag, row.topics, row.members) == ("g", 6, ["T"], [])
    assert figures.consumed_topics("g") == ["T"]


def test_draining_is_seen_and_ends(bench: Bench, administration: Administration) -> None:
    overview = administration.overview
    overview.drain(True)
    bench.turn.run_until_quiet()
    assert (overview.is_draining(), bench.broker.settings.permission) == (True, 4)
    overview.drain(False)
    bench.turn.run_until_quiet()
    assert (overview.is_draining(), bench.broker.settings.permission) == (False, 6)
    seen = worked_off(overview.steps(True, {"waiting": {"pulls": 3}, "more": 1}))
    assert (seen["draining"], seen["waiting"]["pulls"], seen["more"]) == (False, 3, 1)
    assert "backlog" in seen


def test_damage_that_is_not_there_cannot_be_skipped(administration: Administration) -> None:
    assert worked_off(administration.damage.rows()) == []
    assert code_of(lambda: administration.damage.skip(0, "", -1)) is ErrorCode.NOT_FOUND
