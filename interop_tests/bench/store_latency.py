"""The latency cases of `./run bench store`: what a send waits beside a cold reader, and how long one turn of the loop takes.

Latencies are told twice: as the clock saw them, and without what other programs took: the time in which a thread could have run and another
one had the CPU (the second figure of /proc/PID/task/TID/schedstat). A turn in which the thread never gave its CPU away of itself cannot have
waited for anything, a lock, the interpreter's or the disk: such a turn counts by its CPU time, because the rest is the hypervisor's. Where it
did, the time in which another thread of ours, perhaps the lock's holder, was kept from a CPU is taken out as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gantrymq.clock import SystemClock
from gantrymq.model.message import Message
from gantrymq.store.cold import Cold, ColdReads
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.flusher import Flusher
from gantrymq.store.message_store import MessageStore
from gantrymq.store.retention.segments import Removal
from interop_tests.bench.store_rows import BATCH, MIB, PULL_BYTES, Row, as_served, at_share, batches

PING_S: Final = 0.001
"""Between two sends of the program that measures their latency."""
WINDOW_S: Final = 2.0
"""Sends are measured for so long at a time."""
WINDOWS: Final = 3
"""Of those without the reader, and at least of those beside it."""
LIGHTS: Final = 20_000
"""Light queues that records are spread over."""
ROUNDS: Final = 3
"""Parts of the measured turns, of which the best counts: another program disturbs a part, never helps one."""
TURN_RECORDS: Final = 32
TURN_PAUSE_S: Final = 0.001
"""32 records of a kilobyte, and a pause: some 15,000 records/s, each in its queue, in two light queues and in the index."""
CHECKPOINT_MS: Final = 2000
"""More often than by default, so that checkpoints take part."""


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
    size = (256 if quick else 4096) * MIB
    count = fill_old(directory / "cold", size)
    store = MessageStore(OsFileSystem(), directory / "cold", StoreConfig(), SystemClock())
    store.load()

    async def measure() -> tuple[list[tuple[float, float]], list[tuple[float, float]], int, int]:
        loop = asyncio.get_running_loop()
        cold = ColdReads(store.files, loop.call_soon_threadsafe)
        store.read_without_waiting(cold)
        flusher = Flusher(store, 500, loop.call_soon_threadsafe)
        flusher.start()
        await ping(store, 0.5)
        alone = [await ping(store, WINDOW_S) for _ in range(WINDOWS - 1)]
        beside: list[tuple[float, float]] = []
        read = 0
        while len(beside) < WINDOWS:
            forget(directory / "cold")
            scanner = Scanner(store, loop, count)
            scanner.step()
            while not scanner.done.is_set():
                beside.append(await ping(store, WINDOW_S))
            read += scanner.bytes
        alone.append(await ping(store, WINDOW_S))
        flusher.stop()
        cold.stop()
        return alone, beside, read, cold.fetched

    try:
        alone, beside, read, fetched = run_on_loop(measure)
    finally:
        store.close()
        shutil.rmtree(directory / "cold")
    (raw, own), (raw_alone, own_alone) = [
        (at_share([raw for raw, _ in found], 0.5), at_share([own for _, own in found], 0.5))
        for found in (beside, alone)
    ]
    return Row(
        f"p99 of sends while a cold reader scans {size / (1 << 30):.2f} GiB", "< 3 x alone",
        f"{own / own_alone:.2f} x ({own:.3f} of {own_alone:.3f} ms) without waits for a CPU, {raw / raw_alone:.2f} x ({raw:.3f} of {raw_alone:.3f} ms) with; "
        f"medians of {len(beside)} and {len(alone)} windows; {fetched:,} reads for {read / (1 << 30):.1f} GiB",
        own / own_alone < 3, {"alone_p99_ms": alone, "beside_p99_ms": beside, "bytes": read, "fetched": fetched},
    )  # fmt: skip


def run_on_loop(function: Callable[[], Any]) -> Any:
    """On uvloop and with the server's settings of the collector and the interpreter."""
    import uvloop

    with as_served(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(function())


class RunQueues:
    """How long threads of this process have waited for a CPU."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}
        self._mine = threading.get_native_id()

    def ms(self) -> tuple[float, float]:
        """(the calling thread, all others), each since it began."""
        waits = {}
        for thread in threading.enumerate():
            number = thread.native_id
            if number is None:
                continue
            try:
                if number not in self._handles:
                    self._handles[number] = os.open(f"/proc/{os.getpid()}/task/{number}/schedstat", os.O_RDONLY)
                waits[number] = int(os.pread(self._handles[number], 64, 0).split()[1]) / 1e6
            except (OSError, IndexError):  # it has ended
                continue
        mine = waits.pop(self._mine)
        return mine, sum(waits.values())

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)


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
            asyncio.get_running_loop().run_in_executor(None, removal.unlink)


@dataclass
class Turns:
    """What turns of the loop took, in ms each."""

    clock: list[float] = field(default_factory=list)
    net: list[float] = field(default_factory=list)
    """Without waits for a CPU."""
    cpu: list[float] = field(default_factory=list)
    blocked: int = 0
    """Turns in which the thread gave its CPU away: it waited for a lock, or the disk."""

    def shares(self, share: float) -> list[float]:
        """The quantile of clock, net and CPU in the best part of each."""
        length = len(self.clock)
        parts = [slice(length * at // ROUNDS, length * (at + 1) // ROUNDS) for at in range(ROUNDS)]
        return [min([at_share(some[part], share) for part in parts]) for some in (self.clock, self.net, self.cpu)]

    def raw(self) -> dict[str, Any]:
        """For --json: over all turns."""
        shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
        return {
            "turns": len(self.clock),
            "blocked": self.blocked,
            **{f"{kind}_{name}_ms": at_share(some, share)
               for kind, some in (("clock", self.clock), ("net", self.net), ("cpu", self.cpu)) for name, share in shares.items()},
        }  # fmt: skip


class Watch:
    """Times one turn after the other."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._queues = RunQueues()

    def begin(self) -> None:
        """A turn begins."""
        self._waits = self._queues.ms()
        self._given = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        self._cpu, self._clock = time.thread_time(), time.perf_counter()

    def end(self) -> None:
        """It has ended."""
        clock = (time.perf_counter() - self._clock) * 1e3
        cpu = (time.thread_time() - self._cpu) * 1e3
        given = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        mine, others = [after - before for after, before in zip(self._queues.ms(), self._waits, strict=True)]
        net = max(clock - mine, 0)
        if given == self._given:
            net = min(net, cpu)
        else:
            net = max(net - max(others, 0), min(net, cpu))
            self.turns.blocked += 1
        self.turns.clock.append(clock)
        self.turns.net.append(net)
        self.turns.cpu.append(cpu)

    def close(self) -> None:
        self._queues.close()


async def machine_turns(seconds: float, turn_ms: float) -> Turns:
    """What the machine alone does to turns: a loop of nothing, as long as the median turn."""
    watch, steps = Watch(), 1000
    begun = time.thread_time()
    for _ in range(100 * steps):
        pass
    steps = max(int(100 * steps * turn_ms / 1e3 / (time.thread_time() - begun)), 1)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        watch.begin()
        for _ in range(steps):
            pass
        await asyncio.sleep(0)
        watch.end()
        await asyncio.sleep(TURN_PAUSE_S)
    watch.close()
    return watch.turns


def loop_stall(directory: Path, quick: bool) -> Row:
    """Turns of the loop under appends into queues and light queues, flushes, checkpoints, a cold reader and retention."""
    size = (512 if quick else 2048) * MIB
    count = fill_old(directory / "stall", size)
    config = StoreConfig(flush_interval_ms=100, checkpoint_interval_ms=CHECKPOINT_MS)
    store = MessageStore(OsFileSystem(), directory / "stall", config, SystemClock())
    store.load()
    seconds = 4 if quick else 18

    async def measure() -> tuple[Turns, Turns, int, int]:
        loop = asyncio.get_running_loop()
        cold = ColdReads(store.files, loop.call_soon_threadsafe)
        store.read_without_waiting(cold)
        flusher = Flusher(store, 100, loop.call_soon_threadsafe)
        flusher.start()
        scanner = Scanner(store, loop, count)
        scanner.offset = count // 2  # the first half is for retention
        scanner.step()
        retention = Retention(store)
        watch, number, more = Watch(), 0, False
        work = batches(TURN_RECORDS * 512, b"x" * 1024, TURN_RECORDS)
        now = begun = time.perf_counter()
        while now < begun + seconds:
            watch.begin()
            first = number * TURN_RECORDS
            store.append(
                work[number % len(work)], [((first + at) % LIGHTS + 1, LIGHTS + 1) for at in range(TURN_RECORDS)]
            )
            number += 1
            if more or number % 8 == 0:
                more = store.run_background(1000)
            elif retention.removed < (now - begun) / seconds * size / 2 // store.segments.file_size:
                retention.step()
            await asyncio.sleep(0)
            watch.end()
            await asyncio.sleep(TURN_PAUSE_S)
            now = time.perf_counter()
        scanner.done.set()
        alone = await machine_turns(seconds / 6, at_share(watch.turns.cpu, 0.5))
        flusher.stop()
        cold.stop()
        watch.close()
        return watch.turns, alone, scanner.bytes, retention.removed

    try:
        turns, alone, scanned, removed = run_on_loop(measure)
    finally:
        store.close()
        shutil.rmtree(directory / "stall")
    clock, net, cpu = turns.shares(0.999)
    machine_clock, machine_net, _ = alone.shares(0.999)
    return Row(
        "turns of the loop: append + flush + cold read + retention", "p99.9 < 2 ms",
        f"p99.9 {net:.2f} ms (CPU {cpu:.2f}) without what other programs took, {clock:.2f} ms with; a loop of nothing as long as the median ({at_share(turns.cpu, 0.5):.2f} ms): "
        f"{machine_net:.2f} and {machine_clock:.2f} ms; {len(turns.clock):,} turns, {turns.blocked} waited for a lock or the disk; {removed} segments removed, {scanned / (1 << 30):.1f} GiB scanned",
        net < 2, {**turns.raw(), "machine": alone.raw(), "removed": removed, "scanned": scanned},
    )  # fmt: skip
