"""Hand-driven stand-ins for the pump, for tests of doors: no socket, no event loop, no waiting.

>>> clock = ManualClock()
>>> wheel = ManualWheel(clock)
>>> link = FakeLink(wheel)
>>> link.attach(door)  # calls door.connected(link)
>>> link.feed(b"...")  # received, and turns until quiet; returns what the door wrote
>>> wheel.advance(60_000)  # runs what falls due meanwhile, in order
"""

from __future__ import annotations

from gantrymq.net.api import Door, Link, Wheel
from gantrymq.net.doors.threshold import behind, expect, known
from gantrymq.net.loopback import peer_name
from gantrymq.net.tls.identity import Certificate
from gantrymq.net.turn import LoopTurn
from gantrymq.net.wheel import TICK_MS, TimerWheel

TURNS_MAX = 1000
"""`ManualTurn.run_until_quiet` gives up after so many turns: something hands itself over for ever."""


class EchoDoor:
    """A `Door` that answers what it gets, and notes what else it hears; doors of tests extend it by what they are about."""

    def __init__(self) -> None:
        self.link: Link
        self.out: list[bytes] = []
        self.events: list[object] = []

    def connected(self, link: Link) -> None:
        self.link = link

    def received(self, data: bytes) -> int | None:
        self.out.append(data)
        self.link.mark()
        return None

    def inbound_bytes(self) -> int:
        return 0

    def unfinished(self) -> int:
        return 0

    def missing_bytes(self) -> int:
        return 0

    def overdue(self, why: str, busy: bool) -> None:
        raise AssertionError(why)

    def data_to_send(self) -> bytes:
        out, self.out = self.out, []
        return b"".join(out)

    def eof(self) -> bool | None:
        self.events.append("eof")
        return None

    def closed(self, reason: str) -> None:
        self.events.append(("closed", reason))

    def writable(self) -> None:
        self.events.append("writable")

    def deadline(self, now_ms: int) -> None:
        self.events.append(now_ms)

    def shutdown(self) -> None:
        self.link.close()


class ManualClock:
    """`Clock` that stands still until told."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self.wall_ms = wall_ms
        self.mono_ms = monotonic_ms
        self.asleep_ms = 0
        """How long the machine has slept, which `monotonic_ms` leaves out."""

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_ms(self) -> int:
        return self.mono_ms + self.asleep_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def advance(self, ms: int) -> None:
        """Both clocks go on; no deadline runs (use `ManualWheel.advance` for that)."""
        self.wall_ms += ms
        self.mono_ms += ms


class ManualTurn(LoopTurn):
    """`Turn` whose turns happen when the test says so."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda run: None)

    @property
    def pending(self) -> bool:
        """Whether anything waits for a turn."""
        return self._armed

    def run_until_quiet(self) -> int:
        """Turns until nothing is handed over any more; returns their number."""
        turns = 0
        while self._armed:
            turns += 1
            if turns > TURNS_MAX:
                raise AssertionError(f"still busy after {TURNS_MAX} turns")
            self.run()
        return turns


class _NoTimer:
    def cancel(self) -> None:
        """Nothing to cancel."""


class ManualWheel(TimerWheel):
    """`Wheel` on a `ManualClock`; deadlines run inside `advance`."""

    __slots__ = ("manual_clock",)

    def __init__(self, clock: ManualClock) -> None:
        self.manual_clock = clock
        super().__init__(clock.monotonic_ms, lambda delay_s, callback: _NoTimer())

    def advance(self, ms: int) -> None:
        """Time goes on tick by tick, so that deadlines run in order and at the time they were set for."""
        clock = self.manual_clock
        end_ms = clock.mono_ms + ms
        while self._timer is not None:
            at_ms = max(self._timer_tick * TICK_MS, clock.mono_ms)
            if at_ms > end_ms:
                break
            clock.advance(at_ms - clock.mono_ms)
            self.fire()
        clock.advance(end_ms - clock.mono_ms)


