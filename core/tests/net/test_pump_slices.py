"""Much that one peer sent at once: the door gets it in slices, and the others have their turn (`SLICE_BYTES`, `TURN_S`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.net.pump import SLICE_BYTES, Pump, PumpHost, PumpLimits
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from tests.net.test_pump import EchoDoor


class BusyDoor(EchoDoor):
    """Takes a fixed time for each piece that it is handed, on a clock of its own."""

    now_s = 0.0
    piece_s = 0.003

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[int] = []

    def received(self, data: bytes) -> None:
        BusyDoor.now_s += self.piece_s
        self.pieces.append(len(data))
        super().received(data)


class Paused:
    """A transport that notes whether it is read."""

    def __init__(self) -> None:
        self.reading = True
        self.closed = False

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    abort = close

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


def busy() -> tuple[Pump, BusyDoor, Paused, ManualTurn]:
    turn, door, transport = ManualTurn(), BusyDoor(), Paused()
    BusyDoor.now_s = 0.0
    host = PumpHost(turn.at_write, ManualWheel(ManualClock()), PumpLimits())
    host.clock_s = lambda: BusyDoor.now_s
    pump = Pump(host, lambda: door, set())
    pump.connection_made(transport)  # type: ignore[arg-type]
    return pump, door, transport, turn


def test_much_at_once_is_handed_over_in_turns() -> None:
    """One peer's 256 KiB of tiny requests must not have the loop for itself."""
    pump, door, transport, turn = busy()
    data = bytes(range(256)) * 1024
    pump.data_received(data)
    assert (door.pieces, transport.reading) == ([SLICE_BYTES, SLICE_BYTES], False)
    turn.run_until_quiet()
    assert (bytes(door.seen), transport.reading) == (data, True)
    assert door.pieces == [SLICE_BYTES] * 8


def test_what_is_quick_is_handed_over_in_one_turn() -> None:
    pump, door, transport, _ = busy()
    door.piece_s = 0.0001
    pump.data_received(bytes(SLICE_BYTES * 8))
    assert (len(door.seen), transport.reading) == (SLICE_BYTES * 8, True)
    pump.data_received(bytes(SLICE_BYTES))
    assert door.pieces == [SLICE_BYTES] * 9


def test_a_door_that_pauses_gets_the_rest_when_it_resumes() -> None:
    pump, door, transport, turn = busy()
    pump.data_received(bytes(SLICE_BYTES * 4))
    pump.pause_reading()
    turn.run_until_quiet()
    assert (len(door.pieces), transport.reading) == (2, False)
    pump.resume_reading()
    assert (len(door.pieces), transport.reading) == (2, False)
    turn.run_until_quiet()
    assert (len(door.pieces), transport.reading) == (4, True)


def test_a_door_that_pauses_itself_gets_no_more_of_a_chunk() -> None:
    pump, door, transport, turn = busy()
    door.piece_s = 0.0
    door.received = lambda data: (door.pieces.append(len(data)), pump.pause_reading())  # type: ignore[method-assign,assignment]
    pump.data_received(bytes(SLICE_BYTES * 3))
    for count in (1, 2, 3):
        turn.run_until_quiet()
        assert (len(door.pieces), transport.reading) == (count, False)
        pump.resume_reading()
    turn.run_until_quiet()
    assert (len(door.pieces), transport.reading) == (3, True)


def test_a_door_that_closes_gets_no_rest() -> None:
    pump, door, transport, turn = busy()
    pump.data_received(bytes(SLICE_BYTES * 4))
    pump.close()
    turn.run_until_quiet()
    assert (len(door.pieces), transport.closed) == (2, True)
    pump.connection_lost(None)
    turn.run_until_quiet()
    assert door.events == ["closed:"]


@pytest.mark.parametrize("paused", [False, True])
def test_what_was_read_before_the_end_of_the_stream_comes_before_it(paused: bool) -> None:
    """asyncio's TLS reports the end right behind the data, in spite of a pause."""
    pump, door, transport, turn = busy()
    data = bytes(range(256)) * (SLICE_BYTES // 64)
    seen: list[int] = []
    door.eof = lambda: bool(seen.append(len(door.seen)))  # type: ignore[func-returns-value,method-assign]
    pump.data_received(data)
    assert len(door.seen) < len(data)
    if paused:
        pump.pause_reading()
    pump.eof_received()
    assert (seen, bytes(door.seen)) == ([len(data)], data)
    turn.run_until_quiet()
    assert (len(door.seen), transport.closed) == (len(data), True)


def test_what_was_read_before_a_reset_is_not_lost() -> None:
    pump, door, _, turn = busy()
    data = bytes(range(256)) * (SLICE_BYTES // 64)
    pump.data_received(data)
    door.closed = lambda reason: door.events.append(f"{reason} after {len(door.seen)}")  # type: ignore[method-assign]
    pump.connection_lost(ConnectionResetError("reset"))
    assert (bytes(door.seen), door.events) == (data, [f"reset after {len(data)}"])
    turn.run_until_quiet()
    assert len(door.seen) == len(data)


@pytest.mark.parametrize("end", [lambda pump: pump.eof_received(), lambda pump: pump.connection_lost(None)])
@pytest.mark.parametrize(("word", "reason"), [(b"bye", ""), (b"boom", "ValueError: boom")])
def test_a_door_that_closes_or_raises_gets_no_more_of_the_rest(
    end: Callable[[Pump], object], word: bytes, reason: str
) -> None:
    pump, door, _, turn = busy()
    pump.data_received(bytes(SLICE_BYTES * 2) + word.ljust(SLICE_BYTES) + bytes(SLICE_BYTES))
    assert len(door.pieces) == 2
    end(pump)
    assert len(door.pieces) == 3
    turn.run_until_quiet()
    pump.connection_lost(None)
    assert (len(door.pieces), door.events) == (3, [f"closed:{reason}"])


def test_holds_of_door_and_turn_end_in_any_order() -> None:
    pump, door, transport, turn = busy()
    pump.pause_reading()
    pump.data_received(bytes(SLICE_BYTES * 2))
    pump.resume_reading()
    turn.run_until_quiet()
    pump.pause_reading()
    pump.resume_reading()
    assert (len(door.pieces), transport.reading) == (2, True)
