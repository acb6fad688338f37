"""The pipeline's alerts and dead letters: what Spark must have written, worked out from what was published, and what came out of MQTT.

A window of one device raises an alert if its peak is high. Peak and distinct ids do not change when a message comes twice, so the
alerts can be foretold exactly, whatever was sent again.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from interop_tests.demo.ledger import identify, percentile
from interop_tests.demo.sources import Reading

WINDOW_S: Final = 5
WATERMARK_S: Final = 10
"""How late a message may be: longer than the outage, or the messages that were sent again would be left out."""
UNIT: Final = "percent"
DEVICES: Final = "cpu"
"""Only devices of this prefix are looked at."""
PEAK: Final = 10.0
"""Percent of a core: the demonstration itself keeps one busier than that, so that an idle machine has alerts, too."""


@dataclass(frozen=True, slots=True, order=True)
class Alert:
    """One window of one device. `start`: seconds since the epoch."""

    device: str
    start: int
    messages: int
    peak: float


def _counts(reading: Reading) -> bool:
    return reading.unit == UNIT and reading.device.startswith(DEVICES)


def devices(cores: int) -> str:
    """The reference data of the pipeline: each core with its alarm."""
    rows = [f"{DEVICES}{number},busy,this machine,{PEAK}" for number in range(cores)]
    return "\n".join(["device,metric,site,alarm_above", *rows, ""])


def expected(published: Iterable[tuple[str, Reading, float]]) -> set[Alert]:
    """The alerts of every window, closed or not."""
    windows: dict[tuple[str, int], list[float]] = {}
    for _, reading, at in published:
        if _counts(reading) and reading.value is not None:
            windows.setdefault((reading.device, int(at) // WINDOW_S * WINDOW_S), []).append(reading.value)
    return {
        Alert(device, start, len(values), max(values))
        for (device, start), values in windows.items()
        if max(values) > PEAK
    }


def due(published: Sequence[tuple[str, Reading, float]]) -> set[Alert]:
    """Those whose window the watermark has passed: Spark must write them. It keeps a watermark in whole milliseconds."""
    last_at = max((at for _, reading, at in published if _counts(reading)), default=0.0)
    return {alert for alert in expected(published) if alert.start + WINDOW_S <= last_at - WATERMARK_S - 0.001}


def closed(published: Sequence[tuple[str, Reading, float]]) -> bool:
    """True if there was time for a window to be closed."""
    return bool(published) and published[-1][2] - published[0][2] > WATERMARK_S + 2 * WINDOW_S


class AlertBook:
    """Alerts as they come out of MQTT. Any thread may add."""

    def __init__(self) -> None:
        self.counts: Counter[Alert] = Counter()
        self.example: tuple[int, str] = (0, "")
        """Messages in its window, and the alert as it came: the first with the fullest window."""
        self.delays_s: list[float] = []
        self.unreadable = 0
        self._lock = threading.Lock()

    def receive(self, topic: str, body: bytes, at: float) -> None:
        try:
            record = json.loads(body)
            alert = Alert(record["device"], int(record["start"]), int(record["readings"]), float(record["highest"]))
        except (ValueError, KeyError, TypeError):
            with self._lock:
                self.unreadable += 1
            return
        with self._lock:
            if alert.messages > self.example[0]:
                self.example = (alert.messages, f"{topic}  {body.decode()}")
            self.counts[alert] += 1
            self.delays_s.append(at - alert.start - WINDOW_S)

    def missing(self, due_alerts: set[Alert]) -> set[Alert]:
        with self._lock:
            return due_alerts - set(self.counts)

    def duplicates(self) -> int:
        with self._lock:
            return self.counts.total() - len(self.counts)

    def median_delay_s(self) -> float:
        with self._lock:
            return percentile(self.delays_s, 0.5)

    def problems(self, published: list[tuple[str, Reading, float]]) -> list[str]:
        """Lines for the report; empty if exactly the due alerts came, or later ones of the foretold as well."""
        foretold = expected(published)
        due_alerts = due(published)
        invented = set(self.counts) - foretold
        lines = []
        if closed(published) and not due_alerts:
            lines.append(f"alerts: no core was busy for {PEAK:g} percent in any window, so Spark had nothing to write")
        if self.unreadable:
            lines.append(f"alerts: {self.unreadable} cannot be read")
        if missing := self.missing(due_alerts):
            lines.append(f"alerts: {len(missing)} of {len(due_alerts)} did not come, the first: {min(missing)}")
        if invented:
            lines.append(f"alerts: {len(invented)} do not follow from the telemetry, the first: {min(invented)}")
        return lines


class RejectedBook:
    """Dead letters as they come out of MQTT, by the id of the message that was refused. Any thread may add."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def receive(self, body: bytes) -> None:
        with self._lock:
            self.counts[identify(body)[0]] += 1

    def missing(self, published: Iterable[tuple[str, Reading, float]]) -> set[str]:
        """Each reading without a value must be here."""
        with self._lock:
            return {message_id for message_id, reading, _ in published if reading.value is None} - set(self.counts)

    def problems(self, published: Sequence[tuple[str, Reading, float]]) -> list[str]:
        missing = self.missing(published)
        invented = set(self.counts) - {message_id for message_id, reading, _ in published if reading.value is None}
        lines = []
        if missing:
            lines.append(f"dead letters: {len(missing)} did not come, the first: {min(missing)}")
        if invented:
            lines.append(f"dead letters: {len(invented)} of sound readings, the first: {min(invented)}")
        return lines