class FakeLink:
    """`Link` that keeps what the door writes and does.

    `sent`: everything written since the last `take`. `writes`: number of writes. `waiting`: what `outbound_bytes` answers; set
    it to play a peer that does not read, then call `drain()`. `closed_by`: `close`, `abort` or None.
    """

    def __init__(
        self, wheel: Wheel | None = None, turn: ManualTurn | None = None, peer: str = "127.0.0.1:50000"
    ) -> None:
        self.peer = peer
        self.peer_is_loopback = True
        self.peer_is_trusted = True
        self.is_encrypted = False
        self.peer_certificate: Certificate | None = None
        self.key_user = ""
        self.guest = ""
        self.refuse_user = ""
        """What `known` answers."""
        self.requests = 0
        self.wheel = wheel
        self.turn = turn or ManualTurn()
        self.door: Door | None = None
        self.sent = bytearray()
        self.writes = 0
        self.waiting = 0
        self.pressed = False
        self.reading = True
        self.closed_by: str | None = None
        self.deadline_at_ms: int | None = None
        self.marked = False
        self._deadline_handle = 0
        self._closed_called = False

    def attach(self, door: Door) -> FakeLink:
        """Make it the door's link and say so to the door."""
        self.door = door
        door.connected(self)
        return self

    def feed(self, data: bytes) -> bytes:
        """Hand over `data` (unless the link is closed), run turns until quiet, and return what was written meanwhile."""
        self.hand_over(data)
        self.turn.run_until_quiet()
        return self.take()

    def hand_over(self, data: bytes) -> None:
        """Give the door all of `data` in this turn, as much at once as it takes."""
        assert self.door is not None, "attach a door first"
        while data and self.closed_by is None:
            taken = self.door.received(data)
            data = b"" if taken is None else data[taken:]

    def take(self) -> bytes:
        """What was written since the last call."""
        data = bytes(self.sent)
        self.sent.clear()
        return data

    def peer_closes(self) -> bytes:
        """The peer ends its sending side; returns what the door still wrote."""
        assert self.door is not None, "attach a door first"
        if self.closed_by is None and not self.door.eof():
            self.close()
        self.turn.run_until_quiet()
        return self.take()

    def lose(self, reason: str = "connection reset by peer") -> None:
        """The connection breaks."""
        self.closed_by = self.closed_by or "abort"
        self._finish(reason)

    def drain(self) -> None:
        """The peer took what was waiting."""
        assert self.door is not None, "attach a door first"
        self.waiting = 0
        self.door.writable()
        self.turn.run_until_quiet()

    # The Link of the door:

    def mark(self) -> None:
        if not self.marked and not self._closed_called:
            self.marked = True
            self.turn.at_write(self._flush)

    def close(self) -> None:
        if self.closed_by is None:
            self.closed_by = "close"
            self.mark()

    def abort(self) -> None:
        if self.closed_by is None:
            self.closed_by = "abort"
            self.turn.at_write(lambda: self._finish(""))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_deadline(self, at_ms: int | None) -> None:
        self.deadline_at_ms = at_ms
        if self.wheel is None:
            return
        self.wheel.cancel(self._deadline_handle)
        if at_ms is not None:
            self._deadline_handle = self.wheel.call_at(at_ms, self._deadline)

    def become(self, door: Door) -> None:
        self.door = behind(self.door, door)
        door.connected(self)

    def speaks_for(self, host: str, port: int) -> None:
        self.peer, self.peer_is_loopback = peer_name((host, port))
        self.peer_is_trusted = self.peer_is_loopback

    def known(self, user: str = "") -> str:
        if not self.refuse_user:
            self.door = known(self.door)
        return self.refuse_user

    def spent(self, requests: int) -> None:
        self.requests += requests

    def expect(self, size: int) -> None:
        expect(self.door, size)

    def outbound_bytes(self) -> int:
        return self.waiting

    def is_pressed(self) -> bool:
        return self.pressed

    def _flush(self) -> None:
        self.marked = False
        if self.door is None or self._closed_called:
            return
        data = self.door.data_to_send()
        if data:
            self.writes += 1
            self.sent += b"".join(data) if isinstance(data, list) else data
        if self.closed_by == "close":
            self._finish("")

    def _finish(self, reason: str) -> None:
        if self._closed_called or self.door is None:
            return
        self._closed_called = True
        self.set_deadline(None)
        self.door.closed(reason)

    def _deadline(self, now_ms: int) -> None:
        self.deadline_at_ms = None
        if self.door is not None and self.closed_by is None:
            self.door.deadline(now_ms)
            self.turn.run_until_quiet()
