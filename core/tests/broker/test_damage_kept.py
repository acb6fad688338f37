"""Damaged records that somebody still waits for: retention keeps their segment, the list of them outlives a kill."""

from __future__ import annotations

import pytest

from gantrymq.broker.port import END, Route
from gantrymq.model.message import Message
from gantrymq.store.damage import DAMAGE_MAX, DamageList
from gantrymq.store.log import record
from gantrymq.store.log.recovery import FILLER_TOPIC
from gantrymq.store.queues.consume_queue import UNIT
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import SEGMENT, KeepingNode
from tests.broker.node import ROOT


def test_a_damaged_record_keeps_its_segment_until_it_is_restored_or_skipped() -> None:
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    bodies = node.send(1, "a")
    position = node.store.light_units(light, 0, 1)[0][0]
    node.send(300, "b")

    def invert() -> None:
        handle = node.files.open(ROOT / "store" / "commitlog" / f"{0:020d}", False)
        node.files.pwrite(handle, bytes([node.files.pread(handle, 1, position + 95)[0] ^ 0xFF]), position + 95)
        node.files.close(handle)

    node.stop()
    invert()
    node = KeepingNode(node.files, node.clock)
    assert node.drain(cursor) == []
    assert node.retain(hours=2) == 0
    assert node.retention.staying == "1 damaged records of it wait to be restored or skipped (gantry store damage list)"
    assert position in [entry.position for entry in node.store.damage.entries.values()]
    killed = KeepingNode(node.files.after_process_crash(), node.clock)
    assert [entry.what for entry in killed.store.damage.entries.values()] == ["CRC of the body"]

    node.stop()
    invert()
    node = KeepingNode(node.files, node.clock)
    assert [body for _, body in node.drain(cursor)] == bodies
    assert node.retain(hours=4) > 0
    assert node.store.log_min_position >= SEGMENT


def test_one_that_is_skipped_keeps_nothing() -> None:
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    node.send(1, "a")
    position = node.store.light_units(light, 0, 1)[0][0]
    node.send(300, "b")
    node.stop()
    handle = node.files.open(ROOT / "store" / "commitlog" / f"{0:020d}", False)
    node.files.pwrite(handle, bytes(30), position)
    node.files.close(handle)
    node = KeepingNode(node.files, node.clock)
    assert node.drain(cursor) == []
    assert node.retain(hours=2) == 0
    assert node.broker.cursors.end_waiting((position, "", -1), deliver=False) == 1
    node.turn.run_until_quiet()
    assert node.retain(hours=4) > 0


def test_the_list_is_bounded_and_counts_the_rest() -> None:
    damage = DamageList(MemoryFileSystem(), ROOT / "damage", lambda: 1)
    for position in range(DAMAGE_MAX + 5):
        damage.found(position, 100, "t/0", position, "magic", False)
        damage.found(position, 100, "t/0", position, "magic", False)
    assert len(damage.entries) == DAMAGE_MAX
    assert damage.total >= DAMAGE_MAX + 5


def test_a_list_that_is_damaged_itself_is_as_none() -> None:
    files = MemoryFileSystem()
    files.make_dirs(ROOT)
    damage = DamageList(files, ROOT / "damage", lambda: 1)
    damage.found(5, 100, "t/0", 3, "magic", False)
    damage.move_to(77)
    damage.save(damage.text())
    again = DamageList(files, ROOT / "damage", lambda: 1)
    again.load()
    assert (again.entries, again.verified) == (damage.entries, 77)
    for text in (b"", b"{}", b'{"verified": 1, "records": [[1]]}', b"[]"):
        damage.save(text)
        again = DamageList(files, ROOT / "damage", lambda: 1)
        again.load()
        assert (again.entries, again.verified) == ({}, 0)


