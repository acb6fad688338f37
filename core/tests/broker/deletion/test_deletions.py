"""Deleting topics and groups: whatever a crash leaves of it, it happened whole or not at all."""

from __future__ import annotations

import random

import pytest

from gantrymq.broker.consuming import offsets
from gantrymq.broker.deletion import deletions
from gantrymq.broker.deletion.deleting import STEP_EVERY_MS
from gantrymq.broker.deletion.deletions import REQUEST_MODES, _of_pop_group, decides
from gantrymq.broker.tables.tables import row_of
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.groups import GroupConfig
from gantrymq.model.message import Message
from gantrymq.store.testing import PowerCut
from tests.broker.node import Node, full_disk, groups_of
from tests.store.crash_states import MODES, CrashFiles, draw_mode

RETRIES = ("%RETRY%g_t",)
OTHERS = {"u@g", "u@h"}


def cursor_groups(node: Node) -> set[tuple[str, str]]:
    return {(cursor.queue, cursor.group) for cursor in node.broker.cursors.views()}


def prepare(node: Node) -> None:
    """Topics t (with a retry topic of a pop consumer) and u, offsets of two groups in both, cursors of pop consumers and a gateway."""
    broker = node.broker
    for name in ("t", "u"):
        broker.topics.create(TopicConfig(name, 2, 2))
        node.start("submit", [Message(name, b"%d" % number, queue_id=number % 2) for number in range(4)])
        for group in ("g", "h"):
            for queue in (0, 1):
                broker.commits.commit(group, name, queue, 1 + queue)
    broker.topics.create(TopicConfig(RETRIES[0], 1, 1))
    node.start("submit", [Message(RETRIES[0], b"again", queue_id=0)])
    broker.commits.commit("g", RETRIES[0], 0, 1)
    for queue, group in (("t/0", "pop:g"), ("t/1", "pop:h"), ("u/0", "pop:g"), ("t/0", "gateway")):
        _, rows = broker.cursors.create(queue, group, 0)
        broker.put("cursor", rows, None, None)
    groups = groups_of(broker)
    groups.set(GroupConfig("g"))
    groups.set(GroupConfig("h"))
    broker.put(REQUEST_MODES, [(f"{topic}@{group}", b"{}") for topic in "tu" for group in "gh"], None, None)
    broker.commits.write()
    node.turn.run_until_quiet()
    node.flush()


def offsets_of(node: Node) -> set[str]:
    keys = {f"{topic}@{group}" for topic, group, _ in node.broker.offsets.pairs()}
    assert keys == set(node.broker.tables.rows("offset"))
    return keys


def check_topic(node: Node, must: bool | None) -> bool:
    """True if t is deleted; everything says the same. `must`: what it has to be."""
    node.turn.run_until_quiet()
    gone = "t" not in node.broker.topics.topics
    if must is not None:
        assert gone is must
    assert not any(b'"deleting"' in row for row in node.broker.tables.rows("topic").values())
    if gone:
        assert RETRIES[0] not in node.broker.topics.topics
        assert offsets_of(node) == OTHERS == set(node.broker.tables.rows(REQUEST_MODES))
        assert cursor_groups(node) == {("u/0", "pop:g"), ("t/0", "gateway")}
        for name in ("t", *RETRIES):
            node.broker.topics.create(TopicConfig(name, 2, 2))
            for queue in (0, 1):
                first, end = node.broker.min_offset(name, queue), node.store.max_offset(name, queue)
                assert first == end  # empty, and counting on: no lag below zero, no ghosts
        assert node.broker.offsets.query("g", "t", 0) == -1
    else:
        assert RETRIES[0] in node.broker.topics.topics
        assert offsets_of(node) == {*OTHERS, "t@g", "t@h", f"{RETRIES[0]}@g"}
        assert len(cursor_groups(node)) == 4
    return gone


