"""The connection's own state: handshake, heartbeats, limits, any split of the bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.wire.codec import FRAME, HEARTBEAT_FRAME, content_frames
from gantrymq_gateways.amqp.wire.connection import GOODBYE_MS, HANDSHAKE_MS, SECURE_MAX, SILENT_CLOSE_MS, Connection
from gantrymq_gateways.amqp.wire.constants import PROTOCOL_HEADER, PROTOCOL_HEADER_OLD
from gantrymq_gateways.amqp.wire.events import ConnectionClosing, Ended, Event, MethodReceived, Publish, Settings
from gantrymq_gateways.amqp.wire.login import credentials_of
from gantrymq_gateways.amqp.wire.values import Field, encode_table
from gateways.tests.amqp.peer import Peer, Server, call, parse, publish

START_OK = call(0, "connection.start-ok", [], "PLAIN", b"\0guest\0guest", "en_US")
OPENING = (
    PROTOCOL_HEADER
    + START_OK
    + call(0, "connection.tune-ok", 2047, 131072, 0)
    + call(0, "connection.open", "/", "", False)
    + call(1, "channel.open", "")
)


def new(now_ms: int = 0) -> Connection:
    def authenticate(mechanism: str, response: bytes, answer: Callable[[str | bytes | bool], None]) -> None:
        credentials = credentials_of(mechanism, response)
        answer("guest" if credentials == ("guest", "guest") else False)

    return Connection(Settings([]), authenticate, now_ms)


@pytest.mark.parametrize("head", [PROTOCOL_HEADER, PROTOCOL_HEADER_OLD])
def test_protocol_header(head: bytes) -> None:
    connection = new()
    for at in range(7):
        assert connection.receive_data(head[at : at + 1], 0) == []
        assert connection.data_to_send() == b""
    connection.receive_data(head[7:], 0)
    ((_, name, arguments),) = parse(connection.data_to_send())
    assert (name, arguments[:2], arguments[3:]) == ("connection.start", [0, 9], [b"PLAIN AMQPLAIN", b"en_US"])


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x00\x09\x02", b"AMQX", b"H"]
)
def test_wrong_header_is_answered_with_the_right_one(head: bytes) -> None:
    connection = new()
    (event,) = connection.receive_data(head, 0)
    assert isinstance(event, Ended)
    assert not event.abort
    assert connection.data_to_send() == PROTOCOL_HEADER
    assert connection.receive_data(b"more", 0) == []


def test_server_properties() -> None:
    peer = Server(config=AmqpConfig(product="Other", version="1.2.3")).connect()
    ((_, _, arguments),) = parse(peer.raw(PROTOCOL_HEADER))
    properties = dict(arguments[2])
    assert properties["product"].value == b"Other"
    assert properties["version"].value == b"1.2.3"
    assert ("basic.nack", Field("t", True)) in properties["capabilities"].value


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0guest"),
        ("PLAIN", b"guest\0guest\0guest"),
        ("AMQPLAIN", encode_table([("LOGIN", Field("S", b"guest")), ("PASSWORD", Field("S", b"guest"))])[4:]),
    ],
)  # fmt: skip
def test_log_in(mechanism: str, response: bytes) -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER)
    ((_, name, arguments),) = peer.call("connection.start-ok", [], mechanism, response, "en_US", channel=0)
    assert (name, arguments) == ("connection.tune", [2047, 131072, 60])


REFUSED = [("PLAIN", b"\0guest\0wrong"), ("PLAIN", b"nonsense"), ("AMQPLAIN", b"\x05LOGIN"), ("EXTERNAL", b"")]


@pytest.mark.parametrize(("mechanism", "response"), REFUSED)
def test_refused_log_in_is_silent_for_old_clients(mechanism: str, response: bytes) -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER)
    assert peer.call("connection.start-ok", [], mechanism, response, "en_US", channel=0) == []
    peer.server.wheel.advance(SILENT_CLOSE_MS - 100)
    assert peer.link.closed_by is None
    peer.server.wheel.advance(200)
    assert peer.link.closed_by == "abort"


def refused_text(peer: Peer) -> tuple[int, str]:
    peer.raw(PROTOCOL_HEADER)
    table = [("capabilities", Field("F", [("authentication_failure_close", Field("t", True))]))]
    ((_, name, arguments),) = peer.call("connection.start-ok", table, "PLAIN", b"\0guest\0no", "en_US", channel=0)
    assert name == "connection.close"
    return arguments[0], arguments[1]


def test_refused_log_in_is_said_to_clients_that_understand() -> None:
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    )
    assert refused_text(Server().connect()) == (403, text)


def test_guest_only_from_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    peer = Server().connect(loopback=False)
    peer.raw(PROTOCOL_HEADER)
    assert peer.raw(START_OK) == b""
    assert "amqp.loopback_guest_only=false lets it in" in caplog.text


def test_guest_from_elsewhere_where_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(config=AmqpConfig(loopback_guest_only=False))
    peer = server.connect(loopback=False)
    peer.raw(PROTOCOL_HEADER)
    assert b"\x00\x0a\x00\x1e" in peer.raw(START_OK)  # connection.tune
    wrong = server.connect(loopback=False)
    wrong.raw(PROTOCOL_HEADER)
    assert wrong.raw(call(0, "connection.start-ok", [], "PLAIN", b"\0guest\0no", "en_US")) == b""
    assert "there is one account" in caplog.text


def test_unknown_vhost() -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER + START_OK + call(0, "connection.tune-ok", 2047, 131072, 60))
    ((_, name, arguments),) = peer.call("connection.open", "nope", "", False, channel=0)
    assert (name, arguments) == ("connection.close", [530, "NOT_ALLOWED - vhost nope not found", 10, 40])


@pytest.mark.parametrize(
    ("channel_max", "frame_max"), [(0, 131072), (2048, 131072), (2047, 0), (2047, 131073), (2047, 4095)]
)
def test_tune_ok_out_of_range_is_silent(channel_max: int, frame_max: int) -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER + START_OK)
    assert peer.call("connection.tune-ok", channel_max, frame_max, 0, channel=0) == []
    peer.server.wheel.advance(SILENT_CLOSE_MS + 100)
    assert peer.link.closed_by == "abort"


def test_old_frame_size_is_kept() -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER + START_OK)
    peer.ask(call(0, "connection.tune-ok", 10, 4096, 0), call(0, "connection.open", "/", "", False))
    peer.ask(call(1, "channel.open", ""))
    peer.declare("q")
    method = call(1, "basic.publish", 0, "", "q", False, False)
    peer.ask(method + content_frames(1, b"\0\0", b"x" * 10_000, 4096))
    out = peer.raw(call(1, "basic.get", 0, "q", True))
    at, sizes = 0, []
    while at < len(out):
        sizes.append(8 + FRAME.unpack_from(out, at)[2])
        at += sizes[-1]
    assert max(sizes) == 4096
    assert parse(out)[0][1].body == b"x" * 10_000


def test_handshake_timeout() -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER)
    peer.server.wheel.advance(HANDSHAKE_MS + 100)
    assert peer.link.closed_by == "abort"


def test_big_frame_before_log_in() -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER)
    assert peer.raw(FRAME.pack(1, 0, 5000) + b"x" * 100) == b""
    peer.server.wheel.advance(SILENT_CLOSE_MS + 100)
    assert peer.link.closed_by == "abort"


def test_heartbeats() -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER + START_OK)
    peer.ask(call(0, "connection.tune-ok", 10, 131072, 1), call(0, "connection.open", "/", "", False))
    for _ in range(10):
        peer.server.wheel.advance(1000)
        peer.raw(HEARTBEAT_FRAME)
    assert peer.link.closed_by is None
    peer.link.take()
    peer.server.wheel.advance(2000)
    assert set(parse(peer.link.take())) == {("heartbeat",)}
    peer.server.wheel.advance(1600)
    assert peer.link.closed_by == "abort"


def test_nobody_waits_longer_than_the_interval_for_a_heartbeat() -> None:
    """AMQP 4.2.7. The Java client's Netty connection ends after one interval without a byte, also right after its opening."""
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER + START_OK)
    peer.ask(call(0, "connection.tune-ok", 10, 131072, 2), call(0, "connection.open", "/", "", False))
    for _ in range(5):
        silent_ms = 0
        while not peer.link.take():
            peer.server.wheel.advance(100)
            silent_ms += 100
            assert silent_ms <= 1100
        assert peer.ask(HEARTBEAT_FRAME + call(1, "channel.open", "") + call(1, "channel.close", 200, "", 0, 0))


