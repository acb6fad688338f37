"""What the demonstration shows is readable: nothing printed over anything else, no internals, times with what they are."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the demonstration's packages are in the demo environment")

from interop_tests.demo.faces import own
from interop_tests.demo.ledger import Ledger
from interop_tests.demo.plot import GAP_S, PIPELINE, Outage, picture
from interop_tests.demo.report import latency_note
from interop_tests.demo.sources import pack

NAMES = {"mqtt": "MQTT", "amqp": "AMQP", "cloudevents": "CloudEvents"}
CONSUMERS = ["MQTT session", "AMQP queue", "webhook", "pull consumer", "Spark"]
TITLE = "GantryMQ: 11,843 messages, three protocols, 5 consumers, the server killed once: something is wrong"
BEGUN = 1000.0


def run(seconds: int, outage: Outage) -> Ledger:
    """Ten messages a second through every door, none while the server is away."""
    ledger = Ledger(NAMES, CONSUMERS)
    for door in NAMES:
        for number in range(seconds * 10):
            at = BEGUN + number / 10
            if outage.killed_at <= at < outage.ready_at:
                continue
            body = pack({"id": f"{door}-{number}", "at": at})
            ledger.sending(door, f"{door}-{number}", body)
            ledger.acknowledged(door, f"{door}-{number}", at)
            for consumer in CONSUMERS:
                ledger.received(consumer, door, body, at + 0.05)
    return ledger


def pipeline(seconds: int) -> list[dict[str, Any]]:
    """Notes of Spark's pipeline, a batch of each query every four seconds."""
    return [
        {
            "query": query, "at": datetime.fromtimestamp(BEGUN + at, UTC).isoformat(), "rows": 40, "rows_per_s": 20.0,
            "batch_ms": 900, "waited_ms": 1500.0, "lag": 3,
        }
        for query in PIPELINE
        for at in range(-4, seconds, 4)
    ]  # fmt: skip


@pytest.mark.parametrize("batches", [[], pipeline(60)], ids=["no-spark", "spark"])
@pytest.mark.parametrize("killed_at", [1.0, 10.0, 30.0, 45.0])
def test_no_text_of_the_picture_is_over_another(killed_at: float, batches: list[dict[str, Any]]) -> None:
    outage = Outage(BEGUN + killed_at, BEGUN + killed_at + 5.5)
    figure = picture(run(60, outage), NAMES, BEGUN, outage, TITLE, batches)
    figure.draw_without_rendering()
    top = figure.axes[0]
    texts = [*figure.texts, *top.texts, *(axes._left_title for axes in figure.axes)]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    boxes += [("legend", axes.get_legend().get_window_extent()) for axes in figure.axes]
    assert len(boxes) == 2 + 2 * len(figure.axes)
    assert len(figure.axes) == (4 if batches else 3)
    assert not [(one, other) for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]
    assert not [text for text, box in boxes if box.x0 < figure.bbox.x0 or box.x1 > figure.bbox.x1]
    rates = [line for line in top.lines if line.get_label() in NAMES.values()]
    highest = max(line.get_window_extent().y1 for line in rates)
    assert top.texts[0].get_window_extent().y0 > highest


def test_a_line_is_not_drawn_through_an_outage() -> None:
    outage = Outage(BEGUN + 10.0, BEGUN + 10.0 + GAP_S + 3)
    figure = picture(run(30, outage), NAMES, BEGUN, outage, TITLE, [])
    for line in figure.axes[2].lines[: len(CONSUMERS)]:
        values = list(line.get_ydata())
        assert sum(value != value for value in values) == 1


def test_internals_of_the_doors_are_not_shown() -> None:
    properties = {
        "TAGS": "a",
        "UNIQ_KEY": "7F",
        "GANTRY_AMQP_HEADER": "sIAQYXBw",
        "GANTRY_ORIGIN": "amqp",
        "tailnum": "N14228",
    }
    assert own(properties) == {"properties": "tailnum=N14228"}
    assert own({"GANTRY_ORIGIN": "mqtt"}) == {}


def test_times_are_told_with_what_was_on_the_machine() -> None:
    note = latency_note(5.54, 12.34, 2)
    assert "on this loaded machine with everything on it" in note
    assert "load 12.3 on 2 cores" in note
    assert "5.5 s away" in note
    assert "on 1 core)" in latency_note(0.0, 0.1, 1)
