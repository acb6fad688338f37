"""The audit trail: who came in, who was refused what, and who changed what, as records of topic `rmq_sys_gantry_audit`.

Written behind what it tells, so that nothing waits for it: an event waits up to `WRITE_MS`, and for a broker that is away as long as there is
room. One address cannot fill it: what is over its rate is counted, and the count is written. No event holds a password, a secret or a body.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from gantrymq.auth.logins import Timer
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.names import AUDIT_TOPIC
from gantrymq.net.held.addresses import address_of

log = logging.getLogger(__name__)

LOGIN, DENIED, CHANGE, LEFT_OUT = "login", "denied", "change", "left out"
"""What an event tells. A login is good or not; `left out`: how many events of an address were over its rate."""

WAITING_MAX: Final = 10_000
"""Events that wait to be written: 10 MiB; of more the oldest are left out."""
BATCH_MAX: Final = 500
WRITE_MS: Final = 100
AGAIN_MS: Final = 1_000
"""Pause after a broker could not take them."""

BURST: Final = 1_000
PER_S: Final = 20.0
"""Events of an address at once, and each second from then on: a fleet that reconnects is written, a guesser does not fill the log."""
ADDRESSES_MAX: Final = 4_096
"""Addresses whose rate is remembered; those that wrote longest ago are forgotten."""
KNOWN_MAX: Final = 10_000
"""(Door, user, connection) whose good login was written: HTTP says with each request who it is."""
TEXT_MAX: Final = 256
"""Characters of each text: names that a stranger gives may be long."""


class Port(Protocol):
    """What is needed of `broker.port.LogPort`."""

    def submit(self, batch: Sequence[Message], token: object, on_done: Callable[[Any, Any], None]) -> None: ...


class Event(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of the trail."""

    at_ms: int
    kind: str
    good: bool = False
    """Of a login; a change was allowed, which is not to say that it worked."""
    door: str = ""
    user: str = ""
    """Of a failed login: who it said it is."""
    address: str = ""
    """`host:port`; of `left out` the address alone."""
    action: str = ""
    resource: str = ""
    why: str = ""
    count: int = 0
    process: str = ""
    """Host name and process id of who wrote it."""


_encode: Final = msgspec.json.Encoder().encode


class _Rate:
    """Of one address."""

    __slots__ = ("at_ms", "left_out", "tokens")

    def __init__(self, now_ms: int) -> None:
        self.tokens = float(BURST)
        self.at_ms = now_ms
        self.left_out = 0

    def take(self, now_ms: int) -> bool:
        self.tokens = min(float(BURST), self.tokens + (now_ms - self.at_ms) / 1000 * PER_S)
        self.at_ms = now_ms
        if self.tokens < 1.0:
            self.left_out += 1
            return False
        self.tokens -= 1.0
        return True


class Audit:
    """Of one process."""

    def __init__(self, wheel: Timer, now_ms: Callable[[], int], process: str) -> None:
        """`now_ms`: the wall clock."""
        self._wheel = wheel
        self.now_ms = now_ms
        self._process = process
        self._port: Port | None = None
        self._waiting: deque[Event] = deque()
        self._writing: list[Event] = []
        self._armed = False
        self._failing = False
        self._rates: OrderedDict[str, _Rate] = OrderedDict()
        self._known: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self.written = 0
        self.left_out = 0
        """Over an address's rate, or because too many waited."""

    def attach(self, port: Port) -> None:
        """Write through `port` from now on, what waits already first."""
        self._port = port
        if self._waiting:
            self._arm(WRITE_MS)

    def login(self, door: str, user: str, address: str, why: str = "", how: str = "password") -> None:
        """Somebody said who it is; `why` it is not, empty if it is. A good one is written once per connection and user."""
        if not why:
            known = (door, user, address)
            if known in self._known:
                return
            if len(self._known) >= KNOWN_MAX:
                self._known.popitem(last=False)
            self._known[known] = None
        self._note(LOGIN, address, good=not why, door=door, user=user, action=how, why=why)

    def denied(self, door: str, user: str, address: str, action: str, resource: str, why: str) -> None:
        """Somebody may not do what he wanted; `why`: the rule."""
        self._note(DENIED, address, door=door, user=user, action=action, resource=resource, why=why)

    def changed(self, door: str, user: str, address: str, action: str, resource: str) -> None:
        """Somebody who may changes something."""
        self._note(CHANGE, address, good=True, door=door, user=user, action=action, resource=resource)

    def _note(
        self, kind: str, address: str, *, good: bool = False, door: str, user: str, action: str, resource: str = "",
        why: str = "",
    ) -> None:  # fmt: skip
        now_ms = self.now_ms()
        of = address_of(address)
        rate = self._rates.get(of)
        if rate is None:
            rate = self._rates[of] = _Rate(now_ms)
            if len(self._rates) > ADDRESSES_MAX:
                gone, old = self._rates.popitem(last=False)
                self._say_left_out(gone, old, now_ms)
        self._rates.move_to_end(of)
        if not rate.take(now_ms):
            self.left_out += 1
            return
        self._say_left_out(of, rate, now_ms)
        self._put(
            Event(
                now_ms, kind, good, door, user[:TEXT_MAX], address[:TEXT_MAX], action[:TEXT_MAX], resource[:TEXT_MAX],
                why[:TEXT_MAX], process=self._process,
            )
        )  # fmt: skip

    def _say_left_out(self, of: str, rate: _Rate, now_ms: int) -> None:
        if rate.left_out:
            self._put(Event(now_ms, LEFT_OUT, address=of[:TEXT_MAX], count=rate.left_out, process=self._process))
            rate.left_out = 0

    def _put(self, event: Event) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.left_out += 1
        self._waiting.append(event)
        if self._port is not None:
            self._arm(WRITE_MS)

    def _arm(self, after_ms: int) -> None:
        if not self._armed and not self._writing:
            self._armed = True
            self._wheel.call_at(self._wheel.now_ms() + after_ms, self._write)

    def _write(self, _now_ms: int) -> None:
        self._armed = False
        port, waiting = self._port, self._waiting
        if port is None or not waiting:
            return
        self._writing = [waiting.popleft() for _ in range(min(len(waiting), BATCH_MAX))]
        batch = [Message(AUDIT_TOPIC, _encode(event), queue_id=0, born_ms=event.at_ms) for event in self._writing]
        port.submit(batch, None, self._stored)

    def _stored(self, _token: Any, result: Any) -> None:
        events, self._writing = self._writing, []
        failed = (
            [result] if isinstance(result, GantryError) else [each for each in result if isinstance(each, ErrorCode)]
        )
        if failed:
            if not self._failing:
                log.warning("events of the audit trail wait, the broker did not take them: %s", failed[0])
            self._waiting.extendleft(reversed(events))
            while len(self._waiting) > WAITING_MAX:
                self._waiting.popleft()
                self.left_out += 1
        else:
            self.written += len(events)
        self._failing = bool(failed)
        if self._waiting:
            self._arm(AGAIN_MS if failed else 0)

    @property
    def waiting(self) -> int:
        """Events that are not written yet."""
        return len(self._waiting) + len(self._writing)
