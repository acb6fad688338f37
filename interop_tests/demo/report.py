"""What the demonstration prints: progress while it runs, and the tables at the end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from interop_tests.demo.alerts import WATERMARK_S, AlertBook, RejectedBook, due, expected
from interop_tests.demo.ledger import Ledger, Verdict
from interop_tests.demo.sources import Reading

REFRESH_PER_S = 4
PLAIN_EVERY_S = 10.0
"""Without a terminal a line is printed so often."""


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


@dataclass(slots=True)
class Progress:
    """The picture while messages flow; `state` and `share` (0 to 1) are set from outside."""

    ledger: Ledger
    names: dict[str, str]
    alerts: AlertBook
    state: str = ""
    share: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    def __rich__(self) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        head.add_row(ProgressBar(total=1.0, completed=self.share, width=30), Text(self.state, "bold"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("published over", style="cyan")
        for heading in ("sent", "acknowledged", *self.ledger.consumers):
            table.add_column(heading, justify="right")
        for door, book in self.ledger.doors.items():
            received = [f"{len(books[door].pairs):,}" for books in self.ledger.consumers.values()]
            table.add_row(self.names[door], f"{len(book.sent):,}", f"{len(book.acknowledged):,}", *received)
        return Group(Text(), head, table, Text(f"alerts out of MQTT: {self.alerts.counts.total()}", "dim"))

    def line(self) -> str:
        sent = sum(len(book.sent) for book in self.ledger.doors.values())
        acked = sum(len(book.acknowledged) for book in self.ledger.doors.values())
        received = ", ".join(
            f"{name} {sum(len(book.pairs) for book in books.values())}" for name, books in self.ledger.consumers.items()
        )
        return f"{time.monotonic() - self.begun:4.0f} s  {self.state}: {sent} sent, {acked} acknowledged; {received}"


class Screen:
    """Live progress on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        drawn = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(progress, console=console, refresh_per_second=REFRESH_PER_S) if drawn else None
        self._printed = 0.0

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._console.print(self._progress.line(), soft_wrap=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, soft_wrap=True)

    def tick(self) -> None:
        if self._live is None and time.monotonic() - self._printed >= PLAIN_EVERY_S:
            self._printed = time.monotonic()
            self._console.print(self._progress.line(), soft_wrap=True)


def _count(number: int, bad: bool = False) -> Text:
    return Text(f"{number:,}", "bold red" if bad and number else "")


def door_table(ledger: Ledger, door: str, name: str, verdicts: list[Verdict]) -> Table:
    book = ledger.doors[door]
    title = f"{name}: {len(book.sent):,} sent, {len(book.acknowledged):,} acknowledged, {book.sent_again:,} sent again"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="", box=box.ROUNDED)
    table.add_column("received by", style="cyan", width=17)
    for heading in ("messages", "duplicates", "missing", "invented", "p50", "p99"):
        table.add_column(heading, justify="right", min_width=8)
    table.add_column("")
    for verdict in verdicts:
        table.add_row(
            verdict.consumer,
            _count(verdict.received),
            _count(verdict.duplicates),
            _count(verdict.missing, True),
            _count(verdict.invented, True),
            milliseconds(verdict.p50_s),
            milliseconds(verdict.p99_s),
            Text("equal", "green") if verdict.ok else Text("WRONG", "bold red"),
        )
    return table


def show_results(console: Console, ledger: Ledger, names: dict[str, str], down_s: float) -> None:
    """A table per door; `down_s`: how long the server was away."""
    for door in ledger.doors:
        verdicts = [ledger.judge(door, consumer) for consumer in ledger.consumers]
        console.print(Text())
        console.print(door_table(ledger, door, names[door], verdicts))
    console.print(latency_note(down_s, os.getloadavg()[0], os.cpu_count() or 1), highlight=False)


def latency_note(down_s: float, load: float, cores: int) -> str:
    """What the times in the tables are, for whoever takes them for those of the server."""
    return (
        "p50 and p99: from publishing to receipt, on this loaded machine with everything on it: publishers, consumers, server"
        f" (load {load:.1f} on {cores} core{'s' if cores > 1 else ''}). What waited for the killed server, {down_s:.1f} s away, is included."
        " ./run bench measures speed."
    )


def show_alerts(console: Console, book: AlertBook, published: list[tuple[str, Reading, float]]) -> None:
    """What Spark wrote back."""
    due_alerts = due(published)
    came = len(due_alerts - book.missing(due_alerts))
    invented = len(set(book.counts) - expected(published))
    console.print(Text())
    console.print(
        f"[bold]Alerts[/bold], from the telemetry by Spark to topic alerts and out of MQTT: {came} of {len(due_alerts)} due came,"
        f" {invented} invented,\n{book.duplicates()} duplicates;"
        f" {milliseconds(book.median_delay_s())} after the end of their window (median; the watermark is {WATERMARK_S} s)",
        highlight=False,
    )
    if book.counts:
        console.print(Text(f"  for example  {book.example[1]}", "dim"), soft_wrap=True)


def show_rejected(console: Console, book: RejectedBook) -> None:
    """What the pipeline refused: readings of a device that this machine has not."""
    console.print(
        f"[bold]Dead letters[/bold], from the telemetry by Spark to topic rejected and out of MQTT: {len(book.counts)} readings without a value,"
        f" {book.counts.total() - len(book.counts)} duplicates",
        highlight=False,
    )
