"""Subscriptions with filters: delivered from a queue of their own, also those that begin in the past or are older than routes."""

import json

import pytest

from gantrymq.broker.port import END
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents import registry as module
from gantrymq_gateways.cloudevents.wire.constants import SUBSCRIPTION_TABLE
from tests.cloudevents.rig import Rig

WANTED = [{"exact": {"ext": "yes"}}]


@pytest.fixture(params=["immediate", "late", "shuffled"])
def rig(request):
    return Rig(mode=request.param)


def post(rig, number, ext="yes", key=""):
    more = {"ce_partitionkey": key} if key else {}
    assert rig.post(identity=str(number), type_=f"k{number % 7}", ce_ext=ext, **more)[0] == 202


def queues(rig):
    return sorted({cursor.queue for cursor in rig.port.cursors.values()})


def row(rig, name):
    return json.loads(rig.port.tables[SUBSCRIPTION_TABLE][name])


def older(rig, name):
    """The directory of a version without routes: the row and the places that it would have."""
    port = rig.port.crash(mode="immediate")
    kept = json.loads(port.tables[SUBSCRIPTION_TABLE][name])
    light = kept.pop("light")
    del kept["past"], kept["seen"]
    port.put(SUBSCRIPTION_TABLE, [(name, json.dumps(kept).encode())], None, lambda token, result: None)
    port.delete_light(light, None, lambda token, result: None)
    for queue in range(4):
        port.open_cursor(f"t/{queue}", f"ce:{name}", END, None, lambda token, result: None)
    port.run()
    return port


def test_what_does_not_match_is_not_read(rig):
    rig.subscribe(filters=WANTED)
    rig.port.calls.clear()
    for number in range(50):
        post(rig, number, "no")
    assert "acquire" not in rig.port.calls
    post(rig, 50)
    assert rig.answer_all() == ["50"]
    assert queues(rig) == ["~1"]


def test_from_the_past_everything_comes_once_and_in_order(rig):
    for number in range(40):
        post(rig, number, "yes" if number % 2 else "no", key="k")
    name = rig.subscribe(filters=WANTED, config={"from": "earliest"})
    assert queues(rig) == ["t/0", "t/1", "t/2", "t/3", "~1"]
    for number in range(40, 60):  # into its own queue, and seen in those of the topic
        post(rig, number, "yes" if number % 2 else "no", key="k")
    assert rig.answer_all() == [str(number) for number in range(60) if number % 2]
    assert queues(rig) == ["~1"]
    assert row(rig, name)["past"] == ""
    post(rig, 61, key="k")
    assert rig.answer_all() == ["61"]


def test_what_another_broker_group_forwarded_has_positions_of_another_log():
    """The past was read at the group that stored the topic, and the subscription's own queue lies where the log is shorter."""
    rig = Rig()
    for number in range(10):
        post(rig, number, key="k")
    rig.subscribe(filters=WANTED, config={"from": "earliest"})
    assert rig.answer_all() == [str(number) for number in range(10)]
    rig.port.end = 1
    post(rig, 10, key="k")
    assert rig.answer_all() == ["10"]


def test_rows_of_a_version_that_noted_positions_hold_on():
    rig = Rig()
    post(rig, 0)
    name = rig.subscribe(filters=WANTED, config={"from": "earliest"})
    assert rig.answer_all() == ["0"]
    stored = row(rig, name)
    port = rig.port.crash(mode="immediate")
    ((queue, _),) = stored["seen"].items()
    later = max(port.by_offset) + 1
    stored["seen"] = {f"{queue.split('/')[0]}/{number}": later for number in range(4)}
    port.put(SUBSCRIPTION_TABLE, [(name, json.dumps(stored).encode())], None, lambda token, result: None)
    port.run()
    again = Rig(port, seed=1)
    port.end = later
    post(again, 1)
    post(again, 2)
    again.advance(module.LEASE_RETRY_MS + module.REOPEN_MS)
    assert again.answer_all() == ["2"]


def test_from_a_time(rig):
    post(rig, 1)
    rig.port.now_ms += 10_000
    post(rig, 2)
    rig.subscribe(filters=WANTED, config={"from": "2023-11-14T22:13:25Z"})
    post(rig, 3)
    assert sorted(rig.answer_all()) == ["2", "3"]
    assert queues(rig) == ["~1"]


@pytest.mark.parametrize("calls", range(1, 40, 2))
def test_a_crash_on_the_way_from_the_past_loses_nothing(calls):
    """The gateway ends after any number of the port's answers; another goes on."""
    rig = Rig(mode="late")
    for number in range(12):
        post(rig, number)
    name = rig.subscribe(filters=WANTED, config={"from": "earliest"})
    done = []
    for _ in range(calls):
        if rig.sender.open:
            done.append(rig.sender.open[0].id)
            rig.sender.open[0].answer(204)
        if not rig.port.step():
            rig.turn.run_until_quiet()
    again = Rig(rig.port.crash(mode="immediate"), seed=1)
    post(again, 12)
    again.advance(module.LEASE_RETRY_MS + module.REOPEN_MS)
    assert set(done) | set(again.answer_all()) == {str(number) for number in range(13)}
    assert queues(again) == ["~1"]
    assert again.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert (again.port.cursors, again.port.lights, again.port.routes) == ({}, set(), {})


