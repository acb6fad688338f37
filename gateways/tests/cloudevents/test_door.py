import json
import re

import pytest

from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.net.http import limits
from gantrymq_gateways.cloudevents.publish import SUBMIT_SLICE
from gantrymq_gateways.cloudevents.wire import constants
from gantrymq_gateways.cloudevents.wire.problems import RETRY_AFTER_S, STATUS
from tests.cloudevents.rig import Rig
from tests.cloudevents.vectors import JSON_HEAD

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
EVENT = b"{%s}" % JSON_HEAD


@pytest.fixture(params=["immediate", "late", "shuffled"])
def rig(request):
    return Rig(mode=request.param)


def test_binary_event_becomes_a_message(rig):
    status, _, _ = rig.post("factory", "a b", "line1.temp", b"21", content_type="text/plain", ce_partitionkey="p q")
    assert status == 202
    (message,) = rig.port.log
    assert (message.topic, message.tag, message.keys, message.body) == ("factory", "line1.temp", ("a%20b",), b"21")
    assert message.sharding_key == "p q"
    assert message.born_ms == rig.clock.now_ms()
    assert props.decode(message.properties) == {
        "TAGS": "line1.temp",
        "KEYS": "a%20b",
        "__SHARDINGKEY": "p q",
        "GANTRY_ORIGIN": "cloudevents",
        "GANTRY_CONTENT_TYPE": "text/plain",
        "CE_specversion": "1.0",
        "CE_id": "a b",
        "CE_source": "/s",
        "CE_type": "line1.temp",
        "CE_partitionkey": "p q",
        "CE_datacontenttype": "text/plain",
    }


def test_structured_body_wins_over_mirrored_headers(rig):
    status, _, _ = rig.request("POST", "/topics/t", EVENT, content_type=STRUCTURED, ce_id="other")
    assert status == 202
    assert rig.port.log[0].property("CE_id") == "1"


def test_batch_is_one_submit(rig):
    assert rig.request("POST", "/topics/t", b"[%s,%s]" % (EVENT, EVENT), content_type=BATCH)[0] == 202
    assert [len(batch) for batch in rig.port.submitted] == [2]
    assert rig.request("POST", "/topics/t", b"[]", content_type=BATCH)[0] == 202
    assert len(rig.port.submitted) == 1


def test_batch_with_a_bad_event_stores_nothing(rig):
    body = b'[%s,{"id":"2"},%s,5]' % (EVENT, EVENT)
    status, headers, problem = rig.request("POST", "/topics/t", body, content_type=BATCH)
    assert (status, headers["content-type"]) == (400, "application/problem+json")
    assert [(item["index"], item["status"]) for item in problem["events"]] == [(1, 400), (3, 400)]
    assert "missing or empty" in problem["events"][0]["detail"]
    assert rig.port.submitted == []


def test_batch_that_the_broker_takes_in_part(rig):
    rig.port.refuse = lambda message: ErrorCode.BUSY if message.body == b"7" else None
    body = b'[{%s,"data":1},{%s,"data":7}]' % (JSON_HEAD, JSON_HEAD)
    status, headers, problem = rig.request("POST", "/topics/t", body, content_type=BATCH)
    assert (status, headers["retry-after"]) == (503, "1")
    assert [item["index"] for item in problem["events"]] == [1]


def numbered(count):
    return b"[" + b",".join([b'{%s,"data":%d}' % (JSON_HEAD, n) for n in range(count)]) + b"]"


def test_a_large_batch_takes_turns_and_keeps_its_place(rig):
    count = SUBMIT_SLICE * 2 + 50
    body = numbered(count)
    head = b"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    last = b"[" + EVENT + b"]"
    stream = head % (BATCH.encode(), len(body)) + body + head % (BATCH.encode(), len(last)) + last
    rig.link.door.received(stream)
    assert rig.port.submitted == []
    rig.run()
    out = rig.link.feed(b"")
    assert out.count(b"202 Accepted") == 2
    assert [len(batch) for batch in rig.port.submitted] == [SUBMIT_SLICE, SUBMIT_SLICE, 50, 1]
    stored = [int(message.body) for batch in rig.port.submitted[:3] for message in batch]
    assert stored == list(range(count))


def test_a_large_batch_that_the_broker_takes_in_part(rig):
    rig.port.refuse = lambda message: ErrorCode.FLUSH_TIMEOUT if message.body == b"7" else None
    rig.port.fail_next("submit", ErrorCode.BUSY)
    status, _, problem = rig.request("POST", "/topics/t", numbered(SUBMIT_SLICE + 10), content_type=BATCH)
    assert status == 503
    assert [item["index"] for item in problem["events"]] == list(range(SUBMIT_SLICE))
    status, _, problem = rig.request("POST", "/topics/t", numbered(SUBMIT_SLICE + 10), content_type=BATCH)
    assert (status, [item["index"] for item in problem["events"]]) == (503, [7])