def check_group(node: Node, must: bool | None) -> bool:
    """As `check_topic` for group g."""
    node.turn.run_until_quiet()
    groups = groups_of(node.broker)
    gone = groups.configs.get("g") is None
    if must is not None:
        assert gone is must
    left = (
        {("u", "h"), ("t", "h")} if gone else {(topic, group) for topic in "tu" for group in "gh"} | {(RETRIES[0], "g")}
    )
    assert {(topic, group) for topic, group, _ in node.broker.offsets.pairs()} == left
    modes = {key.rpartition("@")[2] for key in node.broker.tables.rows(REQUEST_MODES)}
    assert modes == ({"h"} if gone else {"g", "h"})
    assert ("t/0", "gateway") in cursor_groups(node)
    assert (("t/0", "pop:g") in cursor_groups(node)) is not gone
    assert ("t/1", "pop:h") in cursor_groups(node)
    return gone


def delete_topic(node: Node) -> None:
    assert node.broker.delete_topic("t")


def delete_group(node: Node) -> None:
    groups_of(node.broker).delete("g", True)


STORIES = [(delete_topic, check_topic), (delete_group, check_group)]


@pytest.fixture(params=[False, True], ids=["one-batch", "slices"])
def sliced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A row at a time."""
    if request.param:
        monkeypatch.setattr(deletions, "SLICED_MIN", 0)
        monkeypatch.setattr(deletions, "ROWS_STEP", 1)
        monkeypatch.setattr(offsets, "ROWS_STEP", 1)
    return bool(request.param)


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize(("delete", "check"), STORIES)
def test_deleted_whole(delete, check) -> None:  # type: ignore[no-untyped-def]
    files = CrashFiles()
    node = Node(files, True)
    prepare(node)
    check(Node(files.after_power_loss(lambda path, count: [True] * count, -1), True), False)
    delete(node)
    node.turn.run_until_quiet()
    node.flush()
    check(Node(files.after_power_loss(lambda path, count: [True] * count, -1), True), True)
    node.stop()
    check(Node(files, True), True)


@pytest.mark.parametrize(("delete", "check"), STORIES)
def test_every_crash_state(delete, check, sliced: bool) -> None:  # type: ignore[no-untyped-def]
    """The power goes at every change of the disk from the deletion on (of slices at every third), in four ways; what was acknowledged
    stays."""

    def run(files: CrashFiles, said: list[object]) -> None:
        node = Node(files, True)
        prepare(node)
        said.append(len(files.operations))
        delete(node)
        node.broker.when_stored(None, lambda token, result: said.append(result))
        node.turn.run_until_quiet()
        node.flush()
        node.background()

    probe, marks = CrashFiles(), []
    run(probe, marks)  # type: ignore[arg-type]
    assert marks[1:] == [None]
    seen = set()
    for cut in range(int(str(marks[0])), len(probe.operations), 3 if sliced else 1):
        for mode in MODES:
            files, said = CrashFiles(), []
            files.power_cut_at = cut
            with pytest.raises(PowerCut):
                run(files, said)  # type: ignore[arg-type]
            state = draw_mode(files, mode, random.Random(cut))
            seen.add(check(Node(state, True), True if said[1:] else None))
    assert seen == {False, True}


@pytest.mark.parametrize(("delete", "check"), STORIES)
def test_every_front_part_of_the_batch(delete, check) -> None:  # type: ignore[no-untyped-def]
    """The log ends behind each record of the deletion's batch in turn."""
    ends: list[int] = []
    count = 0
    seen = []
    while True:
        files = CrashFiles()
        node = Node(files, False)
        prepare(node)
        append = node.store.append

        def cut(batch, lights):  # type: ignore[no-untyped-def]
            ends.append(len(batch))
            return append(batch[:count], lights[:count])  # noqa: B023

        node.store.append = cut  # type: ignore[method-assign]
        delete(node)
        node.turn.run_until_quiet()
        node.store.append = append  # type: ignore[method-assign]
        state = files.after_power_loss(lambda path, changes: [True] * changes, -1)
        first = Node(state, False)
        seen.append(check(first, None))
        first.turn.run_until_quiet()
        if count == 0:
            first.stop()
        else:
            again = state.after_power_loss(lambda path, changes: [True] * changes, -1)
            check_again = Node(again, False)  # what the start wrote is there at the next one too
            assert offsets_of(check_again) == {f"{topic}@{group}" for topic, group, _ in first.broker.offsets.pairs()}
        count += 1
        if count > ends[-1]:
            break
    assert seen == [False] + [True] * ends[-1]
    assert ends[-1] > 3


