"""Real servers in processes of their own, for tests over real sockets."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

from interop_tests import forking, guard
from interop_tests.waiting import until

READY_S = 120.0
STOP_S = 200.0

SERVICES = ("nameserver", "broker", "metrics", "mqtt", "amqp", "cloudevents")
VIP = -2
"""Where a broker listens again, from its port."""
WORKERS_MAX = 4

GANTRY = ["-m", "gantrymq"]


def listening_ports(given: str) -> range:
    """Where the kernel, which gives outgoing connections the ports `given`, leaves the most: while a killed server is away, or has not
    begun to listen, none of them takes its port. Some machines leave nothing worth having."""
    low, high = map(int, given.split())
    left = max(range(10_000, min(low, 32_000)), range(high + 1, 65_536), key=len)
    return left if len(left) >= 1000 else range(10_000, 32_000)


_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = listening_ports(_GIVEN.read_text() if _GIVEN.exists() else "32768 60999")


def _first_port() -> int:
    """Where this process begins to look. Workers of one run never meet: between looking and listening, and while a killed server is away,
    a port is free for everybody."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        return os.getpid() * 7919 % len(PORTS)
    share = len(PORTS) // WORKERS_MAX
    return (os.getppid() * 7919 + int(worker.removeprefix("gw")) * share) % len(PORTS)


_next_port = itertools.count(_first_port())


def free_port(*around: int) -> int:
    """A port on which nobody listens, nor at these distances from it: a real RocketMQ broker takes those at -2 and +1, too."""
    low, high = min([0, *around]), max([0, *around])
    while True:
        first = next(_next_port) % len(PORTS)
        for _ in range(high - low):
            next(_next_port)
        block = PORTS[first : first + high - low + 1]
        if len(block) == high - low + 1 and all(map(_is_free, block)):
            return block[-low]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class Process:
    """One `gantry` command; `doors` after `start`."""

    def __init__(self, name: str, directory: Path, command: list[str]) -> None:
        self.name = name
        self.directory = directory
        self.command = command
        self.program: list[str] | None = None
        """What Python runs, before the command; None: a fork of a process that has imported the same (forking.py)."""
        self.doors: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | forking.Fork | None = None
        self.marked = 0
        """Length of the log at `Gantry.mark_log`."""

    @property
    def log_path(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start, and wait until every door accepts connections. A second start takes the same ports."""
        self.launch()
        self.wait_ready()

    @property
    def _ready_path(self) -> Path:
        return self.directory / f"{self.name}.ready.json"

    def launch(self) -> None:
        """Start without waiting."""
        ready = self._ready_path
        ready.unlink(missing_ok=True)
        known = {name: int(address.rpartition(":")[2]) for name, address in self.doors.items() if "." not in name}
        chosen = known or {name: free_port(VIP) if name == "broker" else free_port() for name in SERVICES}
        placed = {
            part.removeprefix("--set=").partition(".listeners=")[0] for part in self.command if ".listeners=" in part
        }
        ports = [f"--set={name}.port={port}" for name, port in chosen.items() if name not in placed]
        with self.log_path.open("ab") as log:
            self.process = self._begin([*self.command, *ports, "--ready-file", str(ready)], log)

    def _begin(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes] | forking.Fork:
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/"), "PYTHONUNBUFFERED": "1"}
        environment |= guard.mark()
        if self.program is None and hasattr(os, "pidfd_open"):
            return forking.start(command, log, environment)
        return subprocess.Popen(
            [sys.executable, *(self.program or GANTRY), *command],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip

    def wait_ready(self) -> None:
        """Until every door accepts connections."""
        process, ready = self.process, self._ready_path
        assert process is not None
        until(lambda: ready.exists() or process.poll() is not None, READY_S)
        if not ready.exists():
            raise AssertionError(f"gantry {' '.join(self.command)} did not start:\n{self.log()[-4000:]}")
        self.doors = json.loads(ready.read_text())

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """SIGKILL: nothing is said, nothing is flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"gantry {' '.join(self.command)} did not stop within {STOP_S:g} s:\n{self.log()[-4000:]}"
            ) from None


class Written(Process):
    """`gantry` with a file that says all: not a setting more. It runs in its own directory."""

    def launch(self) -> None:
        environment = {name: os.environ.get(name, default) for name, default in (("PATH", ""), ("HOME", "/"))}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *GANTRY, *self.command, "--ready-file", str(self._ready_path)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory, env=environment | guard.mark(),
            )  # fmt: skip


KEEPER = "--set=broker.metadata_group=broker-a"
"""Of two groups: which keeps the table of slots."""


