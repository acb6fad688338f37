"""How long batches take."""

from __future__ import annotations

import pytest

from gantrymq.metrics import Metrics
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node


@pytest.mark.parametrize("sync", [False, True])
def test_from_submission_to_answer(sync: bool) -> None:
    node = Node(MemoryFileSystem(), sync)
    now = [10.0]
    times = node.broker.pending.times
    times.now = lambda: now[0]
    done: list[object] = []
    for _ in range(2):
        node.port.submit([Message("t", b"1"), Message("t", b"2")], None, lambda _token, result: done.append(result))
    now[0] += 0.002
    node.turn.run_until_quiet()
    assert sum(times.send_seconds.counts) == (0 if sync else 2)
    now[0] += 0.001
    node.flush()
    assert len(done) == 2
    assert sum(times.send_seconds.counts) == 2
    assert times.send_seconds.sum == pytest.approx(0.006 if sync else 0.004)
    metrics = Metrics()
    times.show(metrics)
    assert "gantry_send_latency_seconds_count 2" in metrics.render()
