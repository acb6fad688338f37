"""Retention with reads that wait for the disk, and on file systems that are really full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gantrymq.broker.port import END, Outcome, Route
from gantrymq.broker.retention.pins import OVER_TABLE, SessionLimits
from gantrymq.metrics import Metrics
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.store.files import OsFileSystem
from gantrymq.store.retention.rules import DiskLevel
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KEEP, KeepingNode
from tests.broker.retention.test_retention import node_with_queue

DISK = 8 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB of its own."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system needs root, and mount")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_everything_cold() -> None:
    node, _, cursor = node_with_queue()
    bodies = node.send(300, "a")
    node.call("put", "x", [("k", b"v")])
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in node.drain(cursor) if offset % 50])
    node.turn.run_until_quiet()
    node.settle_down()
    node = KeepingNode(node.files.after_process_crash(), node.clock)
    node.files.is_cold = lambda path, at: True
    cold = node.read_cold()
    try:
        assert node.retain(hours=2) >= 4
        assert cold.fetched > 10
    finally:
        cold.stop()
    node = KeepingNode(node.files.after_process_crash(), node.clock)
    assert [body for _, body in node.drain(cursor)] == bodies[::50]
    assert node.call("watch_table", "x", None) == {"k": b"v"}


def test_slices_keep_to_their_budget() -> None:
    """A survey of many cursors takes many short slices."""
    node = KeepingNode(MemoryFileSystem())
    for group in range(300):
        node.call("open_cursor", "t/0", f"g{group}", END) if group else node.send(1)
    node.send(100)
    node.settle_down()
    node.clock.advance(2 * 3_600_000)
    node.retention.check(node.wheel.now_ms())
    slices = 1
    while node.retention.work.step(100):
        slices += 1
    assert slices > 10


def test_pins_name_who_holds_back_most_and_sessions_are_bounded() -> None:
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    session = node.call("open_cursor", f"~{light}", "mqtt:c1", END).cursor
    queue = node.call("open_cursor", f"~{light}", "amqp", END).cursor
    node.retention.pins.limits = SessionLimits(bytes_max=100_000)
    metrics = Metrics()
    node.retention.show(metrics)
    first = node.send(1, "a", size=40_000)
    [(offset, _)] = node.drain(session, 1)
    assert offset == 0  # with the client: it stays
    bodies = node.send(5, "a", size=40_000, first=1)
    monkey = pytest.MonkeyPatch()
    monkey.setattr("gantrymq.broker.retention.pins.ENTRY_BYTES_MAX", 50_000)
    try:
        node.retain()
    finally:
        monkey.undo()
    assert node.retention.pins.dropped == 4
    assert f'gantry_pinned_bytes{{group="amqp",queue="~{light}"}}' in metrics.render()
    assert "gantry_session_dropped_total 4" in metrics.render()
    node = KeepingNode(node.files.after_process_crash(), node.clock)
    assert [body for _, body in node.drain(session)] == [first[0], bodies[-1]]
    assert len(node.drain(queue)) == 6


@pytest.mark.parametrize(("full", "left"), [("drop_oldest", (0, 1, 8, 9)), ("drop_newest", (0, 1, 2, 3))])
def test_sessions_are_bounded_in_messages(full: str, left: tuple[int, ...]) -> None:
    """Two are with the client: they stay, and count."""
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    session = node.call("open_cursor", f"~{light}", "mqtt:c1", END).cursor
    queue = node.call("open_cursor", f"~{light}", "amqp", END).cursor
    node.retention.pins.limits = SessionLimits(messages_max=4, messages_full=full)
    bodies = node.send(2, "a")
    assert len(node.drain(session, 2)) == 2
    bodies += node.send(6, "a", first=2)
    node.retain()
    bodies += node.send(2, "a", first=8)
    node.retain(0.05)
    node.retain(0.05)
    assert node.retention.pins.dropped == 6
    info = node.call("stats", [session])[0]
    assert (info.ready, info.unacked) == (2, 2)
    assert [body for _, body in node.drain(session)] == [bodies[number] for number in left[2:]]
    node = KeepingNode(node.files.after_process_crash(), node.clock)
    assert sorted(body for _, body in node.drain(session)) == sorted(bodies[number] for number in left)
    assert len(node.drain(queue)) == 10
    more = node.send(1, "a", first=10)
    assert [body for _, body in node.drain(session)] == more


def test_the_newest_go_beyond_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.broker.retention.pins.ENTRY_BYTES_MAX", 50_000)
    monkeypatch.setattr("gantrymq.broker.retention.pins.UNITS_STEP", 2)
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    session = node.call("open_cursor", f"~{light}", "mqtt:c1", END).cursor
    node.retention.pins.limits = SessionLimits(bytes_max=100_000, bytes_full="drop_newest")
    bodies = node.send(7, "a", size=30_000)
    assert len(node.drain(session, 1)) == 1  # with the client: it stays, and counts
    node.retain()
    assert node.retention.pins.dropped == 4
    node = KeepingNode(node.files.after_process_crash(), node.clock)
    assert [body for _, body in node.drain(session)] == bodies[:3]


@pytest.mark.parametrize(
    "limits",
    [SessionLimits(messages_max=4, messages_full="disconnect"), SessionLimits(100_000, "disconnect")],
    ids=["messages", "bytes"],
)
def test_a_session_over_its_limit_is_to_end(limits: SessionLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped, and its gateway is told once."""
    monkeypatch.setattr("gantrymq.broker.retention.pins.ENTRY_BYTES_MAX", 50_000)
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    session = node.call("open_cursor", f"~{light}", "mqtt:c1", END).cursor
    small = node.call("create_light")
    node.call("open_cursor", f"~{small}", "mqtt:c2", END)
    node.retention.pins.limits = limits
    told: list[tuple[str, bytes | None]] = []
    node.call("watch_table", OVER_TABLE, lambda key, value: told.append((key, value)))
    bodies = node.send(6, "a", size=30_000)
    node.retain()
    node.retain(0.05)
    node.turn.run_until_quiet()
    ((client_id, row),) = told
    assert client_id == "c1"
    assert row is not None
    assert json.loads(row)["entries"] == 6
    assert node.retention.pins.dropped == 0
    assert [body for _, body in node.drain(session)] == bodies


