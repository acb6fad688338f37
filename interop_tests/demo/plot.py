"""The run as a picture: what was acknowledged, what was received, and how late, with the kill marked."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gantrymq.spark.pipeline.project.telemetry.dashboard import series
from interop_tests.demo.ledger import Ledger, Receipt, percentile

DPI = 140
WIDTH_INCHES, PANEL_INCHES = 11, 3.1
# Okabe and Ito: told apart with any colour vision.
DOOR_COLOURS = {"mqtt": "#0072B2", "amqp": "#D55E00", "cloudevents": "#009E73"}
CONSUMER_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"]
INK, FAINT, SHADE, KILL = "#222222", "#d9d9d9", "#c9c9c9", "#c0392b"
HEADROOM = 1.25
"""Of the first panel, for the label of the kill."""
PIPELINE = {"windows": "table of windows", "alerts": "alerts topic", "rejected": "dead letters"}
"""What the pipeline's queries are called in the legend."""
GAP_S = 2
"""A line is not drawn through a time as long as this in which nothing came."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Seconds since the epoch."""

    killed_at: float
    ready_at: float


def _per_second(times: list[float], begun: float, seconds: int) -> list[int]:
    counts = Counter(int(at - begun) for at in times)
    return [counts.get(second, 0) for second in range(seconds)]


def _medians(receipts: list[Receipt], begun: float) -> tuple[list[float], list[float]]:
    """Middles of the seconds in which something came, and their median in ms; where nothing came for a while, the line has a gap."""
    buckets: dict[int, list[float]] = {}
    for receipt in receipts:
        if receipt.at >= begun:
            buckets.setdefault(int(receipt.at - begun), []).append(receipt.latency_s * 1000)
    seconds: list[float] = []
    medians: list[float] = []
    for second, bucket in sorted(buckets.items()):
        if seconds and second - seconds[-1] > GAP_S:
            seconds.append(second - 0.5)
            medians.append(math.nan)
        seconds.append(second + 0.5)
        medians.append(percentile(bucket, 0.50))
    return seconds, medians


def _dress(axes: Any, title: str, outage: Outage | None, begun: float) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(which="both", colors=INK, length=0, labelsize=9)
    if outage is not None:
        axes.axvspan(outage.killed_at - begun, outage.ready_at - begun, color=KILL, alpha=0.16, linewidth=0)
        axes.axvline(outage.killed_at - begun, color=KILL, linewidth=1.4)


def _label(axes: Any, outage: Outage, begun: float) -> None:
    """Inside the panel, above its lines: the room above it belongs to the heading."""
    axes.set_ylim(top=axes.get_ylim()[1] * HEADROOM)
    down_s = outage.ready_at - outage.killed_at
    axes.annotate(
        f"server killed (kill -9);\nit takes messages again after {down_s:.1f} s",
        (outage.killed_at - begun, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(6, -4),
        textcoords="offset points",
        verticalalignment="top",
        color=KILL,
        fontsize=9,
    )


def line_end(line: dict[str, Any]) -> float:
    """When a batch of the pipeline was over, seconds since the epoch."""
    return datetime.fromisoformat(line["at"]).timestamp() + float(line["batch_ms"]) / 1000


def _pipeline(axes: Any, batches: list[dict[str, Any]], begun: float, seconds: int) -> None:
    """How long messages took from the log to where the pipeline writes them: its three queries."""
    for (query, points), colour in zip(
        sorted(series(batches, begun)["latency_s"].items()), CONSUMER_COLOURS, strict=False
    ):
        shown = [(x, y) for x, y in points if 0 <= x <= seconds]
        axes.plot(
            *zip(*shown, strict=True) if shown else ([], []),
            color=colour,
            linewidth=1.6,
            marker="o",
            markersize=2.5,
            label=PIPELINE[query],
        )


def picture(
    ledger: Ledger,
    names: dict[str, str],
    begun: float,
    outage: Outage | None,
    title: str,
    batches: list[dict[str, Any]],
) -> Figure:
    """`names`: what doors are called in the legend; `begun`: when traffic began, seconds since the epoch; `batches`: of Spark's pipeline, if it ran."""
    receipts = {
        consumer: [receipt for book in books.values() for receipt in book.receipts]
        for consumer, books in ledger.consumers.items()
    }
    ends = [receipt.at for rows in receipts.values() for receipt in rows]
    ends += [at for book in ledger.doors.values() for at in book.ack_times]
    ends += [line_end(line) for line in batches if line["rows"]]
    seconds = max(2, int(max(ends, default=begun) - begun) + 1)
    middles = [second + 0.5 for second in range(seconds)]
    count = 4 if batches else 3
    figure = Figure(figsize=(WIDTH_INCHES, PANEL_INCHES * count), layout="constrained")
    top, middle, bottom, *more = panels = list(figure.subplots(count, 1, sharex=True))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    for door, book in ledger.doors.items():
        counts = _per_second(book.ack_times, begun, seconds)
        top.step(middles, counts, where="mid", color=DOOR_COLOURS[door], linewidth=1.8, label=names[door])
    acked = sorted(at - begun for book in ledger.doors.values() for at in book.ack_times)
    middle.plot(acked, range(1, len(acked) + 1), color=SHADE, linewidth=7, solid_capstyle="butt", label="acknowledged")
    for (consumer, rows), colour in zip(receipts.items(), CONSUMER_COLOURS, strict=False):
        times = sorted(receipt.at - begun for receipt in rows)
        middle.step(times, range(1, len(times) + 1), where="post", color=colour, linewidth=1.3, label=consumer)
        bottom.plot(*_medians(rows, begun), color=colour, linewidth=1.6, marker="o", markersize=2.5, label=consumer)
    _dress(top, "Messages acknowledged per second, by the protocol that they came in through", outage, begun)
    _dress(middle, "Messages received so far, by consumer (those that came twice count twice)", outage, begun)
    _dress(
        bottom,
        "From publishing to receipt, median of each second, in ms: this machine with everything on it",
        outage,
        begun,
    )
    for axes in (top, middle):
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
    if outage is not None:
        _label(top, outage, begun)
    bottom.set_yscale("log")
    bottom.yaxis.set_major_formatter(lambda value, _position: f"{value:,g}")
    for axes in more:
        _pipeline(axes, batches, begun, seconds)
        _dress(
            axes,
            "Spark's pipeline: from stored in the log to written out, in seconds, mean of each batch",
            outage,
            begun,
        )
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("seconds since traffic began", color=INK, fontsize=10)
    bottom.set_xlim(0, seconds)
    for axes in panels:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9, labelcolor=INK)
    return figure


def draw(path: Path, figure: Figure) -> None:
    """A PNG; no display is needed."""
    figure.savefig(path, dpi=DPI, facecolor="white")
