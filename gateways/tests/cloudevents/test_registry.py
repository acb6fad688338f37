import json
from datetime import datetime

import pytest

from gantrymq.metrics import Metrics
from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.cloudevents import registry as module
from gantrymq_gateways.cloudevents.wire.constants import SUBSCRIPTION_BYTES_MAX, SUBSCRIPTION_TABLE
from tests.cloudevents.rig import Rig


@pytest.fixture(params=["immediate", "late", "shuffled"])
def rig(request):
    return Rig(mode=request.param)


def create(rig, body, content_type="application/json"):
    return rig.request("POST", "/subscriptions", body, content_type=content_type)


def document(**config):
    return json.dumps({"sink": "http://127.0.0.1:9/", "protocol": "HTTP", "config": {"topic": "t", **config}}).encode()


def test_life(rig):
    assert rig.request("GET", "/subscriptions")[2] == []
    name = rig.subscribe(types=["x"])
    shown = {
        "id": name,
        "sink": "http://127.0.0.1:9/hook",
        "protocol": "HTTP",
        "types": ["x"],
        "config": {"topic": "t", "from": "end", "contentmode": "binary", "maxattempts": 10, "maxage_s": 86400},
        "status": "active",
    }
    assert rig.request("GET", "/subscriptions")[2] == [shown]
    fares = {"delivery": {"lag": 0, "inflight": 0}}
    assert rig.request("GET", f"/subscriptions/{name}")[::2] == (200, shown | fares)
    assert [cursor.queue for cursor in rig.port.cursors.values()] == ["~1"]
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert rig.request("GET", "/subscriptions")[2] == []
    assert rig.request("GET", f"/subscriptions/{name}")[0] == 404
    assert (rig.port.lights, rig.port.routes) == (set(), {})
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 404
    assert (rig.port.cursors, rig.port.leases, rig.port.tables[SUBSCRIPTION_TABLE]) == ({}, {}, {})


def test_deletion_stops_at_once(rig):
    name = rig.subscribe()
    rig.post()
    (sent,) = rig.sender.open
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert sent.cancelled
    rig.post(identity="2")
    rig.advance(60_000)
    assert rig.sender.open == []


def test_topic_names(rig):
    rig.subscribe(config={"topic": "f/ä"})
    rig.subscribe(config={"topic": "f%2F%C3%A4"})
    assert list(rig.port.topic_queues) == ["f%2F%C3%A4"]
    rig.post("f%2F%C3%A4")
    assert len(rig.sender.open) == 2


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"nonsense", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[]", "application/json", 400),
        (document(), "text/plain", 415),
        (document(), "", 415),
        (b"{" + b" " * SUBSCRIPTION_BYTES_MAX + b"}", "application/json", 413),
        (document(**{"from": "2100-01-01T00:00:00Z"}), "application/json", 400),
        (document(topic="$SYS"), "application/json", 403),
        (document(topic="rmq_sys_gantry_topic"), "application/json", 403),
        (document(topic="TBW102"), "application/json", 403),
        (document(topic="%LMQ%x"), "application/json", 403),
        (document(topic="a\0b"), "application/json", 400),
        (document(topic="f/#"), "application/json", 400),
        (document(topic="+/f"), "application/json", 400),
        (document(topic="#"), "application/json", 400),
    ],
)
def test_refused(rig, body, content_type, status):
    assert create(rig, body, content_type)[0] == status
    assert rig.port.cursors == {}


@pytest.mark.parametrize("topic", ["%DLQ%abc", "%RETRY%g"])
def test_dead_letters_may_be_read_and_are_not_made(rig, topic):
    assert create(rig, document(topic=topic))[0] == 404
    assert rig.port.cursors == {}
    assert topic not in rig.port.topic_queues
    rig.port.topic_queues[topic] = 1
    assert create(rig, document(topic=topic))[0] == 201


def test_json_with_parameters(rig):
    assert create(rig, document(), "Application/JSON; charset=utf-8")[0] == 201


def test_limit(rig):
    for _ in range(20):
        rig.subscribe()
    status, _, problem = create(rig, document())
    assert status == 403
    assert "20 subscriptions" in problem["detail"]


def test_topic_creation_off(rig):
    rig.port.auto_create = False
    assert create(rig, document())[0] == 404
    assert rig.port.leases == {}


