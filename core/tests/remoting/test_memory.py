"""What a broker keeps in memory of messages that are stored, consumed or not: nothing that grows with their number."""

from __future__ import annotations

import gc
import sys

from tests.remoting.bench import Bench, pull, send_frame

BATCH = 250
WARM, MORE = 5_000, 20_000


def store(bench: Bench, count: int) -> None:
    """Messages with a key each, all in one queue, pulled by nobody; the disk and the index follow."""
    link = bench.connect()
    first = bench.store.max_offset("T", 0)
    for start in range(first, first + count, BATCH):
        frames = [send_frame(b"body", f"UNIQ_KEY\x01U{number:012d}\x02", e=0) for number in range(start, start + BATCH)]
        link.feed(b"".join(frames))
    bench.wheel.advance(2_000)
    bench.turn.run_until_quiet()
    while bench.store.run_background(1_000_000):
        pass
    bench.store.flush()
    link.lose()
    bench.turn.run_until_quiet()


def test_stored_messages_are_not_kept(bench: Bench) -> None:
    store(bench, WARM)
    gc.collect()
    blocks, objects = sys.getallocatedblocks(), len(gc.get_objects())
    store(bench, MORE)
    gc.collect()
    assert bench.store.max_offset("T", 0) == WARM + MORE
    assert pull(bench.connect(), queueOffset=WARM + MORE - 1).code == 0
    assert sys.getallocatedblocks() - blocks < MORE // 20
    assert len(gc.get_objects()) - objects < MORE // 100
