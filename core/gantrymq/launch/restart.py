"""Doors whose broker is in another process follow it: when it is lost they shut, when it is back they open again.

What a door holds at the broker (cursors, leases, taps, watches) ends with its connection to it. Rather than repair each kind of it
in place, the service is stopped as at the end of the process and a fresh one is started on the same addresses: one path, which every
start proves. Until then the addresses stay reserved and refuse connections, which every client understands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio

log = logging.getLogger(__name__)

BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between attempts to open a door again; the last one repeats."""


class Doors(Protocol):
    """What the server does with one service, by name."""

    async def shut(self, name: str) -> int:
        """Stop it, close its port and keep its addresses; returns how many clients' connections that ended. Never raises."""

    async def reopen(self, name: str) -> None:
        """Start a fresh one with a new port. Raises what kept it from starting; then nothing of it is left."""


class _Followed:
    """One door's task: `scope` ends it, `ended` tells that it did."""

    def __init__(self) -> None:
        self.lost = anyio.Event()
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class Follower:
    """Shuts and reopens doors as their brokers go and come; one background task per door."""

    def __init__(self, doors: Doors, spawn: Callable[..., None], reason_of: Callable[[Exception], str]) -> None:
        self._doors = doors
        self._spawn = spawn
        self._reason_of = reason_of
        self._followed: dict[str, _Followed] = {}

    def follow(self, name: str, port: Any) -> None:
        """Door `name` is open over `port` (its `watch_state`): from now on it follows the broker behind it."""
        followed = self._followed.get(name)
        if followed is None:
            followed = self._followed[name] = _Followed()
            self._spawn(self._keep, name, followed)
        lost = followed.lost = anyio.Event()
        port.watch_state(lambda up: None if up else lost.set())

    async def stop(self) -> None:
        """Follow no longer; returns when no door is being shut or opened any more."""
        for followed in self._followed.values():
            followed.scope.cancel()
        for followed in self._followed.values():
            await followed.ended.wait()

    async def _keep(self, name: str, followed: _Followed) -> None:
        try:
            with followed.scope:
                while True:
                    await followed.lost.wait()
                    with anyio.CancelScope(shield=True):  # half a stop would be worse than a late one
                        count = await self._doors.shut(name)
                    log.warning("%s: the broker is lost: %d connections closed; shut until it is back", name, count)
                    await self._reopen(name)
        finally:
            followed.ended.set()

    async def _reopen(self, name: str) -> None:
        attempt = 0
        said = ""
        while True:
            try:
                await self._doors.reopen(name)
                break
            except Exception as error:
                reason = self._reason_of(error)
                if reason != said:
                    said = reason
                    log.warning("%s: cannot open yet: %s; trying again", name, reason)
                log.debug("%s: traceback", name, exc_info=True)
            await anyio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1
        log.info("%s: the broker is back: open again", name)
