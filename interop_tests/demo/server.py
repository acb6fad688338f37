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
from interop_tests.running import VIP, free_port

READY_S = 120.0
STOP_S = 200.0
POLL_S = 0.02
SERVICES = ("nameserver", "broker", "metrics", "mqtt", "amqp", "cloudevents")
DOORS = tuple(name for name in SERVICES if name != "metrics")


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
        self._told = False
        """Whether the process was told to end: set before the signal goes out, so nobody sees an end that looks like its own."""

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
        # Not --free-ports: while the killed server is away, the kernel could give such a port to a client that connects.
        ports = {name: self.address(name)[1] for name in self.doors} or {
            name: free_port(VIP) if name == "broker" else free_port() for name in SERVICES
        }
        settings = [f"--set={name}.port={port}" for name, port in ports.items()]
        command = [sys.executable, "-m", "gantrymq", "up", "--host", "127.0.0.1", "--data", str(self.data), *settings]
        self._told = False
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
        """SIGKILL: nothing is said, nothing is flushed. Raises ServerError if it ended before that, by itself."""
        if self.died() or await self._signal(signal.SIGKILL) != -signal.SIGKILL:
            raise ServerError(self._ended_by_itself())

    async def stop(self) -> None:
        """SIGTERM; raises ServerError unless it runs until then and ends with 0."""
        if self._process is None:
            return
        if self.died():
            raise ServerError(self._ended_by_itself())
        try:
            code = await self._signal(signal.SIGTERM, STOP_S)
        except subprocess.TimeoutExpired:
            raise ServerError(f"gantry up did not stop within {STOP_S:.0f} s:\n{self.log_end()}") from None
        if code:
            raise ServerError(f"gantry up stopped with {code}:\n{self.log_end()}")

    async def _signal(self, number: int, within_s: float | None = None) -> int:
        """Tell it to end, and wait until it has; the exit status."""
        assert self._process is not None
        self._told = True
        self._process.send_signal(number)
        return await asyncio.to_thread(self._process.wait, within_s)

    def died(self) -> bool:
        """True if it ended without being told to. May be asked at any time, also while `kill` or `stop` waits."""
        return self._process is not None and not self._told and self._process.poll() is not None

    def _ended_by_itself(self) -> str:
        code = self._process.returncode if self._process is not None else None
        return f"gantry up ended by itself with {code}:\n{self.log_end()}"

    def end(self) -> None:
        """Whatever happened: no process is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log_end(self, lines: int = 20) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
