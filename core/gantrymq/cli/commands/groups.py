"""`gantry group` and `gantry offset`: consumer groups, their members, and how far they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from gantrymq.cli import completion, names, options
from gantrymq.cli.commands.people import parse_start
from gantrymq.cli.options import All, Cluster, Interval, Json, Nameserver, Watch, Yes
from gantrymq.cli.screen import (
    CONSOLE,
    Trend,
    ago,
    facts,
    lag_text,
    listing,
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
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.launch.exit_codes import EXIT_USAGE
from gantrymq.logs import complain
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.model.names import DLQ_PREFIX, RETRY_PREFIX, check_group

group_app = typer.Typer()
offset_app = typer.Typer()

SHARED = ("$share/", "$queue")
"""Begin the names of groups that are shared MQTT subscriptions."""

Name = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups)]
Topic = Annotated[str, typer.Option("--topic", help="Only this topic.", autocompletion=completion.topics)]


class Member:
    """A client of a group on some brokers."""

    def __init__(self, client_id: str, address: str, language: str, version: object) -> None:
        self.client_id = client_id
        self.address = address
        self.language = language
        self.version = version
        self.brokers: list[str] = []
        self.wants: dict[str, str] | None = None
        """By topic; None: it does not say."""


class GroupView:
    """A group as all brokers know it."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.rate = 0.0
        self.queues: list[dict[str, Any]] = []
        self.members: dict[str, Member] = {}
        self.kind = self.model = ""
        self.subscriptions: dict[str, str] = {}
        self.configs: dict[str, dict[str, Any]] = {}

    @property
    def lag(self) -> int:
        """Messages that it has not consumed."""
        return sum([row["lag"] for row in self.queues])

    def known(self) -> bool:
        """Whether anything of it is there."""
        return bool(self.queues or self.members or self.configs)

    def conflicts(self) -> dict[str, dict[str, list[str]]]:
        """Topics of which members want different things: expression to client ids."""
        found: dict[str, dict[str, list[str]]] = {}
        saying = {key: member.wants for key, member in self.members.items() if member.wants}
        topics = {topic for wants in saying.values() for topic in wants if not topic.startswith(RETRY_PREFIX)}
        for topic in sorted(topics):
            by_wish: dict[str, list[str]] = {}
            for client_id, wants in sorted(saying.items()):
                by_wish.setdefault(_spelled(wants.get(topic)), []).append(client_id)
            if len(by_wish) > 1:
                found[topic] = by_wish
        return found

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return {
            "group": self.group, "lag": self.lag, "rate": self.rate, "members": len(self.members), "type": self.kind,
            "model": self.model, "subscriptions": self.subscriptions, "conflicts": self.conflicts(), "queues": self.queues,
            "clients": [
                {
                    "client_id": each.client_id, "address": each.address, "language": each.language, "version": each.version,
                    "brokers": each.brokers, "subscriptions": each.wants,
                }
                for each in self.members.values()
            ],
            "configs": self.configs,
        }  # fmt: skip


def _spelled(expression: str | None) -> str:
    if expression is None:
        return "(nothing)"
    return " || ".join(sorted({tag.strip() for tag in expression.split("||")} - {""})) or "*"


async def inspect(admin: Admin, group: str, deep: bool = False, topic: str = "") -> GroupView:
    """Ask every broker; `deep`: the members, too, what each wants."""
    found = GroupView(group)
    masters = await tools.masters(admin)
    for name, address in masters.items():
        config = await tools.group_config(admin, address, group)
        if config is not None:
            found.configs[name] = config
        rate, rows = await tools.group_progress(admin, address, group, topic)
        found.rate += rate
        found.queues += [row for row in rows if not topic or row["topic"] == topic]
        online = await tools.connections(admin, address, group)
        if online is None:
            continue
        found.kind, found.model = online.get("consumeType") or "", online.get("messageModel") or ""
        for key, data in (online.get("subscriptionTable") or {}).items():
            found.subscriptions[key] = data.get("subString") or "*"
        wishes = await tools.group_wishes(admin, address, group) if deep else None
        for entry in online.get("connectionSet") or ():
            client_id = entry["clientId"]
            member = found.members.get(client_id)
            if member is None:
                member = found.members[client_id] = Member(
                    client_id, entry["clientAddr"].lstrip("/"), str(entry["language"]), entry.get("version")
                )
                if wishes is not None:
                    member.wants = wishes.get(client_id)
                elif deep:
                    member.wants = await tools.member_subscriptions(admin, address, group, client_id)
            member.brokers.append(name)
    return found


