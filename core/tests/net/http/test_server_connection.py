import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.net.http import limits
from gantrymq.net.http.server_connection import ServerConnection

MAX = 1000
POST = b"POST /topics/a HTTP/1.1\r\nHost: h\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /topics/a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
GET = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"


def connection():
    return ServerConnection(MAX)


def answered(conn, request, status=202, body=b""):
    conn.respond(request.number, status, (), body)
    return conn.data_to_send()


@pytest.mark.parametrize("data", [POST, CHUNKED], ids=["length", "chunked"])
def test_every_split(data):
    for at in range(len(data) + 1):
        conn = connection()
        requests = conn.receive_data(data[:at], 0) + conn.receive_data(data[at:], 0)
        assert [(r.method, r.target, r.body) for r in requests] == [("POST", b"/topics/a", b"hello")]
        assert answered(conn, requests[0]) == b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


def test_byte_by_byte_pipelined():
    conn = connection()
    requests = []
    for byte in POST + b"\r\n" + CHUNKED + GET:
        requests += conn.receive_data(bytes([byte]), 0)
    assert [r.body for r in requests] == [b"hello", b"hello", b""]


def test_answers_go_out_in_request_order():
    conn = connection()
    first, second, third = conn.receive_data(POST + GET + POST, 0)
    assert answered(conn, third, 202) == b""
    assert answered(conn, second, 200, b"ok\r\n") == b""
    out = answered(conn, first, 404)
    assert [line for line in out.split(b"\r\n") if line.startswith(b"HTTP")] == [
        b"HTTP/1.1 404 Not Found",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 202 Accepted",
    ]
    assert not conn.finished
    conn.respond(first.number, 200, (), b"a second answer is ignored")
    assert conn.data_to_send() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Close\r\nContent-Length: 0\r\n\r\n",
        b"POST /a HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_close_is_kept(data):
    conn = connection()
    (request,) = conn.receive_data(data + GET, 0)
    assert b"connection: close\r\n" in answered(conn, request)
    assert conn.finished


def test_head_has_no_body():
    conn = connection()
    (request,) = conn.receive_data(GET.replace(b"GET", b"HEAD"), 0)
    assert answered(conn, request, 200, b"ok").endswith(b"content-length: 2\r\n\r\n")


def test_204_has_no_length():
    conn = connection()
    (request,) = conn.receive_data(GET, 0)
    assert answered(conn, request, 204) == b"HTTP/1.1 204 No Content\r\n\r\n"


def head(*lines):
    return b"\r\n".join([b"POST /a HTTP/1.1", b"Host: h", *lines]) + b"\r\n\r\n"