def end_of(node: Node) -> None:
    node.wheel.advance(1000)
    node.turn.run_until_quiet()
    assert not node.broker.deleting.jobs


@pytest.mark.parametrize("sliced", [True], indirect=True)
@pytest.mark.parametrize(("delete", "check"), STORIES)
def test_slices_come_to_an_end_by_themselves_and_at_a_stop(delete, check, sliced: bool) -> None:  # type: ignore[no-untyped-def]
    assert sliced
    node = Node(CrashFiles(), False)
    prepare(node)
    delete(node)
    node.turn.run_until_quiet()
    assert node.broker.deleting.jobs
    steps = 0
    while node.broker.deleting.jobs:
        node.wheel.advance(STEP_EVERY_MS)
        node.turn.run_until_quiet()
        steps += 1
    assert steps > 3
    check(node, True)
    other = Node(CrashFiles(), False)
    prepare(other)
    delete(other)
    other.stop()
    assert not other.broker.deleting.jobs
    check(Node(other.files, False), True)


@pytest.mark.parametrize("sliced", [True], indirect=True)
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("steps", [0, 2])
def test_what_is_made_again_meanwhile_is_not_taken_for_what_goes(steps: int, crash: bool, sliced: bool) -> None:
    assert sliced
    node = Node(CrashFiles(), False)
    broker = node.broker
    prepare(node)

    def some_steps() -> None:
        node.turn.run_until_quiet()
        for _ in range(steps):
            node.wheel.advance(STEP_EVERY_MS)
            node.turn.run_until_quiet()
        assert broker.deleting.jobs

    delete_topic(node)
    some_steps()
    broker.topics.create(TopicConfig("t", 2, 2))
    assert not broker.deleting.jobs
    assert broker.offsets.query("h", "t", 0) == -1
    delete_group(node)
    some_steps()
    broker.commits.commit("g", "u", 1, 1)
    assert not broker.deleting.jobs
    groups = groups_of(broker)
    groups.delete("h", True)
    some_steps()
    groups.set(GroupConfig("h"))
    assert not broker.deleting.jobs
    groups.delete("h", True)
    some_steps()
    _, rows = broker.cursors.create("u/1", "pop:h", 0)
    broker.put("cursor", rows, None, None)
    broker.commits.write()
    node.turn.run_until_quiet()
    if crash:
        node = Node(node.files.after_process_crash(), False)
    else:
        end_of(node)
    assert "t" in node.broker.topics.topics
    pairs = {(topic, group): queues for topic, group, queues in node.broker.offsets.pairs()}
    pairs.pop(("u", "h"), None)  # what a start says of a pop consumer's cursor
    assert pairs == {("u", "g"): {1: 1}}
    assert cursor_groups(node) == {("t/0", "gateway"), ("u/1", "pop:h")}


def seen_offsets(node: Node) -> list[object]:
    """What whoever asks for offsets is told."""
    known = node.broker.offsets
    topics, groups = ("t", "u", *RETRIES), ("g", "h")
    return [
        [known.query(group, topic, 0) for topic in topics for group in groups],
        [known.all_of(group, topic) for topic in topics for group in groups],
        [sorted(known.groups_of(topic)) for topic in topics],
        [sorted(known.topics_of(group)) for group in groups],
        sorted(known.groups()),
    ]


@pytest.mark.parametrize("sliced", [True], indirect=True)
@pytest.mark.parametrize(
    ("delete", "left"), [(delete_group, [-1, 1, -1, 1, -1, -1]), (delete_topic, [-1, -1, 1, 1, -1, -1])]
)
def test_what_is_deleted_is_not_seen_from_the_answer_on(delete, left, sliced: bool) -> None:  # type: ignore[no-untyped-def]
    """A consumer that starts before the last slice must not take up the old offset, and commit it."""
    assert sliced
    node = Node(CrashFiles(), False)
    prepare(node)
    delete(node)
    told = seen_offsets(node)
    assert node.broker.deleting.jobs
    end_of(node)
    assert told == seen_offsets(node)
    assert told[0] == left
    assert not node.broker.deleting.going


