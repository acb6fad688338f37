"""Counters, gauges and their text."""

from __future__ import annotations

import pytest

from gantrymq.metrics import Metrics


def test_text_format() -> None:
    metrics = Metrics()
    sent = metrics.counter("gantry_messages_total", "Messages\nstored", door="mqtt")
    sent.value += 3
    metrics.counter("gantry_messages_total", "Messages\nstored", door='a"b\\c').value = 1
    metrics.gauge("gantry_queues", "Queues").value = 7
    metrics.read("gantry_connections", "Open connections", lambda: 2)
    assert metrics.counter("gantry_messages_total", "", door="mqtt") is sent
    assert metrics.render() == (
        "# HELP gantry_messages_total Messages\\nstored\n"
        "# TYPE gantry_messages_total counter\n"
        'gantry_messages_total{door="mqtt"} 3\n'
        'gantry_messages_total{door="a\\"b\\\\c"} 1\n'
        "# HELP gantry_queues Queues\n# TYPE gantry_queues gauge\ngantry_queues 7\n"
        "# HELP gantry_connections Open connections\n# TYPE gantry_connections gauge\ngantry_connections 2\n"
    )
    metrics.remove("gantry_messages_total", door="mqtt")
    metrics.remove("unknown")
    assert 'door="mqtt"' not in metrics.render()


def test_wrong_use_is_refused() -> None:
    metrics = Metrics()
    metrics.counter("a_total", "A")
    with pytest.raises(ValueError, match="a_total is a counter"):
        metrics.gauge("a_total", "A")
    with pytest.raises(ValueError, match="metric name"):
        metrics.counter("a b", "A")
    with pytest.raises(ValueError, match="label name"):
        metrics.counter("b_total", "B", **{"a-b": "c"})
    assert Metrics().render() == ""