def test_a_large_batch_with_a_bad_event_stores_nothing(rig):
    body = numbered(500)[:-1] + b",{}]"
    status, _, problem = rig.request("POST", "/topics/t", body, content_type=BATCH)
    assert (status, [item["index"] for item in problem["events"]]) == (400, [500])
    assert rig.port.submitted == []


def test_a_large_batch_of_a_lost_connection_stops():
    rig = Rig()
    body = numbered(5000)
    rig.link.door.received(
        b"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
        % (BATCH.encode(), len(body))
        + body
    )
    rig.link.door.closed("reset")
    rig.run()
    assert rig.port.submitted == []


def test_batch_limit(rig):
    body = b"[" + b",".join([b"{}"] * (constants.BATCH_EVENTS_MAX + 1)) + b"]"
    assert rig.request("POST", "/topics/t", body, content_type=BATCH)[0] == 413


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_failure_of_the_broker_has_a_status(code):
    rig = Rig()
    rig.port.refuse = lambda message: code
    status, headers, problem = rig.post()
    assert status == STATUS[code] == problem["status"]
    assert problem["code"] == code.name
    assert ("retry-after" in headers) == (status == 503) == (code in RETRY_AFTER_S)
    rig.port.fail_next("submit", code)
    assert rig.post()[0] == STATUS[code]


def test_topic_names_are_decoded_and_encoded(rig):
    assert rig.post("f%C3%A4/x")[0] == 404
    assert rig.post("f%C3%A4%2Fx.y")[0] == 202
    assert rig.port.log[0].topic == "f%C3%A4%2Fx%2Ey"
    assert rig.post("%ff")[0] == 400
    assert rig.post("a%00b")[0] == 400


@pytest.mark.parametrize(
    "topic",
    ["$SYS", "%25DLQ%25x", "%25RETRY%25g", "%25LMQ%25x", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_gantry_topic"],
)
def test_closed_topics(rig, topic):
    status, _, problem = rig.post(topic)
    assert status == 403
    assert "reserved" in problem["detail"]
    assert rig.port.submitted == []


def test_topic_creation_off(rig):
    rig.port.auto_create = False
    assert rig.post("unknown")[0] == 404


NOTHING = {"specversion", "id", "source", "type"}


def test_no_event_at_all(rig):
    status, _, problem = rig.request("POST", "/topics/t", b"{}", content_type="application/json")
    assert status == 400
    assert all(name in problem["detail"] for name in NOTHING)


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "application/cloudevents+xml"},
        {"content_type": "application/cloudevents+json; charset=utf-16"},
        {"content_type": STRUCTURED, "content_encoding": "gzip"},
        {"content_encoding": "br"},
    ],
)
def test_unsupported(rig, headers):
    status, answer, _ = rig.request("POST", "/topics/t", EVENT, **headers)
    assert status == 415
    assert BATCH in answer["accept-post"]


def test_too_large(rig):
    assert rig.post(data=b"x" * ((1 << 20) + 1))[0] == 413
    assert (
        rig.request("POST", "/topics/t", EVENT[:-1] + b',"ext":"%s"}' % (b"x" * 33_000), content_type=STRUCTURED)[0]
        == 413
    )
    assert rig.post(type_="x." * 3000)[0] == 400
    assert rig.port.submitted == []


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/topics/t", "POST"),
        ("OPTIONS", "/topics/t", "POST"),
        ("PUT", "/subscriptions", "GET, POST"),
        ("PATCH", "/subscriptions/x", "GET, DELETE"),
        ("DELETE", "/healthz", "GET, HEAD"),
    ],
)
def test_method(rig, method, path, allow):
    status, headers, _ = rig.request(method, path)
    assert (status, headers["allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/", "/topics", "/topics/", "/topics/a/b", "/subscriptions/", "/x", "//topics/t"])
def test_unknown_path(rig, path):
    assert rig.request("POST", path)[0] == 404


def test_healthz(rig):
    assert rig.request("GET", "/healthz") == (
        200,
        {
            "content-type": "application/json",
            "cache-control": "no-store",
            "content-length": "15",
            "date": "Tue, 14 Nov 2023 22:13:20 GMT",
        },
        {"status": "ok"},
    )
    assert rig.request("GET", "http://h:8080/healthz?x=1")[0] == 200
    assert rig.request("GET", "ftp://h/healthz")[0] == 400


