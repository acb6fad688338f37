"""Handshakes with wrong pre-shared keys are failed logins: they slow their address down and are audited, and no key is told."""

from __future__ import annotations

from typing import Any

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.failures import Failures
from gantrymq.auth.logins import CROWDED, Logins
from gantrymq.launch.handshakes import HOW, WHY, Handshakes
from gantrymq.net.testing import ManualClock, ManualWheel

FREE = 3


def gate() -> tuple[Handshakes, Authority, ManualWheel]:
    wheel = ManualWheel(ManualClock())
    logins = Logins(
        wheel, lambda *_: None, b"seed", verified_ms=0, waiting_max=10, address_waiting_max=2,
        failures=Failures(100, 1_000, FREE),
    )  # fmt: skip
    authority = Authority(AuthConfig(enabled=True), logins, lambda call: call(), Audit(wheel, lambda: 7, "test"))
    return Handshakes(authority, "mqtt"), authority, wheel


def begin(handshakes: Handshakes, peer: str) -> list[str]:
    said: list[str] = []
    handshakes.wait(peer, said.append)
    return said


def test_an_address_that_failed_often_waits_whatever_it_says_it_is() -> None:
    handshakes, authority, wheel = gate()
    for number in range(FREE):
        assert begin(handshakes, "192.0.2.1:5000") == [""]
        handshakes.failed("192.0.2.1:5000", f"press-{number}")
    assert authority.logins.failed == FREE
    first, second = begin(handshakes, "192.0.2.1:5001"), begin(handshakes, "192.0.2.1:5002")
    assert (first, second) == ([], [])
    assert begin(handshakes, "192.0.2.1:5003") == [CROWDED]
    assert begin(handshakes, "192.0.2.2:5000") == [""]
    wheel.advance(200)
    assert (first, second) == ([""], [""])


def test_failures_are_audited() -> None:
    handshakes, authority, _ = gate()
    events: list[Any] = []
    authority.audit._put = events.append  # type: ignore[method-assign]
    handshakes.failed("192.0.2.1:5000", "press-7")
    (event,) = events
    assert (event.kind, event.good, event.door, event.user) == ("login", False, "mqtt", "press-7")
    assert (event.address, event.action, event.why) == ("192.0.2.1:5000", HOW, WHY)
