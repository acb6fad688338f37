"""`./run bench store`: the store alone, in this process, against the ratios that it has to reach.

usage: bench store [--quick] [--only WORD ...] [--directory DIR] [--json FILE]

Every case stands in a directory of its own, removed afterwards; at most 5 GiB at a time. Where two figures make a ratio they are
taken in turns, in one run, and the best round of each counts: another program on the machine disturbs a round, never helps one.
For the same reason appends count by CPU time; store_latency.py tells how latencies are measured. The whole takes some 5 minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gantrymq.store.cold import ColdReads
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.flusher import Flusher
from gantrymq.store.index.index_file import Index
from gantrymq.store.message_store import MessageStore
from interop_tests.bench.servers import wide_console
from interop_tests.bench.store_latency import cold_reader, loop_stall
from interop_tests.bench.store_rows import BATCH, MIB, PULL_BYTES, Row, as_served, at_share, batches, opened, warmly

INDEX_SLICE: Final = 333
"""Records that the background work indexes at once; it writes entries after 1,665."""
KEYS_PER_MS: Final = 100
"""Of one client: what stands before the counter in its UNIQ_KEYs is the same for so many."""
LIGHT_ENTRIES: Final = 3
SYNC_PARTS: Final = 10
"""Messages for a tenth at a time: a broker writes what has just come, not what the processor's caches have forgotten."""


def append_all(store: MessageStore, work: list[list[Any]]) -> None:
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


def plain_loop(directory: Path, records: list[bytes], file_size: int) -> tuple[float, float]:
    """One pwrite per record into fresh segments; bytes per second by the clock and of CPU."""
    directory.mkdir()
    at, handle, total = file_size, -1, 0
    begun, used = time.perf_counter(), time.process_time()
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
    rates = total / (time.perf_counter() - begun), total / (time.process_time() - used)
    os.close(handle)
    shutil.rmtree(directory)
    return rates


