"""`gantry topic`: topics on all brokers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from gantrymq.cli import completion, names, options
from gantrymq.cli.commands import pruning
from gantrymq.cli.options import All, Broker, Cluster, Interval, Json, Nameserver, Watch, Yes
from gantrymq.cli.screen import (
    CONSOLE,
    Trend,
    ago,
    listing,
    maybe,
    number,
    plain,
    show_rows,
    spark,
    stacked,
    table,
    watch,
)
from gantrymq.client import tools
from gantrymq.client.admin import Admin
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.remoting.constants import Perm

topic_app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)]
Permission = Annotated[str, typer.Option(metavar="rw|r|w", help="What clients may do.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute", metavar="NAME=VALUE", help="For example flush=async; NAME= takes it away; may be repeated."
    ),
]

PUT: str = "TOPIC_PUT_NUMS"


@topic_app.command("list")
def list_(
    all_: All = False,
    names_only: Annotated[bool, typer.Option("--names", help="Names alone, one per line.")] = False,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Topics with their queues and messages."""
    options.run(show_list, nameserver, everything=all_, names_only=names_only, as_lines=json_)


async def show_list(admin: Admin, everything: bool, names_only: bool, as_lines: bool) -> None:
    """A row per topic; one whose brokers do not answer is shown without numbers."""
    listed, hidden = await names.topics(admin)
    if everything:
        listed, hidden = sorted([*listed, *hidden]), []
    if names_only:
        for name in listed:
            typer.echo(name)
        return
    rows = await _rows_of_brokers(admin, listed)
    if rows is None:
        rows = await tools.gather([lambda name=name: _row(admin, name) for name in listed])  # type: ignore[misc]

    def make() -> RenderableType:
        cells = [
            (plain(row["topic"]), f"[red]{plain(row['error'])}[/red]", "?", "?")
            if "error" in row
            else (plain(row["topic"]), plain(", ".join(row["brokers"])), str(row["queues"]), maybe(row["messages"]))
            for row in rows
        ]
        return listing(("topic", "brokers", ">queues", ">messages"), cells)

    show_rows(rows, as_lines, make, "no topics")
    if hidden and not as_lines:
        CONSOLE.print(names.hidden_line(len(hidden), "topic"), style="dim")


async def _rows_of_brokers(admin: Admin, listed: list[str]) -> list[dict[str, Any]] | None:
    """One question to each broker; None if one of them does not answer it."""
    rows: dict[str, dict[str, Any]] = {}
    try:
        for broker, address in (await tools.masters(admin)).items():
            found = await tools.topic_list(admin, address)
            if found is None:
                return None
            for name, queues, messages in found:
                row = rows.setdefault(name, {"topic": name, "brokers": [], "queues": 0, "messages": 0})
                row["brokers"].append(broker)
                row["queues"] += queues
                known = messages is not None and row["messages"] is not None
                row["messages"] = row["messages"] + messages if known else None
    except GantryError as error:
        if error.code is not ErrorCode.UNAVAILABLE:
            raise
        return None
    nowhere = "no broker that answers has it"
    return [rows.get(name) or {"topic": name, "error": nowhere} for name in listed]


async def _row(admin: Admin, name: str) -> dict[str, Any]:
    try:
        found = await admin.route(name)
        queues = [
            row
            for broker in sorted(found.queues)
            for row in await tools.topic_stats(admin, found.address(broker), name)
        ]
    except GantryError as error:
        return {"topic": name, "error": error.text}
    messages = sum(row["max"] - row["min"] for row in queues)
    return {"topic": name, "brokers": sorted(found.queues), "queues": len(queues), "messages": messages}


@topic_app.command()
def create(
    topic: Name,
    queues: Annotated[int, typer.Option(min=1, help="Read and write queues on each broker.")] = 4,
    perm: Permission = "rw",
    attribute: Attribute = None,
    cluster: Cluster = "",
    broker: Broker = "",
    nameserver: Nameserver = None,
) -> None:
    """Create a topic, or change its number of queues."""
    options.run(
        do_create, nameserver,
        topic=topic, queues=queues, perm=perm, attributes=attribute or [], cluster=cluster, broker=broker,
    )  # fmt: skip


def parse_permission(text: str) -> int:
    """Sum of `Perm`. Raises ConfigError."""
    letters = {"r": Perm.READ, "w": Perm.WRITE}
    if not text or any(letter not in letters for letter in text):
        raise ConfigError(f'--perm "{text}": must be rw, r or w')
    return sum({int(letters[letter]) for letter in text})


