"""Much that one peer sent at once: the door gets it in slices, and the others have their turn (net/rotation.py)."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.net.held.limits import PumpLimits
from gantrymq.net.process.host import PumpHost
from gantrymq.net.pump import Pump
from gantrymq.net.rotation import (
    BOUNDED_BYTES_MAX,
    LITTLE_BYTES_MAX,
    LITTLE_S,
    READS_S,
    SLICE_BYTES_MAX,
    SLICE_BYTES_MIN,
    SLICE_S,
    Rotation,
)
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


def busy(count: int = 1) -> tuple[list[tuple[Pump, BusyDoor, Paused]], ManualTurn]:
    turn = ManualTurn()
    BusyDoor.now_s = 1.0
    host = PumpHost(turn, ManualWheel(ManualClock()), PumpLimits(), lambda: BusyDoor.now_s)
    made = []
    for _ in range(count):
        door, transport = BusyDoor(), Paused()
        pump = Pump(host, lambda door=door: door, set())  # type: ignore[misc]
        pump.connection_made(transport)  # type: ignore[arg-type]
        made.append((pump, door, transport))
    return made, turn


def one() -> tuple[Pump, BusyDoor, Paused, ManualTurn]:
    [(pump, door, transport)], turn = busy()
    return pump, door, transport, turn


MUCH = bytes(range(256)) * (SLICE_BYTES_MIN * 16 // 256)
"""16 slices of the smallest size."""


def test_much_at_once_is_handed_over_in_turns() -> None:
    """One peer's 256 KiB of tiny requests must not have the loop for itself."""
    pump, door, transport, turn = one()
    pump.data_received(MUCH)
    assert (door.pieces, transport.reading) == ([SLICE_BYTES_MIN], False)
    turn.run()
    assert len(door.pieces) == 2
    turn.run_until_quiet()
    assert (bytes(door.seen), transport.reading) == (MUCH, True)
    assert door.pieces == [SLICE_BYTES_MIN] * 16


def test_what_is_quick_is_handed_over_at_once_in_slices_that_grow() -> None:
    pump, door, transport, _ = one()
    door.piece_s = 0.00001
    pump.data_received(bytes(SLICE_BYTES_MAX * 8))
    assert (len(door.seen), transport.reading) == (SLICE_BYTES_MAX * 8, True)
    assert door.pieces[:3] == [SLICE_BYTES_MIN, SLICE_BYTES_MIN * 4, SLICE_BYTES_MAX]
    door.pieces.clear()
    pump.data_received(bytes(SLICE_BYTES_MAX))
    assert door.pieces == [SLICE_BYTES_MAX]


@pytest.mark.parametrize(
    "size", [SLICE_BYTES_MIN + 1, SLICE_BYTES_MIN * 3, SLICE_BYTES_MIN * 4, SLICE_BYTES_MIN * 6, SLICE_BYTES_MAX]
)
def test_a_slice_that_has_grown_over_what_was_read_hands_nothing_over_twice(size: int) -> None:
    pump, door, _, turn = one()
    door.piece_s = 0.00001
    pump.data_received(MUCH[:size])
    turn.run_until_quiet()
    assert bytes(door.seen) == MUCH[:size]


def test_what_becomes_slow_comes_in_smaller_slices() -> None:
    pump, door, _, turn = one()
    door.piece_s = 0.00001
    pump.data_received(bytes(SLICE_BYTES_MAX * 2))
    door.pieces.clear()
    door.piece_s = 4 * SLICE_S
    pump.data_received(bytes(SLICE_BYTES_MAX * 2))
    turn.run_until_quiet()
    assert door.pieces[0] == SLICE_BYTES_MAX
    assert door.pieces[1] == pytest.approx(SLICE_BYTES_MAX / 4, abs=1)
    assert door.pieces[2] == SLICE_BYTES_MIN


def test_what_a_frame_lacks_comes_in_one_piece() -> None:
    """A frame of 400 KiB in slices of 6 KiB cost a broker a quarter of what its messages do."""
    pump, door, transport, turn = one()
    door.piece_s, door.missing = 0.00001, len(MUCH) * 4 + 100
    pump.data_received(MUCH * 4)
    assert (door.pieces, transport.reading) == ([len(MUCH) * 4], True)
    door.pieces.clear()
    door.missing, door.piece_s = 100, 4 * SLICE_S  # less than a slice: what comes behind it is cut as ever
    pump.data_received(MUCH)
    turn.run_until_quiet()
    assert door.pieces == [SLICE_BYTES_MIN] * 16


