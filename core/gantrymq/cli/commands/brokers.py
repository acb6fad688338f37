"""`gantry broker` and `gantry cluster`: brokers, their settings and rates, and taking one out of service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any, Final

import anyio
import typer
from rich.console import RenderableType
from rich.status import Status

from gantrymq.cli import completion, options
from gantrymq.cli.options import Interval, Json, Nameserver, Watch, Yes
from gantrymq.cli.screen import (
    CONSOLE,
    Screen,
    Trend,
    facts,
    number,
    plain,
    show_rows,
    size,
    span,
    spark,
    stacked,
    table,
    watch,
)
from gantrymq.client import tools
from gantrymq.client.admin import Admin
from gantrymq.client.errors import BrokerError
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import MASTER_ID

broker_app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="BROKER", autocompletion=completion.brokers)]

UNFOLDED: Final = 1000
"""Columns in which a table is measured: as many as it could want."""

ROWS: Final = "rows of tables for gateways to move"
"""Of definitions and sessions; none of them is a queue with its messages."""
DRAIN_CHECK_S: Final = 1.0
"""Between two looks while a broker drains: offsets are committed every few seconds."""


def first_rate(text: str) -> float:
    """The shortest window of putTps and its like."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0


async def inspect(admin: Admin, name: str, address: str) -> dict[str, Any]:
    """A broker at a glance: our own answer, or what RocketMQ's runtime info holds of it."""
    try:
        return {**await tools.overview(admin, address), "address": address}
    except BrokerError:
        table_ = await tools.runtime(admin, address)
    return {
        "name": name, "address": address, "version": table_.get("brokerVersionDesc", ""), "draining": False,
        "now": int(time.time() * 1000), "started": int(table_.get("bootTimestamp", 0)),
        "put": int(table_.get("msgPutTotalTodayNow", 0)), "get": int(table_.get("msgGetTotalTodayNow", 0)),
        "putRate": first_rate(table_.get("putTps", "")), "getRate": first_rate(table_.get("getTransferredTps", "")),
        "logBegin": int(table_.get("commitLogMinOffset", 0)), "logEnd": int(table_.get("commitLogMaxOffset", 0)),
    }  # fmt: skip


async def inspect_all(admin: Admin, cluster: str = "", broker: str = "") -> list[dict[str, Any]]:
    """Every broker; one that does not answer has an `error`."""
    masters = await tools.masters(admin, cluster, broker)

    async def one(name: str, address: str) -> dict[str, Any]:
        try:
            return await inspect(admin, name, address)
        except GantryError as error:
            return {"name": name, "address": address, "error": error.text}

    return await tools.gather([partial(one, name, address) for name, address in masters.items()])


def waits_for(row: dict[str, Any]) -> str:
    """Why a broker of a cluster with slots decides about nothing; empty: it does, or has no slots."""
    shown = row.get("slots", {})
    return str(shown.get("silent", "")) if shown.get("keeper") else ""


def waiting_lines(rows: Iterable[dict[str, Any]]) -> list[str]:
    """A sentence for each broker that waits."""
    return [f"[red]{plain(waits)}[/red]" for row in rows if (waits := waits_for(row))]


def state_text(row: dict[str, Any]) -> str:
    """One word on how it is."""
    if "error" in row:
        return f"[red]{plain(row['error'])}[/red]"
    if row.get("refused"):
        return f"[red]full: {plain(row['refused'])}[/red]"
    if waits_for(row):
        return "[red]waits[/red]"
    return "[yellow]draining[/yellow]" if row.get("draining") else "[green]ok[/green]"


@broker_app.command("list")
def list_(json_: Json = False, nameserver: Nameserver = None) -> None:
    """Brokers with their logs and clients."""
    options.run(show_list, nameserver, as_lines=json_)


async def show_list(admin: Admin, as_lines: bool) -> None:
    """A row per broker."""
    rows = await inspect_all(admin)

    def make() -> RenderableType:
        made = table("broker", "address", "state", "version", "up", ">log", ">clients")
        for row in rows:
            if "error" in row:
                made.add_row(plain(row["name"]), plain(row["address"]), state_text(row), "", "", "", "")
                continue
            made.add_row(
                plain(row["name"]), plain(row["address"]), state_text(row), plain(row["version"]), span(row["now"] - row["started"]),
                size(row["logEnd"] - row["logBegin"]), number(sum(row.get("connections", {}).values())),
            )  # fmt: skip
        return made

    show_rows(rows, as_lines, make, "no brokers")


