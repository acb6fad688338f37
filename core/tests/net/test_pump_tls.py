"""The pump on asyncio's TLS, whose transport answers nothing any more once it was closed twice."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.net.held.limits import PumpLimits
from gantrymq.net.process.host import PumpHost
from gantrymq.net.pump import Pump
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from tests.net.test_pump import EchoDoor


class Raw:
    """The connection below TLS, of a peer that takes everything and says nothing."""

    def __init__(self) -> None:
        self.aborted = False

    def _force_close(self, error: Exception | None) -> None:
        self.aborted = True

    abort = close = lambda self: self._force_close(None)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


def tls(
    test: Callable[[Pump, EchoDoor, SSLProtocol, Raw, ManualTurn, ManualWheel], None],
) -> Callable[[pytest.LogCaptureFixture], None]:
    """Run a test on a connection whose handshake is over, and which logs nothing."""

    def run(caplog: pytest.LogCaptureFixture) -> None:
        async def on_loop() -> None:
            turn, wheel, door, raw = ManualTurn(), ManualWheel(ManualClock()), EchoDoor(), Raw()
            pump = Pump(PumpHost(turn, wheel, PumpLimits()), lambda: door, set())
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            protocol = SSLProtocol(asyncio.get_running_loop(), pump, context, None, True, call_connection_made=False)
            protocol.connection_made(raw)  # type: ignore[no-untyped-call]
            protocol._handshake_timeout_handle.cancel()
            protocol._state = SSLProtocolState.WRAPPED
            protocol._do_flush = lambda: None  # type: ignore[method-assign]  # the peer answers no end
            pump.connection_made(protocol._get_app_transport())
            test(pump, door, protocol, raw, turn, wheel)

        asyncio.run(on_loop())
        assert not caplog.records

    run.__name__ = test.__name__
    return run


@tls
def test_a_connection_that_is_lost_in_the_turn_that_closes_it(
    pump: Pump, door: EchoDoor, protocol: SSLProtocol, raw: Raw, turn: ManualTurn, wheel: ManualWheel
) -> None:
    door.out.append(b"last words")
    pump.close()
    protocol.connection_lost(None)  # type: ignore[no-untyped-call]  # the pump hears of it in the loop's next turn
    turn.run_until_quiet()
    assert pump.outbound_bytes() == 0
    pump.connection_lost(None)
    assert door.events == ["closed:"]


@tls
def test_a_peer_that_does_not_answer_the_end_is_cut_off(
    pump: Pump, door: EchoDoor, protocol: SSLProtocol, raw: Raw, turn: ManualTurn, wheel: ManualWheel
) -> None:
    pump.close()
    turn.run_until_quiet()
    assert not raw.aborted
    wheel.advance(PumpLimits().linger_ms * 2)
    assert raw.aborted
    assert pump.outbound_bytes() == 0