@pytest.mark.parametrize("sliced", [True], indirect=True)
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_retry_topic_made_again_meanwhile_stays(steps: int, crash: bool, sliced: bool) -> None:
    """It goes with another topic, but whoever makes it again has the rest of that written first."""
    assert sliced
    node = Node(CrashFiles(), False)
    broker = node.broker
    prepare(node)
    delete_topic(node)
    node.turn.run_until_quiet()
    for _ in range(steps):
        node.wheel.advance(STEP_EVERY_MS)
        node.turn.run_until_quiet()
    assert broker.deleting.jobs
    broker.topics.create(TopicConfig(RETRIES[0], 1, 1))
    broker.commits.commit("g", RETRIES[0], 0, 1)
    if not crash:  # else its start would set the offset
        _, rows = broker.cursors.create(f"{RETRIES[0]}/0", "pop:g", 1)
        broker.put("cursor", rows, None, None)
    broker.commits.write()
    node.turn.run_until_quiet()
    if crash:
        node = Node(node.files.after_process_crash(), False)
    else:
        end_of(node)
        assert (f"{RETRIES[0]}/0", "pop:g") in cursor_groups(node)
    assert RETRIES[0] in node.broker.topics.topics
    assert node.broker.offsets.all_of("g", RETRIES[0]) == {0: 1}
    assert "t" not in node.broker.topics.topics
    assert not any(b'"deleting"' in row for row in node.broker.tables.rows("topic").values())


@pytest.mark.parametrize("sliced", [True], indirect=True)
@pytest.mark.parametrize("delete", [delete_topic, delete_group])
def test_a_mode_and_a_cursor_set_meanwhile_stay(delete, sliced: bool) -> None:  # type: ignore[no-untyped-def]
    assert sliced
    node = Node(CrashFiles(), False)
    prepare(node)
    delete(node)
    node.turn.run_until_quiet()
    assert node.broker.deleting.jobs
    _, rows = node.broker.cursors.create("t/1", "pop:g", 0)
    node.broker.put("cursor", rows, None, None)
    assert not node.broker.deleting.jobs
    groups_of(node.broker).delete("h", True)
    node.broker.put(REQUEST_MODES, [("u@h", b"{new}")], None, None)
    node.turn.run_until_quiet()
    end_of(node)
    assert ("t/1", "pop:g") in cursor_groups(node)
    assert node.broker.tables.rows(REQUEST_MODES)["u@h"] == b"{new}"


@pytest.mark.parametrize("sliced", [True], indirect=True)
def test_an_old_reset_does_not_concern_who_commits_or_pulls_meanwhile(sliced: bool) -> None:
    assert sliced
    node = Node(CrashFiles(), False)
    prepare(node)
    for topic in ("t", "u"):
        node.broker.commits.reset("g", topic, 0, 0)
    delete_group(node)
    assert node.broker.offsets.take_reset("g", "t", 0) == -1
    assert node.broker.deleting.jobs
    node.broker.commits.commit("g", "u", 0, 2)
    assert node.broker.offsets.all_of("g", "u") == {0: 2}
    assert not node.broker.offsets.resets


@pytest.mark.parametrize("sliced", [True], indirect=True)
def test_a_place_of_a_deleted_group_commits_nothing_more(sliced: bool) -> None:
    """Its cursor goes some slices later: what is acknowledged until then must not bring the group's offset back."""
    assert sliced
    node = Node(CrashFiles(), False)
    prepare(node)
    pops = node.broker.pops
    place = pops.place("g", "t", 0, True)
    found = pops.select(place, 1, 1 << 20, None)
    assert found is not None
    pop_ms = pops.pop_ms()
    pops.take(place, found, pop_ms, 60_000, False, None)
    delete_group(node)
    assert pops.acknowledge(place, found.offsets, pop_ms)
    node.turn.run_until_quiet()
    assert node.broker.offsets.query("g", "t", 0) == -1
    end_of(node)
    assert node.broker.offsets.groups() == ["h"]


