"""Queues that go to another broker group with what is in them."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.forward.described import described_from
from gantrymq.broker.forward.deserted import SEATS_MS
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, Outcome, Terms
from gantrymq.broker.tables.forward_table import CAME, COMING, CONSUMED, ENDED, LEAVING, TABLE
from gantrymq.broker.tables.group_tables import MOVED_TABLE, moved_from
from gantrymq.cluster.forward.moving import FEW, STALLED_MAX
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from tests.cluster.forward.forward_site import ForwardSite, code_of

NAME = 7 << 33 | 1
"""The queue's id in the cluster."""


def move(site: ForwardSite, source: str, target: str, *lights: int, name: int = NAME) -> Any:
    return site.ask(target, "take_queues", source, [(light, name + place) for place, light in enumerate(lights)])


def light_of(site: ForwardSite, where: str, name: int = NAME) -> int:
    return moved_from(site.nodes[where].broker.tables.rows(MOVED_TABLE).get(str(name))).light


def cursor_of(site: ForwardSite, where: str, name: int = NAME) -> int:
    cursor: int = site.ask(where, "open_cursor", f"~{light_of(site, where, name)}", "g", EARLIEST).cursor
    return cursor


def nothing_is_left(site: ForwardSite) -> None:
    for node in [node for name, node in site.nodes.items() if name not in site.away]:
        left = (LEAVING, COMING, CAME, ENDED, CONSUMED)
        assert not [key for key in node.broker.tables.rows(TABLE) if key.startswith(left)]
        assert not node.broker.leaving.frozen
        assert not node.broker.holding.targets


def nobody_knows_it(site: ForwardSite) -> None:
    """The queue that had moved has ended."""
    running = [node for name, node in site.nodes.items() if name not in site.away]
    assert not any(node.broker.tables.rows(MOVED_TABLE) for node in running)
    nothing_is_left(site)


def test_a_queue_goes_with_what_is_in_it_and_everybody_sends_to_the_new_place():
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    for number, name in enumerate(("a", "b", "c")):
        site.publish(name, b"%d" % number)
    site.wait(100)
    deliveries = site.ask("b", "acquire", cursor, 1, 2, 1 << 20)
    site.nodes["b"].port.settle([(cursor, deliveries[0].offset, Outcome.ACK)])
    site.run()
    assert move(site, "b", "c", light) is None
    site.wait(100)
    for number, name in enumerate(("a", "b", "c")):
        site.publish(name, b"%d" % (number + 3))
    site.wait(200)
    left = {b"0", b"1", b"2"} - {deliveries[0].message.body}
    found = site.ask("c", "acquire", cursor_of(site, "c"), 1, 10, 1 << 20)
    assert {each.message.body for each in found[:2]} == left
    assert len(found) == 5
    assert {each.message.body for each in found[2:]} == {b"3", b"4", b"5"}
    assert {each.message.body: each.count for each in found}[deliveries[1].message.body] == 2, "it was given out before"
    assert str(light) not in site.nodes["b"].broker.tables.rows("light")
    assert site.nodes["b"].broker.tables.rows(MOVED_TABLE)[str(NAME)] == b"0 0"
    nothing_is_left(site)


@pytest.mark.parametrize("back", [False, True])
def test_it_goes_on_and_back(back: bool):
    site = ForwardSite("a", "b", "c")
    light, _ = site.queue("b", "a", "r1")
    site.publish("a", b"1")
    site.wait(100)
    assert move(site, "b", "c", light) is None
    site.publish("b", b"2")
    target = "b" if back else "a"
    assert move(site, "c", target, light_of(site, "c")) is None
    came = site.ask("c", "queues_came", [(NAME, 0), (NAME, 1), (NAME + 1, 0)])
    assert came == [True, False, False], "it was there once, and has gone on"
    site.publish("c", b"3")
    site.wait(100)
    assert site.bodies(target, cursor_of(site, target)) == [b"1", b"2", b"3"]
    nothing_is_left(site)


