"""Groups that follow each other: what is published at one reaches the queues of another, once, in order, through kills, cuts and silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gantrymq.broker.forward.receiving import GRANTED_MS, NEWS_TABLE
from gantrymq.broker.forward.sending import LEASE_MS
from gantrymq.broker.tables.forward_table import QUEUES_TABLE, TABLE, TO
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.model.names import FORWARDED_TOPIC
from gantrymq.store.testing import MemoryFileSystem
from tests.cluster.forward.forward_site import ForwardSite, code_of


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def test_a_record_reaches_the_queue_of_another_group():
    site = ForwardSite("a", "b", "c")
    _, cursor = site.queue("b", "a")
    _, own = site.queue("a", "a")
    site.publish("a", b"one", properties=b"colour\x01red\x02")
    site.publish("c", b"two")
    site.publish("b", b"three")
    site.publish("a", b"for nobody", tag="x")
    site.wait(200)
    found = site.taken("b", cursor)
    assert {message.body for message in found} == {b"one", b"two", b"three"}
    assert sorted(site.bodies("a", own)) == [b"one", b"three", b"two"]
    first = next(message for message in found if message.body == b"one")
    assert first.topic == "t"
    assert first.tag == "a"
    assert first.property("colour") == "red"
    assert not first.property(props.FORWARD)
    assert site.nodes["b"].broker.receiving.taken == 2


def test_a_record_of_a_doors_system_topic_reaches_the_queue_of_another_group():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a")
    route = replace(site.route(light, "q", "direct"), topic="rmq_sys_amqp_direct")
    assert site.ask("b", "add_route", route) is None
    site.publish("a", b"one", tag="q", topic="rmq_sys_amqp_direct")
    site.publish("a", b"two", tag="q")
    site.wait(200)
    assert site.bodies("b", cursor) == [b"one"]


def test_the_record_keeps_where_and_when_it_was_stored_first():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    site.publish("a", b"one")
    site.wait(200)
    (found,) = site.taken("b", cursor)
    origin = next(
        message
        for queue in site.nodes["a"].store.queues_of("t")
        for unit in site.nodes["a"].store.units("t", queue, 0, 10)
        if (message := site.nodes["a"].store.get(unit[0])) is not None
    )
    assert (found.topic, found.queue_id, found.queue_offset) == (origin.topic, origin.queue_id, origin.queue_offset)
    assert (found.born_ms, found.store_ms, found.store_host) == (origin.born_ms, origin.store_ms, origin.store_host)


def test_the_index_of_its_source_alone_has_its_keys():
    site = ForwardSite("a", "b")
    site.queue("b", "a")
    message = Message("t", b"one", b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01u1\x02", "a", ("u1", "k1", "k2"))
    site.ask("a", "submit", [message])
    site.wait(200)

    def found(name: str) -> list[int]:
        store = site.nodes[name].store
        return [len(store.query(topic, key, 9, 0, 1 << 60)) for topic in (FORWARDED_TOPIC, "t") for key in ("u1", "k2")]

    assert found("a") == [0, 0, 1, 1]
    before = found("b")
    site.start("b", site.kill("b"))
    assert before == found("b") == [0, 0, 0, 0]


def test_order_holds_and_nothing_is_forwarded_twice():
    site = ForwardSite("a", "b", "c")
    _, cursor = site.queue("b", "a")
    for first in range(0, 300, 30):
        site.publish("a", *numbered(first, first + 30))
    site.wait(500)
    assert site.bodies("b", cursor) == numbered(0, 300)
    assert site.nodes["b"].store.max_offset(FORWARDED_TOPIC, 0) == 300
    assert FORWARDED_TOPIC not in site.nodes["c"].store.topics()
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 0


def test_a_bind_is_answered_when_the_others_know():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a")
    for number in range(20):
        assert site.begun("b", "add_route", site.route(light, f"x{number}", f"more{number}")) == [None]
        site.begun("a", "submit", [Message("t", b"%d" % number, f"TAGS\x01x{number}\x02".encode(), f"x{number}")])
    site.wait(200)
    assert site.bodies("b", cursor) == numbered(0, 20)


def test_a_bind_waits_until_a_new_directory_knows_the_groups():
    site = ForwardSite("a", "b")
    light, _ = site.queue("b", "a")
    slots = site.nodes["b"].broker.slots
    slots.known = False
    box = site.begun("b", "add_route", site.route(light, "x", "more"))
    site.wait(1_500)
    assert box == []
    slots.known = True
    site.wait(1_500)
    assert box == [None]


def test_progress_is_told_to_no_source():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    told: list[str] = []
    site.begun("b", "watch_table", QUEUES_TABLE, lambda key, value: told.append(key))
    for number in range(3):
        site.publish("a", b"%d" % number)
        site.wait(200)
    assert site.bodies("b", cursor) == numbered(0, 3)
    assert site.nodes["b"].broker.receiving.progress("a", site.nodes["a"].broker.sending.life) == 3
    assert told == []


def test_a_silent_group_delays_a_bind_once():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a")
    site.wait(1_000)
    site.cut("a", "b")
    began_ms = site.nodes["b"].wheel.now_ms()
    assert site.bind("b", light, "x", "more") is None
    assert 1_000 < site.nodes["b"].wheel.now_ms() - began_ms <= GRANTED_MS + 100
    began_ms = site.nodes["b"].wheel.now_ms()
    assert site.bind("b", light, "y", "other") is None
    assert site.nodes["b"].wheel.now_ms() - began_ms <= 100
    site.publish("a", b"one", tag="x")
    site.publish("a", b"two", tag="y")
    site.publish("a", b"for nobody", tag="z")
    site.mend("a", "b")
    assert site.bodies("b", cursor) == [b"one", b"two"]


def test_a_silent_group_delays_a_bind_once_where_a_third_one_answers():
    site = ForwardSite("a", "b", "c")
    light, _ = site.queue("b", "a")
    site.cut("a", "b")
    site.cut("c", "b")
    site.wait(GRANTED_MS + 100)
    receiving = site.nodes["b"].broker.receiving
    for number in range(3):
        receiving.heard("c", "life", receiving.version)
        box = site.begun("b", "add_route", site.route(light, f"x{number}", f"more{number}"))
        assert box == []
        receiving.heard("c", "life", receiving.version)  # a moment later
        site.wait(100)
        assert box == [None]


def test_what_was_stored_before_a_bind_stays_outside_and_behind_an_unbind_too():
    site = ForwardSite("a", "b")
    light, cursor = site.queue("b", "a")
    site.cut("a", "b")
    site.wait(LEASE_MS + 100)
    site.publish("a", b"before", tag="x")
    site.publish("a", b"due")
    site.wait(200)
    assert site.bind("b", light, "x", "more") is None
    site.ask("b", "remove_routes", [f"prefix/{light}"])
    site.wait(200)
    site.publish("a", b"after", tag="x")
    site.publish("a", b"unbound")
    site.mend("a", "b")
    assert site.bodies("b", cursor) == [b"due", b"after"]


def test_a_killed_source_loses_nothing_and_repeats_nothing():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    site.publish("a", *numbered(0, 20))
    site.wait(200)
    site.cut("a", "b")
    site.publish("a", *numbered(20, 40))
    files = site.kill("a")
    site.start("a", files)
    site.wait(1_500)
    site.publish("a", *numbered(40, 60))
    site.wait(500)
    assert site.bodies("b", cursor) == numbered(0, 60)
    assert list(site.nodes["a"].broker.sending.queues_of("b")) == [site.nodes["a"].broker.sending.life]


def test_a_killed_owner_goes_on_where_it_stood():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    site.publish("a", *numbered(0, 20))
    site.wait(200)
    files = site.kill("b")
    site.publish("a", *numbered(20, 40))
    site.wait(LEASE_MS + 500)
    site.publish("a", *numbered(40, 60))
    site.start("b", files)
    site.wait(1_500)
    assert site.bodies("b", cursor) == numbered(0, 60)


def test_what_is_not_on_the_owners_disk_is_kept_by_the_source():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    site.unflushed.add("b")
    site.publish("a", *numbered(0, 20))
    site.wait(300)
    assert site.nodes["b"].broker.receiving.taken == 20
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 20
    site.unflushed.clear()
    site.wait(200)
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 0
    assert site.bodies("b", cursor) == numbered(0, 20)


def test_what_came_over_a_connection_that_broke_is_settled_over_the_next():
    """Although nothing is published any more."""
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    site.unflushed.add("b")
    site.publish("a", *numbered(0, 20))
    site.wait(300)
    site.cut("a", "b")
    site.unflushed.clear()
    site.wait(200)
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 20
    site.mend("a", "b")
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 0
    assert site.bodies("b", cursor) == numbered(0, 20)


def test_an_owner_without_power_gets_again_what_it_lost():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    disk = site.disk("b")
    site.unflushed.add("b")
    site.publish("a", *numbered(0, 20))
    site.wait(300)
    site.kill("b")
    site.unflushed.clear()
    site.start("b", disk)
    site.wait(1_500)
    assert site.bodies("b", cursor) == numbered(0, 20)


def test_a_source_with_an_older_disk_repeats_nothing():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    site.publish("a", *numbered(0, 10))
    disk = site.disk("a")
    site.wait(200)
    site.publish("a", *numbered(10, 20))
    site.wait(200)
    site.kill("a")
    site.start("a", disk)
    site.wait(1_500)
    site.publish("a", *numbered(20, 30))
    site.wait(500)
    assert site.bodies("b", cursor) == numbered(0, 30)


def test_a_group_that_comes_later_gets_what_it_wants():
    site = ForwardSite("a", "b")
    site.start("c", MemoryFileSystem())
    site.wait(1_500)
    _, cursor = site.queue("c", "a")
    site.publish("a", b"one")
    site.publish("b", b"two")
    site.wait(300)
    assert sorted(site.bodies("c", cursor)) == [b"one", b"two"]


def test_a_bind_of_a_group_that_another_has_never_heard_is_refused():
    site = ForwardSite("a", "b")
    site.begin("c", MemoryFileSystem())
    line = site.lines.get(("b", "c"))
    assert line is None
    site.run()
    if site.lines["b", "c"].up:
        site.lines["b", "c"].cut()
    light = site.ask("c", "create_light")
    assert code_of(site.bind("c", light, "a")) is ErrorCode.UNAVAILABLE
    site.lines["b", "c"].mend()
    site.wait(1_500)
    assert site.bind("c", light, "b", "again") is None


def test_a_full_forward_queue_refuses_what_matches_there_and_nothing_else():
    site = ForwardSite("a", "b", most=1_000)
    _, cursor = site.queue("b", "a")
    _, own = site.queue("a", "z")
    site.cut("a", "b")
    site.publish("a", *numbered(0, 1_000))
    site.wait(200)
    refused = site.publish("a", b"too many")
    assert refused == [ErrorCode.QUEUE_FULL]
    assert site.peer("a", "b").refused == 1
    assert isinstance(site.publish("a", b"own", tag="z")[0], int)
    site.wait(LEASE_MS)
    assert isinstance(site.publish("a", b"own too", tag="z")[0], int), "it does not want that by its last word"
    assert site.publish("a", b"too many again") == [ErrorCode.QUEUE_FULL]
    site.mend("a", "b")
    site.wait(500)
    assert isinstance(site.publish("a", b"again")[0], int)
    site.wait(200)
    assert site.bodies("b", cursor) == [*numbered(0, 1_000), b"again"]
    assert site.bodies("a", own) == [b"own", b"own too"]


def test_a_full_forward_queue_of_a_group_that_never_told_its_routes_refuses_everything():
    site = ForwardSite("a", "b", most=1_000)
    site.queue("b", "a")
    files = site.kill("b")
    site.publish("a", *numbered(0, 1_000))
    site.start("a", site.kill("a"))
    site.wait(500)
    assert site.publish("a", b"other", tag="z") == [ErrorCode.QUEUE_FULL], "it may be one that was bound there"
    site.start("b", files)
    site.wait(2_000)
    assert isinstance(site.publish("a", b"other", tag="z")[0], int)


def test_a_forgotten_group_frees_what_waits_for_it():
    site = ForwardSite("a", "b", "c")
    site.queue("b", "a")
    site.kill("b")
    site.publish("a", *numbered(0, 20))
    site.wait(LEASE_MS + 500)
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 20
    site.forget("b")
    site.wait(500)
    for name in ("a", "c"):
        broker = site.nodes[name].broker
        assert "b" not in broker.sending.peers
        assert "b" not in broker.receiving.sources
        assert not [key for key in broker.tables.rows("forward") if f"{key}/".partition("/")[2].startswith("b/")]
        assert broker.sending.readers.keys() <= broker.cursors.by_id.keys()
    light, cursor = site.queue("c", "a")
    began_ms = site.nodes["c"].wheel.now_ms()
    assert site.bind("c", light, "x", "more") is None
    assert site.nodes["c"].wheel.now_ms() - began_ms <= 100
    site.publish("a", b"one")
    site.wait(200)
    assert site.bodies("c", cursor) == [b"one"]


def test_a_message_in_one_piece_and_one_that_was_delayed_are_forwarded_too():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    message = Message("t", b"piece", b"TAGS\x01a\x02", "a")
    box = site.begun("a", "submit", [message])
    site.wait(100)
    port = site.nodes["a"].port
    done: list[object] = []
    again = Message("t", b"with a row", b"TAGS\x01a\x02", "a")
    port.submit([again], None, lambda token, result: done.append(result), rows=[("own", "k", b"v")])
    site.wait(200)
    assert isinstance(box[0][0], int)
    assert isinstance(done[0], list)
    assert site.bodies("b", cursor) == [b"piece", b"with a row"]


def test_a_wide_record_reaches_both():
    site = ForwardSite("a", "b")
    mine = [site.queue("a", "a")[1] for _ in range(20)]
    theirs = [site.queue("b", "a")[1] for _ in range(20)]
    site.publish("a", b"one", b"two")
    site.wait(300)
    assert all(site.bodies("a", cursor) == [b"one", b"two"] for cursor in mine)
    assert all(site.bodies("b", cursor) == [b"one", b"two"] for cursor in theirs)
    assert site.nodes["b"].store.max_offset(FORWARDED_TOPIC, 0) == 2


def test_a_deleted_queue_gets_nothing_and_the_rest_goes_on():
    site = ForwardSite("a", "b")
    light, _ = site.queue("b", "a")
    _, cursor = site.queue("b", "a")
    site.cut("a", "b")
    site.publish("a", b"one")
    site.ask("b", "delete_light", light)
    site.mend("a", "b")
    site.wait(300)
    assert site.bodies("b", cursor) == [b"one"]


def test_forwarded_records_outlive_a_restart_of_their_owner():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    site.publish("a", *numbered(0, 30), properties=b"colour\x01red\x02")
    site.wait(300)
    site.start("b", site.kill("b"))
    site.wait(1_500)
    found = site.taken("b", cursor)
    assert [message.body for message in found] == numbered(0, 30)
    assert {message.property("colour") for message in found} == {"red"}
    assert {message.topic for message in found} == {"t"}


def test_a_group_that_was_forgotten_while_another_was_away_is_forgotten_there_too():
    site = ForwardSite("a", "b", "c")
    files = site.kill("c")
    site.kill("b")
    site.wait(500)
    site.forget("b")
    site.start("c", files)
    site.wait(1_500)
    broker = site.nodes["c"].broker
    assert list(broker.sending.peers) == ["a"]
    assert not broker.sending.queues_of("b")
    light, cursor = site.queue("c", "a")
    assert light
    site.publish("a", b"one")
    site.wait(300)
    assert site.bodies("c", cursor) == [b"one"]


def test_a_metadata_group_with_an_older_disk_makes_nobody_forget():
    site = ForwardSite("a", "b")
    disk = site.disk("a")
    site.start("c", MemoryFileSystem())
    site.wait(1_500)
    _, cursor = site.queue("c", "a")
    site.cut("b", "c")
    site.publish("b", *numbered(0, 5))
    site.kill("a")
    site.start("a", disk)
    site.wait(1_500)
    assert "c" in site.nodes["b"].broker.sending.peers
    site.mend("b", "c")
    site.wait(1_500)
    assert site.bodies("c", cursor) == numbered(0, 5)


def test_rows_of_a_peer_that_are_no_numbers_are_left_out(caplog: pytest.LogCaptureFixture):
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    broker = site.nodes["a"].broker
    for row in (b"", b"-1", b"x", b"\xff", b"9" * 5_000):
        broker.put_rows([(TABLE, f"{TO}b/other{len(row)}", row)])
        broker.tables.tell(NEWS_TABLE, "version", row)
        site.wait(100)
    site.cut("a", "b")
    site.mend("a", "b")
    site.publish("a", b"one")
    site.wait(200)
    assert site.bodies("b", cursor) == [b"one"]
    assert any("row 'version' of table forward_news is left out: b'x' is no number" in each for each in caplog.messages)
    assert any("row 'to/b/other1' of table forward is left out" in each for each in caplog.messages)
