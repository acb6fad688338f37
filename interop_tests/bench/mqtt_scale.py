"""`./run bench mqtt --scale`: very many MQTT clients and sessions on one server: memory each, and how soon all are back after kill -9.

usage: bench mqtt --scale [--connections N] [--sessions N] [--at-once N] [--filters N] [--directory DIR] [--json FILE]

The load comes from this process, from several loopback addresses, as one of them has 28,000 ports. Memory is RssAnon, processor time that of the server,
all threads. What the machine's limit of open files forbids is measured as far as it goes, and said.
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the load programs find each other so

from mqtt_load import cpu_seconds, exactly, packet, string, whole  # noqa: E402

PORTS_PER_ADDRESS: Final = 5_000
SPARE_DESCRIPTORS: Final = 1_100
"""Of the server: its files and other doors, 1,024, and some that come first."""
BIND_ADDRESS_NO_PORT: Final = 24
"""Linux: the port is chosen when the peer is known; else choosing takes long when many are used."""
BATCH: Final = 100
WIDTH_WITHOUT_TERMINAL: Final = 132
SAMPLE: Final = 1_000
READY_S: Final = 300.0
CONNACK_PRESENT: Final = b"\x20\x02\x01\x00"
CONNACK_NEW: Final = b"\x20\x02\x00\x00"
DISCONNECT: Final = b"\xe0\x00"


class Server:
    """`gantry up` in a directory that outlives it."""

    def __init__(self, directory: Path, settings: Sequence[str]) -> None:
        self._directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> float:
        """Until the doors are open; seconds."""
        ready, begun_s = self._directory / "ready.json", time.monotonic()
        ready.unlink(missing_ok=True)
        words = ["up", "--free-ports", "--data", str(self._directory / "data"), "--ready-file", str(ready)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gantrymq", *words, *[f"--set={text}" for text in self._settings]],
                stdout=log, stderr=log,
            )  # fmt: skip
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() - begun_s > READY_S:
                raise SystemExit(f"gantry up did not start:\n{(self._directory / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        self.port = int(json.loads(ready.read_text())["mqtt"].rpartition(":")[2])
        return time.monotonic() - begun_s

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(120)
            self._process = None

    def memory_bytes(self) -> int:
        """RssAnon."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    def cpu_s(self) -> float:
        """Processor time so far."""
        return float(cpu_seconds([self.pid]))


def connect(client_id: str, kept: bool = False) -> bytes:
    """CONNECT of MQTT 3.1.1, without keep-alive."""
    flags = 0 if kept else 2
    return bytes(packet(0x10, string("MQTT") + bytes((4, flags, 0, 0)) + string(client_id)))


def subscribe(topic_filter: str, packet_id: int = 1) -> bytes:
    """SUBSCRIBE with QoS 1."""
    return bytes(packet(0x82, packet_id.to_bytes(2, "big") + string(topic_filter) + b"\x01"))


