"""`$SYS/broker/...` under Mosquitto's names, every `mqtt.sys_interval_s`: what this gateway process sees, made here and never stored.

A new subscription finds the present values as retained messages; afterwards it gets what changed, with QoS 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from gantrymq.net.procedures.driver import Call, Steps, run
from gantrymq.net.procedures.order import Work
from gantrymq_gateways.mqtt.messages.deliver import Outlet
from gantrymq_gateways.mqtt.messages.grants import combine
from gantrymq_gateways.mqtt.sessions.sessions import Session
from gantrymq_gateways.mqtt.topics.mapping import SYS_PREFIX, match_levels

ROOT: Final = SYS_PREFIX + "broker/"

MINUTES: Final = (1, 5, 15)
"""Of `load`, as Mosquitto has them: exponential moving averages of what comes in a minute."""

SEND_WORK: Final = 3
"""Units of `Work`, measured in microseconds: one value matched and sent."""


class Load:
    """Moving averages of one counter, per minute."""

    __slots__ = ("_last", "rates")

    def __init__(self) -> None:
        self._last = 0
        self.rates = [0.0, 0.0, 0.0]

    def count(self, total: int, elapsed_s: float) -> None:
        """The counter stands at `total`, so long after the last time."""
        if elapsed_s > 0:
            per_minute = (total - self._last) * 60 / elapsed_s
            for index, minutes in enumerate(MINUTES):
                self.rates[index] += (per_minute - self.rates[index]) * (1 - math.exp(-elapsed_s / (60 * minutes)))
            self._last = total


class SysTopics:
    """One gateway's. `values()`: name -> value, without `$SYS/broker/`; `totals()`: counters that have a `load`; `show(topic, payload)` keeps one for
    new subscriptions; `is_live`: the session's client is connected, and knows it."""

    def __init__(
        self,
        values: Callable[[], Mapping[str, object]],
        totals: Callable[[], Mapping[str, int]],
        show: Callable[[str, bytes], None],
        is_live: Callable[[Session], bool],
        pause: Call,
    ) -> None:
        self._values = values
        self._totals = totals
        self._show = show
        self._is_live = is_live
        self._pause = pause
        self._subscribers: dict[Session, None] = {}
        self._known: dict[str, bytes] = {}
        self._loads: dict[str, Load] = {}
        self._last_ms = 0
        self._sending = False
        self.dropped = 0
        """Values that a client was too slow for."""

    def wants(self, session: Session) -> None:
        """The session has a filter below `$SYS/`, and is told as long as it has one."""
        self._subscribers[session] = None

    def begin(self, now_ms: int) -> None:
        """From now on; `now_ms` here and in `tick` is the clock that never goes back."""
        self._last_ms = now_ms
        self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        """Work all values out, and send what changed."""
        if self._sending:
            return  # There are very many subscribers: they see the next values.
        elapsed_s = (now_ms - self._last_ms) / 1000
        self._last_ms = now_ms
        found = dict(self._values())
        for name, total in self._totals().items():
            load = self._loads.setdefault(name, Load())
            load.count(total, elapsed_s)
            for minutes, rate in zip(MINUTES, load.rates, strict=True):
                found[f"load/{name}/{minutes}min"] = f"{rate:.2f}"
        changed = []
        for name, value in found.items():
            topic, payload = ROOT + name, str(value).encode()
            if self._known.get(topic) != payload:
                self._known[topic] = payload
                self._show(topic, payload)
                changed.append((topic, payload))
        if changed and self._subscribers:
            self._sending = True
            run(self._send_all(changed), self._sent)

    def lost(self) -> None:
        """The broker went away, and all clients with it."""
        self._subscribers.clear()
        self._known.clear()

    def _send_all(self, changed: list[tuple[str, bytes]]) -> Steps:
        work = Work()
        for session in list(self._subscribers):
            granted = session.granted_below(SYS_PREFIX) if self._is_live(session) else {}
            if granted:
                self._send(session.outlet, granted, changed)
                if work.spend(SEND_WORK * len(changed) * len(granted)):
                    yield self._pause
            else:
                self._subscribers.pop(session, None)

    def _sent(self, result: object) -> None:
        self._sending = False

    def _send(self, outlet: Outlet, granted: dict[str, int], changed: list[tuple[str, bytes]]) -> None:
        for topic, payload in changed:
            grant = combine([number for text, number in granted.items() if match_levels(text, topic)])
            if grant is None:
                continue
            if outlet.blocked and not outlet.takes(len(topic) + len(payload)):
                self.dropped += 1
                continue
            retain = int(grant.retains or bool(outlet.bridge))  # [MQTT-3.3.1-9] [MQTT5-3.3.1-12]
            outlet.publish(topic.encode(), payload, retain, None, 0, grant.listed if outlet.five else b"")
