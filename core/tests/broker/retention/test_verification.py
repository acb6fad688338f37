"""The walk through the log that lists what is damaged though nobody reads it."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from gantrymq.broker.port import EARLIEST, END, Outcome, Route
from gantrymq.broker.retention import verification
from gantrymq.broker.retention.verification import Verification
from gantrymq.store.files import FileSystem, OsFileSystem
from gantrymq.store.testing import MemoryFileSystem
from gantrymq.store.tools.check import Checker
from gantrymq.store.tools.inspect import StoreImage
from tests.broker.keeping import KEEP, SEGMENT, KeepingNode
from tests.broker.node import ROOT, upkeep_of

RATE = 1_000_000


class BadSectors(MemoryFileSystem):
    """Reads of the log that touch one of these [begin, end) fail."""

    def __init__(self) -> None:
        super().__init__()
        self.sectors: list[tuple[int, int]] = []

    def pread(self, handle: int, count: int, at: int) -> bytes:
        path, _ = self._handles[handle]
        if path.parent.name == "commitlog":
            begin = int(path.name) + at
            if any(begin < stop and first < begin + count for first, stop in self.sectors):
                raise OSError(errno.EIO, "Input/output error")
        return super().pread(handle, count, at)


NEVER = replace(KEEP, file_reserved_hours=1_000)


def overwrite(files: FileSystem, position: int, data: bytes, root: Path = ROOT) -> bytes:
    """Returns what stood there."""
    base = position - position % SEGMENT
    handle = files.open(root / "store" / "commitlog" / f"{base:020d}", False)
    try:
        old = files.pread(handle, len(data), position - base)
        files.pwrite(handle, data, position - base)
    finally:
        files.close(handle)
    return old


def verifying(node: KeepingNode) -> Verification:
    return Verification(node.store, node.broker.cursors, upkeep_of(node.broker), RATE)


def verified(node: KeepingNode, rounds: int = 1) -> Verification:
    """A verification that has come to the end that often."""
    node.flush()
    made = verifying(node)
    made.start()
    for _ in range(100_000):
        if made.rounds == rounds:
            break
        node.wheel.advance(10)
        node.turn.run_until_quiet()
    assert made.rounds == rounds
    return made


def listed(node: KeepingNode) -> list[tuple[int, str]]:
    return sorted((entry.position, entry.what) for entry in node.store.damage.entries.values())


def test_what_is_damaged_is_listed_and_the_rest_is_not() -> None:
    node = KeepingNode(MemoryFileSystem(), config=NEVER)
    node.send(20, size=50)
    node.send(200, size=1000)
    node.send(3, size=45_000)  # more than a chunk, and a blank end of a segment
    node.send(20, size=50)
    units = node.store.units("t", 0, 0, 243)
    verified(node)
    assert listed(node) == []
    node.stop()
    hurt = {3: 100, 17: 4, 60: 0, 130: 500, 221: 30_000}
    for offset, place in hurt.items():
        old = overwrite(node.files, units[offset][0] + place, b"?")
        assert old != b"?"
    overwrite(node.files, units[200][0], bytes(units[200][1]))
    node = KeepingNode(node.files, node.clock, NEVER)
    verified(node)
    found = sorted((entry.position, entry.size) for entry in node.store.damage.entries.values())
    assert found == sorted(units[offset][:2] for offset in (*hurt, 200))
    assert {what for _, what in listed(node)} >= {"CRC of the body", "magic 0x3fa320a7"}


def test_the_rate_is_kept() -> None:
    node = KeepingNode(MemoryFileSystem(), config=NEVER)
    node.send(300, size=1000)
    before = node.clock.monotonic_ms()
    verified(node)
    assert node.clock.monotonic_ms() - before >= node.store.flushed_position * 1000 // RATE // 2


def test_a_round_goes_on_where_the_stop_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "SAVE_BYTES", 100_000)
    node = KeepingNode(MemoryFileSystem(), config=NEVER)
    node.send(400, size=1000)
    node.flush()
    half = verifying(node)
    half.start()
    while node.store.damage.verified < 200_000:
        node.wheel.advance(10)
        node.turn.run_until_quiet()
    node.stop()
    node = KeepingNode(node.files, node.clock, NEVER)
    began = node.store.damage.verified
    assert began >= 200_000
    made = verified(node)
    assert made.verified_bytes <= node.store.flushed_position - began + SEGMENT
    assert node.store.damage.verified == 0


def test_what_was_restored_is_delivered_by_the_next_round() -> None:
    node = KeepingNode(MemoryFileSystem(), config=NEVER)
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    bodies = node.send(1, "a")
    position = node.store.light_units(light, 0, 1)[0][0]
    node.stop()
    old = overwrite(node.files, position + 120, b"?")
    node = KeepingNode(node.files, node.clock, NEVER)
    assert node.drain(cursor) == []
    overwrite(node.files, position + 120, old)
    verified(node)
    assert listed(node) == []
    assert [body for _, body in node.drain(cursor)] == bodies


def test_reads_that_wait_for_the_disk_are_waited_for() -> None:
    node = KeepingNode(MemoryFileSystem(), config=NEVER)
    node.send(200, size=1000)
    position = node.store.units("t", 0, 99, 1)[0][0]
    node.stop()
    overwrite(node.files, position + 200, b"?")
    node = KeepingNode(node.files, node.clock, NEVER)
    node.flush()
    cold = node.read_cold()
    node.files.is_cold = lambda path, at: True
    made = verifying(node)
    made.start()
    while not made.rounds:
        if cold.queued:
            callback, value = node.posted.get(timeout=30)
            callback(value)
        else:
            node.wheel.advance(10)
    cold.stop()
    assert listed(node) == [(position, "CRC of the body")]


def test_gantry_store_check_names_the_same_records(tmp_path: Path) -> None:
    node = KeepingNode(OsFileSystem(), config=NEVER, root=tmp_path)
    node.send(200, size=1000)
    units = node.store.units("t", 0, 0, 200)
    node.stop()
    for offset in (5, 120):
        overwrite(node.files, units[offset][0] + 300, b"?", tmp_path)
    image = StoreImage(tmp_path / "store")
    where = " ".join(row["where"] + " " + row["text"] for row in Checker(image).run().damage if row["kind"] == "log")
    image.close()
    node = KeepingNode(node.files, node.clock, NEVER, tmp_path)
    verified(node)
    assert [position for position, _ in listed(node)] == [units[5][0], units[120][0]]
    assert [offset for offset in range(200) if str(units[offset][0]) in where.split()] == [5, 120], where
    node.stop()


@pytest.mark.parametrize("cold", [False, True])
def test_what_the_disk_cannot_read_is_listed_and_the_rest_is_verified(cold: bool) -> None:
    node = KeepingNode(BadSectors(), config=NEVER)
    node.send(200, size=1000)
    node.send(1, size=45_000)
    node.send(20, size=1000)
    units = node.store.units("t", 0, 0, 221)
    old = overwrite(node.files, units[170][0] + 300, b"?")
    node.flush()
    place = units[100][0] // 4096 * 4096 + 4096
    node.files.sectors = [(place, place + 4096), (units[200][0] + 30_000, units[200][0] + 30_001)]
    hurt = [
        unit for unit in units if any(unit[0] < stop and first < sum(unit[:2]) for first, stop in node.files.sectors)
    ]
    reads = node.read_cold() if cold else None
    node.files.is_cold = lambda path, at: cold and "commitlog" in path.parts
    made = verifying(node)
    made.start()
    for _ in range(100_000):
        if made.rounds:
            break
        if reads is not None and reads.queued:
            callback, value = node.posted.get(timeout=30)
            callback(value)
        else:
            node.wheel.advance(10)
    assert made.rounds == 1
    entries = sorted(node.store.damage.entries.values(), key=lambda entry: entry.position)
    assert entries[0].what == entries[-1].what == "the disk cannot read it"
    assert (entries[0].position, entries[-1].position) == (hurt[0][0], hurt[-1][0])
    covered = [unit for unit in units if any(e.position <= unit[0] < e.position + e.size for e in entries)]
    assert covered == sorted([*hurt, units[170]])
    if reads is not None:
        reads.stop()
    node.files.sectors = []
    overwrite(node.files, units[170][0] + 300, old)
    node.files.is_cold = lambda path, at: False
    assert [node.store.is_mended(entry) for entry in entries] == [True] * len(entries)


def test_a_pull_goes_on_behind_what_the_disk_cannot_read() -> None:
    node = KeepingNode(BadSectors(), config=NEVER)
    bodies = node.send(50, size=1000)
    node.flush()
    units = node.store.units("t", 0, 0, 50)
    node.files.sectors = [(units[20][0] + 10, units[20][0] + 20)]
    queue = node.store.queue("t", 0)
    assert queue is not None
    pieces, taken, _ = node.store.read_queue(queue, 0, 50, 1 << 20)
    assert taken == 50
    assert [number for number, body in enumerate(bodies) if body in b"".join(pieces)] == [*range(20), *range(21, 50)]
    [entry] = node.store.damage.entries.values()
    assert (entry.position, entry.what, entry.is_unit) == (units[20][0], "the disk cannot read it", False)
    assert not node.store.is_mended(entry)
    node.files.sectors = []
    assert node.store.is_mended(entry)


def test_a_live_record_that_the_disk_cannot_read_keeps_its_segment() -> None:
    node = KeepingNode(BadSectors())
    node.send(1)
    cursor = node.call("open_cursor", "t/0", "ce:1", EARLIEST).cursor
    node.send(200, first=1)
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in node.drain(cursor) if offset != 3])
    node.turn.run_until_quiet()
    position = node.store.units("t", 0, 3, 1)[0][0]
    node.settle_down()
    node.files.sectors = [(position, position + 10)]
    assert node.retain(hours=2) == 0
    assert "1 damaged records of it wait" in node.retention.staying
    assert [entry.what for entry in node.store.damage.entries.values()] == ["the disk cannot read it"]
    node.files.sectors = []
    assert node.retain(hours=2) >= 2


def test_a_round_goes_on_behind_segments_that_go_as_they_are_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    node = KeepingNode(MemoryFileSystem())
    node.send(400, size=1000)
    node.settle_down()
    units = node.store.units("t", 0, 0, 400)
    overwrite(node.files, units[-1][0] + 300, b"\xff")
    deleted: list[int] = []

    def read_log(position: int, count: int) -> bytes:
        if not deleted:
            deleted.append(node.retain(hours=2))
        return read(position, count)

    read = node.store.read_log
    monkeypatch.setattr(node.store, "read_log", read_log)
    verified(node)
    assert deleted[0] > 1
    assert [position for position, _ in listed(node)] == [units[-1][0]]
