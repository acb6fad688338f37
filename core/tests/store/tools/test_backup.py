"""A copy of a store that goes on working starts, and has what was there when the copying began."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.model.errors import GantryError
from gantrymq.net.testing import ManualClock
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from gantrymq.store.tools import backup
from gantrymq.store.tools.backup import Backup
from gantrymq.store.tools.check import Checker
from gantrymq.store.tools.inspect import StoreImage

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.model.message import Message

CONFIG = StoreConfig(
    commitlog_file_size=65536, consumequeue_file_size=400, index_slots=50, index_entries=40, queue_files_max=8,
    checkpoint_interval_ms=100,
)  # fmt: skip


def opened(root: Path) -> MessageStore:
    store = MessageStore(OsFileSystem(), root, CONFIG, ManualClock())
    store.load()
    return store


def append(store: MessageStore, message: Message) -> None:
    store.append([message], [(1,)])


def keys_of(store: MessageStore) -> list[str]:
    """UNIQ_KEY of every record that the queue and the light queue serve; both must have the same."""
    positions = [unit[0] for unit in store.units("T", 0, 0, 1 << 20)]
    assert positions == [unit[0] for unit in store.light_units(1, 0, 1 << 20)]
    found = []
    for position in positions:
        message = store.get(position)
        assert message is not None
        found.append(message.property("UNIQ_KEY"))
    for key in found[:: max(1, len(found) // 20)]:
        assert store.query("T", key, 2, 0, 1 << 60)
    return found


def test_of_a_stopped_store(tmp_path: Path, message_of: Callable[..., Message]) -> None:
    store = opened(tmp_path / "d")
    for number in range(500):
        append(store, message_of(number, bytes(300)))
    store.close()
    told: list[tuple[str, int, int]] = []
    copied = Backup(tmp_path / "d", tmp_path / "copy", lambda *what: told.append(what)).run()
    assert told[-1] == ("copied", copied, copied)
    assert not list(tmp_path.glob("*.partial"))
    store = opened(tmp_path / "copy")
    assert keys_of(store) == [f"K{number}" for number in range(500)]
    store.close()
    image = StoreImage(tmp_path / "copy")
    assert Checker(image).run().damage == []
    image.close()


def test_holes_stay_holes(tmp_path: Path, message_of: Callable[..., Message]) -> None:
    config = StoreConfig(commitlog_file_size=1 << 24, index_slots=50, index_entries=40)
    store = MessageStore(OsFileSystem(), tmp_path / "d", config, ManualClock())
    store.load()
    append(store, message_of(1))
    store.close()
    assert Backup(tmp_path / "d", tmp_path / "copy").run() < 4 << 20, "of 22 MiB"
    assert (tmp_path / "copy" / "store" / "commitlog" / ("0" * 20)).stat().st_size == 1 << 24


def test_of_a_store_at_work(
    tmp_path: Path, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, checkpoints, snapshots of the light table and the removal of the oldest segment go on between any two files."""
    store = opened(tmp_path / "d")
    written = 0

    def work(count: int) -> None:
        nonlocal written
        for _ in range(count):
            append(store, message_of(written, bytes(100)))
            written += 1
            store._clock.advance(7)  # type: ignore[attr-defined]
            while store.run_background(1000):
                pass
            checkpoint = store.take_checkpoint()
            if checkpoint is not None:
                store.sync_checkpoint(checkpoint)

    work(2000)
    begun = written
    real = Backup._file

    def slowly(self: Backup, path: Path) -> bool:
        work(5)
        if path.parent.name == "commitlog" and path.name == "0" * 20:
            oldest = store.segments.oldest(store.derived_position)
            assert oldest is not None
            removal = store.segments.removal(oldest[1])
            while not removal.step(1000):
                pass
            removal.unlink()
        return real(self, path)

    monkeypatch.setattr(Backup, "_file", slowly)
    Backup(tmp_path / "d", tmp_path / "copy").run()
    low = store.min_offset("T", 0)
    store.close()
    copy = opened(tmp_path / "copy")
    assert low > 0
    assert copy.min_offset("T", 0) == low
    keys = [copy.get(unit[0]).property("UNIQ_KEY") for unit in copy.units("T", 0, low, 1 << 20)]  # type: ignore[union-attr]
    assert keys == [f"K{number}" for number in range(low, copy.max_offset("T", 0))]
    assert begun <= copy.max_offset("T", 0) <= written
    assert copy.light_visible_end(1) == copy.max_offset("T", 0)
    copy.close()


@pytest.mark.parametrize(
    ("target", "text"), [("d/copy", "lies in"), ("there", "exists"), ("half", "half.partial exists")]
)
def test_a_place_that_will_not_do(tmp_path: Path, target: str, text: str) -> None:
    opened(tmp_path / "d").close()
    (tmp_path / "there").mkdir()
    (tmp_path / "half.partial").mkdir()
    with pytest.raises(GantryError, match=text):
        Backup(tmp_path / "d", tmp_path / target).run()


def test_no_store_and_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e").mkdir()
    with pytest.raises(GantryError, match="no data directory of gantry"):
        Backup(tmp_path / "e", tmp_path / "copy").run()
    opened(tmp_path / "d").close()
    monkeypatch.setattr(backup.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(GantryError, match="10 bytes free"):
        Backup(tmp_path / "d", tmp_path / "copy").run()
    assert not (tmp_path / "copy").exists()


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path / "d").close()

    def broken(self: Backup, positions: bytes) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Backup, "_log", broken)
    with pytest.raises(OSError, match="Input/output"):
        Backup(tmp_path / "d", tmp_path / "copy").run()
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("which", [0, 1])
def test_of_a_store_that_lacks_a_segment(which: int, tmp_path: Path, message_of: Callable[..., Message]) -> None:
    """What is there is copied, and what is not there is said: the copy starts as little as its source does."""
    store = opened(tmp_path / "d")
    for number in range(500):
        append(store, message_of(number, bytes(300)))
    store.close()
    gone = sorted((tmp_path / "d" / "store" / "commitlog").iterdir())[which]
    gone.unlink()
    copying = Backup(tmp_path / "d", tmp_path / "copy")
    copying.run()
    assert copying.missing == f"segment {gone.name} is missing"
    with pytest.raises(GantryError, match=gone.name):
        opened(tmp_path / "copy")