@broker_app.command()
def show(broker: Name, json_: Json = False, nameserver: Nameserver = None) -> None:
    """Everything that a broker tells of itself."""
    options.run(do_show, nameserver, broker=broker, as_lines=json_)


async def do_show(admin: Admin, broker: str, as_lines: bool) -> None:
    """Facts."""
    (row,) = await inspect_all(admin, broker=broker)
    if "error" in row:
        raise GantryError(ErrorCode.UNAVAILABLE, row["error"])
    if as_lines:
        show_rows([row], True, str, "")
        return
    waiting = row.get("waiting", {})
    listed: list[tuple[str, object]] = [
        ("address", row["address"]),
        ("state", waits_for(row) or ("draining" if row.get("draining") else "ok")),
        ("version", row["version"]),
        ("up for", span(row["now"] - row["started"])),
        ("log", f"{size(row['logEnd'] - row['logBegin'])}, {row['logBegin']} to {row['logEnd']}"),
    ]
    if "flushed" in row:
        listed += [
            ("not flushed", size(row["logEnd"] - row["flushed"])),
            ("disk", f"{size(row['diskFree'])} of {size(row['diskSize'])} free"),
            ("topics, groups", f"{number(row['topicCount'])}, {number(row['groupCount'])}"),
            ("messages in, out", f"{number(row['put'])}, {number(row['get'])} since the start"),
            ("groups behind", f"{number(row['lag'])} messages"),
            ("connections", ", ".join([f"{name} {count}" for name, count in row["connections"].items()]) or "-"),
            ("waiting", f"{waiting['delays']} delayed, {waiting['timers']} timed, {waiting['halves']} undecided, "
                        f"{waiting['popLeased']} popped, {waiting['pulls']} long polls"),
        ]  # fmt: skip
    CONSOLE.print(facts(listed, f"broker {plain(broker)}"))
    for group, topics in row.get("conflicts", {}).items():
        CONSOLE.print(f"[red]group {plain(group)}: members want different things of {plain(', '.join(topics))}[/red]")


@broker_app.command()
def config(
    broker: Name,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Change a setting; may be repeated.", autocompletion=completion.broker_settings
        ),
    ] = None,
    only: Annotated[str, typer.Option("--grep", help="Only names that contain this.")] = "",
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """A broker's settings under RocketMQ's names; some can be changed while it runs."""
    values = {}
    for text in sets or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--set")
        values[name] = value
    options.run(do_config, nameserver, broker=broker, values=values, only=only, as_lines=json_)


async def do_config(admin: Admin, broker: str, values: dict[str, str], only: str, as_lines: bool) -> None:
    """Change, then show."""
    (address,) = (await tools.masters(admin, broker=broker)).values()
    if values:
        await tools.update_broker_config(admin, address, values)
        for name, value in values.items():
            CONSOLE.print(f"{plain(broker)}: {plain(name)} = {plain(value)}")
        return
    found = {
        name: value
        for name, value in sorted((await tools.broker_config(admin, address)).items())
        if only.lower() in name.lower()
    }

    def make() -> RenderableType:
        made = table("setting", "value", title=f"broker {plain(broker)}")
        for name, value in found.items():
            made.add_row(plain(name), plain(value))
        return made

    show_rows([found] if found else [], as_lines, make, "no setting has such a name")


class Rates:
    """In and out of one broker, from look to look."""

    def __init__(self, kind: type[Trend] = Trend) -> None:
        self.put = kind()
        self.get = kind()
        self.bytes = kind()

    def take(self, row: dict[str, Any]) -> None:
        """One more look."""
        at_s = row["now"] / 1000
        self.put.count(row["put"], at_s)
        self.get.count(row["get"], at_s)
        self.bytes.count(row["logEnd"], at_s)