def test_what_recovery_put_aside_is_not_moved_as_if_it_were_the_message() -> None:
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    bodies = node.send(2, "a")
    position, size, _ = node.store.light_units(light, 0, 1)[0]
    node.send(300, "b")
    node.stop()
    filler = Message(FILLER_TOPIC, bytes(size - record.RECORD_SIZE_MIN - len(FILLER_TOPIC)))
    filler.sys_flag, filler.physical_offset, filler.store_ms = 12, position, 1
    filler.born_host = filler.store_host = bytes(8)
    handle = node.files.open(ROOT / "store" / "commitlog" / f"{0:020d}", False)
    node.files.pwrite(handle, record.encode(filler), position)
    node.files.close(handle)
    node = KeepingNode(node.files, node.clock)
    assert [body for _, body in node.drain(cursor)] == bodies[1:]
    assert node.retain(hours=2) == 0
    assert node.broker.cursors.end_waiting((position, f"~{light}", 0), deliver=False) == 1
    node.turn.run_until_quiet()
    assert node.retain(hours=4) > 0


@pytest.mark.parametrize("light", [True, False])
def test_a_blank_unit_is_kept_aside_and_the_first_record_of_the_log_is_not_taken_for_its_own(light: bool) -> None:
    node = KeepingNode(MemoryFileSystem())
    number = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", number))
    queue = f"~{number}" if light else "t/0"
    node.call("ensure_topic", "t", True)
    cursor = node.call("open_cursor", queue, "g", END).cursor
    messages = [Message("t", b"%d" % at, b"TAGS\x01a\x02", "a", queue_id=0) for at in range(5)]
    node.call("submit", messages)
    unit = (node.store.light_units(number, 2, 1) if light else node.store.units("t", 0, 2, 1))[0]
    node.stop()
    blank(node.files, unit, "light" if light else "consumequeue")
    node = KeepingNode(node.files, node.clock)
    assert [body for _, body in node.drain(cursor)] == [b"0", b"1", b"3", b"4"]
    assert node.broker.cursors.quarantined.by_cursor == {cursor: {2: (0, queue, 2)}}
    (entry,) = node.store.damage.entries.values()
    assert (entry.queue, entry.offset, entry.is_unit, entry.size) == (queue, 2, True, 0)


@pytest.mark.parametrize("queue", ["own", "%LMQ%x"])
def test_a_light_queue_s_unit_that_names_another_whole_record_is_noticed(queue: str) -> None:
    node = KeepingNode(MemoryFileSystem())
    number = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", number))
    node.call("ensure_topic", "t", True)
    messages = [Message("t", b"%d" % at, b"TAGS\x01a\x02" * (at < 5), "a" * (at < 5), queue_id=0) for at in range(6)]
    for message in messages:
        message.lmq = () if queue == "own" or message is messages[5] else ("%LMQ%x",)
    light = f"~{number}" if queue == "own" else "%LMQ%x/0"
    if queue != "own":
        node.broker.topics.light("%LMQ%x")
    cursor = node.call("open_cursor", f"~{number}", "g", END).cursor if queue == "own" else 0
    node.call("submit", messages)
    units = node.store.light_units(number, 0, 9) if queue == "own" else node.store.units("%LMQ%x", 0, 0, 9)
    assert len(units) == 5
    node.stop()
    stranger = messages[5]
    kind = "light" if queue == "own" else "consumequeue"
    blank(node.files, units[2], kind, UNIT.pack(stranger.physical_offset, stranger.size, units[2][2]))
    blank(node.files, units[3], kind, UNIT.pack(*units[1]))
    node = KeepingNode(node.files, node.clock)
    if queue == "own":
        assert [body for _, body in node.drain(cursor)] == [b"0", b"1", b"4"]
        assert sorted(node.broker.cursors.quarantined.by_cursor[cursor]) == [2, 3]
    else:
        found = node.store._queues.find("%LMQ%x", 0)
        assert found is not None
        pieces = node.store.read_queue(found, 0, 9, 1 << 20)[0]
        assert [record.decode(piece).body for piece in pieces] == [b"0", b"1", b"4"]
    assert {(entry.queue, entry.offset, entry.is_unit) for entry in node.store.damage.entries.values()} == {
        (light, 2, True),
        (light, 3, True),
    }


def blank(files: MemoryFileSystem, unit: tuple[int, int, int], kind: str, data: bytes = bytes(UNIT.size)) -> None:
    """Zeros, or other bytes, in the place of a queue's unit."""
    for path, content in files.snapshot().items():
        at = content.find(UNIT.pack(*unit))
        if kind in path.parts and at >= 0:
            handle = files.open(path, False)
            files.pwrite(handle, data, at)
            files.close(handle)
            return
    raise AssertionError(f"no {kind} has {unit}")