def test_watermark_on_a_real_file_system(small_disk: Path) -> None:
    node = KeepingNode(
        OsFileSystem(), root=small_disk / "d", config=replace(KEEP, disk_warn_ratio=0.3, disk_clean_ratio=0.5)
    )
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    kept = node.send(100, "a")
    node.retain()
    assert node.retention.level is DiskLevel.FREE
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(int(DISK * 0.9)))
    node.retain()
    assert node.retention.level is DiskLevel.FULL
    assert node.call("submit", [Message("t", b"x")]) == [ErrorCode.STORE_FULL]
    got = node.drain(cursor)
    assert [body for _, body in got] == kept
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in got])
    node.turn.run_until_quiet()
    assert node.retain() == 1
    ballast.unlink()
    node.retain()
    assert node.retention.level is DiskLevel.FREE
    node.send(1)
    node.stop()


def test_no_space_left_at_all(small_disk: Path) -> None:
    """ENOSPC and no SIGBUS; what was accepted is there, and writing goes on when there is room."""
    never = {"disk_warn_ratio": 1.0, "disk_clean_ratio": 1.0, "disk_full_ratio": 1.0}
    node = KeepingNode(OsFileSystem(), root=small_disk / "d", config=replace(KEEP, **never))  # type: ignore[arg-type]
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(DISK * 3 // 4))
    accepted = 0
    while True:
        results = node.call("submit", [Message("t", b"%08d" % accepted + bytes(5000), queue_id=0)])
        if results == [ErrorCode.STORE_FULL]:
            break
        accepted += 1
        assert accepted < 1000
    units = node.store.units("t", 0, 0, 10_000)
    found = node.store.get_many([unit[:2] for unit in units])
    assert [int(message.body[:8]) for message in found if message is not None] == list(range(accepted))
    ballast.unlink()
    results = node.call("submit", [Message("t", b"%08d" % accepted, queue_id=0)])
    assert results == [accepted]
    node.stop()
    node = KeepingNode(OsFileSystem(), root=small_disk / "d")
    assert node.store.max_offset("t", 0) == accepted + 1
    node.stop()
