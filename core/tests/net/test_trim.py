"""Memory goes back after much was held, and nobody looks for it while little is."""

from __future__ import annotations

from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq.net.trim import CHECK_MS, FREED_BYTES_MIN, Trimmer, trim


def test_free_pages_are_given_back_when_much_less_is_held() -> None:
    held = [0]
    trims: list[int] = []
    wheel = ManualWheel(ManualClock())
    trimmer = Trimmer(wheel, lambda: held[0], lambda: trims.append(held[0]))
    for held[0] in (1000, FREED_BYTES_MIN - 1, 0):
        trimmer.note()
        wheel.advance(10 * CHECK_MS)
    assert trims == [], "too little"
    held[0] = 10 * FREED_BYTES_MIN
    trimmer.note()
    wheel.advance(10 * CHECK_MS)
    assert trims == [], "it is still held"
    held[0] = 8 * FREED_BYTES_MIN
    wheel.advance(2 * CHECK_MS)
    assert trims == [8 * FREED_BYTES_MIN]
    held[0] = 0
    wheel.advance(10 * CHECK_MS)
    assert trims == [8 * FREED_BYTES_MIN, 0]
    assert wheel._timer is None, "and nobody looks any more"


def test_it_is_there_or_does_nothing() -> None:
    trim()
