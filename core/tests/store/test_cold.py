"""Reads that do not wait: over a disk in memory that is cold where a test says so."""

from __future__ import annotations

import ctypes
import errno
import os
from queue import SimpleQueue
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store import cold as cold_module
from gantrymq.store import reader
from gantrymq.store.cold import AHEAD_BYTES, Cold, ColdReads
from gantrymq.store.files import ASKED_AFTER_MISS, ASKED_BYTES_MIN, CACHESTAT, PAGE_BYTES, OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Bench
    from gantrymq.store.message_store import MessageStore


class Posts:
    """What threads posted, to be run by the test."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()

    def __call__(self, callback: Callable[[Any], None], value: Any) -> None:
        self.queue.put((callback, value))

    def run_one(self) -> None:
        callback, value = self.queue.get(timeout=30)
        callback(value)


def cold_store(bench: Bench, count: int = 20) -> tuple[MessageStore, Posts, ColdReads]:
    """A store opened again, nothing of which is in memory."""
    store = bench.open()
    for number in range(count):
        key = f"K{number}"
        store.append([Message("T", b"body %d" % number, b"UNIQ_KEY\x01%b\x02" % key.encode(), "", (key,), 0)], [(7,)])
    store.close()
    store = bench.open()
    posts = Posts()
    reads = ColdReads(bench.files, posts)
    store.read_without_waiting(reads)
    bench.files.is_cold = lambda path, at: True
    return store, posts, reads


def patiently(store: MessageStore, posts: Posts, call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of an operation that may come upon cold data, and how often it did."""
    results: list[Any] = []
    waits = 0

    def attempt(token: Callable[[], Any]) -> None:
        nonlocal waits
        try:
            results.append(token())
        except Cold as cold:
            waits += 1
            store.fetch(cold, token, attempt)

    attempt(call)
    while not results:
        posts.run_one()
    return results[0], waits


def test_the_first_pull_of_a_topic_waits_for_what_opening_it_reads(bench: Bench) -> None:
    """A thread reads it; what the loop reads of it is in memory then."""
    store, posts, reads = cold_store(bench)
    with pytest.raises(Cold) as cold:
        store.queue("T", 0)
    assert cold.value.warm is not None
    assert "T" not in store.used_topics
    queue, waits = patiently(store, posts, lambda: store.queue("T", 0))
    assert (queue.next_offset, waits) == (20, 1)
    assert store.queue("T", 0) is queue
    assert store.queue("unknown", 0) is None
    store.append([Message("new", b"x", queue_id=0)], [()])
    assert store.queue("new", 0) is not None
    assert (reads.fetched, reads.queued, reads.queued_bytes) == (1, 0, 0)


def test_many_first_pulls_of_a_topic_read_it_once(bench: Bench) -> None:
    store, _, _ = cold_store(bench)
    listed: list[Path] = []
    list_dir = bench.files.list_dir
    bench.files.list_dir = lambda path: (listed.append(path), list_dir(path))[1]  # type: ignore[method-assign]
    with pytest.raises(Cold) as cold:
        store.queue("T", 0)
    assert cold.value.warm is not None
    assert store.max_offset("T", 0) == 20, "somebody else opened it"
    listed.clear()
    cold.value.warm()
    assert not listed


def test_where_much_waits_a_topic_is_opened_at_once(bench: Bench) -> None:
    """A client of thousands of queues is not refused after a restart."""
    store, _, reads = cold_store(bench)
    reads.queued = reader.WARMING_MAX
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.next_offset == 20


def test_every_kind_of_read_ends_with_its_data(bench: Bench) -> None:
    store, posts, reads = cold_store(bench)
    units, waits = patiently(store, posts, lambda: store.units("T", 0, 0, 20))
    assert (len(units), waits) == (20, 1)
    (pieces, taken), waits = patiently(store, posts, lambda: store.read_records(units, 1 << 20))
    assert (taken, waits, len(b"".join(pieces))) == (20, 1, sum(size for _, size, _ in units))
    lights, waits = patiently(store, posts, lambda: store.light_units(7, 0, 20))
    assert lights == units
    messages, waits = patiently(store, posts, lambda: store.get_many([(at, size) for at, size, _ in units]))
    assert [message.body for message in messages] == [b"body %d" % number for number in range(20)]
    assert waits == 1
    [found], waits = patiently(store, posts, lambda: store.query("T", "K3", 5, 0, 1 << 60))
    assert found.body == b"body 3"
    assert waits >= 2
    offset, _ = patiently(store, posts, lambda: store.offset_by_time("T", 0, 0, True))
    assert offset == 0
    assert (reads.queued, reads.queued_bytes) == (0, 0)
    reads.stop()


