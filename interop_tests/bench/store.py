"""`./run bench store`: the store alone, in this process, against the ratios that it has to reach.

usage: bench store [--quick] [--only WORD ...] [--directory DIR] [--json FILE]

Every case stands in a directory of its own, removed afterwards; at most 5 GiB at a time. Where two figures make a ratio they are
taken in turns, in one run, and the best round of each counts: another program on the machine disturbs a round, never helps one.
For the same reason appends count by CPU time, and latencies are told twice: as the clock saw them, and without the time in which a thread could
have run and another one had the CPU (the second figure of /proc/PID/task/TID/schedstat). Waiting for a lock, the interpreter's too, or the disk stays in.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gantrymq.clock import SystemClock
from gantrymq.model.message import Message
from gantrymq.server import GC_YOUNG_MAX
from gantrymq.store.cold import Cold, ColdReads
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.flusher import Flusher
from gantrymq.store.message_store import MessageStore
from gantrymq.store.segments import Removal

BATCH: Final = 256
"""Records per append: what a loaded broker gathers in one turn of its loop."""
PULL_BYTES: Final = 256 * 1024
"""A pull's default size."""
PING_S: Final = 0.001
"""Between two sends of the program that measures their latency."""
MIB: Final = 1024 * 1024
LIGHTS: Final = 20_000
"""Light queues that records are spread over where light queues take part."""
ROUNDS: Final = 3
"""Of each side of a ratio of latencies."""


@dataclass
class Row:
    """One line of the table."""

    name: str
    target: str
    result: str
    reached: bool
    raw: dict[str, Any]


@contextmanager
def opened(directory: Path, **settings: Any) -> Iterator[MessageStore]:
    """A new store, closed and removed at the end."""
    store = MessageStore(OsFileSystem(), directory, StoreConfig(**settings), SystemClock())
    store.load()
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(directory, ignore_errors=True)


def batches(count: int, body: bytes, batch: int = BATCH) -> list[list[Message]]:
    """Messages as a door makes them, with UNIQ_KEY, over four queues."""
    return [
        [
            Message("Bench", body, b"UNIQ_KEY\x01%032d\x02" % number, "", (f"{number:032d}",), number & 3)
            for number in range(first, first + batch)
        ]
        for first in range(0, count, batch)
    ]


def append_all(store: MessageStore, work: list[list[Message]]) -> None:
    """Append everything, with the deferred work as a broker does it."""
    lights = [()] * len(work[0])
    for number, batch in enumerate(work):
        store.append(batch, lights)
        if number % 4 == 3:
            while store.run_background(1000):
                pass
    while store.run_background(1000):
        pass
    store.flush_derived()


def append_small(directory: Path, quick: bool) -> Row:
    """128-byte bodies, queue and index included."""
    count = 51_200 if quick else 307_200
    rates, cpu = [], []
    for turn in range(3):
        work = batches(count, b"x" * 128)
        with opened(directory / str(turn)) as store:
            begun, used = time.perf_counter(), time.process_time()
            append_all(store, work)
            rates.append(count / (time.perf_counter() - begun))
            cpu.append((time.process_time() - used) / count * 1e6)
    raw = {"per_s": rates, "cpu_us": cpu}
    return Row(
        "append, 128-byte bodies, with queue and index", "300,000/s",
        f"{1e6 / min(cpu):,.0f} per second of CPU ({min(cpu):.2f} us; {max(rates):,.0f}/s by the clock)", 1e6 / min(cpu) >= 300_000, raw,
    )  # fmt: skip


def plain_loop(directory: Path, records: list[bytes], file_size: int) -> float:
    """One pwrite per record into fresh segments; bytes/s."""
    directory.mkdir()
    at, handle, total = file_size, -1, 0
    begun = time.perf_counter()
    for record in records:
        if at + len(record) > file_size:
            if handle >= 0:
                os.close(handle)
            handle = os.open(directory / str(total), os.O_RDWR | os.O_CREAT)
            os.ftruncate(handle, file_size)
            at = 0
        os.pwrite(handle, record, at)
        at += len(record)
        total += len(record)
    rate = total / (time.perf_counter() - begun)
    os.close(handle)
    shutil.rmtree(directory)
    return rate


