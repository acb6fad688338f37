"""Handshake, a door inside, closing from both sides; the first bytes that decide."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from core.tests.net.doors.test_frames import frame
from gantrymq.net.doors import frames
from gantrymq.net.doors.first_bytes import FirstBytes, Manners
from gantrymq.net.doors.frames import BINARY, CLOSE, PING
from gantrymq.net.doors.websocket import WebSocketRules, accept_key
from gantrymq.net.host_names import HostNames
from gantrymq.net.testing import EchoDoor, FakeLink, ManualClock, ManualTurn, ManualWheel

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
"""RFC 6455 1.3."""

HEADERS = {
    "Host": "localhost:1883",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqttv3.1, mqtt",
}


def request(path: str = "/mqtt", method: str = "GET", **changes: str | None) -> bytes:
    """An opening request; `changes`: headers with _ for -, None to leave one out."""
    headers: dict[str, str | None] = dict(HEADERS)
    headers.update({name.replace("_", "-"): value for name, value in changes.items()})
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items() if value is not None])
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


class Echo(EchoDoor):
    """A door that answers what it gets, in pieces, and `!` with its own end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: str | None = None
        self.most = 1 << 20
        """Bytes that it takes at once."""
        self.pieces: list[bytes] = []

    def received(self, data: bytes) -> int:
        data = data[: self.most]
        self.pieces.append(data)
        super().received(data)
        if data.endswith(b"!"):
            self.link.close()
        return len(data)

    def overdue(self, why: str, busy: bool) -> None:
        self.link.close()

    def data_to_send(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def closed(self, reason: str) -> None:
        self.ended = reason


class World:
    """One connection to a door that takes WebSockets and believes PROXY headers of `proxies`."""

    def __init__(self, peer: str = "127.0.0.1:50000", proxies: str = "", origins: tuple[str, ...] = ()) -> None:
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.doors: list[Echo] = []
        rules = WebSocketRules("/mqtt", ("mqtt", "mqttv3.1"), HostNames("127.0.0.1"), origins)
        networks = (ip_network(proxies),) if proxies else ()
        manners = Manners(self.make, self.clock.monotonic_ms, 5_000, rules, networks)
        self.link = FakeLink(self.wheel, ManualTurn(), peer).attach(FirstBytes(manners))

    def make(self) -> Echo:
        self.doors.append(Echo())
        return self.doors[-1]

    def open(self) -> World:
        answer = self.link.feed(request())
        assert answer.startswith(b"HTTP/1.1 101 ")
        return self


def test_the_handshake_of_rfc_6455() -> None:
    answer = World().link.feed(request()).lower()
    assert accept_key(KEY.encode()) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n" in answer
    assert b"sec-websocket-protocol: mqtt\r\n" in answer


def test_a_door_inside_gets_and_sends_bytes_at_any_split() -> None:
    data = request() + frame(BINARY, b"he") + frame(PING, b"p") + frame(BINARY, b"llo")
    for size in (1, 5, len(data)):
        world = World()
        got = b"".join([world.link.feed(data[at : at + size]) for at in range(0, len(data), size)])
        body = got.partition(b"\r\n\r\n")[2]
        assert b"\x8a\x01p" in body
        assert body.replace(b"\x8a\x01p", b"").replace(b"\x82", b"").translate(None, bytes(range(1, 6))) == b"hello"


def test_a_door_inside_that_takes_little_at_once_gets_the_rest_again() -> None:
    world = World().open()
    (door,) = world.doors
    door.most = 2
    assert world.link.feed(frame(BINARY, b"hello")).translate(None, b"\x82\1\2\5") == b"hello"
    assert door.pieces == [b"he", b"ll", b"o"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("/other"), 404),
        (request("/mqtt?x=1"), 101),
        (request(Upgrade=None), 426),
        (request(Connection="close"), 426),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(Sec_WebSocket_Key="short"), 400),
        (request(Sec_WebSocket_Key=None), 400),
        (request(Sec_WebSocket_Protocol=None), 400),
        (request(Sec_WebSocket_Protocol="chat"), 400),
        (request(Sec_WebSocket_Protocol="mqttv3.1"), 101),
        (request(Host="evil.example"), 421),
        (request(Origin="http://evil.example"), 403),
        (request(Origin="null"), 403),
        (request(Origin="http://localhost:3000"), 101),
        (b"GET /mqtt HTTP/1.1\r\nbroken\r\n\r\n", 400),
        (b"GET " + b"x" * 20_000, 400),
    ],
)
def test_requests(data: bytes, status: int) -> None:
    world = World()
    answer = world.link.feed(data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (world.link.closed_by == "close") is (status != 101)
    assert len(world.doors) == (status == 101)


@pytest.mark.parametrize("origins", [("*",), ("http://app.example",)])
def test_listed_origins(origins: tuple[str, ...]) -> None:
    assert World(origins=origins).link.feed(request(Origin="http://app.example")).startswith(b"HTTP/1.1 101 ")


def test_a_door_that_ends_says_its_last_words_and_then_a_close_frame() -> None:
    world = World().open()
    assert world.link.feed(frame(BINARY, b"bye!")) == b"\x82\x04bye!" + frames.close_frame(1000)
    assert world.link.closed_by == "close"


def test_the_peers_close_ends_the_door_and_is_answered() -> None:
    world = World().open()
    assert world.link.feed(frame(CLOSE, b"\x03\xe9")) == frames.close_frame(1001)
    assert world.doors[0].events == ["eof"]
    assert world.link.closed_by == "close"


def test_a_broken_frame_is_told_why() -> None:
    world = World().open()
    assert world.link.feed(frame(BINARY, b"x", mask=False)) == frames.close_frame(1002)
    assert world.link.closed_by == "close"


def test_the_server_goes_away() -> None:
    world = World().open()
    assert world.link.door is not None
    world.link.door.shutdown()
    assert world.link.feed(b"") == frames.close_frame(1001)


@pytest.mark.parametrize("begin", [b"", b"GE", request()[:40]])
def test_silence_is_closed(begin: bytes) -> None:
    world = World()
    world.link.feed(begin)
    world.wheel.advance(4_900)
    assert world.link.closed_by is None
    world.wheel.advance(5_300)
    assert world.link.closed_by == "close"


def test_other_bytes_are_the_protocols_own() -> None:
    world = World()
    assert world.link.feed(b"\x10\x0c") == b"\x10\x0c"
    assert world.link.door is world.doors[0]


def test_a_listed_proxy_speaks_for_a_client() -> None:
    world = World("10.0.0.5:777", proxies="10.0.0.0/8")
    header = b"PROXY TCP4 192.0.2.7 10.0.0.1 49153 1883\r\n"
    for at in range(len(header)):
        assert world.link.feed(header[at : at + 1]) == b""
    assert world.link.feed(b"hello") == b"hello"
    assert world.link.peer == "192.0.2.7:49153"
    assert not world.link.peer_is_loopback


def test_a_proxy_before_a_websocket() -> None:
    world = World("10.0.0.5:777", proxies="10.0.0.0/8")
    answer = world.link.feed(b"PROXY UNKNOWN\r\n" + request(Host="localhost"))
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert world.link.peer == "10.0.0.5:777"


def test_nobody_else_may_say_whom_he_speaks_for() -> None:
    world = World("11.0.0.5:777", proxies="10.0.0.0/8")
    line = b"PROXY TCP4 192.0.2.7 10.0.0.1 49153 1883\r\n"
    assert world.link.feed(line) == line
    assert world.link.peer == "11.0.0.5:777"


def test_a_broken_header_is_closed() -> None:
    world = World("10.0.0.5:777", proxies="10.0.0.0/8")
    assert world.link.feed(b"PROXY TCP4 nonsense\r\n") == b""
    assert world.link.closed_by == "close"
