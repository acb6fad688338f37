"""Counters, gauges and their text."""

from __future__ import annotations

import pytest

from gantrymq.metrics import Histogram, Metrics


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


def test_histograms_count_each_value_in_one_bucket_and_show_sums() -> None:
    metrics = Metrics()
    times = metrics.histogram("gantry_seconds", "Time", (0.1, 1.0), door="mqtt")
    for value in (0.1, 0.10001, 5.0):
        times.observe(value)
    times.observe(0.5, 2)
    assert times.counts == [1, 3, 1]
    assert metrics.histogram("gantry_seconds", "", (9.0,), door="mqtt") is times
    assert metrics.render() == (
        "# HELP gantry_seconds Time\n# TYPE gantry_seconds histogram\n"
        'gantry_seconds_bucket{door="mqtt",le="0.1"} 1\n'
        'gantry_seconds_bucket{door="mqtt",le="1.0"} 4\n'
        'gantry_seconds_bucket{door="mqtt",le="+Inf"} 5\n'
        'gantry_seconds_sum{door="mqtt"} 6.20001\n'
        'gantry_seconds_count{door="mqtt"} 5\n'
    )
    kept = Histogram((1, 2))
    kept.observe(2)
    metrics.show("kept", "Kept elsewhere", kept)
    assert 'kept_bucket{le="2"} 1\nkept_bucket{le="+Inf"} 1\nkept_sum 2\nkept_count 1\n' in metrics.render()


def test_sources_are_read_piece_by_piece() -> None:
    metrics = Metrics()
    metrics.gauge("a", "A")
    metrics.add_source(lambda: iter(["b 1\n", "", "c 2\n"]))
    assert list(metrics.pieces())[1:] == ["b 1\n", "", "c 2\n"]
    assert metrics.render().endswith("a 0\nb 1\nc 2\n")