def append_large(directory: Path, quick: bool) -> Row:
    """16 KiB bodies against a loop of pwrite."""
    count = 8_192 if quick else 16_384
    body = random.Random(1).randbytes(16 * 1024)
    ours, plain = [], []
    for turn in range(4):
        work = batches(count, body, 64)
        with opened(directory / str(turn)) as store:
            flusher = Flusher(store, 60_000, False, lambda callback, value: None)
            flusher.start()
            begun = time.perf_counter()
            append_all(store, work)
            ours.append(store.written_position / (time.perf_counter() - begun))
            size = store.written_position // count
            flusher.stop()
        plain.append(plain_loop(directory / "plain", [body + bytes(size - len(body))] * count, 128 * MIB))
    ratio = max(ours) / max(plain)
    return Row(
        "append, 16 KiB bodies, against a loop of pwrite", ">= 0.7 x",
        f"{ratio:.2f} x ({max(ours) / MIB:,.0f} of {max(plain) / MIB:,.0f} MiB/s)", ratio >= 0.7, {"ours": ours, "plain": plain},
    )  # fmt: skip


def sync_flush(directory: Path, quick: bool) -> Row:
    """64 writers, each waiting for its record, against one fdatasync per record."""
    count = 6_400 if quick else 64_000
    writers, single, grouped = 64, [], []
    for turn in range(3):
        with opened(directory / str(turn)) as store:
            store.reserve_ahead()
            some = count // 64
            work = batches(some, b"x" * 128, 1)
            begun = time.perf_counter()
            for batch in work:
                store.append(batch, [()])
                store.flush()
            single.append(some / (time.perf_counter() - begun))
            arrived: SimpleQueue[Any] = SimpleQueue()

            def post(_: object, value: object, arrived: SimpleQueue[Any] = arrived) -> None:
                arrived.put(value)

            flusher = Flusher(store, 60_000, True, post)
            flusher.start()
            work = batches(count, b"x" * 128, writers)
            begun = time.perf_counter()
            for batch in work:
                end = store.append(batch, [()] * writers)
                flusher.request()
                while arrived.get() < end:
                    pass
            grouped.append(count / (time.perf_counter() - begun))
            flusher.stop()
    ratio = max(grouped) / max(single)
    return Row(
        "synchronous flush, 64 writers, against one fdatasync each", ">= 20 x",
        f"{ratio:.0f} x ({max(grouped):,.0f} of {max(single):,.0f}/s)", ratio >= 20, {"grouped": grouped, "single": single},
    )  # fmt: skip


def raw_read(directory: Path, quick: bool) -> Row:
    """A queue from its begin to its end, as raw blocks."""
    count = 102_400 if quick else 512_000
    rates = []
    with opened(directory / "read") as store:
        for batch in batches(count, b"x" * 128):
            for message in batch:
                message.queue_id = 0
            store.append(batch, [()] * BATCH)
            store.run_background(1000)
        store.flush_derived()
        store.read_without_waiting(ColdReads(store.files, lambda callback, value: None))
        for _ in range(5):
            offset = 0
            begun = time.perf_counter()
            while offset < count:
                units = store.units("Bench", 0, offset, 1024)
                _, taken = store.read_records(units, PULL_BYTES)
                offset += taken
            rates.append(count / (time.perf_counter() - begun))
    return Row(
        "sequential read, raw blocks", "2,000,000/s", f"{max(rates):,.0f}/s", max(rates) >= 2_000_000, {"per_s": rates}
    )


