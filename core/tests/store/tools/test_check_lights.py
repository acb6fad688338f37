"""`gantry store check` on light queues: sound after a stop, a kill and cleaning; every kind of damage is found; nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.model.message import Message
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.light import cleaner as light_cleaner
from gantrymq.store.light import queues as light_queues
from gantrymq.store.light.stream import FRAME
from gantrymq.store.message_store import MessageStore
from tests.store.tools.test_check import FixedClock, checked, damage, state_of

STREAM = f"gantry/light/{0:020d}"
MANY = tuple(range(1, 3000))


def filled(root: Path, clean: bool, count: int = 200) -> MessageStore:
    """Records in one, two and (by continuation records) thousands of light queues; one queue deleted, one trimmed."""
    store = MessageStore(
        OsFileSystem(),
        root,
        StoreConfig(commitlog_file_size=256 * 1024, index_slots=50, index_entries=80),
        FixedClock(),
    )
    store.load()
    for number in range(count):
        message = Message("T", b"x" * 100, f"TAGS\x01t{number % 3}\x02".encode(), f"t{number % 3}", (), 0)
        light = number % 5 + 1
        store.append([message], [MANY if number == 7 else (light if number < count // 2 or light != 4 else 9, 5000)])
        if number % 20 == 0:
            store.flush_derived()
        if number == count // 2:
            store.delete_light(4)
            store.trim_light(2, 9)
    if clean:
        store.close()
    else:
        store.flush_derived()
        store.append([Message("T", b"not in its light queues yet", queue_id=0)], [(1, 5000)])
        store.flush()
    return store


@pytest.mark.parametrize("clean", [True, False])
def test_a_sound_store(tmp_path: Path, clean: bool) -> None:
    filled(tmp_path, clean)
    before = state_of(tmp_path)
    for directory in (tmp_path, tmp_path / "store"):
        report = checked(directory)
        assert (report.damage, [note for note in report.notes if "light" in note]) == ([], [])
        assert report.light_units > 3000 + 300
    assert state_of(tmp_path) == before


def test_a_torn_frame_of_a_killed_broker_is_no_damage(tmp_path: Path) -> None:
    filled(tmp_path, clean=False)
    end = len((tmp_path / STREAM).read_bytes())
    damage(tmp_path / STREAM, end - 3, b"\xff")
    report = checked(tmp_path)
    assert report.damage == []
    assert any("torn tail" in note and "light" in note for note in report.notes)


def test_after_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_queues.LightQueues.__init__, "__defaults__", (4096,))
    monkeypatch.setattr(light_queues, "SNAPSHOT_BYTES", 8192)
    monkeypatch.setattr(light_cleaner, "SLACK_SEGMENTS", 1)
    store = MessageStore(OsFileSystem(), tmp_path, StoreConfig(index_slots=50, index_entries=80), FixedClock())
    store.load()
    for number in range(1500):
        store.append([Message("T", b"x", queue_id=0)], [(1, 2, 70) if number % 100 == 0 else (1,)])
        store.flush_derived()
        if number % 50 == 0:
            store.trim_light(1, number)
            checkpoint = store.take_checkpoint(force=True)
            assert checkpoint is not None
            store.sync_checkpoint(checkpoint)
    assert not (tmp_path / STREAM).exists()
    for clean in (False, True):
        if clean:
            store.close()
        report = checked(tmp_path)
        assert report.damage == []
        assert report.light_units >= 30


KINDS: list[tuple[str, Callable[[Path], object]]] = [
    ("no sound frame", lambda root: damage(root / STREAM, FRAME.size + 3, b"\x09")),
    ("no whole snapshot", lambda root: damage(root / "gantry/light/table", 2 * 4096 + 50, b"\x09\x09")),
    ("no whole snapshot", lambda root: (root / STREAM).unlink()),
]  # fmt: skip


@pytest.mark.parametrize(("text", "change"), KINDS)
def test_damage_is_found(tmp_path: Path, text: str, change: Callable[[Path], object]) -> None:
    filled(tmp_path, clean=True)
    change(tmp_path)
    found = [row for row in checked(tmp_path).damage if row["kind"] == "light"]
    assert any(text in row["text"] for row in found), found


@pytest.mark.parametrize("change", ["position", "code", "lost", "extra"])
def test_entries_that_differ_from_the_log_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Frames that are sound and wrong: a fault of the program."""
    original = light_queues.LightQueues.add_all

    def wrong(self: light_queues.LightQueues, targets: tuple[int, ...], position: int, size: int, code: int) -> None:
        if targets == (3, 5000) and self.next_offset(3) == 10:
            position += 1 if change == "position" else 0
            code += 1 if change == "code" else 0
            targets = (5000,) if change == "lost" else targets
            if change == "extra":
                original(self, (6,), position, size, code)
        original(self, targets, position, size, code)

    monkeypatch.setattr(light_queues.LightQueues, "add_all", wrong)
    filled(tmp_path, clean=False)
    found = [row for row in checked(tmp_path).damage if row["kind"] == "light"]
    assert found
    assert {"position": "not", "code": "not", "lost": "not in it", "extra": "not"}[change] in found[0]["text"]


def test_a_table_without_snapshot_after_a_clean_stop(tmp_path: Path) -> None:
    filled(tmp_path, clean=True)
    (tmp_path / "gantry/light/table").unlink()
    assert "no snapshot" in checked(tmp_path).damage[0]["text"]


def test_a_loss_that_was_accepted_is_no_damage_any_more(tmp_path: Path) -> None:
    """Queues and light queues still name records of the log that is gone; the segment that stands for it says so."""
    filled(tmp_path, clean=True, count=20)
    for segment in (tmp_path / "store" / "commitlog").iterdir():
        segment.unlink()
    assert checked(tmp_path).damage
    store = MessageStore(OsFileSystem(), tmp_path, StoreConfig(), FixedClock())
    store.load(accept_loss=True)
    store.close()
    assert checked(tmp_path).damage == []