@group_app.command("list")
def list_(
    all_: All = False, watching: Watch = False, interval: Interval = 2.0, json_: Json = False, nameserver: Nameserver = None
) -> None:  # fmt: skip
    """Groups with their lag, rate and members."""
    options.run(show_list, nameserver, everything=all_, again=watching, interval_s=interval, as_lines=json_)


async def show_list(admin: Admin, everything: bool, again: bool, interval_s: float, as_lines: bool) -> None:
    """A row per group, those behind first."""
    from gantrymq.cli.owned.shares import Shares

    trends: dict[str, Trend] = {}
    shares = Shares(admin)

    async def fetch() -> tuple[Sequence[Any], RenderableType]:
        rows = await _rows_of_brokers(admin)
        if rows is None:
            known = [name for part in await names.groups(admin) for name in part]
            found = await tools.gather([lambda name=name: inspect(admin, name) for name in known])  # type: ignore[misc]
            rows = [_row(each) for each in found]
        else:  # brokers of ours
            rows += await shares.rows()
        hidden = [] if everything else [row for row in rows if names.is_own_group(row["group"])]
        rows = [row for row in rows if row not in hidden]
        rows.sort(key=lambda row: (-(row["lag"] or 0), row["group"]))
        if as_lines:
            return rows, ""
        cells = []
        for row in rows:
            lately = []
            if again:
                trend = trends.setdefault(row["group"], Trend())
                trend.add(row["lag"] or 0)
                lately = [f"[cyan]{spark(trend.values)}[/cyan]"]
            cells.append((
                plain(row["group"]), lag_text(row["lag"], bool(row["members"])), number(row["rate"]), str(row["members"] or "-"),
                plain(", ".join(row["topics"]) or "-"), *lately,
            ))  # fmt: skip
        columns = ("group", ">lag", ">rate/s", ">members", "topics", *(["lag lately"] if again else []))
        note = Text(names.hidden_line(len(hidden), "group"), "dim") if hidden else None
        return rows, stacked(listing(columns, cells) if rows else "no groups", note)

    async with shares:
        await watch(fetch, again, interval_s, as_lines)


def _row(found: GroupView) -> dict[str, Any]:
    topics = {row["topic"] for row in found.queues} | {*found.subscriptions}
    return {
        "group": found.group, "lag": found.lag, "rate": found.rate, "members": len(found.members),
        "topics": sorted([name for name in topics if not name.startswith(RETRY_PREFIX)]),
    }  # fmt: skip


async def _rows_of_brokers(admin: Admin) -> list[dict[str, Any]] | None:
    """One question to each broker; None if one of them does not answer it."""
    rows: dict[str, dict[str, Any]] = {}
    members: dict[str, set[str]] = {}
    for address in (await tools.masters(admin)).values():
        found = await tools.group_list(admin, address)
        if found is None:
            return None
        for each in found:
            name = each["group"]
            row = rows.setdefault(name, {"group": name, "lag": 0, "rate": 0.0, "members": 0, "topics": []})
            row["lag"] = row["lag"] + each["lag"] if each["lag"] is not None and row["lag"] is not None else None
            row["rate"] += each["rate"]
            topics = [topic for topic in each["topics"] if not topic.startswith(RETRY_PREFIX)]
            row["topics"] = sorted({*row["topics"], *topics})
            members.setdefault(name, set()).update(each["members"])
            row["members"] = len(members[name])
    return list(rows.values())