def key_query(directory: Path, quick: bool) -> Row:
    """Queries by key on a full IndexFile."""
    entries = 1_000_000 if quick else 19_900_000
    rng = random.Random(2)
    with opened(directory / "query") as store:
        append_all(store, batches(51_200, b"x" * 128))
        file = store._index.list[-1]
        now = store._clock.now_ms()
        for _ in range(entries // 100_000):
            hashes = [rng.getrandbits(31) for _ in range(100_000)]
            file.add_run([(hashed, 1 << 40, now) for hashed in hashes], 0)
            store.flush_derived()
        keys = [f"{rng.randrange(51_200):032d}" for _ in range(4_000)]
        store.read_without_waiting(ColdReads(store.files, lambda callback, value: None))
        spent = []
        for turn in range(2):
            for key in keys:
                begun = time.perf_counter()
                [found] = store.query("Bench", key, 32, 0, 1 << 60)
                if turn:
                    spent.append((time.perf_counter() - begun) * 1e3)
                assert key.encode() in found.properties
    p50, p99 = at_share(spent, 0.5), at_share(spent, 0.99)
    return Row(
        f"query by key among {entries + 51_200:,} entries, warm", "< 1 ms", f"median {p50:.3f} ms, p99 {p99:.3f} ms", p99 < 1,
        {"p50_ms": p50, "p99_ms": p99},
    )  # fmt: skip


def at_share(values: list[float], share: float) -> float:
    """A quantile."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class Scanner:
    """A cold reader: the queue from its begin, a pull at a time, each in a turn of the loop of its own."""

    def __init__(self, store: MessageStore, loop: asyncio.AbstractEventLoop, stop_at: int) -> None:
        self._store = store
        self._loop = loop
        self.stop_at = stop_at
        self.offset = 0
        self.bytes = 0
        self.done = asyncio.Event()

    def step(self, _token: object = None) -> None:
        store = self._store
        try:
            units = store.units("Old", 0, self.offset, 64)
            pieces, taken = store.read_records(units, PULL_BYTES)
        except Cold as cold:
            store.fetch(cold, self, self.step)
            return
        self.offset += taken
        self.bytes += sum([len(piece) for piece in pieces])
        if self.offset >= self.stop_at or self.done.is_set():
            self.done.set()
        else:
            self._loop.call_soon(self.step)


class HotSends(asyncio.Protocol):
    """Each byte that comes is a send: one record is appended, one byte goes back."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._number = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._number += 1
        key = f"S{self._number:031d}"
        message = Message("Hot", bytes(1024), b"UNIQ_KEY\x01%b\x02" % key.encode(), "", (key,), self._number & 3)
        self._store.append([message], [()])
        self._transport.write(b"!")


PINGER: Final = """
import json, os, socket, sys, time
link = socket.socket(fileno=int(sys.argv[1]))
queues = [os.open(path, os.O_RDONLY) for path in sys.argv[4:] + ["/proc/thread-self/schedstat"]]
waited = lambda: sum(int(os.pread(queue, 64, 0).split()[1]) for queue in queues) / 1e6
spent, end = [], time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    before = waited()
    begun = time.perf_counter()
    link.send(b"?")
    link.recv(1)
    took = (time.perf_counter() - begun) * 1e3
    spent.append((took, max(took - waited() + before, 0)))
    time.sleep(float(sys.argv[3]))
print(json.dumps(spent))
"""


async def ping(store: MessageStore, seconds: float) -> tuple[float, float]:
    """p99 in ms of sends over a socket pair, measured by a process of its own: by the clock, and without waiting for a CPU."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.connect_accepted_socket(lambda: HotSends(store), ours)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PINGER, str(theirs.fileno()), str(seconds), str(PING_S), schedstat(),
        pass_fds=[theirs.fileno()], stdout=subprocess.PIPE,
    )  # fmt: skip
    theirs.close()
    out, _ = await child.communicate()
    transport.close()
    found = json.loads(out)
    return at_share([raw for raw, _ in found], 0.99), at_share([own for _, own in found], 0.99)


def schedstat() -> str:
    """Where the kernel says how long this thread has waited for a CPU."""
    return f"/proc/{os.getpid()}/task/{threading.get_native_id()}/schedstat"


def fill_old(directory: Path, size: int) -> int:
    """A store with `size` bytes of records in one queue, none of them in memory; returns their number."""
    store = MessageStore(OsFileSystem(), directory, StoreConfig(), SystemClock())
    store.load()
    body = random.Random(3).randbytes(4096)
    count = 0
    while store.written_position < size:
        store.append([Message("Old", body, queue_id=0) for _ in range(BATCH)], [()] * BATCH)
        count += BATCH
        store.run_background(1000)
    store.close()
    forget(directory)
    return count


def forget(directory: Path) -> None:
    """Have the kernel drop what it holds of log and queues in memory."""
    for part in ("commitlog", "consumequeue"):
        for path in (directory / "store" / part).rglob("0*"):
            if path.is_file():
                handle = os.open(path, os.O_RDONLY)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)


def cold_reader(directory: Path, quick: bool) -> Row:
    """Latency of sends while a cold reader scans everything."""
    size = (256 if quick else 2304) * MIB
    count = fill_old(directory / "cold", size)
    store = MessageStore(OsFileSystem(), directory / "cold", StoreConfig(), SystemClock())
    store.load()

    async def measure() -> tuple[list[tuple[float, float]], list[tuple[float, float]], int, int]:
        loop = asyncio.get_running_loop()
        cold = ColdReads(store.files, loop.call_soon_threadsafe)
        store.read_without_waiting(cold)
        flusher = Flusher(store, 500, False, loop.call_soon_threadsafe)
        flusher.start()
        await ping(store, 0.5)
        alone, beside = [], []
        read = 0
        for _ in range(ROUNDS):
            alone.append(await ping(store, 3))
            forget(directory / "cold")
            scanner = Scanner(store, loop, count)
            scanner.step()
            beside.append(await ping(store, 3))
            await scanner.done.wait()
            read += scanner.bytes
        flusher.stop()
        cold.stop()
        return alone, beside, read, cold.fetched

    try:
        alone, beside, read, fetched = run_on_loop(measure)
    finally:
        store.close()
        shutil.rmtree(directory / "cold")
    (raw, own), (raw_alone, own_alone) = [
        (min([raw for raw, _ in found]), min([own for _, own in found])) for found in (beside, alone)
    ]
    return Row(
        f"p99 of sends while a cold reader scans {size / (1 << 30):.2f} GiB", "< 3 x alone",
        f"{own / own_alone:.2f} x ({own:.3f} of {own_alone:.3f} ms) without waits for a CPU, {raw / raw_alone:.2f} x ({raw:.3f} of {raw_alone:.3f} ms) with; {fetched // ROUNDS:,} reads a scan",
        own / own_alone < 3, {"alone_p99_ms": alone, "beside_p99_ms": beside, "bytes": read, "fetched": fetched},
    )  # fmt: skip


def run_on_loop(function: Callable[[], Any]) -> Any:
    """On uvloop and with the collector's settings, as the server does."""
    import uvloop

    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_MAX, 10, 10)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(function())


