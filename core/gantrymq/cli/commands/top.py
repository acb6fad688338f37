"""`gantry top`: brokers, topics by rate, groups by lag and connections, live on the whole screen, or once where there is no terminal."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gantrymq.cli.commands.brokers import Rates, inspect_all, state_text
from gantrymq.cli.names import hidden_line, is_own_group, is_own_topic
from gantrymq.cli.screen import (
    CONSOLE,
    MEDIUM,
    NARROW,
    Steps,
    Trend,
    lag_text,
    number,
    plain,
    show_rows,
    size,
    span,
    spark,
)
from gantrymq.client.admin import Admin, ClusterInfo
from gantrymq.model.errors import GantryError
from gantrymq.net.dial.page import get_page

SORTS: Final = ("rate", "total", "name")
"""What the key s goes through: topics by rate, groups by lag; by messages in all; by name."""

WIDE: Final = 110
"""From so many columns on topics and groups stand beside each other."""

SNAPSHOT_S: Final = 2.4
"""A snapshot looks for so long: brokers count what is stored once a second, and two such steps make a rate."""

SNAPSHOT_CHECK_S: Final = 0.2
"""Between its looks: to this the time of a step is known."""

FORGET_ROUNDS: Final = 30
"""A topic or group that was in no answer for so many looks is forgotten."""

NO_CLUSTER: Final = ClusterInfo({}, {})

GET_S: Final = 2.0
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
_SAMPLE: Final = re.compile(r'gantry_protocol_connections\{protocol="([^"]+)"\} (\d+)')


class Figures:
    """What was seen lately; one `take` per look. `info`: whose topics are not the user's, `everything`: they are shown all the same;
    `kind`: how rates are made of looks."""

    def __init__(self, info: ClusterInfo = NO_CLUSTER, everything: bool = False, kind: type[Trend] = Trend) -> None:
        self.hidden: set[str] = set()
        """Topics that are left out."""
        self._info = info
        self._everything = everything
        self._kind = kind
        self.at_s = 0.0
        self.brokers: list[dict[str, Any]] = []
        self.rates: dict[str, Rates] = {}
        self.connections: dict[str, int] = {}
        self._counters: dict[tuple[str, str, str], Trend] = {}
        self._seen: dict[tuple[str, str, str], int] = {}
        self._rounds = 0
        self._minutes: dict[tuple[str, str, str], float] = {}
        self._totals: dict[tuple[str, str, str], int] = {}
        self.lags: dict[tuple[str, str], tuple[int, int]] = {}
        """(lag, members) by group and topic."""
        self.lag_trends: dict[tuple[str, str], Trend] = {}
        self.conflicts: set[str] = set()

    def take(self, rows: list[dict[str, Any]], others: dict[str, int]) -> None:
        """Answers of all brokers, and connections of other processes."""
        self.at_s = time.time()
        self._rounds += 1
        self.brokers = rows
        self.connections = dict(others)
        self.lags = {}
        self.conflicts = set()
        self.hidden = set()
        for row in rows:
            if "error" in row:
                continue
            self.rates.setdefault(row["name"], Rates(self._kind)).take(row)
            for name, count in row.get("connections", {}).items():
                self.connections[name] = self.connections.get(name, 0) + count
            at_s = row["now"] / 1000
            for each in self._shown(row.get("topics", ())):
                self._count(("in", row["name"], each["topic"]), each["in"], each["rate"], at_s)
            for each in self._shown(row.get("readers", ())):
                self._count(("out", row["name"], f"{each['topic']}@{each['group']}"), each["out"], each["rate"], at_s)
            for each in self._shown(row.get("groups", ())):
                key = (each["group"], each["topic"])
                lag, members = self.lags.get(key, (0, 0))
                self.lags[key] = (lag + each["lag"], max(members, each["members"]))
            self.conflicts |= set(row.get("conflicts", ()))
        for key, (lag, _) in self.lags.items():
            self.lag_trends.setdefault(key, Trend()).add(lag)
        for key in [key for key in self.lag_trends if key not in self.lags]:
            del self.lag_trends[key]
        for place in [place for place, fetch in self._seen.items() if self._rounds - fetch > FORGET_ROUNDS]:
            for table in (self._seen, self._counters, self._minutes, self._totals):
                del table[place]

    def _shown(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            if not self._everything and is_own_topic(row["topic"], self._info):
                self.hidden.add(row["topic"])
            elif self._everything or not is_own_group(row.get("group", "")):
                yield row

    def _count(self, place: tuple[str, str, str], total: int, minute: float, at_s: float) -> None:
        self._counters.setdefault(place, self._kind()).count(total, at_s)
        self._seen[place] = self._rounds
        self._minutes[place] = minute
        self._totals[place] = total

    def rate_of(self, place: tuple[str, str, str]) -> float:
        """Of the last looks; before there are two, the broker's own of the last minute."""
        trend = self._counters[place]
        return trend.rate() if trend.known else self._minutes[place]

    def summed(self, what: str) -> dict[str, tuple[float, int, list[float]]]:
        """(rate, total, lately) by topic (`in`) or `topic@group` (`out`), over all brokers."""
        found: dict[str, tuple[float, int, list[float]]] = {}
        for place in self._counters:
            if place[0] != what:
                continue
            rate, total, lately = found.get(place[2], (0.0, 0, []))
            values = self._counters[place].values
            longer, shorter = (lately, values) if len(lately) >= len(values) else (values, lately)
            both = [
                *longer[: len(longer) - len(shorter)],
                *[a + b for a, b in zip(longer[len(longer) - len(shorter) :], shorter, strict=True)],
            ]
            found[place[2]] = (rate + self.rate_of(place), total + self._totals[place], both)
        return found

    def topics(self, sort: str) -> list[dict[str, Any]]:
        """Rows of the table of topics."""
        rows = [
            {"topic": name, "rate": rate, "total": total, "lately": lately}
            for name, (rate, total, lately) in self.summed("in").items()
        ]
        return ordered(rows, "topic", "rate", sort)

    def groups(self, sort: str) -> list[dict[str, Any]]:
        """Rows of the table of groups: those behind, and those that read."""
        reading = self.summed("out")
        keys = set(self.lags) | {(name.rpartition("@")[2], name.rpartition("@")[0]) for name in reading}
        rows = []
        for group, topic in keys:
            lag, members = self.lags.get((group, topic), (0, -1))
            rate, total, _ = reading.get(f"{topic}@{group}", (0.0, 0, []))
            if not lag and not rate:
                continue  # it has everything and nothing comes: it would only hide the others
            trend = self.lag_trends.get((group, topic))
            rows.append({
                "group": group, "topic": topic, "lag": lag, "members": members, "rate": rate, "total": total,
                "lately": list(trend.values) if trend is not None else [], "conflict": group in self.conflicts,
            })  # fmt: skip
        return ordered(rows, "group", "lag", sort)


