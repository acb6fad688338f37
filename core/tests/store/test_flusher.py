"""The flush thread with a post that collects, and on the real file system."""

from __future__ import annotations

import errno
from threading import Event
from typing import TYPE_CHECKING, Any

from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.flusher import Flusher
from gantrymq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Bench


def post_now(callback: Callable[[Any], None], value: Any) -> None:
    callback(value)


def test_requests_end_in_one_post_per_flush(bench: Bench) -> None:
    store = bench.open()
    seen: list[int] = []
    arrived = Event()

    def on_flushed(position: int) -> None:
        seen.append(position)
        arrived.set()

    flusher = Flusher(store, 60_000, post_now, on_flushed)
    end = store.append([Message("T", b"", queue_id=0)], [()])
    flusher.start()
    for _ in range(5):
        flusher.request()
    assert arrived.wait(30)
    flusher.stop()
    assert seen == [end]
    assert store.flushed_position == end


def test_an_io_error_is_posted_once_and_ends_the_thread(bench: Bench) -> None:
    store = bench.open()
    store.append([Message("T", b"", queue_id=0)], [()])
    bench.files.fault = lambda name, path: OSError(errno.EIO, "I/O error") if name == "datasync" else None
    failed: list[ErrorCode] = []
    ended = Event()

    def on_failed(error: Any) -> None:
        failed.append(error.code)
        ended.set()

    flusher = Flusher(store, 60_000, post_now, on_failed=on_failed)
    flusher.start()
    flusher.request()
    assert ended.wait(30)
    flusher.stop()
    assert failed == [ErrorCode.STORE_FAILED]


def test_checkpoint_gives_way_to_a_flush(bench: Bench) -> None:
    store = bench.open()
    for number in range(30):
        store.append([Message(f"t{number}", b"", queue_id=0)], [()])
    bench.clock.advance(60_000)
    while store.run_background(1000):
        pass
    flushed: list[int] = []
    flusher = Flusher(store, 60_000, post_now, flushed.append)
    original = bench.files.datasync

    def datasync(handle: int) -> None:
        original(handle)
        if len(flushed) == 1 and store.written_position == flushed[0]:
            store.append([Message("t0", b"", queue_id=0)], [()])
            flusher.request()

    bench.files.datasync = datasync  # type: ignore[method-assign]
    flusher.step()
    assert len(flushed) == 2
    assert flushed[1] == store.written_position
    assert store.take_checkpoint() is None


def test_space_is_reserved_ahead_and_the_next_segment_made(bench: Bench) -> None:
    store = bench.open()
    store.reserve_ahead()
    allocated = [path.name for name, path in bench.files.operations if name == "allocate"]
    assert allocated == ["00000000000000000000", "00000000000000065536"]
    before = len(bench.files.operations)
    store.reserve_ahead()
    assert len(bench.files.operations) == before
    message = Message("T", b"x" * 40_000, queue_id=0)
    store.append([message], [()])
    store.append([Message("T", b"x" * 40_000, queue_id=0)], [()])
    store.flush()
    bench.power_loss()
    assert bench.open().max_offset("T", 0) == 2


def test_a_full_disk_is_no_error_ahead_of_time(bench: Bench) -> None:
    store = bench.open()
    bench.files.room_bytes = 1
    store.reserve_ahead()
    assert store.failure is None


def test_whole_store_on_the_real_file_system(tmp_path: Path, bench: Bench) -> None:
    config = StoreConfig(commitlog_file_size=64 * 1024, index_slots=100, index_entries=1000)
    files = OsFileSystem()
    store = MessageStore(files, tmp_path, config, bench.clock)
    store.load()
    flusher = Flusher(store, 60_000, post_now)
    messages = [Message("T", bytes([n]) * 3000, b"UNIQ_KEY\x01K%d\x02" % n, "", (f"K{n}",), n % 3) for n in range(100)]
    for message in messages:
        store.append([message], [(1,)])
        store.run_background(1000)
    flusher.step()
    assert store.flushed_position == store.written_position
    second = MessageStore(files, tmp_path / "other", config, bench.clock)
    second.load()
    second.close()
    for message in messages:
        [found] = store.query("T", message.keys[0], 5, 0, 1 << 60)
        assert found.body == message.body
    store.close()
    again = MessageStore(files, tmp_path, config, bench.clock)
    assert again.load().clean
    got = again.get_many([(position, size) for position, size, _ in again.light_units(1, 0, 999)])
    assert [message.body for message in got if message] == [message.body for message in messages]
    again.close()
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [
        "checkpoint",
        "commitlog",
        "consumequeue",
        "index",
        "lock",
    ]
    assert all(path.stat().st_size == 65536 for path in (tmp_path / "store/commitlog").iterdir())


def test_what_a_checkpoint_flushed_is_posted_too() -> None:
    class Store:
        flushed_position = 0
        ahead = Event()

        def flush(self) -> int:
            return self.flushed_position

    store = Store()
    posted: list[int] = []
    flusher = Flusher(store, 500, lambda callback, value: posted.append(value))  # type: ignore[arg-type]
    store.flushed_position = 10  # by a checkpoint, while an acknowledgement waits for it
    flusher._flush()
    flusher._flush()
    assert posted == [10]
