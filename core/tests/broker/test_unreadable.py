"""Acquires, reads and new cursors where the disk answers EIO: each is told, what waits behind goes on, and so does the cursor."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.port import EARLIEST, Start
from gantrymq.model.errors import ErrorCode, GantryError
from tests.broker.test_cold_reads import ColdDisk, Node, bodies, filled

RECORD = (0, 200)
"""Position and size that a record may have; nobody gets to see what stands there."""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """With records in queue T/0, on a cold disk."""
    node = filled(tmp_path)
    yield node
    monkeypatch.undo()
    node.stop()


def break_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment of the log can be read any more."""

    def read_file(self: ColdDisk, path: Path, count: int, at: int, ahead: int = 0) -> bytes:
        if path.parent.name == "commitlog":
            raise OSError(errno.EIO, "Input/output error")
        return read(self, path, count, at, ahead)

    read = ColdDisk.read_file
    monkeypatch.setattr(ColdDisk, "read_file", read_file)


def told(result: Any) -> str:
    assert isinstance(result, GantryError)
    assert result.code is ErrorCode.STORE_FAILED
    return result.text


def test_an_acquire_that_the_disk_refuses_is_told_and_so_are_those_behind_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = node.wait(node.ask("open_cursor", "T/0", "g", EARLIEST)).cursor
    break_disk(monkeypatch)
    first = node.ask("acquire", cursor, 1, 10, 1 << 20)
    second = node.ask("acquire", cursor, 2, 10, 1 << 20)
    assert "Input/output error" in told(node.wait(second))
    told(first[0])
    assert node.broker.cursors.by_id[cursor].parked is None
    monkeypatch.undo()
    again = node.wait(node.ask("acquire", cursor, 1, 10, 1 << 20))
    assert bodies(again) == [b"%d" % number for number in range(10)]
    assert [delivery.count for delivery in again] == [1] * 10


def test_the_watcher_is_called_again_after_a_refusal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = node.wait(node.ask("open_cursor", "T/0", "g", EARLIEST)).cursor
    ready: list[int] = []
    node.port.watch(cursor, ready.append)
    node.turn.run_until_quiet()
    assert ready == [cursor]
    break_disk(monkeypatch)
    told(node.wait(node.ask("acquire", cursor, 1, 10, 1 << 20)))
    assert ready == [cursor]
    node.wheel.advance(2000)
    node.turn.run_until_quiet()
    assert ready == [cursor, cursor]


def test_an_acquire_that_is_refused_at_once_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = node.wait(node.ask("open_cursor", "T/0", "g", EARLIEST)).cursor

    def pread_now(self: ColdDisk, handle: int, count: int, at: int) -> bytes | None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(ColdDisk, "pread_now", pread_now)
    told(node.ask("acquire", cursor, 1, 10, 1 << 20)[0])
    told(node.ask("read", [RECORD])[0])
    monkeypatch.undo()
    assert len(node.wait(node.ask("acquire", cursor, 1, 10, 1 << 20))) == 10


def test_reads_and_searches_by_time_that_the_disk_refuses_are_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    break_disk(monkeypatch)
    told(node.wait(node.ask("read", [RECORD])))
    told(node.wait(node.ask("open_cursor", "T/0", "t", Start("time", 1))))
    assert node.broker.cursors.find("T/0", "t") is None


@pytest.mark.parametrize("count", [1, 10])
def test_a_bad_sector_is_passed_over_and_its_records_are_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    cursor = node.wait(node.ask("open_cursor", "T/0", "g", EARLIEST)).cursor
    node.store.read_without_waiting(None)
    units = node.store.units("T", 0, 0, 30)
    node.store.read_without_waiting(node.reads)
    bad = [units[number][:2] for number in (0, 1, 2, 7)]

    def read_file(self: ColdDisk, path: Path, size: int, at: int, ahead: int = 0) -> bytes:
        if path.parent.name == "commitlog" and any(at < begin + length and begin < at + size for begin, length in bad):
            raise OSError(errno.EIO, "Input/output error")
        return read(self, path, size, at, ahead)

    read = ColdDisk.read_file
    monkeypatch.setattr(ColdDisk, "read_file", read_file)
    found: list[bytes] = []
    while len(found) < 26:
        got = node.wait(node.ask("acquire", cursor, 1, count, 1 << 20))
        assert not isinstance(got, GantryError), got
        found += bodies(got)
    assert found == [b"%d" % number for number in range(30) if number not in (0, 1, 2, 7)]
    assert sorted(node.broker.cursors.quarantined.by_cursor[cursor]) == [0, 1, 2, 7]
    assert {entry.what for entry in node.store.damage.entries.values()} == {"the disk cannot read it"}


def test_an_answer_that_raises_leaves_no_acquire_behind_it_waiting(node: Node) -> None:
    cursor = node.wait(node.ask("open_cursor", "T/0", "g", EARLIEST)).cursor

    def broken(token: Any, result: Any) -> None:
        raise ValueError("a door's mistake")

    node.port.acquire(cursor, 1, 10, 1 << 20, None, broken)
    second = node.ask("acquire", cursor, 2, 10, 1 << 20)
    assert bodies(node.wait(second)) == [b"%d" % number for number in range(10, 20)]
    assert node.broker.cursors.by_id[cursor].parked is None
