"""The walk through the log that lists what is damaged though nobody reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gantrymq.broker.port import END, Route
from gantrymq.broker.retention import verification
from gantrymq.broker.retention.verification import Verification
from gantrymq.store.files import FileSystem, OsFileSystem
from gantrymq.store.testing import MemoryFileSystem
from gantrymq.store.tools.check import Checker
from gantrymq.store.tools.inspect import StoreImage
from tests.broker.keeping import KEEP, SEGMENT, KeepingNode
from tests.broker.node import ROOT

RATE = 1_000_000
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


def verified(node: KeepingNode, rounds: int = 1) -> Verification:
    """A verification that has come to the end that often."""
    node.flush()
    made = Verification(node.broker, node.store, RATE)
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
    half = Verification(node.broker, node.store, RATE)
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
    made = Verification(node.broker, node.store, RATE)
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