def test_the_data_is_there_even_if_the_kernel_dropped_it_again(bench: Bench) -> None:
    store, posts, reads = cold_store(bench)
    assert patiently(store, posts, lambda: store.get(0))[0].body == b"body 0"
    reads.stop()


def test_an_error_of_the_disk_comes_out_of_the_second_attempt(bench: Bench) -> None:
    store, posts, reads = cold_store(bench)
    bench.files.fault = lambda name, path: OSError(errno.EIO, "I/O error") if name == "pread" else None
    with pytest.raises(OSError, match="I/O error"):
        patiently(store, posts, lambda: store.units("T", 0, 0, 20))
    assert reads.queued == 0
    bench.files.fault = lambda name, path: None
    reads.stop()


def test_a_file_removed_meanwhile_reads_as_empty(bench: Bench, tmp_path: Path) -> None:
    posts = Posts()
    reads = ColdReads(bench.files, posts)
    missing = tmp_path / "missing"
    got: list[bytes] = []
    reads.fetch(Cold([(missing, 0, 10)]), "op", lambda token: got.append(reads.read(missing, 1, 10, 0, 0)))
    posts.run_one()
    assert got == [b""]
    reads.stop()


def test_without_nowait_what_this_process_wrote_is_read_at_once(bench: Bench) -> None:
    store, _, reads = cold_store(bench)

    def unsupported(handle: int, count: int, at: int) -> bytes | None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    bench.files.pread_now = unsupported  # type: ignore[method-assign]
    with pytest.raises(Cold):
        store.units("T", 0, 0, 5)
    end = store.written_position
    store.append([Message("T", b"new", queue_id=0)], [()])
    store.flush_derived()
    [(position, size, _)] = store.units("T", 0, 20, 1)
    assert position == end
    [message] = store.get_many([(position, size)])
    assert message is not None
    assert message.body == b"new"
    reads.stop()


def test_the_limits(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (cold_module.THREADS_MAX, cold_module.QUEUED_MAX, cold_module.QUEUED_BYTES_MAX) == (4, 16_384, 64 << 20)
    reads = ColdReads(bench.files, Posts())
    monkeypatch.setattr(cold_module, "QUEUED_BYTES_MAX", 100)
    path = tmp_path / "x"
    reads.fetch(Cold([(path, 0, 1000)]), "large", lambda token: None)  # one alone may be larger
    with pytest.raises(GantryError) as caught:
        reads.fetch(Cold([(path, 0, 1)]), "next", lambda token: None)
    assert caught.value.code is ErrorCode.BUSY
    monkeypatch.setattr(cold_module, "QUEUED_BYTES_MAX", 10_000)
    monkeypatch.setattr(cold_module, "QUEUED_MAX", 1)
    with pytest.raises(GantryError):
        reads.fetch(Cold([(path, 0, 1)]), "next", lambda token: None)
    reads.stop()


def test_an_operation_that_never_ends_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cold_module, "ROUNDS_MAX", 3)
    posts = Posts()
    reads = ColdReads(bench.files, posts)
    seen: list[ErrorCode] = []

    def again(token: object) -> None:
        try:
            reads.fetch(Cold([(tmp_path / "x", len(seen), 1)]), token, again)
        except GantryError as error:
            seen.append(error.code)

    again("op")
    for _ in range(3):
        posts.run_one()
    assert seen == [ErrorCode.BUSY]
    reads.stop()


def test_only_a_reader_that_goes_on_is_read_ahead(bench: Bench, tmp_path: Path) -> None:
    reads = ColdReads(bench.files, Posts())
    path = tmp_path / "x"
    assert reads._ahead((path, 500_000_000, 10)) == 0
    assert reads._ahead((path, 500_000_010, 10)) == AHEAD_BYTES
    assert reads._ahead((path, 0, 10)) == 0