@broker_app.command()
def stats(
    broker: Annotated[str, typer.Argument(metavar="[BROKER]", autocompletion=completion.brokers)] = "", watching: Watch = False, interval: Interval = 1.0,
    json_: Json = False, nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Rates of one or of all brokers; without --watch of one second."""
    options.run(do_stats, nameserver, broker=broker, again=watching, interval_s=interval, as_lines=json_)


async def do_stats(admin: Admin, broker: str, again: bool, interval_s: float, as_lines: bool) -> None:
    """A row per broker."""
    rates: dict[str, Rates] = {}

    async def fetch() -> tuple[Sequence[Any], RenderableType]:
        rows = await inspect_all(admin, broker=broker)
        made = table("broker", ">in/s", ">out/s", ">bytes/s", ">not flushed", *(["in lately"] if again else []))
        shown = []
        for row in rows:
            if "error" in row:
                made.add_row(plain(row["name"]), state_text(row))
                shown.append({"broker": row["name"], "error": row["error"]})
                continue
            trend = rates.setdefault(row["name"], Rates())
            trend.take(row)
            behind = row["logEnd"] - row.get("flushed", row["logEnd"])
            shown.append({
                "broker": row["name"], "in_rate": trend.put.rate(), "out_rate": trend.get.rate(), "byte_rate": trend.bytes.rate(),
                "unflushed_bytes": behind,
            })  # fmt: skip
            made.add_row(
                plain(row["name"]), number(trend.put.rate()), number(trend.get.rate()), size(trend.bytes.rate()), size(behind),
                *([f"[cyan]{spark(trend.put.values)}[/cyan]"] if again else []),
            )  # fmt: skip
        return shown, made

    await fetch()
    await anyio.sleep(min(interval_s, 1.0))
    await watch(fetch, again, interval_s, as_lines)


@broker_app.command()
def drain(
    broker: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Take new messages again.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing is left to consume.")] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most; 0: as long as it takes.")] = 0,
    yes: Yes = False,
    nameserver: Nameserver = None,
) -> None:
    """Take a broker out of service: no new messages, then wait until its consumers have everything.

    Exit code 0: it may be stopped, nothing is lost. 1: something is still there.
    """
    if not undo:
        options.confirm(f"Let broker {broker} take no new messages?", yes)
    options.run(do_drain, nameserver, broker=broker, undo=undo, wait=wait, timeout_s=timeout)


def left_of(row: dict[str, Any]) -> dict[str, int]:
    """What must be gone before a broker may go."""
    backlog, waiting = row.get("backlog", {}), row.get("waiting", {})
    return {
        "not consumed by groups": row.get("lag", 0), "ready in queues and sessions": backlog.get("ready", 0),
        "unacknowledged": backlog.get("unacked", 0), f"{ROWS}{_tables(backlog.get('tables', {}))}": backlog.get("rows", 0),
        "delayed": waiting.get("delays", 0), "timed": waiting.get("timers", 0), "undecided": waiting.get("halves", 0),
    }  # fmt: skip


def _tables(counts: dict[str, int]) -> str:
    """Which rows: a queue that has moved may have left its definition."""
    return f" ({', '.join([f'{name} {number(count)}' for name, count in counts.items()])})" if counts else ""


def left_text(left: dict[str, int]) -> str:
    """The same in one line."""
    return ", ".join([f"{number(count)} {name}" for name, count in left.items() if count]) or "nothing is left"


async def do_drain(admin: Admin, broker: str, undo: bool, wait: bool, timeout_s: float) -> None:
    """The row that gateways watch and the permission that producers read; then look until nothing is left."""
    everybody = await tools.masters(admin)
    (address,) = (await tools.masters(admin, broker=broker)).values()
    if not undo and len(everybody) == 1:
        CONSOLE.print("[yellow]this is the only broker: nobody takes new messages until --undo[/yellow]")
    await tools.set_draining(admin, address, not undo)
    missing = await tools.set_write_permission(admin, broker, undo)
    if missing:
        CONSOLE.print(
            f"[yellow]nameserver {plain(', '.join(missing))} does not answer; the broker tells it when it is back[/yellow]"
        )
    if undo:
        CONSOLE.print(f"broker [bold]{plain(broker)}[/bold] takes new messages again")
        return
    CONSOLE.print(f"broker [bold]{plain(broker)}[/bold] takes no new messages any more")
    if (await tools.overview(admin, address)).get("slots", {}).get("owned"):
        from gantrymq.cli.commands.slots import do_rebalance

        await do_rebalance(admin, leaving=broker)
    if wait:
        await _wait_until_empty(admin, broker, address, timeout_s)


async def _wait_until_empty(admin: Admin, broker: str, address: str, timeout_s: float) -> None:
    errors = Screen(stderr=True)
    status = Status("", console=errors) if errors.draws else None
    show: AbstractContextManager[object] = status if status is not None else nullcontext()
    tell: Callable[[str], object] = status.update if status is not None else CONSOLE.print
    begun = anyio.current_time()
    most, said = 0, ""
    with show:
        while True:
            row = await tools.overview(admin, address, backlog=True)
            left = left_of(row)
            total = sum(left.values())
            most = max(most, total)
            if not total:
                break
            spent_s = anyio.current_time() - begun
            line = f"{left_text(left)}  ({100 * (most - total) // most} % done, {span(spent_s * 1000)})"
            if status is not None or left_text(left) != said:
                said = left_text(left)
                tell(line)
            if timeout_s and spent_s >= timeout_s:
                hint = _who(row)
                raise GantryError(
                    ErrorCode.ILLEGAL_ARGUMENT,
                    f"broker {broker} is not empty after {timeout_s:g} s: {left_text(left)}{hint}; repeat the command to go on waiting, "
                    f"or `gantry broker drain {broker} --undo`",
                )
            await anyio.sleep(DRAIN_CHECK_S)
    CONSOLE.print(f"[green]nothing is left to consume: broker {plain(broker)} may be stopped[/green]")


def _who(row: dict[str, Any]) -> str:
    """Groups that nobody consumes for are what people wait for in vain."""
    idle = [f"{each['group']} in {each['topic']}" for each in row.get("groups", ()) if not each["members"]]
    return f" (nobody is connected of {', '.join(idle[:3])})" if idle else ""


async def do_cluster(admin: Admin, again: bool, interval_s: float, as_lines: bool) -> None:
    """A row per broker and id, and a line per nameserver."""
    rates: dict[str, Rates] = {}

    async def fetch() -> tuple[Sequence[Any], RenderableType]:
        info = await admin.cluster()
        found = {row["name"]: row for row in await inspect_all(admin)} if info.brokers else {}
        rows = []
        cells = []
        for name, brokers in sorted(info.clusters.items()):
            for broker in brokers:
                for key, address in sorted(info.brokers.get(broker, {}).items()):
                    row = found.get(broker, {}) if key == MASTER_ID else {}
                    rows.append(
                        {"cluster": name, "broker": broker, "id": key, "address": address, **_figures(row, rates)}
                    )
                    cells.append((plain(name), plain(broker), str(key), plain(address), *_cells(row, rates)))
        parts = waiting_lines(found.values())
        parts += [
            f"nameserver {plain(address)}: {await _nameserver_state(admin, address)}"
            for address in list(admin.client.routes.nameservers)
        ]
        return rows, stacked(_at_a_glance(cells) if rows else "no broker is registered", "\n".join(parts))

    if not as_lines:
        await fetch()
        await anyio.sleep(0.5)
    await watch(fetch, again, interval_s, as_lines)


def _at_a_glance(rows: list[tuple[str, ...]]) -> RenderableType:
    """With clusters and addresses where they fit unfolded; else without what can be had elsewhere (`gantry broker list`)."""
    figures = ("state", ">in/s", ">out/s", ">log", ">behind")
    made = table("cluster", "broker", ">id", "address", *figures)
    for row in rows:
        made.add_row(*row)
    if CONSOLE.measure(made, options=CONSOLE.options.update(max_width=UNFOLDED)).maximum <= CONSOLE.width:
        return made
    made = table("broker", ">id", *figures)
    for _, broker, key, _, *rest in rows:
        made.add_row(broker, key, *rest)
    return made


def _figures(row: dict[str, Any], rates: dict[str, Rates]) -> dict[str, Any]:
    if not row or "error" in row:
        return {"error": row["error"]} if row else {}
    return {
        "draining": row.get("draining", False), "log_bytes": row["logEnd"] - row["logBegin"], "lag": row.get("lag"),
        "put_total": row["put"], "get_total": row["get"], "silent": waits_for(row),
    }  # fmt: skip


def _cells(row: dict[str, Any], rates: dict[str, Rates]) -> list[str]:
    if not row:
        return ["slave", "", "", "", ""]
    if "error" in row:
        return [state_text(row), "", "", "", ""]
    trend = rates.setdefault(row["name"], Rates())
    trend.take(row)
    return [
        state_text(row), number(trend.put.rate()), number(trend.get.rate()), size(row["logEnd"] - row["logBegin"]),
        number(row.get("lag", 0)),
    ]  # fmt: skip


async def _nameserver_state(admin: Admin, address: str) -> str:
    try:
        await tools.nameserver_config(admin, address)
    except GantryError as error:
        return f"[red]{plain(error.text)}[/red]"
    return "[green]ok[/green]"