def test_what_a_large_frame_takes_tells_nothing_of_slices() -> None:
    pump, door, _, turn = one()
    door.missing, door.piece_s = len(MUCH), 0.003
    pump.data_received(MUCH)
    assert door.pieces == [len(MUCH)]
    door.pieces.clear()
    door.missing, door.piece_s = 0, 0.00001
    pump.data_received(bytes(SLICE_BYTES_MAX * 2))
    turn.run_until_quiet()
    assert door.pieces[:3] == [SLICE_BYTES_MIN, SLICE_BYTES_MIN * 4, SLICE_BYTES_MAX]


def test_a_neighbour_with_little_stands_before_those_with_much() -> None:
    connections, turn = busy(6)
    *many, (neighbour, small, _) = connections
    for pump, _, _ in many:
        pump.data_received(MUCH)
    small.piece_s = 0.0001
    for _ in many:
        turn.run()
    for step in range(1, 6):
        neighbour.data_received(b"little")
        assert small.pieces == [6] * step, "he waited behind what others had sent before"
        turn.run()
    turn.run_until_quiet()
    for _, door, transport in many:
        assert (bytes(door.seen), transport.reading) == (MUCH, True)


def test_a_neighbour_is_heard_in_the_turn_in_which_he_writes_and_it_is_short() -> None:
    """Four that always have more took 3.5 ms of each turn, and he, read behind two of them, had to wait for the next one."""
    connections, turn = busy(5)
    *many, (neighbour, small, _) = connections
    for _, door, _ in many:
        door.piece_s = SLICE_S * 1.01
    small.piece_s = 0.00003
    for step in range(1, 20):
        begun_s = BusyDoor.now_s
        for pump, _, transport in many:
            if transport.reading:
                pump.data_received(MUCH)
        neighbour.data_received(b"little")
        assert small.pieces == [6] * step
        turn.run()
        assert BusyDoor.now_s - begun_s < READS_S
    counts = [len(door.pieces) for _, door, _ in many]
    assert max(counts) - min(counts) <= 4, "they have equal shares"
    assert sum(counts) >= 19 * 2


def test_much_that_could_not_begin_does_not_stand_before_little() -> None:
    connections, turn = busy(5)
    (first, slow, _), *much, (neighbour, little, _) = connections
    slow.piece_s = LITTLE_S * 2
    first.data_received(MUCH)
    for pump, door, _ in much:
        door.piece_s = SLICE_S * 1.01
        pump.data_received(MUCH)
    neighbour.data_received(b"little")
    assert sum(len(door.pieces) for _, door, _ in connections) == 1
    turn.run()
    assert little.pieces == [6]
    assert sum(len(door.pieces) for _, door, _ in much) == 0, "the first one stands before them"
    turn.run()
    assert sum(len(door.pieces) for _, door, _ in much) == 2, "one of them has its share"


def test_an_answer_is_written_before_others_are_handed_more() -> None:
    [(first, one_door, _), (second, other_door, _), (neighbour, small, wire)], turn = busy(3)
    small.piece_s = 0.0001
    written: list[int] = []
    wire.write = lambda data: written.append(len(one_door.pieces + other_door.pieces))  # type: ignore[attr-defined]
    first.data_received(MUCH)
    second.data_received(MUCH)
    turn.run()
    turn.run()
    handed = len(one_door.pieces + other_door.pieces)
    neighbour.data_received(b"little")
    turn.run()
    assert written == [handed]


@pytest.mark.parametrize("size", [10, SLICE_BYTES_MIN])
@pytest.mark.parametrize("piece_s", [0.0001, 0.01])
def test_answers_to_what_took_long_are_timed_too(size: int, piece_s: float) -> None:
    [(pump, door, _)], turn = busy()
    took: list[float] = []
    pump._observe = took.append
    door.piece_s = piece_s
    pump.data_received(bytes(size))
    turn.run()
    assert took == [pytest.approx(piece_s)]


def test_those_with_much_take_turns() -> None:
    connections, turn = busy(5)
    for pump, _, _ in connections:
        pump.data_received(MUCH)
    turns = 0
    while turn.pending:
        turn.run()
        turns += 1
        counts = [len(door.pieces) for _, door, _ in connections]
        assert max(counts) - min(counts) <= 3
        assert sum(counts) <= 1 + turns * 3, "a turn took more than its time"
    assert all(bytes(door.seen) == MUCH for _, door, _ in connections)


def test_many_that_send_little_share_a_turn_too() -> None:
    connections, turn = busy(20)
    for pump, door, _ in connections:
        door.piece_s = LITTLE_S / 5
        pump.data_received(b"x")
    assert 5 <= sum(len(door.pieces) for _, door, _ in connections) <= 6
    [late, *_] = [(pump, transport) for pump, door, transport in connections if not door.pieces]
    assert late[1].reading, "it has sent little: the kernel is not asked to hold it"
    late[0].data_received(b"x" * SLICE_BYTES_MAX)
    assert not late[1].reading, "what waits for a turn is bounded"
    turn.run_until_quiet()
    assert all(set(door.seen) == {ord("x")} and transport.reading for _, door, transport in connections)
    assert sum(len(door.seen) for _, door, _ in connections) == len(connections) + SLICE_BYTES_MAX