def test_its_policy_its_row_and_its_routes_go_along():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a", "r1")
    site.nodes["b"].broker.put("amqp_queue", [("q", b"{}")], None, None)
    site.run()
    policy = Policy("q", priorities=5, max_length=3, overflow="reject-publish", row=("amqp_queue", "q"))
    assert site.ask("b", "set_policy", cursor, policy) is None
    for number in (1, 3):
        site.publish("a", b"%d" % number, properties=b"GANTRY_PRIORITY\x01%d\x02" % number)
    site.wait(100)
    assert move(site, "b", "a", light) is None
    tables = site.nodes["a"].broker.tables
    assert tables.rows("amqp_queue") == {"q": b"{}"}
    assert not site.nodes["b"].broker.tables.rows("amqp_queue")
    queue = site.nodes["a"].broker.queues.by_light[light_of(site, "a")]
    assert queue.policy == policy
    assert site.publish("a", b"2", properties=b"GANTRY_PRIORITY\x012\x02") == [2]
    assert site.publish("a", b"4") == [3], "the queue is full, and refuses only those who ask whether it took them"
    assert site.bodies("a", cursor_of(site, "a")) == [b"3", b"2", b"1"]
    assert not site.nodes["b"].broker.tables.rows("queue")
    assert list(tables.rows("route")) == ["r1"]
    assert site.ask("a", "remove_routes", ["r1"]) == 1
    site.publish("b", b"5")
    site.wait(100)
    assert site.bodies("a", cursor_of(site, "a")) == []


def test_while_it_is_frozen_nothing_of_it_changes_and_whoever_takes_it_back_finds_all():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("a", b"1")
    site.wait(100)
    told: list[int] = []
    port = site.nodes["b"].port
    port.watch(cursor, told.append)
    site.run()
    told.clear()
    (described,) = site.ask("b", "freeze_lights", [(light, NAME)], "a", "m")
    assert described_from(described).end == 1
    assert site.ask("b", "acquire", cursor, 1, 10, 1 << 20) == []
    for call in (
        ("open_cursor", f"~{light}", "h", EARLIEST), ("set_policy", cursor, Policy("q")), ("purge", cursor), ("delete_cursor", cursor),
        ("delete_light", light), ("add_route", site.route(light, "b", "r2")), ("remove_routes", ["r1"]),
        ("freeze_lights", [(light, NAME)], "a", "n"),
    ):  # fmt: skip
        assert code_of(site.ask("b", *call)) is ErrorCode.NOT_OWNER, call
    site.ask("b", "end_freeze", [light], "another", False)
    assert light in site.nodes["b"].broker.leaving.frozen, "what an earlier attempt says comes too late"
    site.ask("b", "end_freeze", [light], "m", False)
    site.run()
    assert told == [cursor]
    assert site.bodies("b", cursor) == [b"1"]
    nothing_is_left(site)


def test_what_is_frozen_stays_so_through_a_start_until_the_other_group_says_that_it_did_not_come():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    site.ask("b", "freeze_lights", [(light, NAME)], "a", "m")
    site.cut("a", "b")
    site.start("b", site.kill("b"))
    assert site.ask("b", "acquire", cursor, 1, 10, 1 << 20) == []
    site.wait(5_000)
    assert site.bodies("b", cursor) == [b"1"]
    nothing_is_left(site)


def test_nobody_hears_of_it_before_it_is_on_the_disk():
    site = ForwardSite("a", "b", "c")
    light, _ = site.queue("b", "a", "r1")
    site.publish("a", b"1")
    site.wait(100)
    site.unflushed.add("c")
    box = site.begun("c", "take_queues", "b", [(light, NAME)])
    site.wait(900)
    assert not box
    assert light_of(site, "c")
    assert [key for key in site.nodes["a"].broker.router.ids_from(0, 1 << 62, "@") if key.endswith("/r1")] == ["@b/r1"]
    site.unflushed.clear()
    site.wait(500)
    assert box == [None]
    assert [key for key in site.nodes["a"].broker.router.ids_from(0, 1 << 62, "@") if key.endswith("/r1")] == ["@c/r1"]
    assert site.bodies("c", cursor_of(site, "c")) == [b"1"]
    nothing_is_left(site)


def test_what_the_disk_does_not_take_stays_where_it_was(monkeypatch: pytest.MonkeyPatch):
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("c", b"1")
    broker = site.nodes["c"].broker
    put_rows = broker.put_rows

    def full(rows: Any, token: Any = None, on_done: Any = None, together: bool = False) -> None:
        if any(row[0] == MOVED_TABLE for row in rows):
            on_done(token, GantryError(ErrorCode.STORE_FULL, "the disk is full"))
        else:
            put_rows(rows, token, on_done, together)

    monkeypatch.setattr(broker, "put_rows", full)
    assert code_of(move(site, "b", "c", light)) is ErrorCode.STORE_FULL
    site.wait(200)
    site.publish("c", b"2")
    site.wait(200)
    assert site.bodies("b", cursor) == [b"1", b"2"], "who was to take it does not send any more"
    assert not broker.tables.rows("cursor").keys() - {"next"} - {str(each) for each in broker.cursors.by_id}
    nothing_is_left(site)


