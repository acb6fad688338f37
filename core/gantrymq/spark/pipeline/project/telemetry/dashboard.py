"""What the queries did, as a page and a picture: rates, lag, latency. `./run dashboard` draws them again at any time."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from .settings import Settings, load

COLOURS = ("#0072B2", "#D55E00", "#009E73")
PANELS = (
    ("rows_per_s", "Messages a second that each query works through"),
    ("lag", "Messages of the topic that are not read yet"),
    ("latency_s", "From stored in the log to written out, in seconds: mean of each batch"),
)
NOTHING = "nothing to show (a replay of files has no lag)"
WIDTH, HEIGHT, LEFT, TOP = 860, 190, 60, 34

Points = list[tuple[float, float]]


def series(lines: Iterable[dict[str, Any]], begun: float | None = None) -> dict[str, dict[str, Points]]:
    """Panel -> query -> (seconds since `begun`, else since the first batch; value). Batches that read nothing have neither rate nor latency."""
    found: dict[str, dict[str, Points]] = {key: defaultdict(list) for key, _ in PANELS}
    rows = [(datetime.fromisoformat(line["at"]).timestamp(), line) for line in lines]
    if begun is None:
        begun = min((at for at, _ in rows), default=0.0)
    for at, line in sorted(rows, key=lambda row: row[0]):
        x = at - begun + line["batch_ms"] / 1000
        if line["lag"] is not None:
            found["lag"][line["query"]].append((x, line["lag"]))
        if line["rows"]:
            found["rows_per_s"][line["query"]].append((x, line["rows_per_s"]))
        if line["waited_ms"] is not None:
            found["latency_s"][line["query"]].append((x, (line["waited_ms"] + line["batch_ms"]) / 1000))
    return found


def panel(title: str, lines: dict[str, Points]) -> str:
    """One plot as SVG."""
    points = [point for row in lines.values() for point in row]
    if not points:
        return f"<p><b>{html.escape(title)}</b>: {NOTHING}</p>"
    right = max((x for x, _ in points), default=0.0) or 1.0
    top = max((y for _, y in points), default=0.0) or 1.0

    def place(x: float, y: float) -> str:
        return f"{LEFT + x / right * (WIDTH - LEFT - 20):.1f},{HEIGHT - 24 - y / top * (HEIGHT - 24 - TOP):.1f}"

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><text x="0" y="18" class="title">{html.escape(title)}</text>'
    ]
    for share in (0.0, 0.5, 1.0):
        x, y = place(0.0, share * top).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y}" class="scale">{share * top:,.4g}</text>')
    for (name, row), colour in zip(sorted(lines.items()), COLOURS, strict=False):
        path = " ".join(place(x, y) for x, y in row)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="{colour}"><title>{html.escape(name)}: {y:,.4g}</title></circle>'
            for at, y in ((place(x, y).split(","), y) for x, y in row)
        ]
    parts.append(f'<text x="{WIDTH - 20}" y="{HEIGHT - 6}" class="scale">{right:.0f} s</text></svg>')
    return "".join(parts)


def page(name: str, found: dict[str, dict[str, Points]], rows: list[dict[str, Any]]) -> str:
    """The page; it needs nothing from elsewhere."""
    queries = sorted({row["query"] for row in rows})
    legend = "<br>".join(
        f'<b style="color:{colour}">{html.escape(query)}</b>'
        f" {sum(row['rows'] for row in rows if row['query'] == query):,} messages,"
        f" {sum(row['query'] == query for row in rows)} batches,"
        f" {sum(row['late'] for row in rows if row['query'] == query):,} readings too late"
        for query, colour in zip(queries, COLOURS, strict=False)
    )
    style = (
        "body{font:15px sans-serif;color:#222;max-width:900px;margin:2em auto}svg{width:100%}.title{font-size:14px;font-weight:bold}"
        ".scale{font-size:11px;text-anchor:end;dominant-baseline:middle;fill:#555}.grid{stroke:#ddd}"
    )
    plots = "".join(panel(title, found[key]) for key, title in PANELS)
    heading = f"<h1>{html.escape(name)}</h1><p>{legend}</p>"
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(name)}</title><style>{style}</style>{heading}{plots}\n"
    )


def picture(name: str, found: dict[str, dict[str, Points]], path: Path) -> bool:
    """The same as PNG; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 8), layout="constrained")
    figure.suptitle(name, x=0.01, ha="left", fontweight="bold")
    for axes, (key, title) in zip(figure.subplots(len(PANELS), 1, sharex=True), PANELS, strict=True):
        axes.set_title(title, loc="left", fontsize=10)
        for (query, row), colour in zip(sorted(found[key].items()), COLOURS, strict=False):
            axes.plot(*zip(*row, strict=True), color=colour, marker="o", markersize=3, label=query)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd")
        if found[key]:
            axes.legend(frameon=False, fontsize=8)
        else:
            axes.text(0.5, 0.5, NOTHING, ha="center", transform=axes.transAxes)
    axes.set_xlabel("seconds since the first batch")
    figure.savefig(path, dpi=120, facecolor="white")
    return True


def noted(output: Path) -> list[dict[str, Any]]:
    """What `queries.Progress` wrote."""
    source = output / "progress.jsonl"
    return [json.loads(line) for line in source.read_text().splitlines()] if source.exists() else []


def draw(settings: Settings) -> list[Path]:
    """Write dashboard.html, and dashboard.png where there is matplotlib, into the output folder; the files."""
    output = Path(settings.output)
    output.mkdir(parents=True, exist_ok=True)
    rows = noted(output)
    found = series(rows)
    (output / "dashboard.html").write_text(page(settings.name, found, rows))
    drawn = picture(settings.name, found, output / "dashboard.png")
    return [output / "dashboard.html", *([output / "dashboard.png"] if drawn else [])]


if __name__ == "__main__":
    for written in draw(load()):
        print(written)