def permission_text(perm: int) -> str:
    """`rw`, `r`, `w` or `-`."""
    return ("r" if perm & Perm.READ else "") + ("w" if perm & Perm.WRITE else "") or "-"


def parse_attributes(given: Sequence[str]) -> str:
    """As RocketMQ writes a change of attributes: `+name=value,-name`. Raises ConfigError."""
    changes = []
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals or "," in text:
            raise ConfigError(f'--attribute "{text}": must be NAME=VALUE, or NAME= to take it away')
        changes.append(f"+{name}={value}" if value else f"-{name}")
    return ",".join(changes)


async def do_create(
    admin: Admin, topic: str, queues: int, perm: str, attributes: list[str], cluster: str, broker: str
) -> None:
    """Create and say where."""
    permission, changes = parse_permission(perm), parse_attributes(attributes)
    if broker:
        await tools.masters(admin, cluster, broker)  # names those that there are
    brokers = await admin.create_topic(topic, queues, cluster, broker, permission)
    if changes:
        for address in (await _places(admin, cluster, broker)).values():
            await tools.update_topic(admin, address, topic, queues, queues, permission, changes)
    CONSOLE.print(f"topic [bold]{plain(topic)}[/bold]: {queues} queues on {plain(', '.join(brokers))}")


async def _places(admin: Admin, cluster: str, broker: str) -> dict[str, str]:
    return await tools.masters(admin, cluster, broker)


@topic_app.command()
def update(
    topic: Name,
    read_queues: Annotated[int | None, typer.Option(min=1, help="Queues that consumers see.")] = None,
    write_queues: Annotated[int | None, typer.Option(min=1, help="Queues that producers see.")] = None,
    perm: Annotated[str | None, typer.Option(metavar="rw|r|w", help="What clients may do.")] = None,
    attribute: Attribute = None,
    broker: Broker = "",
    nameserver: Nameserver = None,
) -> None:
    """Change a topic where it is; what is not named stays."""
    if read_queues is None and write_queues is None and perm is None and not attribute:
        raise typer.BadParameter("nothing to change: give --read-queues, --write-queues, --perm or --attribute")
    options.run(
        do_update, nameserver,
        topic=topic, read=read_queues, write=write_queues, perm=perm, attributes=attribute or [], broker=broker,
    )  # fmt: skip


async def do_update(
    admin: Admin, topic: str, read: int | None, write: int | None, perm: str | None, attributes: list[str], broker: str
) -> None:
    """Every broker that has it gets its own configuration back, changed."""
    permission, changes = parse_permission(perm) if perm is not None else None, parse_attributes(attributes)
    route = await admin.route(topic)
    places = {name: route.address(name, True) for name in sorted(route.queues) if broker in ("", name)}
    if not places:
        raise GantryError(ErrorCode.NOT_FOUND, f"topic {topic!r} is not on broker {broker!r}")
    for name, address in places.items():
        old = await tools.topic_config(admin, address, topic)
        wanted = (
            read or old["readQueueNums"], write or old["writeQueueNums"], permission if permission is not None else old["perm"]
        )  # fmt: skip
        await tools.update_topic(admin, address, topic, *wanted, changes)
        CONSOLE.print(
            f"topic [bold]{plain(topic)}[/bold] on {plain(name)}: {wanted[0]} read and {wanted[1]} write queues, {permission_text(wanted[2])}"
        )


@topic_app.command()
def delete(topic: Name, yes: Yes = False, nameserver: Nameserver = None) -> None:
    """Delete a topic on every broker, with its messages and offsets."""
    options.confirm(f"Delete topic {topic} with all its messages?", yes)
    options.run(do_delete, nameserver, topic=topic)


async def do_delete(admin: Admin, topic: str) -> None:
    """Delete and say so."""
    await admin.delete_topic(topic)
    CONSOLE.print(f"topic [bold]{plain(topic)}[/bold] deleted")


