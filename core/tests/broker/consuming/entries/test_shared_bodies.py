"""A large body in many queues is one object; what is kept to find it again is bounded, and goes."""

from __future__ import annotations

from gantrymq.broker.consuming.entries.shared_bodies import KEPT_BYTES_MAX, KEPT_MS, SharedBodies
from gantrymq.net.testing import ManualClock, ManualWheel


def copy(body: bytes) -> bytes:
    return bytes(bytearray(body))


def test_equal_bodies_of_one_record_are_one_object() -> None:
    bodies = SharedBodies(ManualWheel(ManualClock()))
    first = b"x" * 40_000
    assert bodies.shared(100, first) is first
    assert bodies.shared(100, copy(first)) is first
    other = copy(first)
    assert bodies.shared(200, other) is other, "another record"
    damaged = b"y" * 40_000
    assert bodies.shared(100, damaged) is damaged, "never other bytes than were read"


def test_what_is_kept_is_bounded_and_forgotten() -> None:
    wheel = ManualWheel(ManualClock())
    bodies = SharedBodies(wheel)
    size = KEPT_BYTES_MAX // 4
    made = [bytes([number]) * size for number in range(6)]
    for number, body in enumerate(made):
        bodies.shared(number, body)
        assert bodies._kept_bytes == sum(map(len, bodies._kept.values())) <= KEPT_BYTES_MAX
    again = copy(made[0])
    assert bodies.shared(0, again) is again, "the oldest had to go"
    assert bodies.shared(5, copy(made[5])) is made[5]
    large = bytes(KEPT_BYTES_MAX + 1)
    assert bodies.shared(9, large) is large
    wheel.advance(KEPT_MS + 100)
    assert (bodies._kept, bodies._kept_bytes) == ({}, 0)
    assert bodies.shared(5, made[0]) is made[0]
