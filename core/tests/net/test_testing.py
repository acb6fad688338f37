"""The stand-ins behave as the pump does."""

from __future__ import annotations

from gantrymq.net.api import Link
from gantrymq.net.testing import FakeLink, ManualClock, ManualWheel


class UpperDoor:
    """Answers in capitals; `!` closes."""

    def __init__(self) -> None:
        self.link: Link
        self.out: list[bytes] = []
        self.events: list[object] = []

    def connected(self, link: Link) -> None:
        self.link = link
        link.set_deadline(1_000_500)

    def received(self, data: bytes) -> None:
        self.out.append(data.upper())
        self.link.mark()
        if data.endswith(b"!"):
            self.link.close()

    def inbound_bytes(self) -> int:
        return 0

    def unfinished(self) -> int:
        return 0

    def missing_bytes(self) -> int:
        return 0

    def overdue(self, why: str, busy: bool) -> None:
        raise AssertionError(why)

    def data_to_send(self) -> bytes:
        data = b"".join(self.out)
        self.out.clear()
        return data

    def eof(self) -> None:
        self.events.append("eof")

    def closed(self, reason: str) -> None:
        self.events.append(("closed", reason))

    def writable(self) -> None:
        self.events.append("writable")

    def deadline(self, now_ms: int) -> None:
        self.events.append(now_ms)

    def shutdown(self) -> None:
        self.link.close()


def test_a_conversation() -> None:
    wheel = ManualWheel(ManualClock())
    link, door = FakeLink(wheel), UpperDoor()
    link.attach(door)
    assert link.feed(b"abc") == b"ABC"
    wheel.advance(10_000)
    link.waiting = 1_000_000
    assert link.outbound_bytes() == 1_000_000
    link.drain()
    assert link.feed(b"bye!") == b"BYE!"
    assert link.feed(b"nothing is read after close") == b""
    assert door.events == [1_000_500, "writable", ("closed", "")]
    assert (link.closed_by, link.writes) == ("close", 2)


def test_end_of_stream_and_loss() -> None:
    link, door = FakeLink(), UpperDoor()
    link.attach(door)
    link.peer_closes()
    assert door.events == ["eof", ("closed", "")]
    link, door = FakeLink(), UpperDoor()
    link.attach(door)
    link.lose("gone")
    link.mark()
    assert door.events == [("closed", "gone")]