@pytest.mark.parametrize("call", ["take_lease", "ensure_topic", "open_cursor", "put"])
def test_a_failure_leaves_nothing_behind(rig, call):
    rig.port.fail_next(call, ErrorCode.BUSY)
    status, headers, _ = create(rig, document())
    assert (status, headers["retry-after"]) == (503, "1")
    assert rig.port.leases == {}
    assert rig.port.tables.get(SUBSCRIPTION_TABLE, {}) == {}
    assert rig.request("GET", "/subscriptions")[2] == []
    rig.post()
    assert rig.sender.open == []
    assert rig.port.cursors == {}
    rig.subscribe()


def test_failed_deletion_goes_on_delivering(rig):
    name = rig.subscribe()
    rig.port.fail_next("put", ErrorCode.STORE_FULL)
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 503
    rig.post()
    assert rig.answer_all() == ["1"]


def test_nothing_stored_after_201_is_missed(rig):
    name = rig.subscribe(config={"topic": "new"})
    rig.post("new", "1")
    assert rig.open_ids() == ["1"]
    assert name


def test_subscriptions_survive_a_restart(rig):
    name = rig.subscribe(config={"contentmode": "structured", "maxattempts": 3}, filters=[{"exact": {"id": "2"}}])
    before = rig.request("GET", f"/subscriptions/{name}")[2]
    rig.post(identity="1")
    port = rig.port.crash(mode="immediate")
    again = Rig(port, seed=1)
    assert again.request("GET", f"/subscriptions/{name}")[2] == before
    again.post(identity="2")
    assert [b'"id":"2"' in sent.body for sent in again.sender.open] == [True]


def test_new_queues_of_a_topic_are_read_from_their_beginning(rig):
    rig.subscribe()
    rig.port.topic_queues["t"] = 16
    for number in range(16):
        rig.post(identity=str(number), type_=f"k{number}")
    rig.advance(module.TOPIC_POLL_MS + 1000)
    assert sorted(rig.answer_all(), key=int) == [str(number) for number in range(16)]
    assert len(rig.port.cursors) == 16


def test_queues_added_while_nobody_looked(rig):
    rig.subscribe()
    rig.port.topic_queues["t"] = 16
    for number in range(16):
        rig.post(identity=str(number), type_=f"k{number}")
    done = rig.answer_all()
    again = Rig(rig.port.crash(mode="immediate"), seed=1)
    assert sorted([*done, *again.answer_all()], key=int) == [str(number) for number in range(16)]


def test_two_gateways_deliver_once():
    first = Rig(seed=0)
    second = Rig(first.port, seed=1, clock=first.clock)
    name = first.subscribe()
    second.run()
    assert [item["id"] for item in second.request("GET", "/subscriptions")[2]] == [name]
    first.post(identity="1")
    second.run()
    assert (first.open_ids(), second.open_ids()) == (["1"], [])
    first.registry.stop()
    first.run()
    second.advance(module.LEASE_RETRY_MS + 1000)
    assert second.open_ids() == ["1"]
    assert second.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert first.port.cursors == {}


def test_deletion_through_the_other_gateway():
    first = Rig(seed=0)
    second = Rig(first.port, seed=1, clock=first.clock)
    name = first.subscribe()
    second.run()
    assert second.request("DELETE", f"/subscriptions/{name}")[0] == 204
    first.run()
    assert first.port.cursors == {}
    assert first.request("GET", "/subscriptions")[2] == []


def test_lost_lease_stops_deliveries():
    rig = Rig()
    name = rig.subscribe()
    rig.post()
    rig.port.take_lease(f"ce:{name}", True, lambda name: None, None, lambda token, result: None)
    rig.run()
    assert rig.sender.open == []
    rig.port.leases.clear()
    rig.advance(module.LEASE_RETRY_MS + 1000)
    assert rig.open_ids() == ["1"]


def test_broker_away_and_back(rig):
    rig.subscribe()
    rig.post(identity="1")
    (sent,) = rig.sender.open
    rig.port.lose()
    rig.run()
    assert sent.cancelled
    assert rig.host.in_flight == 0
    assert rig.post(identity="2")[0] == 503
    assert create(rig, document())[0] == 503
    rig.port.return_()
    rig.run()
    rig.post(identity="3")
    assert rig.answer_all() == ["1", "3"]


