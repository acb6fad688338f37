import h11
import pytest

from gantrymq_gateways.cloudevents.wire.client_connection import ClientConnection
from gantrymq_gateways.cloudevents.wire.constants import RESPONSE_BYTES_MAX

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def connection():
    conn = ClientConnection()
    conn.request("h", "/x?y", [(b"ce-id", b"1")], b"data")
    return conn


def test_request():
    out = ClientConnection().request("h:1", "/x?y", [(b"ce-id", b"1")], b"data")
    head, _, body = out.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /x?y HTTP/1.1",
        b"host: h:1",
        b"user-agent: gantrymq",
        b"accept-encoding: identity",
        b"content-length: 4",
        b"ce-id: 1",
    ]
    assert body == b"data"
    assert ClientConnection().request("h", "/", [], b"").endswith(b"content-length: 0\r\n\r\n")


@pytest.mark.parametrize("headers", [[(b"ce-id", b"1\r\nx: y")], [(b"ce id", b"1")]])
def test_nothing_is_injected(headers):
    with pytest.raises(h11.LocalProtocolError):
        ClientConnection().request("h", "/", headers, b"")
    with pytest.raises(h11.LocalProtocolError):
        ClientConnection().request("h", "/a b", [], b"")


def test_every_split():
    for at in range(len(OK) + 1):
        conn = connection()
        answers = [conn.receive_data(part) for part in (OK[:at], OK[at:]) if part]
        assert [answer.status for answer in answers if answer] == [200]
        assert conn.reusable
        assert conn.request("h", "/", [], b"")
        assert conn.untouched


@pytest.mark.parametrize(
    ("data", "status", "retry_after", "reusable"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, None, True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", 202, None, True),
        (
            b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            429,
            b"7",
            True,
        ),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 200, None, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, None, False),
        (OK + b"extra", 200, None, False),
        (b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", 302, None, True),
        (b"SSH-2.0-x\r\n\r\n", 0, None, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", 0, None, False),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * RESPONSE_BYTES_MAX + b"x", 0, None, False),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (RESPONSE_BYTES_MAX + 1), 200, None, False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\nzz\r\n", 200, None, False),
    ],
)
def test_answers(data, status, retry_after, reusable):
    conn = connection()
    answer = conn.receive_data(data)
    assert (answer.status, answer.retry_after, conn.reusable) == (status, retry_after, reusable)
    assert bool(answer.failure) == (status == 0)


def test_body_until_close():
    conn = connection()
    assert conn.receive_data(b"HTTP/1.1 200 OK\r\n\r\nbody") is None
    assert conn.receive_data(b"").status == 200
    assert not conn.reusable


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (b"", "the sink closed the connection without an answer"),
        (b"HTTP/1.1 20", "the sink closed the connection after 11 bytes, before the end of its answer"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\n",
            "the sink closed the connection after 25 bytes, before the end of its answer",
        ),
    ],
)
def test_closed_without_an_answer(data, failure):
    conn = connection()
    if data:
        assert conn.receive_data(data) is None
    answer = conn.receive_data(b"")
    assert answer.status == 0
    assert answer.failure == failure
