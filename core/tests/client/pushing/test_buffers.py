"""What a push consumer holds of one queue, and where broadcast keeps its offsets."""

import asyncio
from pathlib import Path

import pytest

from core.tests.client.client_runs import run
from core.tests.client.fake_cluster import make_record
from gantrymq.client import MessageQueue, ReceivedMessage, decode_records
from gantrymq.client.consuming.offsets import FileOffsets
from gantrymq.client.pushing import buffers
from gantrymq.client.pushing.buffers import QueueBuffer

QUEUE = MessageQueue("orders", "broker-a", 0)


def messages(*offsets: int, body: bytes = b"body") -> list[ReceivedMessage]:
    return decode_records(b"".join(make_record("orders", 0, offset, body) for offset in offsets))


def filled(*offsets: int, **more: int) -> QueueBuffer:
    buffer = QueueBuffer(QUEUE, offsets[0], **more)
    buffer.add(messages(*offsets))
    buffer.next_offset = offsets[-1] + 1
    return buffer


def test_the_floor_is_the_oldest_that_is_not_done() -> None:
    buffer = QueueBuffer(QUEUE, 5)
    assert buffer.floor == 5
    buffer = filled(5, 6, 9)
    floors = []
    for offset in (6, 5, 9):
        buffer.done(offset)
        floors.append(buffer.floor)
    assert floors == [5, 9, 10]
    assert (len(buffer), buffer.bytes) == (0, 0)
    buffer.done(9)  # twice is harmless
    assert buffer.bytes == 0


def test_each_limit_pauses_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filled(1, 2, messages_max=2).is_full()
    assert not filled(1, 2, messages_max=3).is_full()
    monkeypatch.setattr(buffers, "BYTES_MAX", 8)
    assert filled(1, 2).is_full()
    monkeypatch.setattr(buffers, "BYTES_MAX", 9)
    assert not filled(1, 2).is_full()
    monkeypatch.setattr(buffers, "SPAN_MAX", 10)
    assert filled(1, 11).is_full()
    assert not filled(1, 10).is_full()


def test_room_comes_when_something_is_done_or_the_queue_is_given_up() -> None:
    async def main() -> None:
        for free in (lambda buffer: buffer.done(1), QueueBuffer.drop):
            buffer = filled(1, 2, messages_max=2)
            waiting = asyncio.ensure_future(buffer.room())
            await asyncio.sleep(0)
            assert not waiting.done()
            free(buffer)
            await waiting

    run(main())


def test_quiet_waits_for_handler_calls() -> None:
    async def main() -> None:
        buffer = filled(1)
        assert await buffer.quiet(0)
        buffer.begin()
        assert not await buffer.quiet(0.01)
        asyncio.get_running_loop().call_soon(buffer.end)
        assert await buffer.quiet(10)

    run(main())


def test_offsets_in_a_file(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "deep" / "group.json"
        offsets = FileOffsets(path)
        assert await offsets.read(QUEUE) is None
        await offsets.write({QUEUE: 5})
        await offsets.write({MessageQueue("orders", "broker-a", 1): 7})
        again = FileOffsets(path)
        assert await again.read(QUEUE) == 5
        assert await again.read(MessageQueue("orders", "broker-a", 1)) == 7

    run(main())


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', '{"a": null}', "{"])
def test_a_file_of_offsets_that_cannot_be_read_counts_as_empty(tmp_path: Path, text: str) -> None:
    async def main() -> None:
        path = tmp_path / "group.json"
        path.write_text(text)
        offsets = FileOffsets(path)
        assert await offsets.read(QUEUE) is None
        await offsets.write({QUEUE: 1})
        assert await FileOffsets(path).read(QUEUE) == 1

    run(main())


def test_offsets_that_cannot_be_kept_are_kept_in_memory(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "file").write_text("")
        offsets = FileOffsets(tmp_path / "file" / "group.json")
        await offsets.write({QUEUE: 5})
        assert await offsets.read(QUEUE) == 5

    run(main())