@pytest.mark.parametrize("sliced", [True], indirect=True)
@pytest.mark.parametrize(("delete", "check"), STORIES)
def test_every_front_part_of_slices_that_a_full_disk_held_up(delete, check, sliced: bool) -> None:  # type: ignore[no-untyped-def]
    """All of them come in one batch when there is room; the log ends behind each record of it in turn."""
    assert sliced
    count, of, seen = 0, 1, []
    while count <= of:
        files = CrashFiles()
        node = Node(files, False)
        prepare(node)
        with full_disk(files):
            delete(node)
            node.turn.run_until_quiet()
            while node.broker.deleting.jobs:
                node.wheel.advance(STEP_EVERY_MS)
                node.turn.run_until_quiet()
        append, sizes = node.store.append, []

        def cut(batch, lights):  # type: ignore[no-untyped-def]
            sizes.append(len(batch))  # noqa: B023
            return append(batch[:count], lights[:count])  # noqa: B023

        node.store.append = cut  # type: ignore[method-assign]
        node.wheel.advance(1_000)
        node.turn.run_until_quiet()
        of = sizes[0]
        seen.append(check(Node(files.after_power_loss(lambda path, changes: [True] * changes, -1), False), None))
        count += 1
    assert seen == [False] + [True] * of
    assert of > 3


def test_what_decides_a_deletion_is_kept_once_however_often_a_full_disk_refuses_it() -> None:
    node = Node(CrashFiles(), False)
    broker = node.broker
    prepare(node)
    with full_disk(node.files):
        for _ in range(5):
            assert broker.delete_topic("t")
            groups_of(broker).delete("g", True)
            broker.topics.create(TopicConfig("t", 2, 2))
            groups_of(broker).set(GroupConfig("g"))
            broker.commits.commit("g", "t", 0, 1)
            broker.commits.write()
            node.turn.run_until_quiet()
        ((messages, *_),) = broker._internal
        rows = [row_of(message) for message in messages]
        for wanted in (("topic", "t"), ("group", "g")):
            assert [decides(*row) for row in rows if row[:2] == wanted] == [True, False]
        others = [row[:2] for row in rows if not decides(*row)]
        assert len(others) == len(set(others))
    broker.commits.write()
    end_of(node)
    again = Node(node.files.after_process_crash(), False)  # type: ignore[attr-defined]
    assert "t" in again.broker.topics.topics
    assert "g" in groups_of(again.broker).configs
    assert again.broker.offsets.query("g", "t", 0) == 1


def test_retry_topics_are_found_either_way() -> None:
    node = Node(CrashFiles(), False)
    prepare(node)
    assert deletions._retries(node.broker, "t", ["g", "h"]) == [*RETRIES]
    for number in range(9):
        node.broker.topics.create(TopicConfig(f"more-{number}", 1, 1))
    assert deletions._retries(node.broker, "t", ["g", "h"]) == [*RETRIES]
    assert deletions._retries(node.broker, "t", ["h"]) == []


def test_cursors_of_a_group_are_found_either_way() -> None:
    node = Node(CrashFiles(), False)
    prepare(node)
    few = {cursor.queue for part in _of_pop_group(node.broker, "pop:g") for cursor in part}
    for number in range(len(node.broker.topics.topics) * 2):
        node.broker.cursors.create(f"u/{number % 2}", f"gateway-{number}", 0)
    many = {cursor.queue for part in _of_pop_group(node.broker, "pop:g") for cursor in part}
    assert few == many == {"t/0", "u/0"}


def test_changed_since() -> None:
    node = Node(CrashFiles(), False)
    topics = node.broker.topics
    start = topics.version
    topics.create(TopicConfig("a"))
    topics.create(TopicConfig("b"))
    topics.create(TopicConfig("a", 8, 8))
    node.broker.delete_topic("b")
    assert topics.changed_since(start) == ["a", "b"]
    assert topics.changed_since(topics.version) == []
    assert topics.changed_since(start + 3) == ["b"]
    assert topics.changed_since(start - 1) is None
    assert topics.changed_since(topics.version + 1) is None
    assert not node.broker.delete_topic("b")
