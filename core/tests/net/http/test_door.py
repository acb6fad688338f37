"""The HTTP door over a link without sockets: verdicts that come later, requests one by one, a site's limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from gantrymq.net.http.door import Handler, HttpDoor, OneByOneDoor
from gantrymq.net.http.problems import TEXT_HEADER, Problem, Respond, as_text
from gantrymq.net.http.server_connection import Headers, Request
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel


def head(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: h\r\n{more}\r\n".encode()


class Site:
    """Paths are said back; those below /late wait for their verdict, those below /slow for their answer."""

    def __init__(self) -> None:
        self.connections = 0
        self.asked: list[Callable[[str], None]] = []
        self.slow: list[tuple[Request, Respond]] = []
        self.told: list[tuple[bytes, int]] = []

    def judge(self, door: HttpDoor, target: bytes) -> Handler:
        if target.startswith(b"/late"):
            return door.verdict_on(self.asked.append, self._then)
        return self._then("good")

    def _then(self, answer: str) -> Handler:
        if answer != "good":
            raise Problem(401, answer)
        return self._serve

    def _serve(self, request: Request, respond: Respond) -> None:
        if request.target.startswith(b"/slow"):
            self.slow.append((request, respond))
        elif request.target == b"/bad":
            raise Problem(400, "bad")
        else:
            respond(200, (TEXT_HEADER,), request.target + request.body)


class OneByOne(OneByOneDoor):
    connections_max = 2
    render = staticmethod(as_text)

    def __init__(self, site: Site, turn: ManualTurn, clock: ManualClock) -> None:
        super().__init__(site, clock.monotonic_ms, turn.in_slices, 100)
        self.site = site

    def judge(self, method: str, target: bytes, headers: Headers, length: int) -> Handler:
        return self.site.judge(self, target)

    def told(self, target: bytes, status: int) -> None:
        self.site.told.append((target, status))


class World:
    def __init__(self) -> None:
        self.clock, self.turn, self.site = ManualClock(), ManualTurn(), Site()
        self.wheel = ManualWheel(self.clock)

    def connect(self) -> FakeLink:
        return FakeLink(self.wheel, self.turn).attach(OneByOne(self.site, self.turn, self.clock))


@pytest.fixture
def world() -> World:
    return World()


def bodies(answer: bytes) -> list[bytes]:
    return [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 ")[1:]]


def test_a_verdict_that_comes_later_holds_what_is_behind_it(world: World) -> None:
    link = world.connect()
    assert link.feed(head("/late/1") + head("/2")) == b""
    world.site.asked[0]("good")
    world.turn.run_until_quiet()
    assert bodies(link.take()) == [b"/late/1", b"/2"]
    link.feed(head("/late/3", "Content-Length: 3\r\n"))
    world.site.asked[1]("nobody")
    world.turn.run_until_quiet()
    assert link.take().startswith(b"HTTP/1.1 401 ")
    assert link.closed_by == "close"  # nothing of a stranger's body is read
    assert world.site.told == [(b"/late/1", 200), (b"/2", 200), (b"/late/3", 401)]


def test_a_verdict_on_somebody_who_has_left_is_nobodys(world: World) -> None:
    link = world.connect()
    link.feed(head("/late"))
    link.lose()
    world.site.asked[0]("good")
    world.turn.run_until_quiet()
    assert world.site.told == []
    assert world.site.connections == 0


def test_the_end_of_input_waits_for_the_verdict(world: World) -> None:
    link = world.connect()
    link.feed(head("/late"))
    assert link.peer_closes() == b""
    world.site.asked[0]("good")
    world.turn.run_until_quiet()
    assert bodies(link.take()) == [b"/late"]
    assert link.closed_by == "close"


def test_one_is_answered_before_the_next_begins(world: World) -> None:
    link = world.connect()
    assert link.feed(head("/slow/1") + head("/slow/2") + head("/bad") + head("/4")) == b""
    assert [request.target for request, _ in world.site.slow] == [b"/slow/1"]
    for _ in range(2):
        request, respond = world.site.slow.pop()
        respond(200, (), request.target)
    world.turn.run_until_quiet()
    assert bodies(link.take()) == [b"/slow/1", b"/slow/2", b"bad\n", b"/4"]


def test_a_body_that_is_too_large_is_refused_after_the_judge_had_his_say(world: World) -> None:
    assert world.connect().feed(head("/1", "Content-Length: 101\r\n")).startswith(b"HTTP/1.1 413 ")
    link = world.connect()
    assert link.feed(head("/late", "Content-Length: 101\r\n")) == b""
    world.site.asked[0]("nobody")
    world.turn.run_until_quiet()
    assert link.take().startswith(b"HTTP/1.1 401 ")


def test_connections_of_a_site_are_bounded(world: World) -> None:
    links = [world.connect() for _ in range(2)]
    late = world.connect()
    world.turn.run_until_quiet()
    assert late.take().startswith(b"HTTP/1.1 503 ")
    links[0].lose()
    assert bodies(world.connect().feed(head("/1"))) == [b"/1"]


def test_a_handler_that_is_made_with_what_was_said(world: World) -> None:
    """`verdict_on` with an answer at once asks nobody to wait."""
    door = OneByOne(world.site, world.turn, world.clock)
    FakeLink(world.wheel, world.turn).attach(door)
    said: list[str] = []
    made = door.verdict_on(lambda known: known("x"), lambda answer: partial(_say, said, answer))
    made(Request("GET", b"/", [], b"", 1, None), lambda status, headers, body: None)
    assert said == ["x"]


def _say(said: list[str], answer: str, request: Request, respond: Respond) -> None:
    said.append(answer)