def test_pipelined_posts_are_answered_in_order_whatever_the_broker_does():
    for seed in range(20):
        rig = Rig(mode="shuffled", seed=seed)
        rig.port.refuse = lambda message: ErrorCode.FLUSH_TIMEOUT if message.body == b"1" else None
        requests = [
            f"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\nce-id: {n}\r\nce-type: t\r\nce-source: s\r\n"
            f"ce-specversion: 1.0\r\n\r\n{n % 3}"
            for n in range(9)
        ]
        out = rig.link.feed("".join(requests).encode())
        assert out == b""
        rig.run()
        out += rig.link.feed(b"")
        statuses = [int(part[:3]) for part in out.decode().split("HTTP/1.1 ")[1:]]
        assert statuses == [202, 503, 202] * 3


def test_reading_pauses_while_too_many_requests_wait():
    rig = Rig(mode="late")
    request = (
        b"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\nce-id: 1\r\nce-type: t\r\nce-source: s\r\n"
        b"ce-specversion: 1.0\r\n\r\n"
    )
    count = limits.PIPELINE_MAX + 10
    rig.link.feed(request * count)
    assert not rig.link.reading
    rig.run()
    assert rig.link.reading
    rig.run()
    assert rig.link.feed(b"").count(b"202 Accepted") == count


def test_malformed_request_closes_and_is_logged(rig, caplog):
    caplog.set_level("INFO")
    out = rig.link.feed(b"nonsense\r\n\r\n")
    assert out.startswith(b"HTTP/1.1 400 ")
    assert rig.link.closed_by == "close"
    assert [record.getMessage().startswith(rig.link.peer) for record in caplog.records] == [True]


def test_idle_connection_is_closed():
    rig = Rig()
    rig.post()
    rig.wheel.advance(limits.IDLE_DEADLINE_MS - 1000)
    assert rig.link.closed_by is None
    rig.post()
    rig.wheel.advance(limits.IDLE_DEADLINE_MS - 1000)
    assert rig.link.closed_by is None
    rig.wheel.advance(2000)
    assert rig.link.closed_by == "close"


def test_slow_request_is_answered_408():
    rig = Rig()
    rig.link.feed(b"POST /topics/t HTTP/1.1\r\n")
    rig.wheel.advance(limits.HEAD_DEADLINE_MS + 100)
    assert rig.link.feed(b"").startswith(b"HTTP/1.1 408 ")
    assert rig.link.closed_by == "close"


def test_shutdown_waits_for_open_answers():
    rig = Rig(mode="late")
    rig.link.feed(
        b"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\nce-id: 1\r\nce-type: t\r\nce-source: s\r\n"
        b"ce-specversion: 1.0\r\n\r\n"
    )
    rig.link.door.shutdown()
    assert rig.link.closed_by is None
    rig.run()
    assert b"202 Accepted" in rig.link.feed(b"")
    assert rig.link.closed_by == "close"


def test_an_answer_after_the_end_of_the_connection_does_no_harm():
    rig = Rig(mode="late")
    rig.link.feed(
        b"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\nce-id: 1\r\nce-type: t\r\nce-source: s\r\n"
        b"ce-specversion: 1.0\r\n\r\n"
    )
    rig.link.door.closed("reset")
    rig.run()
    assert len(rig.port.log) == 1


def test_problem_documents_are_json():
    _, _, problem = Rig().request("GET", "/nowhere")
    assert json.loads(json.dumps(problem)) == problem
    assert set(problem) >= {"type", "title", "status", "detail"}


def test_clients_of_other_machines(caplog):
    rig = Rig()
    rig.link.peer_is_loopback = False
    for _ in range(2):
        status, _, body = rig.post()
        assert status == 403
        assert "clients of other machines" in body["detail"]
    assert rig.request("GET", "/subscriptions")[0] == 403
    assert rig.request("GET", "/healthz")[0] == 200
    assert caplog.text.count("cloudevents.allow_anonymous=true lets them in") == 1
    assert not rig.port.log
    rig = Rig(anonymous=True)
    rig.link.peer_is_loopback = False
    assert rig.post()[0] == 202


def head_of(method, path, *lines, length=1_000_000):
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {length}", *lines, "", ""]
    ).encode()


REFUSED = [
    (("POST", "/nothing"), 404),
    (("PUT", "/topics/t"), 405),
    (("POST", "/topics/%24SYS"), 403),
    (("POST", "/topics/t", "content-encoding: gzip"), 415),
    (("POST", "/topics/t", "content-type: application/cloudevents+avro"), 415),
    (("POST", "/subscriptions", "content-type: text/plain"), 415),
    (("POST", "/subscriptions", "content-type: application/json"), 413),
]