def test_a_silent_peer_is_gone_after_two_to_three_intervals() -> None:
    """AMQP 4.2.7 (two at least) and RabbitMQ (three at most)."""
    for heard_ms in (100, 400, 600, 900):
        peer = Server().connect()
        peer.raw(PROTOCOL_HEADER + START_OK)
        peer.ask(call(0, "connection.tune-ok", 10, 131072, 10), call(0, "connection.open", "/", "", False))
        peer.server.wheel.advance(heard_ms * 10)
        peer.raw(HEARTBEAT_FRAME)
        peer.server.wheel.advance(20_000)
        assert peer.link.closed_by is None
        peer.server.wheel.advance(10_100)
        assert peer.link.closed_by == "abort"


def test_no_heartbeats_if_the_client_does_not_want_them() -> None:
    peer = Server().connect()
    peer.raw(OPENING)
    peer.server.wheel.advance(1_000_000)
    assert peer.link.closed_by is None
    assert peer.link.take() == b""


STREAM = (
    OPENING
    + publish(1, "", "a", b"one")
    + publish(1, "", "b", b"", b"\x90\x00\x01t\x02")
    + call(1, "basic.ack", 7, True)
    + call(1, "basic.publish", 0, "e", "k", True, False)
    + content_frames(1, b"\0\0", b"0123456789", 12)
    + HEARTBEAT_FRAME
    + call(1, "queue.declare", 0, "q", False, True, False, False, False, [("x", Field("S", b"y"))])
)