def test_unknown_before_the_table_is_read():
    rig = Rig(mode="late")
    rig.port.lose()
    again = Rig(rig.port, mode="late", seed=1)
    for method, path in (("GET", "/subscriptions"), ("GET", "/subscriptions/x"), ("DELETE", "/subscriptions/x")):
        assert again.request(method, path)[0] == 503


def test_a_row_that_cannot_be_read_is_not_delivered(rig, caplog):
    rig.port.put(SUBSCRIPTION_TABLE, [("x", b'{"document":{"filters":[{"new":1}]}}')], None, lambda token, result: None)
    rig.run()
    assert "subscription x is not delivered" in caplog.text
    rig.post()
    assert rig.sender.open == []
    (shown,) = rig.request("GET", "/subscriptions")[2]
    assert (shown["id"], shown["status"]) == ("x", "invalid")
    assert rig.request("GET", "/subscriptions/x")[2] == shown
    assert rig.request("DELETE", "/subscriptions/x")[0] == 204
    assert rig.request("GET", "/subscriptions")[2] == []
    assert rig.port.tables[SUBSCRIPTION_TABLE] == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_deleting_a_disabled_subscription_frees_its_places(rig, restarted):
    name = rig.subscribe()
    rig.post()
    rig.sender.open[0].answer(410)
    rig.run()
    assert len(rig.port.cursors) == 4
    if restarted:
        rig = Rig(rig.port.crash(), seed=1)
    assert rig.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert rig.port.cursors == {}


def test_deleting_an_invalid_subscription_frees_its_places(rig):
    name = rig.subscribe()
    rig.post()
    port = rig.port.crash()
    row = json.loads(port.tables[SUBSCRIPTION_TABLE][name])
    row["document"]["sink"] = "http://10.0.0.1/"
    port.put(SUBSCRIPTION_TABLE, [(name, json.dumps(row).encode())], None, lambda token, result: None)
    again = Rig(port, seed=1)
    assert again.request("GET", f"/subscriptions/{name}")[2]["status"] == "invalid"
    assert len(port.cursors) == 4
    assert again.request("DELETE", f"/subscriptions/{name}")[0] == 204
    assert port.cursors == {}


@pytest.mark.parametrize("row", [b"", b"[]", b"\xff", b'{"document":[]}', b'{"document":{"config":{"topic":1}}}'])
def test_a_row_that_names_no_topic_is_deleted_with_a_warning(rig, row, caplog):
    rig.port.put(SUBSCRIPTION_TABLE, [("x", row)], None, lambda token, result: None)
    rig.run()
    assert rig.request("DELETE", "/subscriptions/x")[0] == 204
    assert rig.port.tables[SUBSCRIPTION_TABLE] == {}
    assert "its row names no topic" in caplog.text


def test_opening_is_tried_again(rig):
    rig.subscribe()
    port = rig.port.crash(mode="immediate")
    port.fail_next("open_cursor", ErrorCode.BUSY)
    again = Rig(port, seed=1)
    again.post()
    assert again.sender.open == []
    again.advance(module.REOPEN_MS + 500)
    assert again.answer_all() == ["1"]


def test_a_deleted_topic_that_returns_is_read_again():
    rig = Rig()
    rig.subscribe()
    for handle in list(rig.port.cursors):
        rig.port.delete_cursor(handle, None, lambda token, result: None)
    rig.port.queues.clear()
    (record,) = rig.registry._records.values()
    for cursor in list(record.push._places):
        record.push._on_ready(cursor)
    assert record.push.queues == frozenset()
    rig.post(identity="1")
    rig.advance(module.TOPIC_POLL_MS + 1000)
    assert rig.open_ids() == ["1"]