@pytest.mark.parametrize("expect", [(), ("expect: 100-continue",)], ids=["", "expect"])
@pytest.mark.parametrize(("head", "status"), REFUSED)
def test_what_the_head_decides_is_said_before_the_body(head, status, expect):
    rig = Rig()
    out = rig.link.feed(head_of(*head, *expect))
    assert out.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in out
    assert rig.link.closed_by == "close"
    assert rig.port.submitted == []


@pytest.mark.parametrize("pieces", [1, 7, 200])
@pytest.mark.parametrize(("head", "status"), REFUSED[:-1])
def test_a_short_body_behind_a_refused_head_is_dropped_and_the_connection_lives(head, status, pieces):
    rig = Rig()
    out = rig.link.feed(head_of(*head, length=200))
    assert out.startswith(b"HTTP/1.1 %d " % status)
    assert rig.link.closed_by is None
    rest = b"x" * 200 + head_of("GET", "/healthz", length=0)
    out = b"".join([rig.link.feed(rest[at : at + pieces]) for at in range(0, len(rest), pieces)])
    assert out.startswith(b"HTTP/1.1 200 ")
    assert rig.port.submitted == []


def test_a_refused_head_keeps_its_place_behind_earlier_requests():
    rig = Rig(mode="late")
    event = head_of("POST", "/topics/t", "ce-id: 1", "ce-type: t", "ce-source: s", "ce-specversion: 1.0", length=0)
    rig.link.door.received(event + head_of("PUT", "/topics/t", length=3) + b"abc" + event)
    rig.run()
    out = rig.link.feed(b"")
    assert re.findall(rb"HTTP/1.1 (\d+)", out) == [b"202", b"405", b"202"]


def test_a_refused_head_with_connection_close_is_the_last():
    rig = Rig()
    out = rig.link.feed(
        head_of("PUT", "/topics/t", "connection: close", length=3) + b"abc" + head_of("GET", "/healthz")
    )
    assert out.count(b"HTTP/1.1") == 1
    assert rig.link.closed_by == "close"


def test_a_body_behind_a_refused_head_that_does_not_come_is_given_up():
    rig = Rig()
    rig.link.feed(head_of("PUT", "/topics/t", length=200) + b"x")
    rig.advance(limits.BODY_DEADLINE_MS + 100)
    assert rig.link.closed_by == "close"
    assert rig.link.take() == b"", "it had its answer"


def test_a_peer_that_leaves_within_a_body_behind_a_refused_head():
    rig = Rig(mode="late")
    event = head_of("POST", "/topics/t", "ce-id: 1", "ce-type: t", "ce-source: s", "ce-specversion: 1.0", length=0)
    rig.link.door.received(event + head_of("PUT", "/topics/t", length=200) + b"x")
    assert rig.link.door.eof()
    rig.run()
    out = rig.link.take()
    assert re.findall(rb"HTTP/1.1 (\d+)", out) == [b"202", b"405"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("target", ["/subscriptions", "http://evil.example/subscriptions"])
def test_a_foreign_host_is_refused(method, target):
    rig = Rig()
    head = head_of(method, target, "content-type: application/json", length=2)
    if target.startswith("/"):
        head = head.replace(b"localhost", b"evil.example:8080")
    out = rig.link.feed(head + b"{}")
    assert out.startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
    assert b"evil.example" in out
    assert rig.port.cursors == {}
    assert rig.link.closed_by is None


@pytest.mark.parametrize(("busy", "status"), [(True, 503), (False, 408)])
def test_a_body_that_is_given_up_is_answered_and_forgotten(busy, status):
    rig = Rig()
    head = head_of("POST", "/topics/t", "ce-id: 1", "ce-type: t", "ce-source: s", "ce-specversion: 1.0")
    rig.link.feed(head + b"x" * 50_000)
    assert rig.link.door.inbound_bytes() == 50_000
    number = rig.link.door.unfinished()
    assert number
    rig.link.feed(b"x" * 50_000)
    assert rig.link.door.unfinished() == number
    rig.link.door.overdue("too slow", busy)
    out = rig.link.feed(b"")
    assert out.startswith(b"HTTP/1.1 %d " % status)
    assert (b"retry-after: 5" in out) == busy
    assert rig.link.closed_by == "close"
    assert rig.link.door.inbound_bytes() == 0
    assert rig.port.submitted == []


def test_bodies_that_wait_for_the_log_are_held():
    rig = Rig(mode="late")
    event = head_of("POST", "/topics/t", "ce-id: 1", "ce-type: t", "ce-source: s", "ce-specversion: 1.0", length=1000)
    rig.link.door.received((event + b"x" * 1000) * 3)
    assert (rig.link.door.inbound_bytes(), rig.link.door.unfinished()) == (3000, 0)
    rig.run()
    assert rig.link.door.inbound_bytes() == 0