class RunQueue:
    """How long this thread has waited for a CPU."""

    def __init__(self) -> None:
        self._handle = os.open(schedstat(), os.O_RDONLY)

    def ms(self) -> float:
        """Since it began."""
        return int(os.pread(self._handle, 64, 0).split()[1]) / 1e6

    def close(self) -> None:
        os.close(self._handle)


class Retention:
    """Takes the oldest segment away, a slice in a turn; its files are unlinked by a thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._removal: Removal | None = None
        self.removed = 0

    def step(self) -> None:
        """A slice, if there is something old."""
        store = self._store
        if self._removal is None:
            oldest = store.segments.oldest(store.written_position)
            self._removal = store.segments.removal(oldest[1]) if oldest is not None else None
        removal = self._removal
        if removal is None:
            return
        try:
            done = removal.step(1000)
        except Cold as cold:
            store.fetch(cold, removal, lambda _: None)
            return
        if done:
            self._removal = None
            self.removed += 1
            threading.Thread(target=removal.unlink).start()


def loop_stall(directory: Path, quick: bool) -> Row:
    """Longest turn of the loop under appends into queues and light queues, flushes, a cold reader and retention."""
    size = (512 if quick else 2048) * MIB
    count = fill_old(directory / "stall", size)
    store = MessageStore(OsFileSystem(), directory / "stall", StoreConfig(flush_interval_ms=100), SystemClock())
    store.load()
    seconds = 4 if quick else 12

    async def measure() -> tuple[list[float], list[float], list[float], int, int]:
        loop = asyncio.get_running_loop()
        cold = ColdReads(store.files, loop.call_soon_threadsafe)
        store.read_without_waiting(cold)
        flusher = Flusher(store, 100, False, loop.call_soon_threadsafe)
        flusher.start()
        scanner = Scanner(store, loop, count)
        scanner.offset = count // 2  # the first half is for retention
        scanner.step()
        retention = Retention(store)
        clock: list[float] = []
        turns: list[float] = []
        used: list[float] = []
        queue, more = RunQueue(), False
        begun = time.perf_counter()
        end = begun + seconds
        work = batches(BATCH * 64, b"x" * 1024, 64)
        number = 0
        last, waited, cpu = begun, queue.ms(), time.thread_time()
        while last < end:
            lights = [(number * 64 + at) % LIGHTS + 1 for at in range(64)]
            store.append(work[number % len(work)], [(light, LIGHTS + 1) for light in lights])
            number += 1
            if more or number % 8 == 0:
                more = store.run_background(1000)
            elif retention.removed < (last - begun) / seconds * size / 2 // store.segments.file_size:
                retention.step()
            await asyncio.sleep(0)
            now = time.perf_counter()
            used.append((time.thread_time() - cpu) * 1e3)
            clock.append((now - last) * 1e3)
            turns.append(max(clock[-1] - queue.ms() + waited, 0))
            await asyncio.sleep(0.002)
            waited, cpu, last = queue.ms(), time.thread_time(), time.perf_counter()
        scanner.done.set()
        flusher.stop()
        cold.stop()
        queue.close()
        return clock, turns, used, number * 64, retention.removed

    try:
        clock, turns, used, appended, removed = run_on_loop(measure)
    finally:
        store.close()
        shutil.rmtree(directory / "stall")
    rounds = [slice(len(turns) * at // ROUNDS, len(turns) * (at + 1) // ROUNDS) for at in range(ROUNDS)]
    p999, cpu, raw_p999 = [min([at_share(some[part], 0.999) for part in rounds]) for some in (turns, used, clock)]
    raw = {
        "p50_ms": at_share(turns, 0.5),
        "p99_ms": at_share(turns, 0.99),
        "p999_ms": [at_share(turns[part], 0.999) for part in rounds],
        "max_ms": max(turns),
        "clock_p999_ms": [at_share(clock[part], 0.999) for part in rounds],
        "clock_max_ms": max(clock),
        "cpu_p999_ms": [at_share(used[part], 0.999) for part in rounds],
        "cpu_max_ms": max(used),
        "appended": appended,
        "removed": removed,
    }
    return Row(
        "turns of the loop: append + flush + cold read + retention", "p99.9 < 2 ms",
        f"p99.9 {p999:.2f} ms (of it CPU {cpu:.2f}) without waits for a CPU, {raw_p999:.2f} ms with, in the best third; longest {max(turns):.0f} and {max(clock):.0f} ms; {removed} segments removed in {len(turns):,} turns",
        p999 < 2, raw,
    )  # fmt: skip


CASES: Final = {
    "append small": append_small,
    "append large": append_large,
    "sync flush": sync_flush,
    "raw read": raw_read,
    "key query": key_query,
    "cold reader": cold_reader,
    "loop stall": loop_stall,
}


def main(arguments: list[str]) -> int:
    """The table; exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="bench store", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller: shows that it works")
    parser.add_argument(
        "--only", nargs="+", default=[], help="cases whose name contains one of these words: " + ", ".join(CASES)
    )
    parser.add_argument(
        "--directory", type=Path, help="where the stores lie: the disk to measure (a temporary directory)"
    )
    parser.add_argument("--json", type=Path, help="write every raw figure here")
    args = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    chosen = {name: case for name, case in CASES.items() if not args.only or any(word in name for word in args.only)}
    rows: list[Row] = []
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    directory = Path(tempfile.mkdtemp(prefix="gantry-bench-store-", dir=args.directory))
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(chosen))
            for name, case in chosen.items():
                progress.update(task, description=name)
                rows.append(case(directory, args.quick))
                progress.advance(task)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    table = Table(title="the store, in process")
    for header in ("case", "to reach", "reached"):
        table.add_column(header, no_wrap=header == "case")
    for row in rows:
        table.add_row(row.name, row.target, f"[{'green' if row.reached else 'red'}]{row.result}")
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps({row.name: row.raw for row in rows}, indent=1))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
