"""Wills on their way to the log. What the server has no room for now waits here and is tried again: nobody else would publish it.

All of a gateway wait in one queue with one timer; each attempt is one batch. So ten thousand clients lost at a time, while the server is
busy anyway, add a batch per `mqtt.busy_retry_ms` to its work, not a hundred thousand submits a second.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from gantrymq.broker.port import PASSING, BrokerPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.api import Wheel
from gantrymq.services import Clock
from gantrymq_gateways.mqtt.messages.publish import KeptRow
from gantrymq_gateways.mqtt.messages.will_rows import TABLE as WILL_TABLE
from gantrymq_gateways.mqtt.retained import TABLE, RetainedStore

log = logging.getLogger(__name__)

WILL_RETRY_MS: Final = 30_000
"""How long a will is tried: a disk that stalls is back by then, and a later one would speak of a client that has long returned."""

WAITING_WILLS_MAX: Final = 20_000
"""Wills that wait, about 10 MiB besides their bytes: all clients of a gateway that loses its network at a bad time."""

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Payloads, properties (topics may be long) and rows that wills which wait retain: a client that comes back and drops again with 64 KiB
each time must not fill the memory."""

BATCH_WILLS_MAX: Final = 256
"""Wills in one attempt, some milliseconds of the broker."""

BATCH_BYTES_MAX: Final = 1024 * 1024
"""Their bytes; one always goes."""

NEXT_MS: Final = 1
"""After an attempt of which nothing was refused: the others that wait follow at once, after those whose turn it is."""


class _Will:
    """One will, what it retains, and who left it."""

    __slots__ = ("key", "message", "peer", "row", "size", "until_ms")

    def __init__(self, peer: str, until_ms: int, message: Message, row: KeptRow | None, key: str) -> None:
        self.key = key
        """Of the will's own row (will_rows.py), which goes in one piece with the message; empty: none."""
        self.peer = peer
        self.until_ms = until_ms
        self.message = message
        self.row = row
        self.size = len(message.body) + len(message.properties)
        if row is not None:
            self.size += len(row.key) + len(row.value or b"")


class Wills:
    """One gateway's."""

    def __init__(
        self,
        port: BrokerPort,
        kept: RetainedStore,
        clock: Clock,
        wheel: Wheel,
        retry_ms: int,
        lost: Callable[[str], None],
    ) -> None:
        self._port = port
        self._kept = kept
        self._clock = clock
        self._wheel = wheel
        self._retry_ms = retry_ms
        self._waiting: deque[_Will] = deque()
        self.count = 0
        """What waits and what is just tried again; `bytes`: their payloads, properties and rows."""
        self.bytes = 0
        self._open = False
        """An attempt waits for its answer."""
        self._handle = 0
        self._stopped = False
        self._row_lost = lost

    def publish(self, message: Message, peer: str, row: KeptRow | None, key: str = "") -> None:
        """Store a will [MQTT-3.1.2-8], behind those that wait, and what it retains in one piece with it."""
        will = _Will(peer, self._clock.monotonic_ms() + WILL_RETRY_MS, message, row, key)
        if row is not None:
            self._kept.storing(row.key, row.value)
            self._kept.owed[row.key] = will
        if self.count:
            self._wait(will, "others wait")
        else:
            self._submit([will], self._submitted)

    def stop(self) -> None:
        """No more attempts."""
        self._stopped = True
        self._wheel.cancel(self._handle)
        self._lost(list(self._waiting), "the server stops")
        self._waiting.clear()

    def _submit(self, wills: list[_Will], on_done: Callable[[list[_Will], Any], None]) -> None:
        rows: list[tuple[str, str, bytes | None]] = [(WILL_TABLE, will.key, None) for will in wills if will.key]
        rows += [(TABLE, will.row.key, will.row.value) for will in wills if will.row is not None and will.row.apart]
        batch = [will.message for will in wills]
        if rows:
            self._port.submit(batch, wills, on_done, rows=rows)
        else:
            self._port.submit(batch, wills, on_done)

    def _submitted(self, wills: list[_Will], result: Any) -> None:
        """The first attempt of a will."""
        for will in self._refused(wills, result):
            self._wait(will, _reason(result))

    def _refused(self, wills: list[_Will], result: Any) -> list[_Will]:
        """Those that shall be tried again; what is lost gets its line."""
        codes = [result.code] * len(wills) if isinstance(result, GantryError) else result
        again: list[_Will] = []
        lost: list[_Will] = []
        for will, code in zip(wills, codes, strict=True):
            if (code in PASSING or code is ErrorCode.NOT_ALONE) and not self._stopped:
                again.append(will)
            elif isinstance(code, ErrorCode):
                lost.append(will)
            else:
                self._row_done(will, False)
        self._lost(lost, _reason(result))
        return again

    def _wait(self, will: _Will, reason: str) -> None:
        if self.count >= WAITING_WILLS_MAX or self.bytes + will.size > WAITING_BYTES_MAX:
            self._lost([will], f"{reason}, and {self.count} of {self.bytes} bytes wait already")
            return
        self.count += 1
        self.bytes += will.size
        self._waiting.append(will)
        if not self._handle and not self._open:
            self._arm(self._retry_ms)

    def _arm(self, delay_ms: int) -> None:
        self._handle = self._wheel.call_at(self._clock.monotonic_ms() + delay_ms, self._try)

    def _try(self, now_ms: int) -> None:
        self._handle = 0
        waiting = self._waiting
        wills: list[_Will] = []
        size = 0
        while waiting and len(wills) < BATCH_WILLS_MAX:
            size += waiting[0].size
            if wills and size > BATCH_BYTES_MAX:
                break
            will = waiting.popleft()
            if will.row is not None and self._kept.owed.get(will.row.key) is not will:
                # Something newer is retained there, of the client itself perhaps, which has returned.
                self._row_done(will, True)
                will.message.lmq = ()
            wills.append(will)
        self._open = True
        if wills:
            self._submit(wills, self._tried)
        else:
            self._tried(wills, [])

    def _tried(self, wills: list[_Will], result: Any) -> None:
        """What was refused waits in front, oldest first."""
        self._open = False
        again = self._refused(wills, result)
        for will in set(wills).difference(again):
            self._leave(will)
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

    def _row_done(self, will: _Will, failed: bool) -> None:
        """What it retains is stored, or never will be."""
        row, will.row = will.row, None
        if row is not None:
            self._kept.stored(row.key, row.value, failed)
            if self._kept.owed.get(row.key) is will:
                del self._kept.owed[row.key]

    def _lost(self, wills: list[_Will], reason: str) -> None:
        for will in wills:
            self._row_done(will, True)
            if will.key and not self._stopped:
                self._row_lost(will.key)
        if len(wills) == 1:
            log.warning("%s: its will was not stored: %s", wills[0].peer, reason)
        elif wills:
            log.warning("%d wills were not stored, first that of %s: %s", len(wills), wills[0].peer, reason)


def _reason(result: Any) -> str:
    """The first refusal in a result."""
    if isinstance(result, GantryError):
        return str(result)
    return next((code.value for code in result if isinstance(code, ErrorCode)), "")
