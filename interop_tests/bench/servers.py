"""The servers that are measured: one of ours in a process of its own, real peers beside it; and where the tables go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gantrymq.cli.security.certificates import Authority

PEERS = Path(__file__).resolve().parent / "peers"
READY_S = 60.0
MOSQUITTO_TLS_PORT = 21884
WIDTH_WITHOUT_TERMINAL = 132


@dataclass
class Server:
    """A running server: where its doors are, which process to measure."""

    name: str
    pid: int
    doors: dict[str, str]
    data: str = ""
    """Its directory."""


def wide_console(width: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """Where tables are printed: without a terminal wide enough for all their columns."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


@contextmanager
def gantry(
    directory: Path, python: str = sys.executable, name: str = "gantry", settings: tuple[str, ...] = ()
) -> Iterator[Server]:
    """`gantry up` on free ports. `python`: the interpreter of the environment it is installed in."""
    ready = directory / "ready.json"
    command = [
        python,
        "-m",
        "gantrymq",
        "up",
        "--free-ports",
        "--data",
        str(directory / "data"),
        "--ready-file",
        str(ready),
        *[f"--set={setting}" for setting in settings],
    ]
    log = (directory / "log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"gantry up did not start:\n{(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield Server(name, process.pid, json.loads(ready.read_text()), str(directory / "data"))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def certify(directory: Path) -> Path:
    """A certificate for this machine, of an authority of its own."""
    made = directory / "certificates"
    made.mkdir()
    Authority(made, 2).issue("server", "localhost", ["localhost", "127.0.0.1"])
    return made


def with_tls(certificates: Path) -> tuple[str, ...]:
    """MQTT with and without TLS."""
    listeners = "mqtt.listeners=tcp://127.0.0.1:0,tls://127.0.0.1:0"
    return f"tls.cert={certificates}/server.pem", f"tls.key={certificates}/server.key", listeners


@contextmanager
def peer(name: str, directory: Path, sync: bool = False, certificates: Path | None = None) -> Iterator[Server]:
    """A real RocketMQ, Mosquitto or RabbitMQ on loopback. `sync`: RocketMQ with SYNC_FLUSH; `certificates`: Mosquitto with a TLS port, too."""
    script, work = PEERS / f"{name}.sh", directory / name
    ports = {"rocketmq": ["29876", "30911"], "mosquitto": ["21883"], "rabbitmq": ["25672"]}[name]
    more = {"RMQ_FLUSH": "SYNC_FLUSH"} if sync else {}
    if certificates:
        lines = f"listener {MOSQUITTO_TLS_PORT} 127.0.0.1\ncertfile {certificates}/server.pem\nkeyfile {certificates}/server.key\n"
        more["MOSQUITTO_CONF"] = lines
    subprocess.run(
        ["bash", str(script), "start", str(work), *ports],
        check=True, stdout=subprocess.DEVNULL, timeout=900, env={**os.environ, **more},
    )  # fmt: skip
    try:
        if name == "rocketmq":
            pid = int((work / "run" / "broker.pid").read_text())
            doors = {"nameserver": f"127.0.0.1:{ports[0]}", "broker": f"127.0.0.1:{ports[1]}"}
            yield Server(name, pid, doors, str(work / "store"))
        else:
            pid = int((work / "pid").read_text())
            yield Server(
                name,
                pid,
                {
                    "mqtt" if name == "mosquitto" else "amqp": f"127.0.0.1:{ports[0]}",
                    "mqtt.tls": f"127.0.0.1:{MOSQUITTO_TLS_PORT}",
                },
            )
    finally:
        subprocess.run(["bash", str(script), "stop", str(work)], check=False, stdout=subprocess.DEVNULL, timeout=120)