def test_subscriptions_of_a_version_without_routes_go_on():
    rig = Rig()
    name = rig.subscribe(filters=WANTED)
    port = older(rig, name)
    again = Rig(port, seed=1)
    for number in range(8):
        post(again, number, "yes" if number % 2 else "no")
    assert sorted(again.answer_all()) == ["1", "3", "5", "7"]
    assert queues(again) == ["~2"]
    assert row(again, name)["light"] == 2


def test_what_waited_in_a_version_without_routes_is_delivered_first():
    rig = Rig()
    name = rig.subscribe(filters=WANTED)
    port = older(rig, name)
    for number in range(5):
        text = f"CE_specversion\x011.0\x02CE_id\x01{number}\x02CE_source\x01/s\x02CE_type\x01k\x02CE_ext\x01yes\x02__SHARDINGKEY\x01k\x02"
        port.submit([Message("t", b"", text.encode(), "k")], None, lambda token, result: None)
    again = Rig(port, seed=1)
    assert again.answer_all() == [str(number) for number in range(5)]
    assert queues(again) == ["~2"]


def test_a_switch_that_cannot_be_stored_is_tried_again(rig, caplog):
    post(rig, 1)
    rig.subscribe(filters=WANTED, config={"from": "earliest"})
    rig.port.fail_next("put", ErrorCode.STORE_FULL)
    rig.sender.open[0].answer(204)
    rig.run()
    assert "does not go on for now" in caplog.text
    post(rig, 2)
    assert rig.sender.open == []
    rig.advance(module.REOPEN_MS + 1000)
    assert rig.answer_all() == ["2"]
    assert queues(rig) == ["~1"]


@pytest.mark.parametrize("call", ["take_lease", "ensure_topic", "create_light", "put", "add_route", "open_cursor"])
@pytest.mark.parametrize("start", ["end", "earliest"])
def test_a_failure_leaves_nothing_behind(rig, call, start):
    post(rig, 1)
    rig.port.fail_next(call, ErrorCode.BUSY)
    document = {
        "sink": "http://127.0.0.1:9/",
        "protocol": "HTTP",
        "filters": WANTED,
        "config": {"topic": "t", "from": start},
    }
    body = json.dumps(document).encode()
    assert rig.request("POST", "/subscriptions", body, content_type="application/json")[0] == 503
    port = rig.port
    assert (port.leases, port.cursors, port.lights, port.routes) == ({}, {}, set(), {})
    assert port.tables.get(SUBSCRIPTION_TABLE, {}) == {}
    assert rig.request("GET", "/subscriptions")[2] == []


def test_a_deletion_that_was_cut_off_is_ended_by_the_next_start():
    rig = Rig()
    name = rig.subscribe(filters=WANTED)
    rig.port.fail_next("remove_routes", ErrorCode.BUSY)
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert rig.request("GET", "/subscriptions")[2] == []
    assert rig.port.lights == {1}
    again = Rig(rig.port.crash(), seed=1)
    assert again.request("GET", "/subscriptions")[2] == []
    assert (again.port.cursors, again.port.lights, again.port.routes) == ({}, set(), {})
    assert again.port.tables[SUBSCRIPTION_TABLE] == {}


def test_a_deletion_that_fails_is_tried_again(rig):
    name = rig.subscribe(filters=WANTED)
    rig.port.fail_next("delete_light", ErrorCode.BUSY)
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 204
    rig.advance(module.REOPEN_MS + 1000)
    assert (rig.port.cursors, rig.port.lights, rig.port.routes) == ({}, set(), {})
    assert rig.port.tables[SUBSCRIPTION_TABLE] == {}


def test_invalid_and_disabled_ones_leave_nothing_when_deleted(rig):
    name = rig.subscribe(filters=WANTED)
    post(rig, 1)
    rig.sender.open[0].answer(410)
    rig.run()
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert (rig.port.cursors, rig.port.lights, rig.port.routes) == ({}, set(), {})
    name = rig.subscribe(filters=WANTED)
    port = rig.port.crash(mode="immediate")
    kept = json.loads(port.tables[SUBSCRIPTION_TABLE][name])
    kept["document"]["sink"] = "http://10.0.0.1/"
    port.put(SUBSCRIPTION_TABLE, [(name, json.dumps(kept).encode())], None, lambda token, result: None)
    again = Rig(port, seed=1)
    assert again.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert (port.cursors, port.lights, port.routes) == ({}, set(), {})


def test_two_gateways_deliver_once_and_either_deletes():
    first = Rig(seed=0)
    second = Rig(first.port, seed=1, clock=first.clock)
    name = first.subscribe(filters=WANTED)
    second.run()
    post(first, 1)
    second.run()
    assert (first.open_ids(), second.open_ids()) == (["1"], [])
    assert second.request("DELETE", f"/subscriptions/{name}")[0] == 204
    first.run()
    assert first.request("GET", "/subscriptions")[2] == []
    assert (first.port.cursors, first.port.lights) == ({}, set())


def test_what_only_the_stored_message_is_called_is_asked_by_who_delivers(rig):
    rig.subscribe(filters=[{"prefix": {"id": "U"}}, {"exact": {"type": "a"}}])
    for identity, tag in (("U1", "a"), ("V2", "a"), ("U3", "b")):
        text = f"UNIQ_KEY\x01{identity}\x02TAGS\x01{tag}\x02"
        rig.port.submit([Message("t", b"", text.encode(), tag)], None, lambda token, result: None)
    rig.run()
    assert [sent.id for sent in rig.sender.open] == ["U1"]
    assert rig.answer_all() == ["U1"]