def whole() -> list[Event]:
    connection = new()
    events = connection.receive_data(STREAM, 0)
    assert [type(event) for event in events[-5:]] == [Publish, Publish, MethodReceived, Publish, MethodReceived]
    publishes = [event for event in events if isinstance(event, Publish)]
    assert [event.body for event in publishes] == [b"one", b"", b"0123456789"]
    return events


def test_every_split_gives_the_same_events() -> None:
    expected = whole()
    for cut in range(len(STREAM) + 1):
        connection = new()
        assert connection.receive_data(STREAM[:cut], 0) + connection.receive_data(STREAM[cut:], 0) == expected


def test_byte_by_byte() -> None:
    connection = new()
    events: list[Event] = []
    for at in range(len(STREAM)):
        events += connection.receive_data(STREAM[at : at + 1], 0)
    assert events == whole()


@given(st.binary(max_size=200), st.integers(0, len(STREAM)))
def test_garbage_never_raises(garbage: bytes, at: int) -> None:
    connection = new()
    connection.receive_data(STREAM[:at] + garbage + STREAM[at:], 0)
    connection.data_to_send()


@given(st.integers(0, len(STREAM) - 1), st.integers(0, 255))
def test_a_changed_byte_never_raises(at: int, value: int) -> None:
    connection = new()
    connection.receive_data(STREAM[:at] + bytes((value,)) + STREAM[at + 1 :], 0)
    connection.data_to_send()


BYE = call(0, "connection.close", 200, "bye", 0, 0)


def test_connection_close_is_answered_and_the_socket_is_the_clients_to_close() -> None:
    """amqp091-go takes an end that it sees together with close-ok for a failure."""
    server = Server()
    peer = server.client()
    assert peer.ask(BYE) == [(0, "connection.close-ok", [])]
    assert peer.ask(call(1, "queue.declare", 0, "late", *[False] * 5, {})) == []
    assert peer.link.closed_by is None
    peer.link.peer_closes()
    assert not server.gateway.doors