def test_a_group_that_is_forgotten_gets_nothing():
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    site.ask("b", "freeze_lights", [(light, NAME)], "c", "m")
    site.kill("c")
    site.wait(3_000)
    assert site.ask("b", "acquire", cursor, 1, 10, 1 << 20) == [], "it may have come there"
    site.forget("c")
    site.wait(100)
    assert site.bodies("b", cursor) == [b"1"]


def test_a_silent_group_keeps_queues_where_they_are():
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    site.cut("a", "c")
    result = move(site, "b", "a", light)
    assert code_of(result) is ErrorCode.UNAVAILABLE
    site.wait(100)
    assert site.bodies("b", cursor) == [b"1"]
    nothing_is_left(site)


@pytest.mark.parametrize("who", ["a", "b", "c"])
@pytest.mark.parametrize("calls", range(1, 40, 6))
def test_whoever_is_killed_on_the_way_the_queue_is_at_one_place_with_all_that_it_had(who: str, calls: int):
    """After so many calls of the group that takes it."""
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    for name in ("a", "b", "c"):
        site.publish(name, b"%s1" % name.encode())
    site.wait(100)
    lines = [site.lines["c", "b"], site.lines["c", "a"]]
    lines[calls % 2].calls_left = calls // 2
    site.begun("c", "take_queues", "b", [(light, NAME)])
    site.start(who, site.kill(who))
    site.wait(6_000)
    for name in ("a", "b", "c"):
        site.publish(name, b"%s2" % name.encode())
    site.wait(500)
    nothing_is_left(site)
    moved = light_of(site, "c")
    assert bool(moved) != (str(light) in site.nodes["b"].broker.tables.rows("light"))
    where, place = ("c", cursor_of(site, "c")) if moved else ("b", cursor)
    bodies = site.bodies(where, place)
    assert sorted(bodies) == sorted([b"a1", b"a2", b"b1", b"b2", b"c1", b"c2"])
    assert all(bodies.index(b"%s1" % name) < bodies.index(b"%s2" % name) for name in (b"a", b"b", b"c"))


def test_streams_and_what_is_not_there_stay():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a", "r1")
    site.ask("b", "set_policy", cursor, Policy("s", stream=True))
    result = move(site, "b", "a", light)
    assert code_of(result) is ErrorCode.NOT_SUPPORTED
    assert "is a stream" in result.text
    assert code_of(move(site, "b", "a", 99)) is ErrorCode.QUEUE_NOT_FOUND
    assert code_of(move(site, "z", "a", light)) is ErrorCode.NOT_FOUND
    nothing_is_left(site)
    assert site.publish("a", b"1") == [0]
    site.wait(100)
    assert site.ask("b", "scan", cursor, 0, 10, 1 << 20).deliveries[0].message.body == b"1"


def test_many_queues_go_together_and_none_without_the_others():
    site = ForwardSite("a", "b")
    lights = [site.queue("b", "a", f"r{number}")[0] for number in range(5)]
    site.publish("a", *[b"%d" % number for number in range(3_000)])
    site.wait(500)
    assert code_of(move(site, "b", "a", *lights, 99)) is ErrorCode.QUEUE_NOT_FOUND
    assert all(not light_of(site, "a", NAME + place) for place in range(5))
    assert move(site, "b", "a", *lights) is None
    for place in range(5):
        assert site.bodies("a", cursor_of(site, "a", NAME + place)) == [b"%d" % number for number in range(3_000)]
    nothing_is_left(site)


@pytest.mark.parametrize("flushed", [True, False])
def test_a_target_whose_disk_fails_at_the_decision_leaves_the_queue_to_its_next_start(flushed: bool):
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    site.unflushed.add("c")
    answers = site.begun("c", "take_queues", "b", [(light, NAME)])
    while not light_of(site, "c"):
        site.wait(50)
    site.nodes["c"].broker.store_failed(GantryError(ErrorCode.STORE_FAILED, "broken"))
    site.run()
    assert code_of(answers[0]) is ErrorCode.STORE_FAILED
    site.publish("a", b"2")
    site.wait(5_000)
    assert light in site.nodes["b"].broker.leaving.frozen, "only the disk knows whether the queue came"
    site.unflushed.clear()
    files = site.kill("c")
    if not flushed:
        files = files.after_power_loss(lambda path, count: [False] * count)
    site.start("c", files)
    site.wait(5_000)
    where, place = ("c", cursor_of(site, "c")) if light_of(site, "c") else ("b", cursor)
    assert where == ("c" if flushed else "b")
    assert site.bodies(where, place) == [b"1", b"2"]
    nothing_is_left(site)


