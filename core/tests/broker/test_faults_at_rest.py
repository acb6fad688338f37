"""Files that are missing, shortened, zeroed or flipped while the server is stopped, on a directory of every kind of data.

After the start (`--accept-loss` where the log is incomplete), or after `gantry store rebuild` where bytes changed in place: what is whole is served
from topic queues, light queues and the index, what is not is named, and nothing else is served. Each seed is one fault;
`GANTRY_FAULT_SEEDS=1000` tries more.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.broker.retention.lost import name_lost
from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from tests.broker.node import ROOT, SMALL
from tests.broker.tables.test_snapshots import SnapshotNode
from tests.store.crash_states import CrashFiles

pytestmark = pytest.mark.crash

SEEDS = int(os.environ.get("GANTRY_FAULT_SEEDS", "50"))
COUNT = 600
TOPICS = ("t", "u")
PLACES: dict[str, Callable[[Path], bool]] = {
    "log": lambda path: path.parent.name == "commitlog",
    "first segment": lambda path: path.parent.name == "commitlog" and path.name == "0" * 20,
    "consumequeue": lambda path: "consumequeue" in path.parts,
    "index": lambda path: path.parent.name == "index",
    "light stream": lambda path: path.parent.name == "light" and path.name != "table",
    "light table": lambda path: path.name == "table",
    "positions": lambda path: path.name == "positions",
    "snapshots": lambda path: path.parent.name == "snapshots",
    "ends": lambda path: path.name == "ends",
    "checkpoint": lambda path: path.name == "checkpoint",
}
KINDS = ("missing", "shortened", "zeroed", "flipped")


class Lossy(SnapshotNode):
    accept_loss = True


class Site:
    """The directory as it was before the fault, and what was in it."""

    def __init__(self, lot: random.Random) -> None:
        node = SnapshotNode(CrashFiles())
        self.lights = [node.call("create_light") for _ in range(2)]
        for light, prefix in zip(self.lights, ("", "a"), strict=True):
            node.call("add_route", Route(f"r{light}", "prefix", None, prefix, light))
        for topic in TOPICS:
            node.call("ensure_topic", topic, True)
        cursor = node.call("open_cursor", f"~{self.lights[0]}", "g", EARLIEST).cursor
        self.messages: list[Message] = []
        for number in range(COUNT):
            key = f"K{number}"
            message = Message(
                lot.choice(TOPICS), lot.randbytes(lot.choice((10, 300, 900))), f"UNIQ_KEY\x01{key}\x02".encode(),
                lot.choice(("", "ab", "b")), (key,), lot.randrange(2),
            )  # fmt: skip
            if message.tag:
                message.properties += f"TAGS\x01{message.tag}\x02".encode()
            node.call("submit", [message])
            self.messages.append(message)
            if number == COUNT // 2:
                node.make()
                node.background()
            if number % 50 == 0:
                node.broker.commits.commit("readers", "t", 0, number)
        items = node.call("acquire", cursor, 1, 20, 1 << 20)
        node.port.settle([(cursor, item.offset, Outcome.ACK) for item in items[:5]] if items else [])
        node.flush()
        self.killed = lot.random() < 0.5
        if self.killed:
            node.background()
            node.flush()
            self.tables = node.state()[0]
            again = SnapshotNode(node.disk.after_process_crash())  # notes how far everything reaches
            self.files = again.disk.after_process_crash()
        else:
            node.stop()
            self.tables = node.state()[0]
            self.files = node.disk.after_process_crash()


def hurt(files: CrashFiles, place: str, kind: str, lot: random.Random) -> Path | None:
    paths = [path for path, data in files.snapshot().items() if PLACES[place](path) and data.strip(b"\0")]
    if not paths:
        return None
    path = lot.choice(paths)
    used = len(files.snapshot()[path].rstrip(b"\0"))
    if kind == "missing":
        files.remove(path)
        return path
    handle = files.open(path, False)
    at = lot.randrange(used)
    if kind == "shortened":
        files.truncate(handle, at)
    else:
        count = min(lot.choice((1, 8, 600)), used - at)
        old = files.pread(handle, count, at)
        new = bytes(count) if kind == "zeroed" else bytes(byte ^ 0xFF for byte in old)
        files.pwrite(handle, new, at)
        files.datasync(handle)
    files.close(handle)
    return path


def whole_positions(before: CrashFiles, after: CrashFiles, messages: list[Message]) -> set[int]:
    """Positions of records all of whose bytes are as they were."""
    old, new, size = before.snapshot(), after.snapshot(), SMALL.commitlog_file_size
    found = set()
    for message in messages:
        base = message.physical_offset // size * size
        path = ROOT / "store" / "commitlog" / f"{base:020d}"
        at = message.physical_offset - base
        if path in new and old[path][at : at + message.size] == new[path][at : at + message.size]:
            found.add(message.physical_offset)
    return found


def refusal(files: CrashFiles) -> str:
    """What a start says that refuses to; empty if it does not."""
    try:
        SnapshotNode(files)
    except StoreCorruptError as error:
        return error.text
    return ""


def rebuild(files: CrashFiles, accept_loss: bool) -> tuple[CrashFiles, list[tuple[int, int]]]:
    store = MessageStore(files, ROOT, SMALL, ManualClock())
    report = store.load(anew=frozenset({"queues", "index", "lights"}), accept_loss=accept_loss)
    store.close()
    return files.after_process_crash(), report.quarantined


def check(node: SnapshotNode, site: Site, whole: set[int]) -> None:
    store = node.store
    by_place = {(m.topic, m.queue_id, m.queue_offset): m for m in site.messages}
    served = set()
    for topic in TOPICS:
        for queue_id in range(2):
            high = store.max_offset(topic, queue_id)
            for offset in range(high):
                for position, size, _ in store.units(topic, queue_id, offset, 1):
                    if size == HOLE_SIZE or store.get(position) is None:
                        continue
                    message = by_place[topic, queue_id, offset]
                    got = store.get(position)
                    assert got is not None
                    assert (position, got.body) == (message.physical_offset, message.body)
                    served.add(position)
            ends = [m.queue_offset for m in site.messages if (m.topic, m.queue_id) == (topic, queue_id)]
            assert high == max(ends) + 1, "no offset is given twice"
    assert whole <= served
    for message in site.messages:
        if message.physical_offset in whole:
            matches = [hit.queue_offset for hit in store.query(message.topic, message.keys[0], 9, 0, 1 << 60)]
            assert matches == [message.queue_offset]
    for light in site.lights:
        wanted = [m.physical_offset for m in site.messages if light == site.lights[0] or m.tag.startswith("a")]
        units = store.light_units(light, 0, store.light_visible_end(light))
        seen = [unit[0] for unit in units if unit[1] != HOLE_SIZE]
        live = set(wanted[5:]) if light == site.lights[0] else set(wanted)
        assert whole & live <= set(seen)
        assert set(seen) <= set(wanted)
        assert seen == sorted(seen)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_fault(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    lot = random.Random(seed)
    site = Site(lot)
    place, kind = lot.choice(list(PLACES)), lot.choice(KINDS)
    files = site.files.after_process_crash()
    path = hurt(files, place, kind, lot)
    whole = whole_positions(site.files, files, site.messages)
    in_log = "commitlog" in str(path)
    damaged = [m for m in site.messages if m.physical_offset not in whole]
    refused = False
    if in_log and kind in ("missing", "shortened"):
        before = files.snapshot()
        said = refusal(files.after_process_crash())
        refused = bool(said)
        assert path is not None
        assert not refused or (path.name in said and "--accept-loss" in said)
        assert refused or not damaged
        assert files.snapshot() == before
    quarantined: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING):
        if kind in ("zeroed", "flipped"):
            files, quarantined = rebuild(files, refused)
        node = (Lossy if refused else SnapshotNode)(files)
    quarantined += node.report.quarantined
    check(node, site, whole)
    listed = [(entry.position, entry.size) for entry in node.store.damage.entries.values()]
    assert set(quarantined) <= set(listed)
    for message in damaged:
        got = node.store.get(message.physical_offset)
        named = any(at <= message.physical_offset < at + size for at, size in listed)
        assert named or (got is not None and got.body == message.body), "listed, or only its properties changed"
    if not in_log:
        assert node.state()[0] == site.tables
    assert node.call("submit", [Message("t", b"after", queue_id=0)])
    node.stop()
    again = SnapshotNode(files.after_process_crash())
    assert again.report.clean
    assert not again.report.records


@pytest.mark.parametrize("which", [0, 2, -1])
def test_what_queues_waited_for_is_named(which: int, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(random.Random(1))
    files = site.files.after_process_crash()
    paths = [path for path, data in files.snapshot().items() if PLACES["log"](path) and data.strip(b"\0")]
    base = int(paths[which].name)
    files.remove(paths[which])
    node = Lossy(files)
    gone = [m for m in site.messages[5:] if base <= m.physical_offset < base + SMALL.commitlog_file_size]
    assert name_lost(node.broker.cursors, node.store) == len(gone) > 0
    assert f"~{site.lights[0]} of g: {len(gone)} entries that were not acknowledged are lost" in caplog.text
    node.stop()
    again = SnapshotNode(files.after_process_crash())
    assert name_lost(again.broker.cursors, again.store) == 0