def test_the_real_file_system_says_what_is_in_memory(tmp_path: Path) -> None:
    files = OsFileSystem()
    handle = files.open(tmp_path / "f", True)
    files.pwritev(handle, [b"ab", b"", b"c" * 5000] * 700, 0)  # more parts than one call takes
    assert files.size(handle) == 5002 * 700
    try:
        data = files.pread_now(handle, 8, 5002 * 3)
    except OSError as error:
        pytest.skip(f"no RWF_NOWAIT here: {error.strerror}")
    assert data == b"abcccccc"
    assert files.pread_now(handle, 100, 5002 * 700 - 1) == b"c"
    assert files.read_file(tmp_path / "f", 3, 5002, 4096) == b"abc"
    files.close(handle)


class Kernel:
    """What the kernel has of one file in memory, as a test says; `begun`: reads that went as far as the disk in the caller's time."""

    def __init__(self, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = data
        self.pages = set(range(-(-len(data) // PAGE_BYTES)))
        self.tells = True
        self.asked = 0
        self.begun: list[int] = []
        monkeypatch.setattr("gantrymq.store.files._syscall", self.cachestat)
        monkeypatch.setattr(os, "preadv", self.preadv)

    def keeps(self, count: int) -> None:
        """Only the first `count` bytes, and the rest of their last page."""
        self.pages = set(range(-(-count // PAGE_BYTES)))

    def cachestat(self, number: int, handle: int, range_at: int, pages_at: int, flags: int) -> int:
        assert (number, flags) == (CACHESTAT, 0)
        self.asked += 1
        if not self.tells:
            return -1
        at, count = (ctypes.c_uint64 * 2).from_address(range_at)
        found = (ctypes.c_uint64 * 5).from_address(pages_at)
        found[0] = len(self.pages & set(range(at // PAGE_BYTES, (at + count - 1) // PAGE_BYTES + 1)))
        return 0

    def preadv(self, handle: int, buffers: tuple[memoryview], at: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        end = min(at + len(buffers[0]), len(self.data))
        missing = next(
            (page for page in range(at // PAGE_BYTES, -(-end // PAGE_BYTES)) if page not in self.pages), None
        )
        if missing is not None:
            self.begun.append(missing)
            end = missing * PAGE_BYTES
            if end <= at:
                raise BlockingIOError
        buffers[0][: max(end - at, 0)] = self.data[at:end]
        return max(end - at, 0)


def test_a_long_read_begins_only_where_every_page_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFileSystem()
    data = bytes(range(256)) * 1024
    handle = files.open(tmp_path / "f", True)
    files.pwrite(handle, data, 0)
    kernel = Kernel(data, monkeypatch)
    assert files.pread_now(handle, len(data), 0) == data
    assert files.pread_now(handle, len(data), 4096) == data[4096:]  # up to the end of the file
    assert files.pread_now(handle, len(data), len(data)) == b""
    assert not kernel.asked, "nothing was missing yet"
    kernel.keeps(100_000)
    assert files.pread_now(handle, 8, 200_000) is None
    assert kernel.begun == [200_000 // PAGE_BYTES]
    assert files._asked == {handle: ASKED_AFTER_MISS}, "of long reads from now on the kernel is asked"
    assert files.pread_now(handle, 100_000, 0) == data[:100_000]
    assert files._asked == {handle: ASKED_AFTER_MISS - 1}
    assert files.pread_now(handle, len(data), 0) is None
    assert files._asked == {handle: ASKED_AFTER_MISS}
    assert files.pread_now(handle, len(data), 0) is None
    assert len(kernel.begun) == 1, "the kernel did not begin to read in the caller's time"
    assert files.pread_now(handle, ASKED_BYTES_MIN, 0) == data[:ASKED_BYTES_MIN]
    assert kernel.asked == 3, "a short read is tried at once"
    kernel.tells = False  # an older kernel
    assert files.pread_now(handle, len(data), 0) is None
    assert (kernel.asked, len(kernel.begun)) == (4, 2)
    assert not files._asked
    assert files.pread_now(handle, len(data), 0) is None
    assert kernel.asked == 4
    files.close(handle)


def test_a_file_that_stays_in_memory_is_not_asked_about_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFileSystem()
    data = bytes(range(256)) * 1024
    handle = files.open(tmp_path / "f", True)
    files.pwrite(handle, data, 0)
    kernel = Kernel(data, monkeypatch)
    files._asked[handle] = ASKED_AFTER_MISS
    for _ in range(ASKED_AFTER_MISS + 1):
        assert files.pread_now(handle, len(data), 0) == data
    assert kernel.asked == ASKED_AFTER_MISS
    assert not files._asked
    files._asked[handle] = 1
    files.close(handle)
    assert not files._asked


def test_the_kernel_itself_says_which_pages_it_has(tmp_path: Path) -> None:
    """Pages that nobody ever read or wrote are not in memory, whatever else the machine does."""
    files = OsFileSystem()
    data = bytes(range(256)) * 400
    length = 256 * 1024
    handle = files.open(tmp_path / "f", True)
    files.pwrite(handle, data, 0)
    files.truncate(handle, length)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    files._asked[handle] = ASKED_AFTER_MISS
    assert files.pread_now(handle, length, 0) is None or not files._stats
    if not files._stats:
        pytest.skip("this kernel has no cachestat")
    assert files._pages[0] <= -(-len(data) // PAGE_BYTES), "the read did not begin"
    for _ in range(100):  # between two steps the machine may drop what nobody uses
        files.pread(handle, len(data), 0)
        if (found := files.pread_now(handle, len(data), 0)) is not None:
            break
    assert found == data
    assert files.read_file(tmp_path / "f", length, 0, 0) == data + bytes(length - len(data))
    files.close(handle)


def test_a_kernel_that_does_not_tell_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFileSystem()
    handle = files.open(tmp_path / "f", True)
    files.pwrite(handle, bytes(100_000), 0)
    asked = []

    def refuse(*arguments: object) -> int:
        asked.append(arguments)
        return -1

    monkeypatch.setattr("gantrymq.store.files._syscall", refuse)
    files._asked[handle] = ASKED_AFTER_MISS
    assert [files.pread_now(handle, 100_000, 0) for _ in range(2)] == [bytes(100_000)] * 2
    assert len(asked) == 1
    files.close(handle)


def test_topics_are_opened_ahead_when_a_thread_has_read_what_that_reads(bench: Bench) -> None:
    bench.settings = {"consumequeue_file_size": 20 * 1000}
    store = bench.open()
    for number in range(3):
        count = 1 + 700 * number
        store.append([Message(f"T{number}", b"", queue_id=0) for _ in range(count)], [()] * count)
    store.close()
    store = bench.open()
    posts = Posts()
    reads = ColdReads(bench.files, posts)
    store.read_without_waiting(reads)
    assert not store.used_topics
    paths: dict[int, Path] = {}
    in_thread: set[tuple[Path, int]] = set()
    in_loop: set[tuple[Path, int]] = set()
    original_open, original_pread = bench.files.open, bench.files.pread

    def open_(path: Path, create: bool) -> int:
        handle = original_open(path, create)
        paths[handle] = path
        return handle

    def pread(handle: int, count: int, at: int) -> bytes:
        pages = in_loop if current_thread() is main_thread() else in_thread
        pages.update([(paths[handle], page) for page in (at // 4096, (at + count - 1) // 4096)])
        return original_pread(handle, count, at)

    bench.files.open = open_  # type: ignore[method-assign]
    bench.files.pread = pread  # type: ignore[method-assign]
    store.open_ahead()
    for _ in range(3):
        posts.run_one()
    assert sorted(store.used_topics) == ["T0", "T1", "T2"]
    assert [store.max_offset(f"T{number}", 0) for number in range(3)] == [1, 701, 1401]
    assert in_loop
    assert in_loop <= in_thread
    assert not reads.queued
    reads.stop()


def test_who_comes_first_opens_a_topic_and_nothing_is_opened_ahead_after_a_stop(bench: Bench) -> None:
    store = bench.open()
    for number in range(3):
        store.append([Message(f"T{number}", b"", queue_id=0)], [()])
    store.close()
    store = bench.open()
    posts = Posts()
    reads = ColdReads(bench.files, posts)
    store.read_without_waiting(reads)
    store.open_ahead()
    assert store.max_offset("T2", 0) == store.max_offset("T1", 0) == 1
    reads.stop()
    posts.run_one()
    assert sorted(store.used_topics) == ["T1", "T2"]
    store.open_ahead()
    assert not reads.queued
    assert posts.queue.empty()