def test_a_queue_that_a_forgotten_group_gives_back_gets_messages_of_all():
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    site.nodes["b"].broker.leaving.gone = lambda *arguments: None  # type: ignore[method-assign]
    site.begun("c", "take_queues", "b", [(light, NAME)])
    site.wait(200)
    assert light_of(site, "c")
    site.kill("c")
    site.start("b", site.kill("b"))
    site.forget("c")
    site.wait(2_000)
    for name in ("a", "b"):
        site.publish(name, name.encode())
        site.wait(200)
    assert site.bodies("b", cursor) == [b"1", b"a", b"b"]
    assert move(site, "b", "a", light) is None
    site.publish("b", b"2")
    site.wait(200)
    assert site.bodies("a", cursor_of(site, "a")) == [b"2"]
    nothing_is_left(site)


def test_a_queue_that_is_on_its_way_to_a_group_of_no_table_stays():
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    row = (TABLE, f"{LEAVING}{light}", f'[{NAME}, "gone"]'.encode())
    site.nodes["b"].broker.put_rows([row])
    site.wait(100)
    site.start("b", site.kill("b"))
    site.wait(100)
    assert site.bodies("b", cursor) == [b"1"]
    nothing_is_left(site)


def test_a_group_that_takes_queues_holds_its_own_publishers_a_second_at_most():
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    site.lines["c", "a"].hang()
    answers = site.begun("c", "take_queues", "b", [(light, NAME)])
    site.wait(200)
    assert site.nodes["c"].broker.holding.targets
    published = site.begun("c", "submit", [Message("t", b"1", b"TAGS\x01a\x02", "a")])
    site.wait(700)
    assert not published
    site.wait(300)
    assert published == [[0]]
    site.lines["c", "a"].thaw()
    site.wait(500)
    assert code_of(answers[0]) is ErrorCode.BUSY
    assert site.bodies("b", cursor) == [b"1"]
    nothing_is_left(site)


@pytest.mark.parametrize("when", ["away", "killed", "all"])
def test_a_queue_that_was_deleted_where_it_came_is_not_taken_back(when: str):
    site = ForwardSite("a", "b", "c")
    light, _ = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    site.nodes["b"].broker.leaving.gone = lambda *arguments: None  # type: ignore[method-assign]
    site.begun("c", "take_queues", "b", [(light, NAME)])
    site.wait(200)
    files = None if when == "away" else site.kill("b")
    if files is None:
        site.cut("b", "c")
        del site.nodes["b"].broker.leaving.gone
    if when == "all":
        site.start("c", site.kill("c"))
    assert site.ask("c", "delete_light", light_of(site, "c")) is None
    site.wait(5_000)
    if files is not None:
        site.start("b", files)
    else:
        site.mend("b", "c")
    site.wait(5_000)
    assert str(light) not in site.nodes["b"].broker.tables.rows("light")
    assert not site.nodes["b"].broker.tables.rows("route")
    nobody_knows_it(site)


def test_a_queue_that_has_come_and_gone_leaves_nothing_where_it_was_last():
    site = ForwardSite("a", "b")
    light, _ = site.queue("b", "a", "r1")
    assert move(site, "b", "a", light) is None
    assert site.ask("a", "delete_light", light_of(site, "a")) is None
    site.wait(2_000)
    nobody_knows_it(site)


def test_a_group_that_was_away_when_a_moved_queue_ended_says_no_more_that_it_had_it():
    site = ForwardSite("a", "b", "c")
    light, _ = site.queue("b", "a", "r1")
    assert move(site, "b", "c", light) is None
    files = site.kill("b")
    assert site.ask("c", "delete_light", light_of(site, "c")) is None
    site.wait(2_000)
    assert [key for key in site.nodes["c"].broker.tables.rows(TABLE) if key.startswith(ENDED)]
    site.start("c", site.kill("c"))
    site.start("b", files)
    assert str(NAME) in site.nodes["b"].broker.tables.rows(MOVED_TABLE)
    site.wait(2_000)
    nobody_knows_it(site)