def ordered(rows: list[dict[str, Any]], name: str, value: str, sort: str) -> list[dict[str, Any]]:
    """By name, by messages in all, or by what tells most."""
    rows.sort(key=lambda row: (row[name], row.get("topic", "")))
    if sort != "name":
        key = "total" if sort == "total" else value
        rows.sort(key=lambda row: (-row[key], -row["rate"]))
    return rows


def box(*columns: str, title: str) -> Table:
    """A table without lines, so that many rows fit. Columns beginning with `>` are numbers, and are kept whole; names are cut."""
    made = Table(
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        expand=False,
    )
    for column in columns:
        right = column.startswith(">")
        made.add_column(
            column.lstrip(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="ellipsis",
            header_style="dim",
        )
    return made


def picture(figures: Figures, sort: str, paused: bool, width: int, height: int, keys: bool = True) -> RenderableType:
    """The whole screen. `height`: lines at most."""
    narrow = width < NARROW
    brokers = broker_table(figures, width, max(height // 4, 2))
    links = "  ".join([f"{name} [bold]{number(count)}[/bold]" for name, count in sorted(figures.connections.items())])
    links_text = Text.from_markup(f"[bold]connections[/bold]  {links or '-'}")
    left = max(height - brokers.row_count - 10 - len(links_text) // width, 6)
    beside = width >= WIDE
    rows = left if beside else max((left - 4) // 2, 2)
    topics = topic_table(figures, sort, narrow, rows)
    groups = group_table(figures, sort, narrow, rows)
    parts: list[RenderableType] = [head_line(figures, sort, paused, narrow), brokers, Text()]
    if beside:
        grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(topics, groups)
        parts.append(grid)
    else:
        parts += [topics, Text(), groups]
    parts += [Text(), links_text]
    if figures.hidden:
        parts.append(Text(hidden_line(len(figures.hidden), "topic"), style="dim"))
    if keys:
        parts.append(
            Text(
                "q quit  space pause  s sort"
                if narrow
                else "q quit   space pause   s sort by rate and lag, total, name",
                style="dim",
            )
        )
    return Group(*parts)


def head_line(figures: Figures, sort: str, paused: bool, narrow: bool) -> Text:
    """Time and sums."""
    rates = [figures.rates[row["name"]] for row in figures.brokers if "error" not in row]
    put, get = sum([each.put.rate() for each in rates]), sum([each.get.rate() for each in rates])
    lag = sum([row.get("lag", 0) for row in figures.brokers])
    words = [
        f"[bold]gantry[/bold] {time.strftime('%H:%M:%S', time.localtime(figures.at_s))}",
        f"in {number(put)}/s",
        f"out {number(get)}/s",
    ]
    words.append(f"lag {number(lag)}")
    if not narrow:
        words += [f"{len(figures.brokers)} broker{'s' if len(figures.brokers) != 1 else ''}", f"by {sort}"]
    if paused:
        words.append("[reverse] paused [/reverse]")
    return Text.from_markup("  ".join(words), overflow="ellipsis")


def broker_table(figures: Figures, width: int, rows_max: int) -> Table:
    """Rates, log, what is not flushed: as much of it as fits beside the names."""
    known = [">in/s", ">out/s", ">log"]
    if width >= NARROW:
        known = ["state", ">in/s", ">out/s", ">bytes/s", ">log", ">up"]
    if width >= MEDIUM:
        known = ["state", ">in/s", ">out/s", ">bytes/s", ">log", ">unflushed", ">up", "in lately"]
    made = box("broker", *known, title="brokers")
    for row in figures.brokers[:rows_max]:
        if "error" in row:
            made.add_row(plain(row["name"]), *(["[red]no\u00a0answer[/red]"] if "state" in known else []))
            continue
        rates = figures.rates[row["name"]]
        cells = {
            "state": state_text(row).replace(" ", "\u00a0"), ">in/s": number(rates.put.rate()), ">out/s": number(rates.get.rate()),
            ">bytes/s": size(rates.bytes.rate()), ">log": size(row["logEnd"] - row["logBegin"]),
            ">unflushed": size(row["logEnd"] - row.get("flushed", row["logEnd"])), ">up": span(row["now"] - row["started"]),
            "in lately": f"[cyan]{spark(rates.put.values[-20:])}[/cyan]",
        }  # fmt: skip
        made.add_row(plain(row["name"]), *[cells[name] for name in known])
    return made


def topic_table(figures: Figures, sort: str, narrow: bool, rows_max: int) -> Table:
    """The busiest topics."""
    made = box("topic", ">in/s", ">messages", *([] if narrow else ["lately"]), title="topics")
    for row in figures.topics(sort)[:rows_max]:
        more = [] if narrow else [f"[cyan]{spark(row['lately'][-15:])}[/cyan]"]
        made.add_row(plain(row["topic"]), number(row["rate"]), number(row["total"]), *more)
    return made


def group_table(figures: Figures, sort: str, narrow: bool, rows_max: int) -> Table:
    """Groups that are behind, and those that read."""
    made = box(
        "group", *([] if narrow else ["topic"]), ">lag", ">out/s", *([] if narrow else ["lately"]), title="groups"
    )
    for row in figures.groups(sort)[:rows_max]:
        name = plain(row["group"]) + (" [red]conflict[/red]" if row["conflict"] else "")
        lag = lag_text(row["lag"], row["members"] != 0)
        if narrow:
            made.add_row(name, lag, number(row["rate"]))
        else:
            made.add_row(
                name, plain(row["topic"]), lag, number(row["rate"]), f"[cyan]{spark(row['lately'][-15:])}[/cyan]"
            )
    return made


# Looking and keys.


async def connections_of(place: str) -> dict[str, int]:
    """Connections by protocol that a process's metrics tell. Raises UNAVAILABLE."""
    address = place.removeprefix("http://").partition("/")[0]
    try:
        page = await get_page(f"http://{address}/metrics", GET_S, PAGE_BYTES_MAX)
    except GantryError as error:
        raise GantryError(error.code, f"--metrics {place}: {error.text} (HOST:PORT of a gateway's metrics)") from None
    return {name: int(count) for name, count in _SAMPLE.findall(page.decode("utf-8", "replace"))}


async def fetch(admin: Admin, figures: Figures, places: list[str]) -> None:
    """One look at everything."""
    others: dict[str, int] = {}
    for place in places:
        for name, count in (await connections_of(place)).items():
            others[name] = others.get(name, 0) + count
    figures.take(await inspect_all(admin), others)


@contextmanager
def keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Single keys of the terminal, without echo, until the end of the block."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(fd, 64)
        if not data:
            loop.remove_reader(fd)
            on_key("q")
        for char in data.decode("ascii", "ignore"):
            on_key(char)

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class Top:
    """The loop of looks and keys on a terminal."""

    def __init__(self, admin: Admin, places: list[str], interval_s: float, everything: bool = False) -> None:
        self._admin = admin
        self._places = places
        self._interval_s = interval_s
        self._everything = everything
        self._figures = Figures()
        self._sort = SORTS[0]
        self._paused = False
        self._quit = False
        self._trouble = ""
        self._pressed = asyncio.Event()

    def on_key(self, key: str) -> None:
        """q, space, s; others do nothing."""
        if key in ("q", "Q", "\x04"):
            self._quit = True
        elif key == " ":
            self._paused = not self._paused
        elif key in ("s", "S"):
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        else:
            return
        self._pressed.set()

    def _picture(self) -> RenderableType:
        shown = picture(self._figures, self._sort, self._paused, CONSOLE.width, CONSOLE.height)
        return Group(Text(self._trouble, style="red"), shown) if self._trouble else shown

    async def run(self) -> None:
        """Until q or Ctrl-C."""
        self._figures = Figures(await self._admin.cluster(), self._everything)
        await fetch(self._admin, self._figures, self._places)  # what fails at once is told on the ordinary screen
        loop = asyncio.get_running_loop()
        with keys(self.on_key), Live(self._picture(), console=CONSOLE, screen=True, auto_refresh=False) as live:
            due = loop.time() + self._interval_s
            while not self._quit:
                live.update(self._picture(), refresh=True)
                self._pressed.clear()
                try:
                    async with asyncio.timeout_at(due):
                        await self._pressed.wait()
                        continue
                except TimeoutError:
                    due = loop.time() + self._interval_s
                if not self._paused:
                    await self._fetch()

    async def _fetch(self) -> None:
        try:
            await fetch(self._admin, self._figures, self._places)
            self._trouble = ""
        except GantryError as error:
            self._trouble = f"{error.text}; trying again"


async def do_top(
    admin: Admin, interval_s: float, places: list[str], once: bool, everything: bool, as_lines: bool
) -> None:
    """The live screen, or a snapshot of what comes in `--interval`, and in `SNAPSHOT_S` at least."""
    if CONSOLE.draws and sys.stdin.isatty() and not once and not as_lines:
        await Top(admin, places, interval_s, everything).run()
        return
    figures = Figures(await admin.cluster(), everything, Steps)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + max(interval_s, SNAPSHOT_S)
    await fetch(admin, figures, places)
    while loop.time() < end_s:
        await asyncio.sleep(SNAPSHOT_CHECK_S)
        await fetch(admin, figures, places)
    if as_lines:
        show_rows([as_object(figures)], True, str, "")
    else:
        CONSOLE.print(picture(figures, SORTS[0], False, CONSOLE.width, max(CONSOLE.height, 50), keys=False))


def as_object(figures: Figures) -> dict[str, Any]:
    """For programs."""
    brokers = []
    for row in figures.brokers:
        if "error" in row:
            brokers.append({"broker": row["name"], "error": row["error"]})
            continue
        rates = figures.rates[row["name"]]
        brokers.append({
            "broker": row["name"], "in_rate": rates.put.rate(), "out_rate": rates.get.rate(), "byte_rate": rates.bytes.rate(),
            "log_bytes": row["logEnd"] - row["logBegin"], "unflushed_bytes": row["logEnd"] - row.get("flushed", row["logEnd"]),
            "draining": row.get("draining", False),
        })  # fmt: skip
    return {
        "time": figures.at_s, "brokers": brokers, "connections": figures.connections, "hidden_topics": len(figures.hidden),
        "topics": [{key: row[key] for key in ("topic", "rate", "total")} for row in figures.topics("rate")],
        "groups": [{key: row[key] for key in ("group", "topic", "lag", "rate", "total", "conflict")} for row in figures.groups("rate")],
    }  # fmt: skip