def test_single_sends_of_many_are_handled_in_the_turn_in_which_they_are_read() -> None:
    """A send with its header has 700 bytes. Once each reader's pace is known that is little, and nobody's has to wait as long as there is time."""
    connections, turn = busy(100)
    for pump, door, _ in connections:
        door.piece_s = 0.00001
        pump.data_received(bytes(700))
    turn.run_until_quiet()
    for _ in range(3):
        for pump, door, _ in connections:
            door.pieces.clear()
            door.piece_s = LITTLE_S / 101
            pump.data_received(bytes(700))
        assert all(door.pieces == [700] for _, door, _ in connections)
        turn.run_until_quiet()


def test_little_that_waits_does_not_make_all_others_wait() -> None:
    """It stands before them in the next turn; but they have the rest of that turn."""
    connections, turn = busy(200)
    for pump, door, _ in connections:
        door.piece_s = LITTLE_S / 60
        pump.data_received(b"x")
    turn.run()
    waiting = [door for _, door, _ in connections if not door.pieces]
    assert len(waiting) > 20
    early = [(pump, door) for pump, door, _ in connections if door.pieces][:20]
    for pump, door in early:
        door.pieces.clear()
        pump.data_received(b"y")
    assert all(door.pieces == [1] for _, door in early)
    turn.run()
    assert sum(bool(door.pieces) for door in waiting) >= 15
    turn.run_until_quiet()
    assert all(door.pieces for door in waiting)


@pytest.mark.parametrize("size", [LITTLE_BYTES_MAX, LITTLE_BYTES_MAX + 1])
def test_little_is_one_slice_and_no_large_one(size: int) -> None:
    assert Rotation.is_little(size, SLICE_BYTES_MAX) == (size <= LITTLE_BYTES_MAX)
    assert not Rotation.is_little(size, size - 1)


def test_a_keep_alive_does_not_pass_while_what_was_sent_waits() -> None:
    [(first, _, _), (second, door, _)], turn = busy(2)
    host = first._host
    second.set_deadline(host.wheel.now_ms() + 100)
    first.data_received(bytes(SLICE_BYTES_MIN * 2))
    BusyDoor.now_s += 1.0
    second.data_received(MUCH)
    host.wheel.advance(500)  # type: ignore[attr-defined]
    assert not [event for event in door.events if event.startswith("deadline")]
    turn.run_until_quiet()
    host.wheel.advance(2_000)  # type: ignore[attr-defined]
    assert len([event for event in door.events if event.startswith("deadline")]) == 1


def test_a_door_that_pauses_gets_the_rest_when_it_resumes() -> None:
    pump, door, transport, turn = one()
    pump.data_received(bytes(SLICE_BYTES_MIN * 4))
    pump.pause_reading()
    turn.run_until_quiet()
    assert (len(door.pieces), transport.reading) == (1, False)
    pump.resume_reading()
    assert (len(door.pieces), transport.reading) == (1, False)
    turn.run_until_quiet()
    assert (len(door.pieces), transport.reading) == (4, True)


def test_a_door_that_pauses_itself_gets_no_more_of_a_chunk() -> None:
    pump, door, transport, turn = one()
    door.piece_s = 0.0

    def received(data: bytes) -> None:
        door.pieces.append(len(data))
        pump.pause_reading()

    door.received = received  # type: ignore[method-assign]
    pump.data_received(bytes(SLICE_BYTES_MIN * 9))
    for count in (1, 2, 3):
        turn.run_until_quiet()
        assert (len(door.pieces), transport.reading) == (count, False)
        pump.resume_reading()
    turn.run_until_quiet()
    assert (len(door.pieces), transport.reading) == (3, True)


class BoundedDoor(BusyDoor):
    """Takes `most` bytes of what it is handed."""

    most = 100

    def received(self, data: bytes) -> int:  # type: ignore[override]
        taken = min(self.most, len(data))
        super().received(data[:taken])
        return taken