def test_a_group_that_is_forgotten_is_told_nothing():
    site = ForwardSite("a", "b", "c")
    light, _ = site.queue("b", "a", "r1")
    assert move(site, "b", "c", light) is None
    site.kill("b")
    assert site.ask("c", "delete_light", light_of(site, "c")) is None
    site.forget("b")
    site.wait(2_000)
    nobody_knows_it(site)


def test_a_crash_between_the_end_of_a_queue_and_its_note_leaves_nothing():
    site = ForwardSite("a", "b")
    light, _ = site.queue("b", "a", "r1")
    assert move(site, "b", "a", light) is None
    site.nodes["a"].broker.traces.ended = lambda name: None  # type: ignore[method-assign]
    assert site.ask("a", "delete_light", light_of(site, "a")) is None
    site.start("a", site.kill("a"))
    site.wait(2_000)
    nobody_knows_it(site)


def test_a_full_disk_behind_the_decision_only_delays_it():
    site = ForwardSite("a", "b", "c")
    light, _ = site.queue("b", "a", "r1")
    site.publish("b", b"1")
    site.unflushed.add("c")
    answers = site.begun("c", "take_queues", "b", [(light, NAME)])
    while not light_of(site, "c"):
        site.wait(50)
    store = site.nodes["c"].broker.store
    append = store.append

    def full(*arguments: Any) -> int:
        raise GantryError(ErrorCode.STORE_FULL, "full")

    store.append = full  # type: ignore[method-assign]
    site.unflushed.clear()
    site.wait(2_500)
    assert not answers
    assert light in site.nodes["b"].broker.leaving.frozen, "others do not know yet where it is"
    store.append = append  # type: ignore[method-assign]
    site.wait(5_000)
    assert answers == [None]
    for name in ("a", "b", "c"):
        site.publish(name, name.encode())
        site.wait(200)
    assert site.bodies("c", cursor_of(site, "c")) == [b"1", b"a", b"b", b"c"]
    nothing_is_left(site)


def test_where_it_went_lost_its_disk_after_it_had_told_and_all_send_to_the_old_place_again(
    monkeypatch: pytest.MonkeyPatch,
):
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    disk = site.disk("c")
    with monkeypatch.context() as patch:  # what tells the source is lost
        leaving = site.nodes["b"].broker.leaving
        patch.setattr(leaving, "gone", lambda lights, move, token, on_done: on_done(token, None))
        assert move(site, "b", "c", light) is None
    assert not site.nodes["b"].broker.router.number_of("r1"), "it leads elsewhere now"
    site.kill("c")
    site.start("c", disk)
    site.wait(6_000)
    for name in ("a", "b", "c"):
        site.publish(name, name.encode())
    site.wait(500)
    assert sorted(site.bodies("b", cursor)) == [b"a", b"b", b"c"]
    nothing_is_left(site)


def test_large_records_are_copied_ahead_and_not_left_for_the_freeze():
    site = ForwardSite("a", "b")
    light, _ = site.queue("b", "a", "r1")
    for first in range(0, 1_200, 100):
        site.publish("b", *[b"%d " % number + b"x" * 3_000 for number in range(first, first + 100)])
    reads: list[bool] = []
    port = site.nodes["b"].broker.leaving
    read = port.read

    def counted(*args: Any) -> Any:
        found = read(*args)
        reads.append(bool(port.frozen) and bool(found.deliveries))
        return found

    port.read = counted  # type: ignore[method-assign]
    assert move(site, "b", "a", light) is None
    assert len(reads) > 2
    assert not any(reads), "something was left for the freeze"
    assert len(site.bodies("a", cursor_of(site, "a"))) == 1_200


