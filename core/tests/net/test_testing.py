"""The stand-ins behave as the pump does."""

from __future__ import annotations

from gantrymq.net.api import Link
from gantrymq.net.testing import EchoDoor, FakeLink, ManualClock, ManualWheel


class UpperDoor(EchoDoor):
    """Answers in capitals; `!` closes."""

    def connected(self, link: Link) -> None:
        super().connected(link)
        link.set_deadline(1_000_500)

    def received(self, data: bytes) -> None:
        super().received(data.upper())
        if data.endswith(b"!"):
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
