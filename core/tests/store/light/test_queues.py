"""Light queues against a plain dictionary of lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.store.light import queues as light_queues
from gantrymq.store.light import stream as light_stream
from gantrymq.store.light.queues import LightQueues
from gantrymq.store.light.stream import FRAME, RUN
from gantrymq.store.queues.consume_queue import HOLE
from gantrymq.store.testing import MemoryFileSystem

if TYPE_CHECKING:
    import pytest

ROOT = Path("/d/light")


def open_on(files: MemoryFileSystem, log_end: int = 1 << 60, segment_size: int = 4096) -> LightQueues:
    lights = LightQueues(files, ROOT, segment_size)
    lights.open(log_end)
    return lights


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sets(st.sampled_from([1, 2, 3, 5000, 1 << 40]), min_size=1)),
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("save"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("delete"), st.sampled_from([2, 3])),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 30), st.integers(1, 30))
def test_same_as_lists(steps: list[tuple[str, object]], offset: int, count: int) -> None:
    files = MemoryFileSystem()
    lights = open_on(files)
    model: dict[int, list[tuple[int, int, int]]] = {}
    position = 0
    for name, value in steps:
        if name == "add":
            position += 100
            for light in value:  # type: ignore[attr-defined]
                queue = model.setdefault(light, [])
                assert lights.add(light, position, 100, -position) == len(queue)
                queue.append((position, 100, -position))
        elif name == "delete":
            lights.delete(value)  # type: ignore[arg-type]
            model.pop(value, None)  # type: ignore[call-overload]
        else:
            lights.write_pending(position + 1)
            if name == "save":
                lights.save_table()
            if name == "reopen":
                lights.close()
                lights = open_on(files)
                assert lights.log_position == position + 1
    for light in (1, 2, 3, 4, 5000, 1 << 40):
        queue = model.get(light, [])
        assert lights.next_offset(light) == len(queue)
        assert lights.read(light, offset, count) == queue[offset : offset + count]


def test_golden_frame_and_run() -> None:
    files = MemoryFileSystem()
    lights = open_on(files)
    lights.add(7, 0x10, 0x20, 0x30)
    lights.write_pending(48)
    [(path, data)] = files.snapshot().items()
    assert path.name == "0" * 20
    none = "ffffffffffffffff"
    assert data[:4] == b"GLQ2"
    assert data[8:48].hex() == "00000048000000010000000000000000000000000000000000000000000000300000000000000030"
    assert data[48:].hex() == (
        "0000000000000007" "0000000000000000" "0000000000000000" + none * 3 + "00000001"
        "0000000000000010" "00000020" "0000000000000030"
    )  # fmt: skip
    assert (FRAME.size, RUN.size) == (48, 52)


def test_any_offset_of_a_long_queue_is_found_in_few_steps() -> None:
    files = MemoryFileSystem()
    lights = open_on(files, segment_size=1 << 20)
    for number in range(9000):
        lights.add(1, number, 100, 0)
        lights.write_pending(number + 1)
    reads = 0
    original = files.pread

    def counted(handle: int, count: int, at: int) -> bytes:
        nonlocal reads
        reads += 1
        return original(handle, count, at)

    files.pread = counted  # type: ignore[method-assign]
    for offset in (0, 1, 63, 64, 65, 4095, 4096, 4097, 8999):
        reads = 0
        lights._trails.clear()
        assert lights.read(1, offset, 1) == [(offset, 100, 0)]
        assert reads <= 400, offset
    reads = 0
    assert [unit[0] for unit in lights.read(1, 0, 9000)] == list(range(9000))
    assert reads < 9000 * 3


def test_frames_beyond_the_log_are_dropped() -> None:
    files = MemoryFileSystem()
    lights = open_on(files)
    for number in range(5):
        lights.add(1, number * 100, 100, 0)
        lights.write_pending(number * 100 + 100)
    again = open_on(files, log_end=350)
    assert (again.log_position, again.next_offset(1)) == (300, 3)
    again.replay(1, 2, (200, 100, 0))  # already there
    again.replay(1, 3, (300, 50, 0))
    again.write_pending(350)
    last = open_on(files)
    assert last.read(1, 0, 9) == [(0, 100, 0), (100, 100, 0), (200, 100, 0), (300, 50, 0)]


def test_a_bad_frame_ends_the_stream() -> None:
    files = MemoryFileSystem()
    lights = open_on(files, segment_size=512)
    for number in range(20):
        lights.add(number % 3 + 1, number * 100, 100, 0)
        lights.write_pending(number * 100 + 100)
    path = sorted(files.snapshot())[1]
    handle = files.open(path, False)
    files.pwrite(handle, b"\xff", 50)
    again = open_on(files, segment_size=512)
    assert again.log_position < 2000
    assert sum(again.next_offset(light) for light in (1, 2, 3)) * 100 == again.log_position


def test_replay_fills_small_gaps_only() -> None:
    lights = open_on(MemoryFileSystem())
    lights.replay(1, 2, (5, 100, 0))
    assert lights.read(1, 0, 9) == [HOLE, HOLE, (5, 100, 0)]
    lights.replay(1, 3 + light_queues.HOLES_MAX + 1, (6, 100, 0))
    assert lights.next_offset(1) == 3


def test_a_large_flush_is_split_into_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_stream, "FRAME_BYTES_MAX", 500)
    files = MemoryFileSystem()
    lights = open_on(files)
    for light in range(1, 100):
        lights.add(light, light, 100, 0)
    lights.write_pending(777)
    again = open_on(files)
    assert again.log_position == 777
    assert [again.read(light, 0, 5) for light in range(1, 100)] == [[(light, 100, 0)] for light in range(1, 100)]


def test_a_million_ids_need_no_object_each() -> None:
    lights = open_on(MemoryFileSystem())
    for light in range(1, 1_000_000, 64):
        lights.add(light, 1, 100, 0)
    pages = lights.table.pages.values()
    assert len(pages) == 15_625
    assert sum(page.itemsize * len(page) for page in pages) == 1_000_000 * 56


def test_descriptors_are_bounded() -> None:
    files = MemoryFileSystem()
    lights = open_on(files, segment_size=512)
    for number in range(400):
        lights.add(1, number, 100, 0)
        lights.write_pending(number + 1)
    assert lights.read(1, 0, 400) == [(number, 100, 0) for number in range(400)]
    assert files.open_handles <= light_stream.HANDLES_MAX + 1  # the table
