"""`gantry up` as a process of its own, on a directory and ports that it keeps over a kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from interop_tests import guard

READY_S = 120.0
STOP_S = 90.0
POLL_S = 0.02
DOORS = ("nameserver", "broker", "mqtt", "amqp", "cloudevents")


class ServerError(Exception):
    """The server did not do what it should; the text ends with the end of its log."""


class Server:
    """`doors`: service -> host:port, the same after every start."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.log_path = directory / "server.log"
        self.doors: dict[str, str] = {}
        self._ready = directory / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def address(self, door: str) -> tuple[str, int]:
        host, _, port = self.doors[door].rpartition(":")
        return host, int(port)

    async def start(self) -> float:
        """Start, and wait until every door accepts connections. Returns the seconds that took."""
        begun = time.monotonic()
        self._ready.unlink(missing_ok=True)
        ports = [f"--set={name}.port={self.address(name)[1]}" for name in self.doors] or ["--free-ports"]
        command = [sys.executable, "-m", "gantrymq", "up", "--host", "127.0.0.1", "--data", str(self.data), *ports]
        self._process = self._spawn([*command, "--ready-file", str(self._ready)])
        while not self._ready.exists():
            if self._process.poll() is not None:
                raise ServerError(f"gantry up ended with {self._process.returncode}:\n{self.log_end()}")
            if time.monotonic() - begun > READY_S:
                raise ServerError(f"gantry up was not ready within {READY_S:.0f} s:\n{self.log_end()}")
            await asyncio.sleep(POLL_S)
        self.doors = json.loads(self._ready.read_text())
        missing = [name for name in DOORS if name not in self.doors]
        if missing:
            raise ServerError(f"gantry up has no {', '.join(missing)}:\n{self.log_end()}")
        return time.monotonic() - begun

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C is for the demonstration, which then stops the server itself.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")} | guard.mark(),
            )

    async def kill(self) -> None:
        """SIGKILL: nothing is said, nothing is flushed."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerError(f"gantry up ended by itself with {self._process.returncode}:\n{self.log_end()}")
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._process = None

    def died(self) -> bool:
        """True if it ended without being told to."""
        return self._process is not None and self._process.poll() is not None

    async def stop(self) -> None:
        """SIGTERM; raises ServerError unless it ends with 0."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self._process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            raise ServerError(f"gantry up did not stop within {STOP_S:.0f} s:\n{self.log_end()}") from None
        if code:
            raise ServerError(f"gantry up stopped with {code}:\n{self.log_end()}")

    def end(self) -> None:
        """Whatever happened: no process is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log_end(self, lines: int = 20) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