def test_a_socket_that_its_client_leaves_open_after_close_ok_is_closed() -> None:
    server = Server()
    peer = server.client()
    peer.ask(BYE)
    server.wheel.advance(GOODBYE_MS - 1)
    assert peer.link.closed_by is None
    server.wheel.advance(1)
    assert peer.link.closed_by == "abort"
    assert not server.gateway.doors


def test_shutdown_says_why() -> None:
    peer = Server().client()
    peer.door.shutdown()
    peer.server.settle()
    ((_, name, arguments),) = parse(peer.link.take())
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert (name, arguments[:2]) == ("connection.close", [320, text])


def test_no_answer_to_close() -> None:
    peer = Server().client()
    peer.raw(call(1, "channel.open", ""))
    peer.server.wheel.advance(6000)
    assert peer.link.closed_by == "abort"


def test_update_secret() -> None:
    assert Server().client().call("connection.update-secret", b"x", "why", channel=0) == [
        (0, "connection.update-secret-ok", [])
    ]


def test_channels_are_limited_by_their_number_not_by_the_highest_one() -> None:
    peer = Server().connect()
    peer.raw(PROTOCOL_HEADER + START_OK)
    peer.ask(call(0, "connection.tune-ok", 2, 131072, 0), call(0, "connection.open", "/", "", False))
    assert peer.ask(call(65535, "channel.open", "")) == [(65535, "channel.open-ok", [b""])]
    assert peer.ask(call(7, "channel.open", "")) == [(7, "channel.open-ok", [b""])]
    ((_, name, arguments),) = peer.ask(call(1, "channel.open", ""))
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert (name, arguments[:2]) == ("connection.close", [530, text])


PUBLISH_FRAME = call(1, "basic.publish", 0, "", "q", False, False)
HEADER_FRAME = FRAME.pack(2, 1, 14) + b"\0\x3c\0\0" + (10_000).to_bytes(8, "big") + b"\0\0" + b"\xce"


@pytest.mark.parametrize("begun", [PUBLISH_FRAME, PUBLISH_FRAME + HEADER_FRAME], ids=["method", "method and header"])
def test_what_comes_between_a_publish_and_its_body_is_looked_at_when_it_comes(begun: bytes) -> None:
    """AMQP 4.2.6: content frames of one channel may be mixed with frames of others."""
    connection = new()
    connection.receive_data(OPENING + call(2, "channel.open", ""), 0)
    connection.receive_data(begun, 0)
    acks = [connection.receive_data(call(2, "basic.ack", number, False), 0) for number in range(1, 4)]
    assert [len(events) for events in acks] == [1, 1, 1]
    (event,) = connection.receive_data(call(0, "connection.close", 0, "", 0, 0), 0)
    assert isinstance(event, ConnectionClosing)


def test_challenges_are_answered_and_bounded() -> None:
    """AMQP 1.4.2.3: connection.secure as often as the mechanism wants it, and no more than any does."""
    asked: list[bytes] = []

    def authenticate(mechanism: str, response: bytes, answer: Callable[[str | bytes | bool], None]) -> None:
        asked.append(response)
        answer("alice" if response == b"good" else b"say more")

    for good in (True, False):
        asked.clear()
        connection = Connection(Settings([]), authenticate, 0, b"PLAIN X")
        connection.receive_data(PROTOCOL_HEADER + call(0, "connection.start-ok", [], "X", b"first", "en_US"), 0)
        for number in range(SECURE_MAX):
            (*_, (_, name, arguments)) = parse(connection.data_to_send())
            assert (name, arguments) == ("connection.secure", [b"say more"])
            last = good and number == SECURE_MAX - 1
            connection.receive_data(call(0, "connection.secure-ok", b"good" if last else b"more"), 0)
        sent = parse(connection.data_to_send())
        assert [name for _, name, _ in sent] == (["connection.tune"] if good else [])
        assert asked == [b"first", *[b"more"] * (SECURE_MAX - 1), b"good" if good else b"more"]
        assert (connection.user, connection.running) == ("alice" if good else "", False)