def test_a_subscription_shows_how_its_deliveries_fare(rig):
    subscription = rig.subscribe()
    rig.subscribe("other")
    assert rig.request("GET", f"/subscriptions/{subscription}")[2]["delivery"] == {"lag": 0, "inflight": 0}
    for number in range(3):
        rig.post(identity=str(number), type_="same")
    shown = rig.request("GET", f"/subscriptions/{subscription}")[2]["delivery"]
    assert shown == {"lag": 3, "inflight": 1}
    rig.sender.open[0].answer(500)
    rig.run()
    shown = rig.request("GET", f"/subscriptions/{subscription}")[2]["delivery"]
    assert (shown["laststatus"], shown["lag"], shown["inflight"]) == (500, 3, 0)
    assert shown["nextattempt"] > shown["lastattempt"]
    assert "lasterror" not in shown
    rig.advance(5_000)
    rig.sender.open[0].answer(0, failure="no answer within 15000 ms")
    rig.run()
    shown = rig.request("GET", f"/subscriptions/{subscription}")[2]["delivery"]
    assert (shown["laststatus"], shown["lasterror"]) == (0, "no answer within 15000 ms")
    rig.advance(10_000)
    rig.answer_all()
    shown = rig.request("GET", f"/subscriptions/{subscription}")[2]["delivery"]
    assert (shown["laststatus"], shown["lag"], "nextattempt" in shown) == (204, 0, False)


def test_the_row_tells_how_the_last_attempt_failed(rig):
    subscription, other = rig.subscribe(), rig.subscribe("other")
    rows = rig.port.tables[SUBSCRIPTION_TABLE]

    def told():
        rig.advance(module.TOPIC_POLL_MS + 100)
        return [json.loads(rows[name]).get("error") for name in (subscription, other)]

    before = rows[subscription]
    rig.post()
    rig.sender.open[0].answer(500)
    rig.run()
    assert told() == ["HTTP 500", None]
    rig.sender.open[0].answer(0, failure="connection refused")
    rig.run()
    assert told() == ["connection refused", None]
    while rig.sender.open:
        rig.answer_all()
        rig.advance(60_000)
    assert told() == [None, None]
    assert rows[subscription] == before


def test_a_row_that_was_deleted_meanwhile_is_not_written_again(rig):
    subscription = rig.subscribe()
    rig.post()
    rig.sender.open[0].answer(500)
    rig.run()
    (record,) = rig.registry._records.values()
    rig.port.tables[SUBSCRIPTION_TABLE].clear()  # its watcher has not heard of it yet
    rig.registry._tell_error(record.subscription, "HTTP 500")
    rig.run()
    assert rig.port.tables[SUBSCRIPTION_TABLE] == {}
    assert record.subscription.error == ""
    assert subscription == record.subscription.id


def test_a_pause_that_a_sink_asked_for_is_shown(rig):
    subscription = rig.subscribe()
    rig.post()
    rig.sender.open[0].answer(429, b"30")
    rig.run()
    shown = rig.request("GET", f"/subscriptions/{subscription}")[2]["delivery"]
    last, due = (datetime.fromisoformat(shown[name]) for name in ("lastattempt", "nextattempt"))
    assert 29 < (due - last).total_seconds() <= 31


def test_what_is_counted(rig):
    metrics = Metrics()
    rig.registry.show_numbers(metrics)
    rig.subscribe(config={"maxattempts": 2})
    rig.post()
    rig.post(identity="2", type_="other")
    rig.post("%RETRY%x")
    assert rig.request("POST", "/topics/t", b"x", content_encoding="gzip")[0] == 415
    rig.sender.open[0].answer(204)
    rig.sender.open[0].answer(503)
    rig.run()
    rig.advance(5_000)
    rig.sender.open[0].answer(500)
    rig.run()
    rig.advance(10_000)
    text = metrics.render()
    for line in (
        'gantry_cloudevents_posts_total{status="202"} 2',
        'gantry_cloudevents_posts_total{status="403"} 1',
        'gantry_cloudevents_posts_total{status="415"} 1',
        'gantry_cloudevents_attempts_total{outcome="delivered"} 1',
        'gantry_cloudevents_attempts_total{outcome="overloaded"} 1',
        'gantry_cloudevents_attempts_total{outcome="given_up"} 1',
        "gantry_cloudevents_dead_letters_total 1",
        'gantry_cloudevents_subscriptions{status="active"} 1',
        "gantry_cloudevents_lag_events 0",
    ):
        assert line in text.splitlines()


def test_health_is_the_brokers(rig):
    assert rig.request("GET", "/healthz")[0] == 200
    rig.port.lose()
    rig.run()
    assert rig.request("GET", "/healthz")[0] == 503
