"""What appears on the terminal: tables that fit, sparklines, sizes, a view that is shown again and again."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape, render
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gantrymq.client.tools import as_json


class Screen(Console):
    """rich's console, which leaves a reader that went away (`| head`) to whoever runs the command."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process with exit code 1, as for a failure."""
        raise BrokenPipeError

    @property
    def draws(self) -> bool:
        """Whether something can be shown again in the same place: not by a program that reads, nor with TERM=dumb."""
        return self.is_terminal and not self.is_dumb_terminal


CONSOLE: Final = Screen(highlight=False)

BARS: Final = "▁▂▃▄▅▆▇█"

LINES: Final = box.SIMPLE_HEAD
"""One line below the head: every column of the terminal is for what people want to see."""

NARROW: Final = 60
"""Below so many columns nothing is padded."""

MEDIUM: Final = 80
"""From so many columns on nothing is left out."""

SPARK_MAX: Final = 30
"""Values of a sparkline: half a minute at one look a second."""

ROWS_MAX: Final = 500
"""Rows that are worth a table: nobody reads more of them on a screen."""

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

TIMES: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


def size(count: float) -> str:
    """Bytes as people say them."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {UNITS[unit]}"


def number(count: float) -> str:
    """A count with separators; a rate below ten with one digit behind the point."""
    return f"{count:,.1f}" if 0 < count < 10 and count != int(count) else f"{count:,.0f}"


def maybe(count: float | None) -> str:
    """A count, or that it is not known yet."""
    return "?" if count is None else number(count)


def span(ms: float) -> str:
    """A time as people say it: 12 s, 3 min, 5 h, 2 d."""
    seconds = int(max(ms, 0)) // 1000
    for unit, length in TIMES:
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def ago(at_ms: int, now_ms: int) -> str:
    """How long ago; - for never."""
    return f"{span(now_ms - at_ms)} ago" if at_ms > 0 else "-"


def spark(values: Sequence[float]) -> str:
    """One block per value, the highest fills its cell; an encoding without blocks gets nothing."""
    encoding = getattr(CONSOLE.file, "encoding", None) or "utf-8"
    if not values or not encoding.lower().replace("-", "").startswith("utf"):
        return ""
    top = max(values)
    return "".join([BARS[min(int(value / top * (len(BARS) - 1) + 0.5), 7)] if top > 0 else BARS[0] for value in values])


class Trend:
    """The last values of something that is looked at again and again; of a counter: its rates."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._last: tuple[float, float] | None = None

    def add(self, value: float) -> None:
        """One more value."""
        self.values.append(value)
        del self.values[:-SPARK_MAX]

    def count(self, total: float, at_s: float) -> None:
        """A counter stands at `total`; the rate since the last time is the value."""
        if self._last is not None and at_s > self._last[0]:
            self.add(max(total - self._last[1], 0) / (at_s - self._last[0]))
        self._last = (at_s, total)

    @property
    def known(self) -> bool:
        """Whether there is a rate: from the second look on."""
        return bool(self.values)

    def rate(self, values: int = 3) -> float:
        """The average of the last values: brokers count once a second."""
        last = self.values[-values:]
        return sum(last) / len(last) if last else 0.0


class Steps(Trend):
    """A counter that moves in steps, as a broker's of a topic do once a second: its rate is from the first step seen to the last, so that it does
    not depend on how many of them fall between two looks."""

    def __init__(self) -> None:
        super().__init__()
        self._begin: tuple[float, float] | None = None
        self._first: tuple[float, float] | None = None
        self._step: tuple[float, float] | None = None
        self._now_s = 0.0

    def count(self, total: float, at_s: float) -> None:
        """The counter stands at `total`."""
        self._now_s = at_s
        before = self._step or self._begin
        if before is None:
            self._begin = (at_s, total)
        elif total != before[1]:
            self.add(max(total - before[1], 0) / max(at_s - before[0], 0.001))
            self._first = self._first or (at_s, total)
            self._step = (at_s, total)

    @property
    def known(self) -> bool:
        """From the second look on: no step is a rate, too."""
        return self._begin is not None and self._now_s > self._begin[0]

    def rate(self, values: int = 3) -> float:
        """A second; of one step alone since the first look, and 0 without any."""
        if self._begin is None or self._first is None or self._step is None:
            return 0.0
        (begin_s, begin), (end_s, end) = self._first, self._step
        if end_s == begin_s:
            (begin_s, begin), end_s = self._begin, self._now_s
        return max(end - begin, 0) / max(end_s - begin_s, 0.001)


