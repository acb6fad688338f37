"""Starts the Spark job and turns its reports into deliveries like those of any other consumer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from gantrymq.spark.pipeline.project.telemetry.dashboard import noted
from interop_tests.demo.consumers import DOOR_OF
from interop_tests.demo.faces import Faces, Lines, own
from interop_tests.demo.ledger import NO_ID, Ledger

START_S = 300.0
STOP_S = 120.0
COLUMNS = ("topic", "broker", "queue", "offset", "tag", "keys", "storeTimestamp")
LINE_BYTES_MAX = 64 * 1024 * 1024
"""One report holds a batch; the first after an outage is the largest."""


class SparkFeed:
    """The consumer `name` of the ledger, in a session of its own, of which nothing is left after `stop` or `end`."""

    def __init__(
        self, name: str, ledger: Ledger, faces: Faces, problems: list[str], root: Path, directory: Path
    ) -> None:
        self.name = name
        self.version = ""
        self._ledger = ledger
        self._faces = faces
        self._problems = problems
        self._root = root
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def log_path(self) -> Path:
        return self._directory / "spark.log"

    def batches(self) -> list[dict[str, Any]]:
        """What the pipeline noted of its batches."""
        return noted(self._directory / "out")

    async def start(self, address: tuple[str, int]) -> None:
        """Begin; `started` says when the queries run."""
        self._directory.mkdir()
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "interop_tests.demo.spark_job", f"{address[0]}:{address[1]}", str(self._directory),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._root,
                env={**os.environ, "TMPDIR": str(self._directory)},
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self._process))

    def started(self) -> bool:
        """Whether both queries run."""
        return self.version != ""

    def died(self) -> bool:
        return self._reading is not None and self._reading.done() and not self._stopping

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            report: dict[str, Any] = json.loads(line)
            match report["kind"]:
                case "started":
                    self.version = report["version"]
                case "rows":
                    for row in report["rows"]:
                        self._receive(row, report["at"])
                case "failed":
                    lines = [
                        line for line in report["text"].splitlines() if line.strip() and "JVM stacktrace" not in line
                    ]
                    self._problems.append(f"{self.name}: {lines[0]} ... {lines[-1].strip()}")

    def _receive(self, row: dict[str, Any], at: float) -> None:
        message_id = row["id"] or NO_ID
        door = DOOR_OF[row["topic"]]
        self._ledger.received_pair(self.name, door, (message_id, row["sha256"]), at, row["sent_at"] or 0.0)
        if message_id in self._faces.wanted:
            self._faces.add(message_id, self.name, self._face(row), row["sha256"], row["body"])

    @staticmethod
    def _face(row: dict[str, Any]) -> Lines:
        lines = {name: str(row[name]) for name in COLUMNS if row[name] is not None}
        return lines | own(row["properties"] or {})

    async def stop(self) -> None:
        """Let the queries end; whatever is left after that is killed."""
        self._stopping = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                self._problems.append(f"{self.name}: did not stop within {STOP_S:.0f} s")
        await self.kill()

    async def kill(self) -> None:
        """`end`, and nothing of it is left in the event loop either."""
        self.end()
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def end(self) -> None:
        """Kill the whole session: Python, JVM, and Spark's workers, which make process groups of their own."""
        self._stopping = True
        if self._process is None:
            return
        for pid in psutil.pids():
            try:
                if os.getsid(pid) == self._process.pid:
                    os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def log_end(self, lines: int = 20) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
