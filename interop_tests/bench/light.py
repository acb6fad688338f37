"""`./run bench light`: a million light queues in the store, and the same entries in other designs (docs/decisions).

usage: bench light [--queues N] [--entries N] [--design stream sqlite blocks leveldb rocksdb lmdb] [--dir DIR]

Each design gets `--entries` rounds; in a round every queue gets one entry, in an order that mixes them, 3,000 entries to a flush. CPU is
process time. Every measurement is a process of its own: what is shown of memory is RssAnon.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from struct import Struct
from typing import Any, Protocol

from gantrymq.store.files import OsFileSystem
from gantrymq.store.light.queues import LightQueues
from gantrymq.store.queues.consume_queue import UNIT

FLUSH_ENTRIES = 3_000
CHECKPOINT_FLUSHES = 64
READS = 2_000
STRIDE = 7_919
KEY = Struct(">QQ")
BLOCK = 148
"""Blocks design: previous block 8, first offset 8, units 4, six units of 20 bytes, 8 spare."""


class Design(Protocol):
    """What is measured."""

    def append(self, light: int, offset: int, position: int) -> None: ...

    def flush(self, position: int) -> None: ...

    def read(self, light: int, offset: int, count: int) -> int: ...

    def close(self, clean: bool) -> None: ...


class Stream:
    """The product's."""

    def __init__(self, directory: Path) -> None:
        self._lights = LightQueues(OsFileSystem(), directory)
        self._lights.open(1 << 60)
        self._flushes = 0

    def append(self, light: int, offset: int, position: int) -> None:
        self._lights.add_all((light,), position, 200, 0)

    def flush(self, position: int) -> None:
        self._lights.write_pending(position)
        self._flushes += 1
        if self._flushes % CHECKPOINT_FLUSHES == 0:
            self._lights.take_unsynced()
            finish = self._lights.snapshot()
            if finish is not None:
                finish()

    def read(self, light: int, offset: int, count: int) -> int:
        return len(self._lights.read(light, offset, count))

    def close(self, clean: bool) -> None:
        if clean:
            self._lights.save_table()
        self._lights.close()


class Sqlite:
    """A B-tree of the standard library: (queue, offset) to unit, one transaction per flush, no synchronous commits."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(directory / "lights.db", isolation_level=None)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute("PRAGMA cache_size=-65536")
        self._base.execute(
            "CREATE TABLE IF NOT EXISTS u (l INTEGER, o INTEGER, d BLOB, PRIMARY KEY (l, o)) WITHOUT ROWID"
        )
        self._rows: list[tuple[int, int, bytes]] = []

    def append(self, light: int, offset: int, position: int) -> None:
        self._rows.append((light, offset, UNIT.pack(position, 200, 0)))

    def flush(self, position: int) -> None:
        self._base.execute("BEGIN")
        self._base.executemany("INSERT INTO u VALUES (?, ?, ?)", self._rows)
        self._base.execute("COMMIT")
        self._rows = []

    def read(self, light: int, offset: int, count: int) -> int:
        rows = self._base.execute("SELECT d FROM u WHERE l = ? AND o >= ? LIMIT ?", (light, offset, count)).fetchall()
        return len([UNIT.unpack(data) for (data,) in rows])

    def close(self, clean: bool) -> None:
        self._base.close()


class Blocks:
    """Shared paged file: each queue has its own last block, written in place; the table of last blocks is an array."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(directory / "blocks", os.O_RDWR | os.O_CREAT)
        self._tails: dict[int, int] = {}
        self._used = os.fstat(self._file).st_size // BLOCK
        for block in range(self._used):  # without a log of changes the table is in the blocks
            self._tails[int.from_bytes(os.pread(self._file, 8, block * BLOCK + 140), "big")] = block
        self._rows: list[tuple[int, int, bytes]] = []

    def append(self, light: int, offset: int, position: int) -> None:
        self._rows.append((light, offset, UNIT.pack(position, 200, 0)))

    def flush(self, position: int) -> None:
        for light, offset, unit in self._rows:
            block = self._tails.get(light, -1)
            if offset % 6 == 0:
                head = block.to_bytes(8, "big", signed=True) + offset.to_bytes(8, "big") + bytes(4)
                block = self._tails[light] = self._used
                self._used += 1
                data = (head + unit).ljust(140, b"\0") + light.to_bytes(8, "big")
                os.pwrite(self._file, data, block * BLOCK)
            else:
                os.pwrite(self._file, unit, block * BLOCK + 20 + offset % 6 * 20)
        self._rows = []

    def read(self, light: int, offset: int, count: int) -> int:
        block, units = self._tails.get(light, -1), 0
        while block >= 0 and units < count:
            data = os.pread(self._file, BLOCK, block * BLOCK)
            units += len([unit for unit in UNIT.iter_unpack(data[20:140]) if unit[1]])
            block = int.from_bytes(data[:8], "big", signed=True)
        return min(units, count)

    def close(self, clean: bool) -> None:
        os.close(self._file)