@topic_app.command()
def prune(
    unused: Annotated[
        bool, typer.Option("--unused", help="Topics that came into being by themselves and that nobody needs.")
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="Made, and asked for by a door, at least so long ago: 90s, 30m, 12h, 7d, 0."),
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show them.")] = False,
    yes: Yes = False,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Remove topics that nobody needs, on all brokers; asks first."""
    if not unused:
        raise typer.BadParameter("say what to remove: --unused is all there is")
    options.run(
        pruning.do_prune, nameserver, older_ms=pruning.parse_age(older_than), dry_run=dry_run, yes=yes, as_lines=json_
    )


@topic_app.command()
def show(topic: Name, json_: Json = False, nameserver: Nameserver = None) -> None:
    """A topic's configuration on each broker, its queues, and who consumes it."""
    options.run(do_show, nameserver, topic=topic, as_lines=json_)


async def do_show(admin: Admin, topic: str, as_lines: bool) -> None:
    """Configuration, queues, groups."""
    route = await admin.route(topic)
    configs, groups, queues = [], set[str](), []
    for name in sorted(route.queues):
        address = route.address(name)
        configs.append({"broker": name, **await tools.topic_config(admin, address, topic)})
        groups |= set(await tools.topic_groups(admin, address, topic))
        queues += await tools.topic_stats(admin, address, topic)
    if as_lines:
        show_rows([{"topic": topic, "brokers": configs, "groups": sorted(groups), "queues": queues}], True, str, "")
        return
    made = table("broker", ">read queues", ">write queues", "may", "attributes", title=f"topic {plain(topic)}")
    for config in configs:
        attributes = ", ".join([f"{key}={value}" for key, value in (config.get("attributes") or {}).items()])
        made.add_row(
            plain(config["broker"]), str(config["readQueueNums"]), str(config["writeQueueNums"]), permission_text(config["perm"]),
            plain(attributes or "-"),
        )  # fmt: skip
    CONSOLE.print(stacked(made, _queue_table(queues), f"consumed by: {plain(', '.join(sorted(groups)) or 'nobody')}"))


def _queue_table(queues: Sequence[dict[str, Any]]) -> RenderableType:
    now_ms = int(time.time() * 1000)
    made = table("broker", ">queue", ">first", ">next", ">messages", "newest")
    for row in queues:
        made.add_row(
            plain(row["broker"]), str(row["queue"]), str(row["min"]), str(row["max"]), number(row["max"] - row["min"]),
            ago(row["updated"], now_ms),
        )  # fmt: skip
    return made


@topic_app.command()
def route(topic: Name, json_: Json = False, nameserver: Nameserver = None) -> None:
    """Where clients find a topic: what the nameserver tells them."""
    options.run(do_route, nameserver, topic=topic, as_lines=json_)


async def do_route(admin: Admin, topic: str, as_lines: bool) -> None:
    """A row per broker."""
    found = await admin.route(topic)
    rows = [
        {
            "topic": topic, "broker": name, "cluster": found.clusters.get(name, ""), "read_queues": read, "write_queues": write,
            "perm": permission_text(perm), "addresses": {str(key): where for key, where in found.brokers.get(name, {}).items()},
        }
        for name, (read, write, perm) in sorted(found.queues.items())
    ]  # fmt: skip

    def make() -> RenderableType:
        made = table("broker", "cluster", ">read", ">write", "may", "addresses", title=f"route of {plain(topic)}")
        for row in rows:
            addresses = ", ".join(
                [f"{where}" if key == "0" else f"{where} (slave {key})" for key, where in row["addresses"].items()]  # type: ignore[attr-defined]
            )
            made.add_row(
                plain(row["broker"]), plain(row["cluster"]), str(row["read_queues"]), str(row["write_queues"]), str(row["perm"]),
                plain(addresses),
            )  # fmt: skip
        return made

    show_rows(rows, as_lines, make, "no broker has it")


@topic_app.command()
def stats(
    topic: Name, watching: Watch = False, interval: Interval = 1.0, json_: Json = False, nameserver: Nameserver = None
) -> None:
    """Queues of a topic, and how fast it grows."""
    options.run(do_stats, nameserver, topic=topic, again=watching, interval_s=interval, as_lines=json_)


async def do_stats(admin: Admin, topic: str, again: bool, interval_s: float, as_lines: bool) -> None:
    """Rates: of the brokers over the last minute, and, watching, from look to look."""
    found = await admin.route(topic)
    trend = Trend()

    async def fetch() -> tuple[Sequence[Any], RenderableType]:
        queues: list[dict[str, Any]] = []
        minute = 0.0
        for name in sorted(found.queues):
            queues += await tools.topic_stats(admin, found.address(name), topic)
            minute += await tools.rate(admin, found.address(name), PUT, topic)
        trend.count(sum([row["max"] for row in queues]), time.monotonic())
        row = {
            "topic": topic,
            "messages": sum([row["max"] - row["min"] for row in queues]),
            "rate": minute,
            "queues": queues,
        }
        line = (
            f"[bold]{plain(topic)}[/bold]  {number(row['messages'])} messages  {number(minute)}/s over the last minute"
        )
        if trend.values:
            line += f"\n{number(trend.rate())}/s now  [cyan]{spark(trend.values)}[/cyan]"
        return [row], stacked(_queue_table(queues), line)

    await watch(fetch, again, interval_s, as_lines)