def publish_while_reading(site: ForwardSite, monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> None:
    """So many records enter the queue at the begin of each pass."""
    leaving = site.nodes["b"].broker.leaving
    read = leaving.read

    def filled(light: int, offset: int, bytes_max: int) -> Any:
        if not bytes_max and counts:
            batch = [Message("t", b"x", b"TAGS\x01a\x02", "a") for _ in range(counts.pop(0))]
            site.nodes["b"].port.submit(batch, None, lambda token, result: None)
            site.nodes["b"].turn.run_until_quiet()
        return read(light, offset, bytes_max)

    monkeypatch.setattr(leaving, "read", filled)


def test_a_queue_that_fills_as_fast_as_it_is_copied_stays_and_says_so(monkeypatch: pytest.MonkeyPatch):
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a", "r1")
    publish_while_reading(site, monkeypatch, [FEW + 1] * 50)
    result = move(site, "b", "a", light)
    assert code_of(result) is ErrorCode.LIMIT_REACHED
    assert (
        f"queue ~{NAME} fills as fast as it is copied ({FEW + 1} entries are left after {STALLED_MAX} passes"
        in result.text
    )
    site.wait(500)
    monkeypatch.undo()
    assert len(site.bodies("b", cursor)) == (FEW + 1) * (STALLED_MAX + 1)
    assert move(site, "b", "a", light) is None
    nothing_is_left(site)


def test_a_queue_that_fills_more_slowly_than_it_is_copied_goes(monkeypatch: pytest.MonkeyPatch):
    site = ForwardSite("a", "b")
    light, _ = site.queue("b", "a", "r1")
    counts = [4_000, 4_000, 3_000, 2_900, 2_000, 1_200, FEW, 0]
    total = sum(counts)
    publish_while_reading(site, monkeypatch, counts)
    assert move(site, "b", "a", light) is None
    assert counts == [0]
    assert len(site.bodies("a", cursor_of(site, "a"))) == total
    nothing_is_left(site)


def auto_delete(site: ForwardSite, consumers: int = 1) -> tuple[int, int, Any]:
    """At b, with consumers of one gateway: its light queue, its cursor and what ends the gateway."""
    light, cursor = site.queue("b", "a", "r1")
    assert site.ask("b", "set_policy", cursor, Policy("q", auto_delete=True)) is None
    port = LocalBrokerPort(site.nodes["b"].broker)
    for _ in range(consumers):
        port.take_seat(cursor, Terms(), lambda seat, active: None, None, lambda token, result: None)
    return light, cursor, port.close


@pytest.mark.parametrize("start", [False, True])
def test_an_auto_delete_queue_that_is_given_back_goes_if_its_last_consumer_left_meanwhile(start: bool):
    site = ForwardSite("a", "b")
    light, _, leave = auto_delete(site)
    site.ask("b", "freeze_lights", [(light, NAME)], "a", "m")
    leave()
    site.wait(500)
    assert str(light) in site.nodes["b"].broker.tables.rows("light"), "nobody knows yet where it is"
    if start:
        site.start("b", site.kill("b"))
        site.wait(2_000 + SEATS_MS)
    else:
        site.ask("b", "end_freeze", [light], "m", False)
        site.wait(100)
    assert str(light) not in site.nodes["b"].broker.tables.rows("light")
    nothing_is_left(site)


@pytest.mark.parametrize("start", [False, True])
def test_an_auto_delete_queue_goes_where_it_came_if_nobody_consumes_there(start: bool):
    site = ForwardSite("a", "b")
    light, _, leave = auto_delete(site)
    holding = site.nodes["b"].broker.holding
    hold = holding.hold

    def left(*args: Any) -> None:
        leave()
        hold(*args)

    holding.hold = left  # type: ignore[method-assign]
    assert move(site, "b", "a", light) is None
    came = light_of(site, "a")
    assert came
    if start:
        site.start("a", site.kill("a"))
    site.wait(SEATS_MS - 1_000)
    assert light_of(site, "a") == came, "gateways may take their seats again"
    site.wait(3_000)
    assert not light_of(site, "a")
    nobody_knows_it(site)


@pytest.mark.parametrize("consumers", [0, 1])
def test_an_auto_delete_queue_stays_that_never_had_a_consumer_or_has_one(consumers: int):
    site = ForwardSite("a", "b")
    light, _, _ = auto_delete(site, consumers)
    assert move(site, "b", "a", light) is None
    if consumers:
        seat = site.ask("a", "take_seat", cursor_of(site, "a"), Terms(), lambda seat, active: None)
        assert not isinstance(seat, GantryError)
    site.wait(2 * SEATS_MS)
    assert light_of(site, "a")
    nothing_is_left(site)


def test_an_auto_delete_queue_that_is_given_back_stays_with_its_consumers():
    site = ForwardSite("a", "b")
    light, _, leave = auto_delete(site, 2)
    site.ask("b", "freeze_lights", [(light, NAME)], "a", "m")
    site.ask("b", "end_freeze", [light], "m", False)
    site.wait(2 * SEATS_MS)
    assert str(light) in site.nodes["b"].broker.tables.rows("light")
    nothing_is_left(site)
    leave()
    site.wait(100)
    assert str(light) not in site.nodes["b"].broker.tables.rows("light")
