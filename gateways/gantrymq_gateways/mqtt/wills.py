"""Wills on their way to the log. What the server has no room for now waits here and is tried again: nobody else would publish it.

All of a gateway wait in one queue with one timer; each attempt is one batch. So ten thousand clients lost at a time, while the server is busy
anyway, add a batch per `mqtt.busy_retry_ms` to its work, not a hundred thousand submits a second.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Final

from gantrymq.broker.port import PASSING, BrokerPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.api import Wheel
from gantrymq.services import Clock

log = logging.getLogger(__name__)

WILL_RETRY_MS: Final = 30_000
"""How long a will is tried: a disk that stalls is back by then, and a later one would speak of a client that has long returned."""

WAITING_WILLS_MAX: Final = 20_000
"""Wills that wait, about 10 MiB besides their bytes: all clients of a gateway that loses its network at a bad time."""

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Payloads and properties (topics may be long) of wills that wait: a client that comes back and drops again with 64 KiB each time must not fill the memory."""

BATCH_WILLS_MAX: Final = 256
"""Wills in one attempt, some milliseconds of the broker."""

BATCH_BYTES_MAX: Final = 1024 * 1024
"""Their bytes; one always goes."""

NEXT_MS: Final = 1
"""After an attempt of which nothing was refused: the others that wait follow at once, after those whose turn it is."""


class _Will:
    """One will and who left it."""

    __slots__ = ("message", "peer", "size", "until_ms")

    def __init__(self, message: Message, peer: str, until_ms: int) -> None:
        self.message = message
        self.peer = peer
        self.until_ms = until_ms
        self.size = len(message.body) + len(message.properties)


class Wills:
    """One gateway's."""

    def __init__(self, port: BrokerPort, clock: Clock, wheel: Wheel, retry_ms: int) -> None:
        self._port = port
        self._clock = clock
        self._wheel = wheel
        self._retry_ms = retry_ms
        self._waiting: deque[_Will] = deque()
        self.count = 0
        """What waits and what is just tried again; `bytes`: their payloads and properties."""
        self.bytes = 0
        self._trying = False
        self._handle = 0
        self._stopped = False

    def publish(self, message: Message, peer: str) -> None:
        """Store a will [MQTT-3.1.2-8], behind those that wait."""
        will = _Will(message, peer, self._clock.monotonic_ms() + WILL_RETRY_MS)
        if self.count:
            self._wait(will, "others wait")
        else:
            self._port.submit([message], will, self._submitted)

    def stop(self) -> None:
        """No more attempts."""
        self._stopped = True
        self._wheel.cancel(self._handle)
        self._lost(list(self._waiting), "the server stops")
        self._waiting.clear()

    def _submitted(self, will: _Will, result: Any) -> None:
        code = result.code if isinstance(result, GantryError) else result[0]
        if code in PASSING and not self._stopped:
            self._wait(will, code.value)
        elif isinstance(code, ErrorCode):
            self._lost([will], str(result) if isinstance(result, GantryError) else code.value)

    def _wait(self, will: _Will, reason: str) -> None:
        if self.count >= WAITING_WILLS_MAX or self.bytes + will.size > WAITING_BYTES_MAX:
            self._lost([will], f"{reason}, and {self.count} of {self.bytes} bytes wait already")
            return
        self.count += 1
        self.bytes += will.size
        self._waiting.append(will)
        if not self._handle and not self._trying:
            self._arm(self._retry_ms)

    def _arm(self, delay_ms: int) -> None:
        self._handle = self._wheel.call_at(self._clock.monotonic_ms() + delay_ms, self._try)

    def _try(self, now_ms: int) -> None:
        self._handle = 0
        waiting = self._waiting
        batch: list[_Will] = []
        size = 0
        while waiting and len(batch) < BATCH_WILLS_MAX:
            size += waiting[0].size
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(waiting.popleft())
        self._trying = True
        self._port.submit([will.message for will in batch], batch, self._tried)

    def _tried(self, batch: list[_Will], result: Any) -> None:
        self._trying = False
        codes = [result.code] * len(batch) if isinstance(result, GantryError) else result
        again: list[_Will] = []
        refused: list[_Will] = []
        reason = ""
        for will, code in zip(batch, codes, strict=True):
            if code in PASSING:
                again.append(will)
                continue
            self._leave(will)
            if isinstance(code, ErrorCode):
                refused.append(will)
                reason = str(result) if isinstance(result, GantryError) else code.value
        self._lost(refused, reason)
        self._waiting.extendleft(reversed(again))
        if again:
            self._give_up()
        if self._stopped:
            self._lost(list(self._waiting), "the server stops")
            self._waiting.clear()
        elif self._waiting:
            self._arm(self._retry_ms if again else NEXT_MS)

    def _give_up(self) -> None:
        """The oldest come first, so that those whose time is over are in front."""
        now_ms = self._clock.monotonic_ms()
        late: list[_Will] = []
        while self._waiting and self._waiting[0].until_ms <= now_ms:
            late.append(self._waiting.popleft())
            self._leave(late[-1])
        self._lost(late, f"no room for {WILL_RETRY_MS // 1000} s")

    def _leave(self, will: _Will) -> None:
        self.count -= 1
        self.bytes -= will.size

    def _lost(self, wills: list[_Will], reason: str) -> None:
        if len(wills) == 1:
            log.warning("%s: its will was not stored: %s", wills[0].peer, reason)
        elif wills:
            log.warning("%d wills were not stored, first that of %s: %s", len(wills), wills[0].peer, reason)
