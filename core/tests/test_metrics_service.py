"""The HTTP door for metrics and health: requests byte by byte, slices, limits."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from gantrymq.launch.health import Health
from gantrymq.metrics import Metrics
from gantrymq.metrics_service import (
    BODY_BYTES_MAX,
    CONNECTIONS_MAX,
    FRESH_MS,
    FURTHER_PORTS,
    GATEWAY_PORT,
    IDLE_MS,
    NAMESERVER_PORT,
    PORT,
    MetricsConfig,
    MetricsDoor,
    MetricsService,
    Pages,
    Scrape,
)
from gantrymq.net.host_names import HostNames
from gantrymq.net.http.limits import HEAD_BYTES_MAX, HEAD_DEADLINE_MS
from gantrymq.net.listen import ListenError
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel
from gantrymq.services import ServiceContext


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.turn = ManualTurn()
        self.wheel = ManualWheel(self.clock)
        self.metrics = Metrics()
        self.health = Health()
        self.health.phase = ""
        self.scrape = Scrape(self.metrics, self.turn.at_deliver, self.clock.monotonic_ms)
        self.objects = Metrics()
        objects = Scrape(self.objects, self.turn.at_deliver, self.clock.monotonic_ms)
        self.pages = Pages(self.health, self.scrape, HostNames("127.0.0.1"), objects)

    def connect(self) -> FakeLink:
        return FakeLink(self.wheel, self.turn).attach(
            MetricsDoor(self.pages, self.clock.monotonic_ms, self.turn.in_slices)
        )


@pytest.fixture
def world() -> World:
    return World()


def get(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def test_pages(world: World) -> None:
    world.metrics.counter("a_total", "A").value = 3
    link = world.connect()
    answer = link.feed(get("/metrics"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/plain; version=0.0.4; charset=utf-8" in answer
    assert b"a_total 3\n" in body(answer)
    world.objects.gauge("depth", "D", queue="jobs").value = 4
    assert body(link.feed(get("/metrics/per-object"))).endswith(b'depth{queue="jobs"} 4\n')
    assert body(link.feed(get("/healthz"))) == b"ok\n"
    assert body(link.feed(get("/readyz?verbose=1"))) == b"ok\n"
    assert status(link.feed(get("/"))) == 200
    assert status(link.feed(get("/metrics/"))) == 404
    assert link.closed_by is None


def test_reasons_are_503(world: World) -> None:
    link = world.connect()
    world.health.ready_if("broker", lambda: "not registered")
    answer = link.feed(get("/readyz"))
    assert (status(answer), body(answer)) == (503, b"broker: not registered\n")
    assert status(link.feed(get("/healthz"))) == 200
    world.health.alive_if("broker", lambda: "the disk failed")
    answer = link.feed(get("/healthz"))
    assert (status(answer), body(answer)) == (503, b"broker: the disk failed\n")


def test_head_has_the_length_and_no_body_and_other_methods_are_refused(world: World) -> None:
    link = world.connect()
    full = link.feed(get("/metrics"))
    answer = link.feed(get("/metrics", "HEAD"))
    assert b"content-length: %d\r\n" % len(body(full)) in answer
    assert body(answer) == b""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer = world.connect().feed(get("/metrics", method, "Content-Length: 2\r\n") + b"ab")
        assert status(answer) == 405
        assert b"allow: GET, HEAD\r\n" in answer
    assert status(link.feed(get("/healthz"))) == 200  # still in step


def test_any_split_and_pipelining(world: World) -> None:
    data = get("/healthz") + get("/nope") + get("/healthz", "HEAD")
    whole = world.connect().feed(data)
    link = world.connect()
    assert b"".join([link.feed(data[at : at + 1]) for at in range(len(data))]) == whole
    assert whole.count(b"HTTP/1.1 ") == 3


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * (HEAD_BYTES_MAX + 10), 431),
        (get("/", more=f"Content-Length: {BODY_BYTES_MAX + 1}\r\n") + b"x" * (BODY_BYTES_MAX + 1), 413),
        (get("/", more="Expect: 100-continue\r\nContent-Length: 5\r\n"), 417),
    ],
)
def test_what_cannot_be_taken_is_answered_and_ends(world: World, sent: bytes, expected: int) -> None:
    link = world.connect()
    assert status(link.feed(sent)) == expected
    assert link.closed_by == "close"
    assert link.feed(get("/healthz")) == b""


def test_connection_close_and_http_1_0(world: World) -> None:
    link = world.connect()
    assert b"connection: close" in link.feed(get("/healthz", more="Connection: close\r\n")).lower()
    assert link.closed_by == "close"
    link = world.connect()
    assert status(link.feed(b"GET /healthz HTTP/1.0\r\n\r\n")) == 200
    assert link.closed_by == "close"


def test_a_scrape_is_sliced_shared_and_fresh_for_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.metrics_service.SLICE_S", 0.0)
    runs = 0

    def source() -> Iterator[str]:
        nonlocal runs
        runs += 1
        for number in range(5):
            yield f"n{number} 1\n"

    world.metrics.add_source(source)
    first, second = world.connect(), world.connect()
    assert first.door is not None
    assert second.door is not None
    first.door.received(get("/metrics"))
    world.turn.run()
    second.door.received(get("/metrics"))
    assert first.sent == b""  # it takes some turns
    world.turn.run_until_quiet()
    assert body(first.take()) == body(second.take()) == b"".join([b"n%d 1\n" % number for number in range(5)])
    first.feed(get("/metrics"))
    assert runs == 1
    world.clock.advance(FRESH_MS)
    first.feed(get("/metrics"))
    assert runs == 2
    assert world.scrape.bytes == 5 * len("n0 1\n")


def test_a_number_that_cannot_be_had_is_500_and_the_next_scrape_is_made_anew(world: World) -> None:
    value: list[int] = []
    world.metrics.read("a", "A", lambda: value[0])
    link = world.connect()
    assert status(link.feed(get("/metrics"))) == 500
    value.append(1)
    assert status(link.feed(get("/metrics"))) == 200


def test_who_leaves_while_the_text_is_made_harms_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.metrics_service.SLICE_S", 0.0)
    world.metrics.gauge("a", "A")
    gone, half, other = world.connect(), world.connect(), world.connect()
    for link in (gone, half, other):
        assert link.door is not None
        link.door.received(get("/metrics"))
    gone.lose()
    assert status(half.peer_closes()) == 200  # it closed its sending side only
    assert half.closed_by == "close"
    assert status(other.take()) == 200


def test_slow_and_idle_peers_are_closed(world: World) -> None:
    slow, idle = world.connect(), world.connect()
    slow.feed(b"GET /hea")
    idle.feed(get("/healthz"))
    world.wheel.advance(HEAD_DEADLINE_MS + 100)
    assert slow.closed_by == "close"
    assert idle.closed_by is None
    world.wheel.advance(IDLE_MS)
    assert idle.closed_by == "close"


def test_connections_are_bounded(world: World) -> None:
    links = [world.connect() for _ in range(CONNECTIONS_MAX)]
    late = world.connect()
    world.turn.run_until_quiet()
    assert status(late.take()) == 503
    assert late.closed_by == "close"
    links[0].lose()
    assert status(world.connect().feed(get("/healthz"))) == 200


def test_shutdown_lets_an_answer_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.metrics_service.SLICE_S", 0.0)
    world.metrics.gauge("a", "A")
    busy, idle = world.connect(), world.connect()
    assert busy.door is not None
    assert idle.door is not None
    busy.door.received(get("/metrics"))
    for link in (busy, idle):
        assert link.door is not None
        link.door.shutdown()
    world.turn.run_until_quiet()
    assert status(busy.take()) == 200
    assert busy.closed_by == idle.closed_by == "close"


def started_at(services: list[str], config: MetricsConfig, taken: set[int], placed: int = 0) -> int:
    """The port that the service takes in a process with these services. `placed`: of its `listeners`."""

    async def listen(accept: Any, host: str, port: int) -> tuple[str, int]:
        if port in taken:
            raise ListenError(errno.EADDRINUSE, f"cannot listen on {host}:{port}")
        return host, placed or port or 40_000

    world = World()
    context: Any = ServiceContext(
        config=config, sections={}, host="127.0.0.1", data=Path(), clock=world.clock, turn=world.turn, wheel=world.wheel,
        nameservers=[], listen=listen, spawn=print,
        shared={"metrics": world.metrics, "health": world.health, "services": services},
    )  # fmt: skip
    ((_, port),) = anyio.run(MetricsService().start, context)
    return port


def test_processes_of_each_kind_have_a_port_of_their_own() -> None:
    config = MetricsConfig()
    assert started_at(["metrics", "nameserver", "broker", "mqtt"], config, set()) == PORT
    assert started_at(["metrics", "broker"], config, set()) == PORT
    assert started_at(["metrics", "mqtt", "amqp"], config, set()) == GATEWAY_PORT
    assert started_at(["metrics", "nameserver"], config, set()) == NAMESERVER_PORT
    assert len({PORT, GATEWAY_PORT, NAMESERVER_PORT, *FURTHER_PORTS}) == 3 + len(FURTHER_PORTS)


def test_a_port_that_is_taken_is_followed_by_the_next_ones() -> None:
    config = MetricsConfig()
    taken = {PORT}
    for port in FURTHER_PORTS:
        assert started_at(["metrics", "broker"], config, taken) == port
        taken.add(port)
    assert started_at(["metrics", "broker"], config, taken) == 40_000
    with pytest.raises(ListenError):
        started_at(["metrics", "broker"], MetricsConfig(port=PORT), taken)


def test_only_a_port_that_is_taken_is_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert started_at(["metrics", "broker"], MetricsConfig(), set(), placed=9464) == 9464
        assert not caplog.records
        started_at(["metrics", "broker"], MetricsConfig(), {PORT})
    assert "metrics are on port" in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    ("request_head", "expected"),
    [
        (get("/metrics", "POST", "Content-Length: 5600000\r\nExpect: 100-continue\r\n"), 405),
        (get("/nothing", "GET", "Transfer-Encoding: chunked\r\n"), 404),
        (get("/metrics", "GET", "Content-Length: 900000\r\n").replace(b"localhost", b"evil.example"), 421),
    ],
)
def test_what_the_head_decides_is_said_before_the_body(world: World, request_head: bytes, expected: int) -> None:
    link = world.connect()
    answer = link.feed(request_head)
    assert status(answer) == expected
    assert (b"allow: GET, HEAD" in answer) == (expected == 405)
    assert link.closed_by == "close"


def test_names_that_are_not_loopback(world: World) -> None:
    link = world.connect()
    answer = link.feed(get("/metrics").replace(b"localhost", b"evil.example"))
    assert status(answer) == 421
    assert b"server.host_names" in answer
    assert link.closed_by is None
    assert status(link.feed(get("/metrics").replace(b"localhost", b"127.0.0.1:5557"))) == 200