class Gantry:
    """A whole installation: one process (`combined`), three (`separated`: nameserver, broker, gateways), or four with two brokers (`two groups`)."""

    def __init__(self, directory: Path, shape: str = "combined", settings: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.shape = shape
        self.settings = [f"--set={setting}" for setting in settings]
        self.program: list[str] | None = None
        """Of each process."""
        self.processes: list[Process] = []

    @property
    def doors(self) -> dict[str, str]:
        return {name: address for process in self.processes for name, address in process.doors.items()}

    def address(self, door: str) -> tuple[str, int]:
        host, _, port = self.doors[door].rpartition(":")
        return host, int(port)

    def start(self) -> Gantry:
        """Start everything; what already runs is killed if something does not start."""
        try:
            self._start()
        except BaseException:
            self.kill()
            raise
        return self

    def _start(self) -> None:
        data = ["--data", str(self.directory / "data"), *self.settings]
        if self.shape == "combined":
            self._add("up", ["up", *data])
            return
        self._add("nameserver", ["nameserver", *data])
        where = ["--nameserver", self.doors["nameserver"]]
        if self.shape == "two groups":
            other = ["--data", str(self.directory / "other"), *self.settings, "--set=broker.name=other", KEEPER]
            self._add("other broker", ["broker", *where, *other])
        self._add("broker", ["broker", *where, *data, *([KEEPER] if self.shape == "two groups" else [])])
        self._add("gateway", ["gateway", "mqtt", "amqp", "cloudevents", *where, *data])

    def _add(self, name: str, command: list[str]) -> None:
        process = Process(name, self.directory, command)
        process.program = self.program
        self.processes.append(process)
        process.start()

    def process(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)

    def kill(self) -> None:
        """kill -9 of everything."""
        for process in reversed(self.processes):
            process.kill()

    def restart(self) -> None:
        """What was killed, on the same directory and ports."""
        for process in self.processes:
            process.start()

    def kill_and_restart(self) -> None:
        """kill -9 of everything, then start again on the same directory and ports."""
        self.kill()
        self.restart()

    def stop(self) -> None:
        """Clean stop; fails if a process did not end with 0."""
        codes = {process.name: process.stop() for process in reversed(self.processes)}
        assert not any(codes.values()), f"exit codes {codes}\n" + "\n".join(
            process.log()[-2000:] for process in self.processes
        )

    def wait_for_topic(self, name: str) -> None:
        """Until the nameserver knows the topic: it hears of one a moment after a message is in it. Commands run from then on find it."""
        command = [sys.executable, "-m", "gantrymq", "topic", "show", name, "--nameserver", self.doors["nameserver"]]
        until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)

    def log(self) -> str:
        return "\n".join(process.log() for process in self.processes)

    def mark_log(self) -> None:
        """`new_log` begins here: a client's port may have been another client's before."""
        for process in self.processes:
            process.marked = len(process.log())

    def new_log(self) -> str:
        return "\n".join(process.log()[process.marked :] for process in self.processes)


class Cluster(Gantry):
    """Nameservers, brokers (each with a directory of its own) and gateways, every one a process: `ns0`, `broker0`, `gateway0` ... Broker-0 keeps
    the table of slots."""

    def __init__(
        self, directory: Path, nameservers: int = 1, brokers: int = 2, gateways: int = 2, settings: tuple[str, ...] = ()
    ) -> None:
        super().__init__(directory, "cluster", settings)
        self._counts = (nameservers, brokers, gateways)

    def start(self) -> Cluster:
        super().start()
        return self

    def _start(self) -> None:
        nameservers, brokers, gateways = self._counts
        own = [setting for setting in self.settings if setting.startswith(("--set=auth.", "--set=nameserver."))]
        data = [["--data", str(self.directory / f"ns{number}.data"), *own] for number in range(nameservers)]
        self._together([(f"ns{number}", ["nameserver", *where]) for number, where in enumerate(data)])
        self._together([self._broker(number) for number in range(brokers)])
        self._together([self._gateway(number) for number in range(gateways)])

    def _together(self, commands: list[tuple[str, list[str]]]) -> None:
        """Processes that do not need each other, started at once."""
        started = [Process(name, self.directory, command) for name, command in commands]
        self.processes += started
        for process in started:
            process.launch()
        for process in started:
            process.wait_ready()

    def _where(self) -> list[str]:
        found = [process.doors["nameserver"] for process in self.processes if "nameserver" in process.doors]
        return ["--nameserver", ";".join(found)] if found else []

    def _broker(self, number: int) -> tuple[str, list[str]]:
        data = ["--data", str(self.directory / f"broker{number}.data"), f"--set=broker.name=broker-{number}"]
        return f"broker{number}", [
            "broker",
            *self._where(),
            *data,
            "--set=broker.metadata_group=broker-0",
            *self.settings,
        ]

    def _gateway(self, number: int) -> tuple[str, list[str]]:
        data = ["--data", str(self.directory / f"gateway{number}.data")]
        doors = ["mqtt", "amqp", "cloudevents"]
        return f"gateway{number}", ["gateway", *doors, *self._where(), *data, *self.settings]

    def add_broker(self, number: int) -> Process:
        """One more broker group."""
        self._together([self._broker(number)])
        return self.process(f"broker{number}")

    def add_gateway(self, number: int) -> Process:
        """One more gateway process for every protocol."""
        self._together([self._gateway(number)])
        return self.process(f"gateway{number}")

    def at(self, name: str) -> Gantry:
        """One process alone, for clients that take a whole installation."""
        view = Gantry(self.directory, name)
        view.processes = [self.process(name)]
        return view

    @property
    def nameservers(self) -> str:
        """All of them, as clients take them."""
        return ";".join([process.doors["nameserver"] for process in self.processes if "nameserver" in process.doors])

    def door(self, process: str, name: str) -> tuple[str, int]:
        """Address of one process's door."""
        host, _, port = self.process(process).doors[name].rpartition(":")
        return host, int(port)