class Lsm:
    """An embedded log-structured merge tree: (queue, offset) to unit, one write batch per flush, its own log of changes, no sync.

    Key as 16 bytes, so that a queue is one range. LevelDB (plyvel) or RocksDB (rocksdict) with their defaults.
    """

    def __init__(self, directory: Path) -> None:
        plyvel: Any = import_module("plyvel")
        directory.mkdir(parents=True, exist_ok=True)
        self._base = plyvel.DB(str(directory / "level"), create_if_missing=True)
        self._rows: list[tuple[bytes, bytes]] = []

    def append(self, light: int, offset: int, position: int) -> None:
        self._rows.append((KEY.pack(light, offset), UNIT.pack(position, 200, 0)))

    def flush(self, position: int) -> None:
        with self._base.write_batch() as batch:
            for key, value in self._rows:
                batch.put(key, value)
        self._rows = []

    def read(self, light: int, offset: int, count: int) -> int:
        units = []
        for value in self._base.iterator(start=KEY.pack(light, offset), stop=KEY.pack(light + 1, 0), include_key=False):
            units.append(UNIT.unpack(value))
            if len(units) == count:
                break
        return len(units)

    def close(self, clean: bool) -> None:
        if clean:
            self._base.close()


class Rocks(Lsm):
    """As `Lsm`, with RocksDB."""

    def __init__(self, directory: Path) -> None:
        self._library: Any = import_module("rocksdict")
        directory.mkdir(parents=True, exist_ok=True)
        options = self._library.Options(raw_mode=True)
        options.create_if_missing(True)
        self._base = self._library.Rdict(str(directory / "rocks"), options)
        self._rows = []

    def flush(self, position: int) -> None:
        batch = self._library.WriteBatch(raw_mode=True)
        for key, value in self._rows:
            batch.put(key, value)
        self._base.write(batch)
        self._rows = []

    def read(self, light: int, offset: int, count: int) -> int:
        units, end = 0, KEY.pack(light + 1, 0)
        for key, value in self._base.items(from_key=KEY.pack(light, offset)):
            if key >= end or units == count:
                break
            UNIT.unpack(value)
            units += 1
        return units


class Lmdb:
    """A B-tree in a map: (queue, offset) to unit, one transaction per flush, no sync."""

    def __init__(self, directory: Path) -> None:
        lmdb: Any = import_module("lmdb")
        directory.mkdir(parents=True, exist_ok=True)
        self._base = lmdb.open(str(directory / "lmdb"), map_size=1 << 33, sync=False, writemap=False)
        self._rows: list[tuple[bytes, bytes]] = []

    def append(self, light: int, offset: int, position: int) -> None:
        self._rows.append((KEY.pack(light, offset), UNIT.pack(position, 200, 0)))

    def flush(self, position: int) -> None:
        with self._base.begin(write=True) as change:
            change.cursor().putmulti(self._rows)
        self._rows = []

    def read(self, light: int, offset: int, count: int) -> int:
        units, end = 0, KEY.pack(light + 1, 0)
        with self._base.begin() as view:
            cursor = view.cursor()
            found = cursor.set_range(KEY.pack(light, offset))
            while found and units < count and cursor.key() < end:
                UNIT.unpack(cursor.value())
                units += 1
                found = cursor.next()
        return units

    def close(self, clean: bool) -> None:
        if clean:
            self._base.close()


