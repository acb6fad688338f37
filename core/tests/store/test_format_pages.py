"""The worked examples of docs/formats are what the code writes."""

from __future__ import annotations

import re
from pathlib import Path
from zlib import crc32

from gantrymq.broker.tables.tables import item_message
from gantrymq.model.message import Message
from gantrymq.model.names import java_hash
from gantrymq.store.checkpoints.positions import CHECKPOINT, Positions, Sizes
from gantrymq.store.light.stream import FRAME, RUN
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import UNIT
from gantrymq.store.testing import MemoryFileSystem

PAGES = Path(__file__).resolve().parents[3] / "docs" / "formats"
MS = 1_700_000_000_000


def example(page: str, begin: str) -> str:
    """Hex digits of the indented lines from the one that begins so to the next empty line, without what explains them."""
    lines = (PAGES / page).read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    " + begin))
    digits = []
    for line in lines[first:]:
        if not line.strip():
            break
        digits.append(re.split(r" {3,}", line.strip())[0].replace(" ", ""))
    return "".join(digits)


def the_record() -> bytes:
    message = Message("Orders", b"hello", b"TAGS\x01a\x02", "a", (), 3, MS)
    message.store_ms, message.queue_offset, message.physical_offset = MS + 1, 7, 4096
    message.born_host = bytes([192, 0, 2, 1]) + (40_000).to_bytes(4, "big")
    message.store_host = bytes([192, 0, 2, 9]) + (10_911).to_bytes(4, "big")
    return record.encode(message)


def test_a_record_and_its_unit() -> None:
    assert example("commitlog.md", "0000006d") == the_record().hex()
    assert example("consumequeue.md", "0000000000001000") == UNIT.pack(4096, len(the_record()), java_hash("a")).hex()


def test_a_row_of_a_table() -> None:
    row = item_message("light", "7", b"{}")
    assert (row.topic, row.body) == ("rmq_sys_gantry_light", b"{}")
    assert example("tables.md", "47414e54") == row.properties.hex()
    assert b"GANTRY_DELETED\x011\x02" in item_message("light", "7", None).properties


def test_a_frame_of_light_queues() -> None:
    text = example("light.md", "474c5132").replace("<crc>", "")
    assert len(bytes.fromhex(text)) == FRAME.size - 4 + RUN.size + UNIT.size
    assert text.endswith(UNIT.pack(16, 32, 48).hex())  # the whole: test_light_queues.test_golden_frame_and_run


def test_checkpoint_and_positions() -> None:
    assert example("files.md", "0000018bcfe56801") == CHECKPOINT.pack(MS + 1, MS + 1, MS + 1, 0, 0).hex()
    files = MemoryFileSystem()
    files.make_dirs(Path("/d"))
    positions = Positions(files, Path("/d/positions"))
    positions.open()
    positions.sizes = Sizes(134_217_728, 6_000_000, 5_000_000, 20_000_000)
    positions.begin = 0
    for _ in range(5):
        positions.save(8192, 4096)
    data = bytes.fromhex(example("files.md", "47504f32"))
    assert files.snapshot()[Path("/d/positions")][512 : 512 + len(data)] == data
    assert data[4:8] == crc32(data[8:]).to_bytes(4, "big")
