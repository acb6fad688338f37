"""What a stranger may send, and for how long, and that nobody who is known is bound to it."""

from __future__ import annotations

import pytest

from gantrymq.net.api import Link
from gantrymq.net.doors.threshold import Terms, Threshold, expecting
from gantrymq.net.testing import FakeLink, ManualClock, ManualWheel


class Asking:
    """A door that knows its peer once `password` has come; takes at most `most` bytes at once."""

    def __init__(self, most: int = 0) -> None:
        self.link: Link
        self.most = most
        self.data = b""
        self.ended: list[str] = []
        self.out = b""
        self.wants = 0

    def connected(self, link: Link) -> None:
        self.link = link

    def received(self, data: bytes) -> int | None:
        part = data[: self.most] if self.most else data
        self.data += part
        if self.data.startswith(b"password"):
            self.link.known()
        elif self.wants:
            self.link.expect(self.wants)
        return len(part) if self.most else None

    def inbound_bytes(self) -> int:
        return len(self.data)

    def unfinished(self) -> int:
        return 7

    def missing_bytes(self) -> int:
        return 3

    def overdue(self, why: str, busy: bool) -> None:
        self.ended.append(why)
        self.out += b"gone"
        self.link.close()

    def data_to_send(self) -> bytes:
        data, self.out = self.out, b""
        return data

    def eof(self) -> bool | None:
        self.ended.append("eof")
        return None

    def closed(self, reason: str) -> None:
        self.ended.append("closed")

    def writable(self) -> None:
        self.ended.append("writable")

    def deadline(self, now_ms: int) -> None:
        self.ended.append("deadline")

    def shutdown(self) -> None:
        self.link.close()


class World:
    def __init__(self, most: int = 0) -> None:
        self.wheel = ManualWheel(ManualClock())
        self.door = Asking(most)
        self.link = FakeLink(self.wheel)
        self.link.attach(expecting(lambda: self.door, Terms(1_000, 100, self.wheel))())

    def advance(self, ms: int) -> None:
        self.wheel.advance(ms)
        self.link.turn.run_until_quiet()


def test_who_is_silent_is_closed_on_the_protocols_terms() -> None:
    world = World()
    world.advance(900)
    assert world.link.closed_by is None
    world.advance(200)
    assert (world.link.take(), world.link.closed_by) == (b"gone", "close")
    assert "within 1000 ms (auth.unknown_ms)" in world.door.ended[0]
    assert world.door.ended[1:] == ["closed"]


@pytest.mark.parametrize("most", [0, 7])
def test_a_stranger_sends_no_more_than_that(most: int) -> None:
    world = World(most)
    answer = world.link.feed(b"x" * 5000)
    assert len(world.door.data) == 100
    assert answer == b"gone"
    assert "100 bytes (auth.unknown_bytes_max)" in world.door.ended[0]
    world = World(most)
    world.link.feed(b"x" * 100)
    assert world.link.closed_by is None
    world.link.feed(b"x")
    assert world.link.closed_by == "close"


@pytest.mark.parametrize("most", [0, 7])
def test_who_is_known_sends_what_it_likes_for_ever(most: int) -> None:
    world = World(most)
    world.link.feed(b"password" + b"y" * 5000)
    assert len(world.door.data) == 5008
    assert world.link.door is world.door
    world.advance(100_000)
    assert world.link.closed_by is None


def test_a_door_may_ask_for_what_it_needs_to_know_who_it_is() -> None:
    world = World()
    world.door.wants = 1_000
    world.link.feed(b"x" * 900)
    assert world.link.closed_by is None
    assert len(world.door.data) == 900


def test_another_door_takes_the_place_behind_it() -> None:
    world = World()
    other = Asking()
    world.door.link.become(other)
    assert isinstance(world.link.door, Threshold)
    world.link.feed(b"password")
    assert world.link.door is other
    world.advance(10_000)
    assert other.ended == []


def test_all_else_goes_through() -> None:
    world = World()
    door = world.link.door
    assert door is not None
    assert (door.inbound_bytes(), door.unfinished(), door.missing_bytes()) == (0, 7, 3)
    door.writable()
    world.link.set_deadline(world.wheel.now_ms() + 50)
    world.advance(200)
    world.link.peer_closes()
    assert world.door.ended == ["writable", "deadline", "eof", "closed"]
    world.advance(10_000)
    assert len(world.door.ended) == 4
