"""How long batches take."""

from __future__ import annotations

import pytest

from gantrymq.broker.timings import Timings
from gantrymq.metrics import Metrics


def test_batches_of_a_turn_and_those_that_wait() -> None:
    now = [10.0]
    times = Timings()
    times.now = lambda: now[0]
    times.begin()
    now[0] += 0.002
    times.parked = 1
    times.answered(5, 3)
    assert times.send_seconds.sum == pytest.approx(0.004)  # two batches, 2 ms each; the third waits for the disk
    assert sum(times.send_seconds.counts) == 2
    assert times.batch_messages.sum == 5
    assert times.parked == 0
    times.begin()
    times.answered(0, 0)
    assert sum(times.batch_messages.counts) == 1
    assert sum(times.send_seconds.counts) == 2
    metrics = Metrics()
    times.show(metrics)
    assert "gantry_send_latency_seconds_count 2" in metrics.render()