@group_app.command()
def show(
    group: Name, topic: Topic = "", watching: Watch = False, interval: Interval = 1.0, json_: Json = False,
    nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Lag per queue, members, what they want, and where they want different things."""
    options.run(
        do_show, nameserver, group=group, topic=topic, whole=True, again=watching, interval_s=interval, as_lines=json_
    )


async def do_show(
    admin: Admin, group: str, topic: str, whole: bool, again: bool, interval_s: float, as_lines: bool
) -> None:
    """Everything of one group, or of it alone where it is in every queue."""
    if group.startswith(SHARED):
        from gantrymq.cli.owned.shares import show_shared

        await show_shared(admin, group, again, interval_s, as_lines)
        return
    trend = Trend()

    async def fetch() -> tuple[Sequence[Any], RenderableType]:
        found = await inspect(admin, group, whole, topic)
        _must_be_known(found)
        trend.add(found.lag)
        lately = trend if again else None
        if whole:
            return [found.as_object()], picture(found, lately)
        return found.queues, offsets(found, lately, f"group {plain(group)}")

    await watch(fetch, again, interval_s, as_lines)


def _must_be_known(found: GroupView) -> None:
    if not found.known():
        raise GantryError(
            ErrorCode.GROUP_NOT_FOUND,
            f"there is no group {found.group!r}: nobody is connected, it has no offsets",
        )


def picture(found: GroupView, trend: Trend | None) -> RenderableType:
    """One group on the terminal."""
    online = bool(found.members)
    rows: list[tuple[str, object]] = [
        ("members", len(found.members) or "nobody is connected"),
        ("consumes", ", ".join(filter(None, (found.model.lower(), found.kind.lower().replace("_", " ")))) or "-"),
        ("rate", f"{number(found.rate)}/s over the last minute"),
    ]
    head = facts(rows, f"group {plain(found.group)}")
    return stacked(head, offsets(found, trend), _member_table(found) if online else None, _conflict_text(found))


def offsets(found: GroupView, trend: Trend | None, title: str = "") -> RenderableType:
    """Where a group is in every queue, and how far behind in all."""
    now_ms = int(time.time() * 1000)
    online = bool(found.members)
    queues = table("topic", "broker", ">queue", ">committed", ">end", ">lag", "last", title=title)
    for row in found.queues:
        queues.add_row(
            plain(row["topic"]), plain(row["broker"]), str(row["queue"]), str(row["committed"]), str(row["end"]),
            lag_text(row["lag"], online), ago(row["consumed"], now_ms),
        )  # fmt: skip
    total = f"lag {lag_text(found.lag, online)}"
    if trend is not None:
        total += f"  [cyan]{spark(trend.values)}[/cyan]"
    return stacked(queues if found.queues else None, total)


def _member_table(found: GroupView) -> RenderableType:
    made = table("client", "address", "language", "wants")
    for member in found.members.values():
        wants = member.wants if member.wants is not None else found.subscriptions
        shown = ", ".join([f"{key}: {text}" for key, text in sorted(wants.items()) if not key.startswith(RETRY_PREFIX)])
        made.add_row(
            plain(member.client_id), plain(member.address), plain(member.language.lower()),
            plain(shown or "-") + ("" if member.wants is not None else " [dim](of the group)[/dim]"),
        )  # fmt: skip
    return made


def _conflict_text(found: GroupView) -> RenderableType | None:
    conflicts = found.conflicts()
    if not conflicts:
        return None
    lines = ["[red]members want different things: each gets its own from its queues, the rest nobody gets[/red]"]
    for topic, wishes in conflicts.items():
        for wish, clients in wishes.items():
            lines.append(f"  {plain(topic)}: {plain(wish)} by {plain(', '.join(clients))}")
    lines.append("let all of them subscribe alike, or give them groups of their own")
    return "\n".join(lines)


@group_app.command()
def connections(group: Name, json_: Json = False, nameserver: Nameserver = None) -> None:
    """Members of a group and what each wants."""
    options.run(do_connections, nameserver, group=group, as_lines=json_)


async def do_connections(admin: Admin, group: str, as_lines: bool) -> None:
    """A row per client."""
    found = await inspect(admin, group, True)
    show_rows(
        found.as_object()["clients"], as_lines,
        lambda: stacked(_member_table(found), _conflict_text(found)), f"nobody of group {plain(group)} is connected",
    )  # fmt: skip


Retries = Annotated[
    int | None, typer.Option(min=-1, help="Attempts beyond the first before a message is a dead letter.")
]
Enable = Annotated[bool | None, typer.Option("--consume/--no-consume", help="Whether its members get messages.")]
Broadcast = Annotated[
    bool | None, typer.Option("--broadcast/--no-broadcast", help="Whether broadcast consumers may join.")
]
Orderly = Annotated[
    bool | None, typer.Option("--orderly/--no-orderly", help="Pop consumers get a queue's messages in order.")
]


@group_app.command()
def create(
    group: Name, retries: Retries = 16, orderly: Orderly = None, broadcast: Broadcast = None, cluster: Cluster = "",
    nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Create a group on every broker; clients need not: the first of a group creates it."""
    changes = _changes(retries, None, broadcast, orderly)
    options.run(do_update, nameserver, group=group, changes=changes, cluster=cluster, must_exist=False)


@group_app.command()
def update(
    group: Name, retries: Retries = None, consume: Enable = None, broadcast: Broadcast = None, orderly: Orderly = None,
    cluster: Cluster = "", nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Change a group on every broker; what is not named stays."""
    changes = _changes(retries, consume, broadcast, orderly)
    if not changes:
        raise typer.BadParameter("nothing to change: give --retries, --no-consume, --no-broadcast or --orderly")
    options.run(do_update, nameserver, group=group, changes=changes, cluster=cluster, must_exist=True)


def _changes(retries: int | None, consume: bool | None, broadcast: bool | None, orderly: bool | None) -> dict[str, Any]:
    given = {
        "retryMaxTimes": retries, "consumeEnable": consume, "consumeBroadcastEnable": broadcast, "consumeMessageOrderly": orderly,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


async def do_update(admin: Admin, group: str, changes: dict[str, Any], cluster: str, must_exist: bool) -> None:
    """The configuration that each broker has, changed."""
    check_group(group)
    masters = await tools.masters(admin, cluster)
    old = {name: await tools.group_config(admin, address, group) for name, address in masters.items()}
    if must_exist and not any(old.values()):
        raise GantryError(ErrorCode.GROUP_NOT_FOUND, f"there is no group {group!r}")
    for name, address in masters.items():
        await tools.update_group(admin, address, {**(old[name] or {"groupName": group}), **changes})
    said = ", ".join([f"{key} = {str(value).lower()}" for key, value in changes.items()])
    CONSOLE.print(f"group [bold]{plain(group)}[/bold] on {plain(', '.join(masters))}: {plain(said or 'created')}")


@group_app.command()
def delete(
    group: Name,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="A group of that name made later goes on there.")
    ] = False,
    yes: Yes = False,
    nameserver: Nameserver = None,
) -> None:
    """Delete a group on every broker, with its offsets."""
    options.confirm(f"Delete group {group}{'' if keep_offsets else ' with its offsets'}?", yes)
    options.run(do_delete, nameserver, group=group, offsets=not keep_offsets)


async def do_delete(admin: Admin, group: str, offsets: bool) -> None:
    """Refused while somebody is connected: he would make it again with his next heartbeat."""
    found = await inspect(admin, group)
    _must_be_known(found)
    if found.members:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"group {group!r} has members: stop them first (see `gantry group show {group}`)",
        )
    await admin.delete_group(group, offsets=offsets)
    CONSOLE.print(f"group [bold]{plain(group)}[/bold] deleted")


# Offsets.


@offset_app.command("show")
def offset_show(
    group: Name, topic: Topic = "", watching: Watch = False, interval: Interval = 1.0, json_: Json = False,
    nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Where a group is in every queue, and nothing else of it (`gantry group show`: its members, too)."""
    options.run(
        do_show, nameserver, group=group, topic=topic, whole=False, again=watching, interval_s=interval, as_lines=json_
    )


@offset_app.command("reset")
def offset_reset(
    group: Name,
    topic: Annotated[str, typer.Option(help="Topic.", autocompletion=completion.topics)],
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="earliest, latest, a time (2026-01-31T12:00 or milliseconds), or an offset with --queue.")
    ],
    queue: Annotated[str, typer.Option(metavar="BROKER/QUEUE", help="Only this queue; --to may be an offset.")] = "",
    new: Annotated[bool, typer.Option("--new", help="The group may be one that never ran: it begins there.")] = False,
    yes: Yes = False,
    nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Let a group go on somewhere else; connected consumers follow."""
    try:
        if not queue:
            parse_start(to, "--to")
        elif not (queue.rpartition("/")[0] and queue.rpartition("/")[2].isdecimal() and to.isdecimal()):
            raise ConfigError("--queue must be BROKER/NUMBER, and --to the offset to go on at")
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    options.confirm(f"Let group {group} go on at {to} in {queue or 'every queue of'} {topic}?", yes)
    options.run(do_reset, nameserver, group=group, topic=topic, to=to, queue=queue, new=new)


async def do_reset(admin: Admin, group: str, topic: str, to: str, queue: str, new: bool) -> None:
    """By the broker itself, so that consumers are told."""
    check_group(group)
    if not new and not (await inspect(admin, group)).known():
        raise GantryError(
            ErrorCode.GROUP_NOT_FOUND,
            f"there is no group {group!r}{names.near(group, (await names.groups(admin))[0])}; --new sets where one begins that never ran",
        )
    if queue:
        broker, _, number_ = queue.rpartition("/")
        route = await names.check_queue(admin, MessageQueue(topic, broker, int(number_)))
        await tools.reset_queue(admin, route.address(broker, True), group, topic, int(number_), int(to))
        CONSOLE.print(f"group [bold]{plain(group)}[/bold] goes on at {to} in {plain(topic)}/{plain(queue)}")
        return
    found = await admin.reset_offsets(group, topic, parse_start(to, "--to"))
    made = table("broker", ">queue", ">goes on at", title=f"group {plain(group)}, topic {plain(topic)}")
    for place, offset in sorted(found.items()):
        made.add_row(plain(place.broker), str(place.queue_id), str(offset))
    CONSOLE.print(made)


@offset_app.command("clone")
def offset_clone(
    source: Annotated[str, typer.Argument(metavar="FROM_GROUP", autocompletion=completion.groups)],
    target: Annotated[str, typer.Argument(metavar="TO_GROUP", autocompletion=completion.groups)],
    topic: Topic = "",
    nameserver: Nameserver = None,
) -> None:
    """Give a group the offsets of another."""
    options.run(do_clone, nameserver, source=source, target=target, topic=topic)


async def do_clone(admin: Admin, source: str, target: str, topic: str) -> None:
    """Refused while the target has members, and where there is nothing to give."""
    check_group(target)
    if await admin.members(target):
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT, f"group {target!r} has members: stop them first, they would commit their own"
        )
    if source == target:
        raise ConfigError(f"group {source!r} is both FROM_GROUP and TO_GROUP: name two")
    found = await inspect(admin, source, topic=topic)
    if not found.queues:
        raise GantryError(
            ErrorCode.GROUP_NOT_FOUND, f"group {source!r} has no offsets{f' of topic {topic!r}' if topic else ''}"
        )
    for address in (await tools.masters(admin)).values():
        await tools.clone_offsets(admin, address, source, target, topic)
    CONSOLE.print(f"group [bold]{plain(target)}[/bold] goes on where {plain(source)} is: {len(found.queues)} queues")


def dead_letter_topic(group: str) -> str:
    """Where a group's dead letters are."""
    return DLQ_PREFIX + group