def plain(text: object) -> str:
    """Text of strangers without markup and control characters."""
    return escape("".join([char if char.isprintable() else "?" for char in str(text)]))


def table(*columns: str, title: str = "", caption: str = "") -> Table:
    """A table whose columns beginning with `>` are numbers, and are kept whole; others fold where the terminal is narrow."""
    made = Table(
        title=title or None, caption=caption or None, box=LINES, padding=(0, 0 if CONSOLE.width < NARROW else 1, 0, 0),
        pad_edge=False, show_edge=False, title_justify="left", caption_justify="left", title_style="bold", header_style="bold",
    )  # fmt: skip
    for column in columns:
        right = column.startswith(">")
        made.add_column(
            column.lstrip(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="ellipsis" if right else "fold",
        )
    return made


class Lines:
    """Rows as lines, as wide as their longest cells: a table of rich takes 2 ms a row."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._columns = columns
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rights = [column.startswith(">") for column in self._columns]
        cells = [[column.lstrip(">") for column in self._columns]]
        cells += [[render(cell).plain if "[" in cell else cell for cell in row] for row in self._rows]
        widths = [max([cell_len(row[place]) for row in cells]) for place in range(len(self._columns))]
        for row in cells:
            padded = [
                " " * (width - cell_len(cell)) + cell if right else cell + " " * (width - cell_len(cell))
                for cell, width, right in zip(row, widths, rights, strict=True)
            ]
            yield Segment("  ".join(padded).rstrip() + "\n")


def listing(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """A table of cells with markup (`table` says what `>` means); lines where there are more than `ROWS_MAX` rows."""
    if len(rows) > ROWS_MAX:
        return Lines(columns, rows)
    made = table(*columns)
    for row in rows:
        made.add_row(*row)
    return made


def facts(rows: Sequence[tuple[str, object]], title: str = "") -> Table:
    """Names and values."""
    made = Table(show_header=False, title=title or None, box=None, padding=(0, 1), pad_edge=False)
    made.title_justify = "left"
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(plain(name), value if isinstance(value, Text) else plain(value))
    return made


def lag_text(lag: int | None, online: bool = True) -> str:
    """A lag, red where nobody works on it."""
    if lag is None:
        return "?"
    if not lag:
        return "[green]0[/green]"
    return f"[yellow]{lag:,}[/yellow]" if online else f"[red]{lag:,}[/red]"


def show_rows(rows: Sequence[Any], as_lines: bool, make: Callable[[], RenderableType], nothing: str) -> None:
    """JSON lines, a table, or a word where there is nothing."""
    if as_lines:
        for row in rows:
            sys.stdout.write(as_json(row) + "\n")
        sys.stdout.flush()
    elif rows:
        CONSOLE.print(make())
    else:
        CONSOLE.print(nothing)


async def watch(
    fetch: Callable[[], Awaitable[tuple[Sequence[Any], RenderableType]]], again: bool, interval_s: float, as_lines: bool
) -> None:
    """Show what `fetch()` gives, once or every `interval_s`: as JSON lines, in place on a terminal, else one below the other."""
    live: Live | None = None
    if again and not as_lines and CONSOLE.draws:
        live = Live(console=CONSOLE, auto_refresh=False, vertical_overflow="crop")
        live.start()
    try:
        while True:
            rows, picture = await fetch()
            if as_lines:
                show_rows(rows, True, lambda: "", "")
            elif live is not None:
                live.update(picture, refresh=True)
            else:
                CONSOLE.print(picture)
            if not again:
                return
            await anyio.sleep(interval_s)
    finally:
        if live is not None:
            live.stop()


def stacked(*parts: RenderableType | None) -> Group:
    """One below the other."""
    return Group(*[part for part in parts if part is not None])
