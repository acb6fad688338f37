"""What compaction kept is seen by queries, `dump` and `check` after the log has lost its copy."""

from __future__ import annotations

import base64
from pathlib import Path

from gantrymq.model.message import Message
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queues.compaction import CompactionWriter
from tests.store.tools.test_check import FixedClock, checked, damage, lines_of, state_of


def compacted(root: Path) -> MessageStore:
    """Offsets 0 to 599 of T/0 under 600 keys; of those below 400 every tenth was kept, and the log's first segment is gone."""
    config = StoreConfig(commitlog_file_size=65536, consumequeue_file_size=400, index_slots=500, index_entries=5000)
    store = MessageStore(OsFileSystem(), root, config, FixedClock())
    store.load()
    for number in range(600):
        properties = f"KEYS\x01K{number}\x02".encode()
        store.append([Message("T", b"%d" % number * 30, properties, keys=(f"K{number}",), queue_id=0)], [()])
        while store.run_background(100_000):
            pass
    writer = CompactionWriter(store.files, store.compacted.directory("T", 0), 0)
    for offset in range(0, 400, 10):
        ((position, size, tag),) = store.units("T", 0, offset, 1)
        writer.add(offset, store._log.read(position, size), tag)
    store.compacted.put("T", 0, writer.finish(400))
    store.flush()
    removal = store.segments.removal(65536)
    while not removal.step(1000):
        pass
    removal.unlink()
    assert store.units("T", 0, 0, 1)[0][0] >= 1 << 61
    return store


def test_queries_find_what_compaction_kept(tmp_path: Path) -> None:
    store = compacted(tmp_path)
    for number, found in ((10, 1), (20, 1), (11, 0), (399, 1), (599, 1)):
        messages = store.query("T", f"K{number}", 9, 0, 1 << 60)
        assert [(message.queue_offset, message.body) for message in messages] == [(number, b"%d" % number * 30)] * found
    assert store.query("U", "K10", 9, 0, 1 << 60) == []
    store.close()


def test_dump_and_check_see_it_and_change_nothing(tmp_path: Path) -> None:
    store = compacted(tmp_path)
    for clean in (False, True):
        if clean:
            store.close()
        before = state_of(tmp_path)
        lines = lines_of(tmp_path, "T", 0, 15)
        assert [line["queueOffset"] for line in lines] == [*range(20, 400, 10), *range(400, 600)]
        assert base64.b64decode(str(lines[0]["body"])) == b"20" * 30
        report = checked(tmp_path)
        assert (report.damage, report.compacted_records) == ([], 40)
        assert state_of(tmp_path) == before


def test_damage_in_a_compacted_file_is_found(tmp_path: Path) -> None:
    compacted(tmp_path).close()
    (path,) = (tmp_path / "gantry/compaction/T/0").iterdir()
    damage(path, 100, b"\xff\xff")
    assert {row["kind"] for row in checked(tmp_path).damage} == {"compaction"}
    damage(path, path.stat().st_size - 20, b"\xff\xff")
    assert "not used" in checked(tmp_path).damage[0]["text"]