def append_large(directory: Path, quick: bool) -> Row:
    """16 KiB bodies against a loop of pwrite."""
    count = 8_192 if quick else 16_384
    body = random.Random(1).randbytes(16 * 1024)
    ours, plain = [], []
    for turn in range(4):
        work = batches(count, body, 64)
        with opened(directory / str(turn)) as store:
            flusher = Flusher(store, 60_000, lambda callback, value: None)
            flusher.start()
            begun, used = time.perf_counter(), time.process_time()
            append_all(store, work)
            end = store.written_position
            ours.append((end / (time.perf_counter() - begun), end / (time.process_time() - used)))
            flusher.stop()
        plain.append(plain_loop(directory / "plain", [body + bytes(end // count - len(body))] * count, 128 * MIB))
    clock, cpu = [
        max(mine) / max(theirs) for mine, theirs in zip(zip(*ours, strict=True), zip(*plain, strict=True), strict=True)
    ]
    return Row(
        "append, 16 KiB bodies, against a loop of pwrite", ">= 0.7 x",
        f"{cpu:.2f} x per second of CPU, {clock:.2f} x by the clock ({max(ours)[0] / MIB:,.0f} of {max(plain)[0] / MIB:,.0f} MiB/s)",
        clock >= 0.7, {"ours": ours, "plain": plain},
    )  # fmt: skip


def sync_flush(directory: Path, quick: bool) -> Row:
    """64 writers, each waiting for its record, against one fdatasync per record."""
    count = 6_400 if quick else 64_000
    writers, single, grouped = 64, [], []
    for turn in range(3 if quick else 8):
        with opened(directory / str(turn)) as store:
            store.reserve_ahead()
            some = count // 64
            work = batches(some, b"x" * 128, 1)
            with as_served():
                begun = time.perf_counter()
                for batch in work:
                    store.append(batch, [()])
                    store.flush()
                single.append(some / (time.perf_counter() - begun))
            arrived: SimpleQueue[Any] = SimpleQueue()

            def post(_: object, value: object, arrived: SimpleQueue[Any] = arrived) -> None:
                arrived.put(value)

            flusher = Flusher(store, 60_000, post)
            flusher.start()
            spent = 0.0
            for _ in range(SYNC_PARTS):
                work = batches(count // SYNC_PARTS, b"x" * 128, writers)
                with as_served():
                    begun = time.perf_counter()
                    for batch in work:
                        end = store.append(batch, [()] * writers)
                        flusher.request()
                        while arrived.get() < end:
                            pass
                    spent += time.perf_counter() - begun
            grouped.append(count / spent)
            flusher.stop()
    ratio = max(grouped) / max(single)
    return Row(
        "synchronous flush, 64 writers, against one fdatasync each", ">= 20 x",
        f"{ratio:.0f} x ({max(grouped):,.0f} of {max(single):,.0f}/s)", ratio >= 20, {"grouped": grouped, "single": single},
    )  # fmt: skip


def raw_read(directory: Path, quick: bool) -> Row:
    """A queue from its begin to its end, as raw blocks."""
    count = 102_400 if quick else 512_000
    rates, cpu = [], []
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
            begun, used = time.perf_counter(), time.process_time()
            while offset < count:
                units = warmly(store, lambda at=offset: store.units("Bench", 0, at, 1024))  # type: ignore[misc]
                _, taken = warmly(store, lambda some=units: store.read_records(some, PULL_BYTES))  # type: ignore[misc]
                offset += taken
            rates.append(count / (time.perf_counter() - begun))
            cpu.append(count / (time.process_time() - used))
    return Row(
        "sequential read, raw blocks", "2,000,000/s", f"{max(cpu):,.0f} per second of CPU ({max(rates):,.0f}/s by the clock)",
        max(rates) >= 2_000_000, {"per_s": rates, "per_cpu_s": cpu},
    )  # fmt: skip


def index_keys(directory: Path, quick: bool) -> Row:
    """What a UNIQ_KEY costs in the index: hash, slot, entry, and its share of the writes, as the background work does them."""
    count = 500_000
    spent: dict[str, list[float]] = {"all": [], "entries": [], "slots": []}
    config = StoreConfig()
    gc.collect()
    for turn in range(2 if quick else 5):
        place = directory / f"index{turn}"
        index = Index(OsFileSystem(), place, config.index_slots, config.index_entries)
        index.open(True)
        index.load_slots()
        records: list[tuple[str, tuple[str, ...], int, int]] = [
            ("Bench", (f"7F000001{turn:04X}18B4AAC2{number // KEYS_PER_MS:08X}{number & 0xFFFF:04X}",), number * 400, 1_000_000 + number // KEYS_PER_MS)
            for number in range(count)
        ]  # fmt: skip
        gc.disable()
        begun, entries = time.process_time(), 0.0
        for number, first in enumerate(range(0, count, INDEX_SLICE)):
            index.add(records[first : first + INDEX_SLICE])
            if number % 5 == 4:
                writing = time.process_time()
                index.write_entries()
                entries += time.process_time() - writing
        slots = time.process_time()
        index.write_pending()
        end = time.process_time()
        gc.enable()
        spent["all"].append((end - begun) / count * 1e6)
        spent["entries"].append(entries / count * 1e6)
        spent["slots"].append((end - slots) / count * 1e6)
        index.close()
        shutil.rmtree(place)
    best = {name: min(values) for name, values in spent.items()}
    return Row(
        "index, CPU per key", "<= 1 us",
        f"{best['all']:.2f} us, of it {best['entries']:.2f} writing entries and {best['slots']:.2f} writing slots",
        best["all"] <= 1.0, {f"{name}_us": values for name, values in spent.items()},
    )  # fmt: skip


def light_open(directory: Path, quick: bool) -> Row:
    """Light queues of a few entries each, opened after a kill."""
    queues = 100_000 if quick else 1_000_000
    facts: dict[str, float] = {}
    for step in ("kill", "open"):
        command = [sys.executable, "-m", "interop_tests.bench", "light", "--step", step, "stream", "--dir", str(directory / "light"),
                   "--queues", str(queues), "--entries", str(LIGHT_ENTRIES)]  # fmt: skip
        facts |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shutil.rmtree(directory / "light")
    anon = max(facts["anon_mib"], facts["open_anon_mib"])
    return Row(
        f"{queues:,} light queues of {LIGHT_ENTRIES} entries: opened after a kill", "< 10 s; 600 MiB of memory, 1 GiB of disk",
        f"{facts['open_s']:.1f} s (CPU {facts['open_cpu_s']:.1f}); {anon:.0f} MiB, {facts['disk_mib']:.0f} MiB",
        facts["open_s"] < 10 and anon < 600 and facts["disk_mib"] < 1024, facts,
    )  # fmt: skip


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
        spent, used = [], []
        for turn in range(2):
            for key in keys:
                begun, cpu = time.perf_counter(), time.thread_time()
                [found] = warmly(store, lambda key=key: store.query("Bench", key, 32, 0, 1 << 60))  # type: ignore[misc]
                if turn:
                    used.append((time.thread_time() - cpu) * 1e3)
                    spent.append((time.perf_counter() - begun) * 1e3)
                assert key.encode() in found.properties
    p50, p99, cpu = at_share(spent, 0.5), at_share(spent, 0.99), at_share(used, 0.99)
    return Row(
        f"query by key among {entries + 51_200:,} entries, warm", "< 1 ms", f"median {p50:.3f} ms, p99 {p99:.3f} ms ({cpu:.3f} of CPU)", p50 < 1 and cpu < 1,
        {"p50_ms": p50, "p99_ms": p99, "cpu_p99_ms": cpu},
    )  # fmt: skip


CASES: Final = {
    "append small": append_small,
    "append large": append_large,
    "sync flush": sync_flush,
    "raw read": raw_read,
    "key query": key_query,
    "index": index_keys,
    "lights": light_open,
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
    console = wide_console()
    chosen = {name: case for name, case in CASES.items() if not args.only or any(word in name for word in args.only)}
    rows: list[Row] = []
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    directory = Path(tempfile.mkdtemp(prefix="gantry-bench-store-", dir=args.directory))
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(chosen))
            for name, case in chosen.items():
                progress.update(task, description=name)
                begun = time.perf_counter()
                try:
                    rows.append(case(directory, args.quick))
                except Exception as error:
                    console.print_exception()
                    rows.append(Row(name, "", f"failed: {type(error).__name__}", False, {}))
                rows[-1].raw["seconds"] = round(time.perf_counter() - begun, 1)
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