SMUGGLING = [
    ("length and coding", head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
    ("coding and length", head(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"0\r\n\r\n", 400),
    ("two lengths", head(b"Content-Length: 5", b"Content-Length: 6") + b"hello", 400),
    ("two equal lengths", head(b"Content-Length: 5", b"Content-Length: 5") + b"hello", 400),
    ("length list", head(b"Content-Length: 5, 5") + b"hello", 400),
    ("negative length", head(b"Content-Length: -5") + b"hello", 400),
    ("signed length", head(b"Content-Length: +5") + b"hello", 400),
    ("hex length", head(b"Content-Length: 0x5") + b"hello", 400),
    ("huge length", head(b"Content-Length: " + b"9" * 30), 400),
    ("coding twice", head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    ("unknown coding", head(b"Transfer-Encoding: gzip, chunked"), 501),
    ("hidden coding", head(b"Transfer-Encoding: xchunked"), 501),
    ("coding in 1.0", b"POST /a HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("folded", head(b"X: a", b" b", b"Content-Length: 0"), 400),
    ("tab-folded", head(b"X: a", b"\tb", b"Content-Length: 0"), 400),
    ("blank before colon", head(b"Content-Length : 5") + b"hello", 400),
    ("blank line before headers", b"POST /a HTTP/1.1\r\n Host: h\r\n\r\n", 400),
    ("no host", b"POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),
    ("two hosts", head(b"Host: i", b"Content-Length: 0"), 400),
    ("bare LF", b"POST /a HTTP/1.1\nHost: h\nContent-Length: 0\n\n", 400),
    ("one bare LF", head(b"X: a\nContent-Length: 5", b"Y: b") + b"hello", 400),
    ("bare CR", head(b"X: a\rb", b"Content-Length: 0"), 400),
    ("NUL in a value", head(b"X: a\x00b", b"Content-Length: 0"), 400),
    ("no colon", head(b"nonsense", b"Content-Length: 0"), 400),
    ("bad chunk size", head(b"Transfer-Encoding: chunked") + b"zz\r\n", 400),
    ("chunk too long", head(b"Transfer-Encoding: chunked") + b"3\r\nhello\r\n0\r\n\r\n", 400),
    ("signed chunk", head(b"Transfer-Encoding: chunked") + b"+3\r\nhel\r\n0\r\n\r\n", 400),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("HTTP/1.2", b"POST /a HTTP/1.2\r\nHost: h\r\n\r\n", 400),
    ("CONNECT", b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 501),
    ("no version", b"GET /\r\n\r\n", 400),
    ("blank in target", b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("non-ASCII target", b"GET /\xc3\xa4 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("TLS on this port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ("long target", b"GET /" + b"a" * limits.TARGET_BYTES_MAX + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    ("many headers", head(*[b"X%d: a" % n for n in range(limits.HEADERS_MAX)]), 431),
    ("large head", head(b"X: " + b"a" * limits.HEAD_BYTES_MAX), 431),
    ("large head, cut", head(b"X: " + b"a" * limits.HEAD_BYTES_MAX)[:-4], 431),
    ("large body", head(b"Content-Length: %d" % (MAX + 1)), 413),
    ("large chunked body", head(b"Transfer-Encoding: chunked") + b"400\r\n" + b"x" * 0x400, 413),
    ("large chunk line", head(b"Transfer-Encoding: chunked") + b"3;" + b"x" * 70_000, 431),
]


@pytest.mark.parametrize(("name", "data", "status"), SMUGGLING, ids=[row[0] for row in SMUGGLING])
@pytest.mark.parametrize("step", [1 << 20, 7])
def test_refused(name, data, status, step):
    conn = connection()
    requests = []
    for at in range(0, len(data), step):
        requests += conn.receive_data(data[at : at + step], 0)
    requests += conn.receive_data(GET, 0)
    assert not requests
    out = conn.data_to_send()
    assert out.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/problem+json" in out
    assert out.count(b"HTTP/1.1 ") == 1 or b"speaks HTTP/1.1" in out
    assert conn.finished
    assert conn.refused


def test_a_refusal_waits_for_earlier_answers():
    conn = connection()
    (request,) = conn.receive_data(POST + b"nonsense\r\n\r\n", 0)
    assert conn.data_to_send() == b""
    out = answered(conn, request)
    assert out.index(b"202") < out.index(b"400")
    assert conn.finished


def test_expect_continue():
    conn = connection()
    assert conn.receive_data(head(b"Content-Length: 5", b"Expect: 100-continue"), 0) == []
    assert conn.data_to_send() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(conn.receive_data(b"hello", 0)) == 1
    assert conn.data_to_send() == b""


def test_continue_waits_for_earlier_answers():
    conn = connection()
    (request,) = conn.receive_data(POST + head(b"Content-Length: 5", b"Expect: 100-continue"), 0)
    assert conn.data_to_send() == b""
    assert answered(conn, request).endswith(b"HTTP/1.1 100 Continue\r\n\r\n")


def test_continue_is_not_sent_for_what_is_too_large():
    conn = connection()
    conn.receive_data(head(b"Content-Length: 5000", b"Expect: 100-continue"), 0)
    assert conn.data_to_send().startswith(b"HTTP/1.1 413 ")


def test_continue_is_not_sent_when_the_body_is_there():
    conn = connection()
    assert len(conn.receive_data(head(b"Content-Length: 5", b"Expect: 100-continue") + b"hello", 0)) == 1
    assert conn.data_to_send() == b""


def test_pipeline_is_bounded():
    conn = connection()
    requests = conn.receive_data(POST * (limits.PIPELINE_MAX + 5), 0)
    assert len(requests) == limits.PIPELINE_MAX
    assert conn.is_full()
    assert conn.next_deadline(0) is None
    answered(conn, requests[0])
    assert not conn.is_full()
    assert len(conn.receive_data(b"", 0)) == 1


def test_waiting_bodies_are_bounded():
    conn = ServerConnection(limits.PIPELINE_BYTES_MAX)
    size = limits.PIPELINE_BYTES_MAX // 2
    request = head(b"Content-Length: %d" % size) + b"x" * size
    assert len(conn.receive_data(request * 3, 0)) == 2
    assert conn.is_full()


def test_idle_connection_is_closed_silently():
    conn = connection()
    assert conn.next_deadline(1000) == 1000 + limits.IDLE_DEADLINE_MS
    conn.handle_deadline(1000 + limits.IDLE_DEADLINE_MS - 1)
    assert not conn.finished
    conn.handle_deadline(1000 + limits.IDLE_DEADLINE_MS)
    assert conn.finished
    assert conn.data_to_send() == b""


def test_idle_time_begins_with_the_answer():
    conn = connection()
    (request,) = conn.receive_data(POST, 0)
    assert conn.next_deadline(10**6) is None
    answered(conn, request)
    assert conn.next_deadline(10**6) == 10**6 + limits.IDLE_DEADLINE_MS


def test_slow_head():
    conn = connection()
    for now_ms in range(0, limits.HEAD_DEADLINE_MS, 1000):
        conn.receive_data(b"G" if not now_ms else b"E", now_ms)
    assert conn.next_deadline(0) == limits.HEAD_DEADLINE_MS
    conn.handle_deadline(limits.HEAD_DEADLINE_MS)
    assert conn.data_to_send().startswith(b"HTTP/1.1 408 ")
    assert conn.finished


def test_blank_lines_between_requests_are_no_request():
    conn = connection()
    conn.receive_data(b"\r", 0)
    conn.receive_data(b"\n", 10)
    assert conn.next_deadline(10) == 10 + limits.IDLE_DEADLINE_MS


def test_slow_body():
    conn = ServerConnection(10**6)
    conn.receive_data(head(b"Content-Length: 100000"), 0)
    conn.receive_data(b"x" * limits.BODY_PROGRESS_BYTES, 20_000)
    assert conn.next_deadline(20_000) == 20_000 + limits.BODY_DEADLINE_MS
    conn.receive_data(b"x", 40_000)
    assert conn.next_deadline(40_000) == 20_000 + limits.BODY_DEADLINE_MS
    conn.handle_deadline(20_000 + limits.BODY_DEADLINE_MS)
    assert conn.data_to_send().startswith(b"HTTP/1.1 408 ")


def test_eof():
    conn = connection()
    (request,) = conn.receive_data(POST, 0)
    conn.receive_eof()
    assert not conn.finished
    assert answered(conn, request)
    assert conn.finished
    conn = connection()
    conn.receive_data(POST[:-1], 0)
    conn.receive_eof()
    assert conn.finished


@pytest.mark.parametrize("rest", [POST[:-2], CHUNKED[:-9], POST[:20], b""])
def test_requests_before_a_cut_off_one_are_still_answered(rest):
    conn = connection()
    (first,) = conn.receive_data(POST + rest, 0)
    conn.receive_eof()
    assert not conn.finished
    assert answered(conn, first).startswith(b"HTTP/1.1 202 Accepted")
    assert conn.finished


def test_shutdown_answers_what_is_open():
    conn = connection()
    first, second = conn.receive_data(POST + POST, 0)
    conn.shutdown()
    assert conn.receive_data(GET, 0) == []
    answered(conn, first)
    assert not conn.finished
    assert b"connection: close" in answered(conn, second)
    assert conn.finished
    conn = connection()
    conn.receive_data(POST[:-1], 0)
    conn.shutdown()
    assert conn.data_to_send().startswith(b"HTTP/1.1 503 ")
    conn = connection()
    conn.shutdown()
    assert conn.finished


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes(data, at):
    conn = connection()
    conn.receive_data(data[:at], 0)
    conn.receive_data(data[at:], 0)
    conn.next_deadline(0)


@given(st.lists(st.binary(max_size=400), max_size=4), st.data())
def test_bodies_through_any_split(bodies, data):
    stream = b"".join([head(b"Content-Length: %d" % len(body)) + body for body in bodies])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    conn = connection()
    requests = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        requests += conn.receive_data(stream[start:end], 0)
    assert [request.body for request in requests] == bodies


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x16\x03\x01\x00\xc8\x01\x00", b"looks like TLS"),
        (b"AMQP\x00\x00\x09\x01", b"byte 0x00 at 4"),
        (b"\x10\x0f\x00\x04MQTT", b"byte 0x10 at 0"),
    ],
)
def test_other_protocols_are_told_at_once(data, said):
    conn = connection()
    assert conn.receive_data(data, 0) == []
    out = conn.data_to_send()
    assert out.startswith(b"HTTP/1.1 400 ")
    assert said in out
    assert conn.finished