def unconnected(number: int) -> socket.socket:
    """A socket with a source address by its number."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
    sock.bind((f"127.0.0.{2 + number // PORTS_PER_ADDRESS % 200}", 0))
    return sock


def dial(port: int, number: int) -> socket.socket:
    """A connection; its source address by its number."""
    sock = unconnected(number)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    return sock


def open_all(port: int, numbers: Sequence[int], packets: Callable[[int], bytes]) -> list[socket.socket]:
    """A connection for each number, with its CONNECT answered."""
    sockets = [dial(port, number) for number in numbers]
    for number, sock in zip(numbers, sockets, strict=True):
        sock.sendall(packets(number))
    for sock in sockets:
        if (answer := whole(sock))[3] != 0:
            raise SystemExit(f"CONNACK {answer.hex()}")
    return sockets


def batches(count: int) -> Iterator[range]:
    """Numbers, `BATCH` at once."""
    for first in range(0, count, BATCH):
        yield range(first, min(first + BATCH, count))


def idle(server: Server, count: int) -> dict[str, Any]:
    """Clients that connect and are silent."""
    held = open_all(server.port, range(count, count + 20), lambda n: connect(f"warm-{n}"))
    time.sleep(0.5)
    memory, cpu_s, begun_s = server.memory_bytes(), server.cpu_s(), time.monotonic()
    for numbers in batches(count):
        held += open_all(server.port, numbers, lambda n: connect(f"idle-{n}"))
    took_s, used_s = time.monotonic() - begun_s, server.cpu_s() - cpu_s
    grown = server.memory_bytes() - memory
    for sock in held:
        sock.close()
    return {"count": count, "per_s": count / took_s, "us": used_s / count * 1e6, "bytes": grown / count}


def filters(server: Server, count: int, kept: bool) -> dict[str, Any]:
    """One client after the other, each with so many filters that nobody had, one SUBSCRIBE each."""
    each = 500  # half of mqtt.subscriptions_max
    cpu_s, begun_s = server.cpu_s(), time.monotonic()
    for first in range(0, count, each):
        (sock,) = open_all(server.port, [first], lambda n: connect(f"filters-{kept}-{n}", kept))
        for number in range(first, first + each):
            sock.sendall(subscribe(f"filters/{kept}/{number}", number % each + 1))
            if whole(sock)[4] == 0x80:
                raise SystemExit("SUBACK refuses")
        sock.sendall(DISCONNECT)
        sock.close()
    used_s, took_s = server.cpu_s() - cpu_s, time.monotonic() - begun_s
    return {"count": count, "per_s": count / took_s, "us": used_s / count * 1e6}


def keep_sessions(server: Server, count: int, tell: Callable[[int], None]) -> dict[str, Any]:
    """Sessions that are kept, with a filter of its own each, whose clients leave."""
    memory, cpu_s, begun_s = server.memory_bytes(), server.cpu_s(), time.monotonic()
    for numbers in batches(count):
        sockets = open_all(server.port, numbers, lambda n: connect(f"kept-{n}", True))
        for number, sock in zip(numbers, sockets, strict=True):
            sock.sendall(subscribe(f"kept/{number}/in"))
        for sock in sockets:
            if whole(sock)[4] == 0x80:
                raise SystemExit("SUBACK refuses")
            sock.sendall(DISCONNECT)
        for sock in sockets:
            sock.settimeout(60)
            sock.recv(1)  # the server's end: the session is noted
            sock.close()
        tell(numbers.stop)
    took_s, used_s = time.monotonic() - begun_s, server.cpu_s() - cpu_s
    grown = server.memory_bytes() - memory
    return {"count": count, "per_s": count / took_s, "us": used_s / count * 1e6, "bytes": grown / count}


def at_once(server: Server, numbers: Sequence[int]) -> dict[str, Any]:
    """All these sessions' clients connect at the same moment: until the last one has its session."""
    cpu_s, begun_s = server.cpu_s(), time.monotonic()
    poll, waiting, held = select.epoll(), {}, []
    for number in numbers:
        sock = unconnected(number)
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", server.port))
        poll.register(sock.fileno(), select.EPOLLOUT)
        waiting[sock.fileno()] = (sock, number)
        held.append(sock)
    present, answered_s = 0, []
    while waiting:
        events = poll.poll(60)
        if not events:
            raise SystemExit(f"{len(waiting)} clients wait for a minute")
        for descriptor, _ in events:
            sock, number = waiting[descriptor]
            if number >= 0:
                sock.send(connect(f"kept-{number}", True))
                poll.modify(descriptor, select.EPOLLIN)
                waiting[descriptor] = (sock, -1)
                continue
            answer = exactly(sock, len(CONNACK_NEW))
            if answer not in (CONNACK_NEW, CONNACK_PRESENT):
                raise SystemExit(f"CONNACK {answer.hex()}")
            present += answer == CONNACK_PRESENT
            answered_s.append(time.monotonic() - begun_s)
            poll.unregister(descriptor)
            del waiting[descriptor]
    used_s = server.cpu_s() - cpu_s
    for sock in held:
        sock.close()
    return {"count": len(numbers), "seconds": answered_s[-1], "half_s": answered_s[len(answered_s) // 2],
            "us": used_s / len(numbers) * 1e6, "present": present}  # fmt: skip


def first_answer(server: Server, number: int) -> float:
    """Seconds until a client finds its session; refused ones come again, as clients do."""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < READY_S:
        sock = dial(server.port, 0)
        sock.sendall(connect(f"kept-{number}", True))
        answer = whole(sock)
        sock.close()
        if answer[3] == 0:
            if answer != CONNACK_PRESENT:
                raise SystemExit(f"session {number} is gone")
            return time.monotonic() - begun_s
        time.sleep(0.05)
    raise SystemExit("no session is served")


def descriptors() -> int:
    """How many files a process may have open here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    return int(hard)


@contextmanager
def running(directory: Path, sessions: int) -> Iterator[Server]:
    """A server of its own for each part, so that none finds memory that another one has left."""
    directory.mkdir(parents=True)
    server = Server(directory, (f"mqtt.sessions_max={sessions + 100_000}", "server.door_connections_max=1000000"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Report:
    """The rows of the table."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self.raw: dict[str, Any] = {}

    def add(self, what: str, measured: str, reach: str, raw: Any) -> None:
        """One of them."""
        self.rows.append((what, measured, reach))
        self.raw[what] = raw

    def show(self, console: Console) -> None:
        """Print it."""
        table = Table(title="MQTT at scale; processor time of the server, memory RssAnon")
        for title in ("what", "measured", "to reach"):
            table.add_column(title)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def kib(size: float) -> str:
    """Of bytes."""
    return f"{size / 1024:.2f} KiB each"


def measure_sessions(server: Server, args: argparse.Namespace, report: Report, console: Console) -> None:
    """What is kept, and after kill -9."""

    def tell(done: int) -> None:
        if done % 50_000 == 0:
            console.print(f"{done:,} sessions")

    kept = keep_sessions(server, args.sessions, tell)
    measured = f"{kib(kept['bytes'])}; {kept['us']:.0f} us, {kept['per_s']:,.0f}/s to connect, subscribe and leave"
    report.add(f"{args.sessions:,} kept sessions, a filter each", measured, "1 KiB each", kept)
    server.stop(signal.SIGKILL)
    begun_s = time.monotonic()
    opened_s = server.start()
    first_answer(server, args.sessions - 1)
    first_s = time.monotonic() - begun_s
    sampled = range(0, args.sessions, max(1, args.sessions // SAMPLE))
    sample = at_once(server, sampled)
    all_s = time.monotonic() - begun_s
    started = {"doors_s": opened_s, "first_s": first_s, "sample_s": all_s, "sample": sample, "cpu_s": server.cpu_s(),
               "bytes": server.memory_bytes() / args.sessions}  # fmt: skip
    found = f"the first session after {first_s:.1f} s, {sample['present']:,} of {len(sampled):,} spread ones after {all_s:.1f} s"
    report.add("doors open after kill -9", f"{opened_s:.1f} s; {found}", "15 s, all within 60 s", started)
    report.add("memory after that start, all of the process", kib(started["bytes"]), "1 KiB each", started)
    count = min(args.at_once, args.sessions, args.descriptors - SPARE_DESCRIPTORS)
    again = at_once(server, range(count))
    measured = f"{again['seconds']:.1f} s, half of them after {again['half_s']:.1f} s; {again['us']:.0f} us each; {again['present']:,} found their session"
    report.add(f"{count:,} clients connect at once", measured, "10 s", again)


def main(arguments: list[str]) -> int:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        prog="bench mqtt --scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=100_000, help="1,000,000 take half an hour")
    parser.add_argument("--at-once", type=int, default=10_000)
    parser.add_argument("--filters", type=int, default=5_000)
    parser.add_argument("--directory", type=Path, help="where the data lies meanwhile")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    report = Report()
    args.descriptors = descriptors()
    connections = min(args.connections, args.descriptors - SPARE_DESCRIPTORS)
    if connections < args.connections:
        console.print(
            f"a process may open {args.descriptors:,} files here: {connections:,} connections instead of {args.connections:,}"
        )
    directory = Path(tempfile.mkdtemp(prefix="gantry-scale-", dir=args.directory))
    try:
        if connections > 0:
            with running(directory / "idle", 0) as server:
                got = idle(server, connections)
            measured = f"{kib(got['bytes'])}; {got['us']:.0f} us, {got['per_s']:,.0f}/s to connect"
            report.add(f"{connections:,} idle connections", measured, "8 KiB each, 6,000/s", got)
        for kept in (False, True) if args.filters else ():
            with running(directory / f"filters-{kept}", 0) as server:
                got = filters(server, args.filters, kept)
            name = "kept" if kept else "clean"
            report.add(f"a SUBSCRIBE with a new filter, {name} session", f"{got['us']:.0f} us", "200 us", got)
        if args.sessions:
            with running(directory / "sessions", args.sessions) as server:
                measure_sessions(server, args, report, console)
    finally:
        report.show(console)
        shutil.rmtree(directory, ignore_errors=True)
    if args.json is not None:
        args.json.write_text(json.dumps(report.raw, indent=1))
    return 0