@pytest.mark.parametrize("size", [1, SLICE_BYTES_MIN, SLICE_BYTES_MIN + 1, SLICE_BYTES_MAX * 3])
@pytest.mark.parametrize("piece_s", [0.00001, SLICE_S * 2, 0.003])
def test_what_a_door_did_not_take_comes_again(size: int, piece_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.BusyDoor", BoundedDoor)
    pump, door, transport, turn = one()
    BusyDoor.piece_s = piece_s
    sent = (MUCH * 10)[:size]
    pump.data_received(sent)
    if piece_s == 0.003:
        assert len(door.pieces) == 1
    turn.run_until_quiet()
    assert (bytes(door.seen), transport.reading) == (sent, True)


def test_slices_of_a_door_that_bounds_its_work_grow_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.BusyDoor", BoundedDoor)
    pump, door, _, _ = one()
    door.piece_s, door.most = 0.0, BOUNDED_BYTES_MAX  # type: ignore[attr-defined]
    pump.data_received(bytes(BOUNDED_BYTES_MAX * 8))
    assert max(door.pieces) == BOUNDED_BYTES_MAX


def test_a_door_that_closes_gets_no_rest() -> None:
    pump, door, transport, turn = one()
    pump.data_received(bytes(SLICE_BYTES_MIN * 4))
    pump.close()
    turn.run_until_quiet()
    assert (len(door.pieces), transport.closed) == (1, True)
    pump.connection_lost(None)
    turn.run_until_quiet()
    assert door.events == ["closed:"]


def test_what_was_read_before_the_end_of_the_stream_comes_before_it() -> None:
    pump, door, transport, turn = one()
    seen: list[int] = []
    door.eof = lambda: bool(seen.append(len(door.seen)))  # type: ignore[func-returns-value,method-assign]
    pump.data_received(MUCH)
    assert pump.eof_received()
    turn.run()
    assert len(door.seen) < len(MUCH)
    assert seen == []
    turn.run_until_quiet()
    assert (seen, bytes(door.seen), transport.closed) == ([len(MUCH)], MUCH, True)


@pytest.mark.parametrize("paused", [False, True])
def test_tls_reports_the_end_right_behind_the_data(paused: bool) -> None:
    pump, door, transport, turn = one()
    pump.is_encrypted = True
    seen: list[int] = []
    door.eof = lambda: bool(seen.append(len(door.seen)))  # type: ignore[func-returns-value,method-assign]
    pump.data_received(MUCH)
    if paused:
        pump.pause_reading()
    pump.eof_received()
    assert (seen, bytes(door.seen)) == ([len(MUCH)], MUCH)
    turn.run_until_quiet()
    assert (len(door.seen), transport.closed) == (len(MUCH), True)


@pytest.mark.parametrize("paused", [False, True])
def test_what_was_read_before_a_reset_is_not_lost(paused: bool) -> None:
    pump, door, _, turn = one()
    pump.data_received(MUCH)
    if paused:
        pump.pause_reading()
    door.closed = lambda reason: door.events.append(f"{reason} after {len(door.seen)}")  # type: ignore[method-assign]
    pump.connection_lost(ConnectionResetError("reset"))
    turn.run()
    assert len(door.seen) < len(MUCH), "it took the loop for itself"
    turn.run_until_quiet()
    assert (bytes(door.seen), door.events) == (MUCH, [f"reset after {len(MUCH)}"])
    assert sum(map(len, door.out)) <= SLICE_BYTES_MIN, "answers to a peer that is gone pile up"


@pytest.mark.parametrize(("word", "reason"), [(b"bye", ""), (b"boom", "ValueError: boom")])
def test_a_door_that_closes_or_raises_gets_no_more_of_the_rest(word: bytes, reason: str) -> None:
    for end in (lambda pump: pump.eof_received(), lambda pump: pump.connection_lost(None)):
        pump, door, _, turn = one()
        pump.data_received(bytes(SLICE_BYTES_MIN) + word.ljust(SLICE_BYTES_MIN) + bytes(SLICE_BYTES_MIN))
        end(pump)  # type: ignore[no-untyped-call]
        turn.run_until_quiet()
        pump.connection_lost(None)
        turn.run_until_quiet()
        assert (len(door.pieces), door.events) == (2, [f"closed:{reason}"])


def test_holds_of_door_and_turn_end_in_any_order() -> None:
    pump, door, transport, turn = one()
    pump.pause_reading()
    pump.data_received(bytes(SLICE_BYTES_MIN * 2))
    pump.resume_reading()
    turn.run_until_quiet()
    pump.pause_reading()
    pump.resume_reading()
    assert (len(door.pieces), transport.reading) == (2, True)


def test_little_that_waits_while_its_door_pauses_is_handed_over_when_the_door_goes_on() -> None:
    [(first, slow, _), (second, door, transport)], turn = busy(2)
    slow.piece_s = LITTLE_S * 2
    first.data_received(MUCH)
    second.data_received(b"little")
    second.pause_reading()
    turn.run_until_quiet()
    assert (door.pieces, transport.reading) == ([], False)
    second.resume_reading()
    turn.run_until_quiet()
    assert (bytes(door.seen), transport.reading) == (b"little", True)