DESIGNS: dict[str, Callable[[Path], Design]] = {
    "stream": Stream, "sqlite": Sqlite, "blocks": Blocks, "leveldb": Lsm, "rocksdb": Rocks, "lmdb": Lmdb,
}  # fmt: skip
NEEDS = {"leveldb": "plyvel", "rocksdb": "rocksdict", "lmdb": "lmdb"}
"""Packages that a design is measured with where they are installed; the project needs none of them."""


def mixed(queues: int) -> Iterator[int]:
    """Every queue once, neighbours far apart."""
    at = 0
    for _ in range(queues):
        at = (at + STRIDE) % queues
        yield at + 1


def anon_mib() -> float:
    """RssAnon of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def fill(name: str, directory: Path, queues: int, entries: int, clean: bool) -> dict[str, float]:
    """Append and leave the directory as after a stop or as a killed process leaves it."""
    design = DESIGNS[name](directory)
    position = count = 0
    begin, longest = time.process_time(), 0.0
    for offset in range(entries):
        for light in mixed(queues):
            position += 200
            design.append(light, offset, position)
            count += 1
            if count % FLUSH_ENTRIES == 0:
                at = time.process_time()
                design.flush(position)
                longest = max(longest, time.process_time() - at)
    design.flush(position)
    append_us = (time.process_time() - begin) / count * 1e6
    anon = anon_mib()
    design.close(clean)
    blocks = sum([path.stat().st_blocks for path in directory.rglob("*") if path.is_file()])
    return {"append_us": append_us, "flush_ms_max": longest * 1e3, "anon_mib": anon, "disk_mib": blocks * 512 / 2**20}


def open_again(name: str, directory: Path, queues: int, entries: int) -> dict[str, float]:
    """Start, memory, reads of up to 32 entries."""
    begin, used = time.perf_counter(), time.process_time()
    design = DESIGNS[name](directory)
    opened, used = time.perf_counter() - begin, time.process_time() - used
    for light in range(1, READS):
        design.read(light * 31 % queues + 1, 0, 32)
    begin = time.process_time()
    for light in range(1, READS):
        got = design.read(light * 31 % queues + 1, 0, 32)
        if got != min(entries, 32):
            raise SystemExit(f"{name}: {got} entries of queue {light * 31 % queues + 1}")
    read_us = (time.process_time() - begin) / READS * 1e6
    anon = anon_mib()
    design.close(False)
    return {"open_s": opened, "open_cpu_s": used, "read32_us": read_us, "open_anon_mib": anon}


def main(arguments: list[str]) -> int:
    """A row per design."""
    parser = argparse.ArgumentParser(
        prog="bench light", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=5)
    parser.add_argument("--design", nargs="+", default=list(DESIGNS), choices=list(DESIGNS))
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.step:
        step, name = args.step
        if step == "open":
            result: dict[str, float] = open_again(name, args.dir, args.queues, args.entries)
        else:
            result = fill(name, args.dir, args.queues, args.entries, step == "stop")
        print(json.dumps(result))
        return 0
    columns = (
        "append_us",
        "flush_ms_max",
        "anon_mib",
        "disk_mib",
        "open_s",
        "open_cpu_s",
        "open_anon_mib",
        "read32_us",
    )
    print(f"{args.queues:,} queues, {args.entries} entries each")
    args.design = [name for name in args.design if name not in NEEDS or find_spec(NEEDS[name]) is not None]
    print(f"{'design':<18}" + "".join([f"{column:>15}" for column in columns]))
    for name in args.design:
        for end in ("stop", "kill"):
            directory = Path(tempfile.mkdtemp(prefix="gantry-light-", dir=args.dir))
            try:
                row: dict[str, Any] = {}
                for step in (end, "open"):
                    command = [sys.executable, "-m", "interop_tests.bench", "light", "--step", step, name, "--dir", str(directory),
                               "--queues", str(args.queues), "--entries", str(args.entries)]  # fmt: skip
                    row |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                print(f"{name + ', ' + end:<18}" + "".join([f"{row[column]:>15.2f}" for column in columns]), flush=True)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    return 0
