"""`gantry message` and `gantry trace`: single messages, the newest of a topic, dead letters sent again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import monotonic
from typing import Annotated, Any, Final

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gantrymq.cli import completion, names, options
from gantrymq.cli.commands import people
from gantrymq.cli.commands.groups import dead_letter_topic
from gantrymq.cli.names import REDRIVE_PREFIX
from gantrymq.cli.options import Json, Nameserver, Yes
from gantrymq.cli.screen import CONSOLE, facts, plain, show_rows, stacked, table
from gantrymq.client.admin import Admin
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.client.messages import OutMessage
from gantrymq.client.producing.producer import Producer
from gantrymq.client.records import ReceivedMessage
from gantrymq.model import properties as props
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.model.names import RETRY_PREFIX

REDRIVE_BATCH: Final = 100
"""Messages between two commits: as many may be sent twice when the command is killed."""

REDRIVE_WAIT_S: Final = 30.0
"""A broker that has dead letters and gives none for so long is too slow: the rest is left for the next redrive."""


def get(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="A message id; with --topic also a client's.")] = "",
    topic: Annotated[
        str,
        typer.Option(help="Its topic; needed for a client's id and for --at.", autocompletion=completion.topics),
    ] = "",
    at: Annotated[str, typer.Option(metavar="BROKER/QUEUE/OFFSET", help="The message at a place instead.")] = "",
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """One message with every detail, by id or by place."""
    if bool(message_id) == bool(at):
        raise typer.BadParameter("give either an ID or --at BROKER/QUEUE/OFFSET")
    if at and not topic:
        raise typer.BadParameter("--at needs --topic")
    if at:
        options.run(get_at, nameserver, topic=topic, at=at, as_lines=json_)
        return
    options.run(people.query, nameserver, topic=topic, key="", message_id=message_id, count=1, as_json=json_)


async def get_at(admin: Admin, topic: str, at: str, as_lines: bool) -> None:
    """By pulling one."""
    broker, _, rest = at.partition("/")
    queue, _, offset = rest.partition("/")
    if not (broker and queue.isdecimal() and offset.isdecimal()):
        raise ConfigError(f"--at {at!r}: must be BROKER/QUEUE/OFFSET")
    place = MessageQueue(topic, broker, int(queue))
    await names.check_queue(admin, place)
    async with PullConsumer(client=admin.client, group="gantry_get") as consumer:
        found = (await consumer.pull_queue(place, int(offset), 1)).messages
    if not found or found[0].queue_offset != int(offset):
        raise GantryError(
            ErrorCode.NOT_FOUND, f"{place} has no message at offset {offset} (see `gantry topic show {topic}`)"
        )
    people.show_one(found[0], as_lines)


def redrive(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups)],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TOPIC", help="Send them there instead of to the topic that each came from.", autocompletion=completion.topics
        ),
    ] = "",
    only: Annotated[
        bool, typer.Option("--only", help="To this group alone, by its retry topic: other groups of their topics get nothing.")
    ] = False,
    count: Annotated[int, typer.Option("--max", min=1, help="At most so many.")] = 1_000_000,
    again: Annotated[bool, typer.Option("--again", help="Those that were sent again already, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, send nothing.")] = False,
    yes: Yes = False,
    nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Send a group's dead letters (%DLQ%GROUP) to their topics again. Every group of the topic gets them, with --only this one alone.

    What was sent is remembered, so the next redrive goes on behind it; the dead letters themselves stay until they expire.
    """
    if only and to:
        raise typer.BadParameter("--only sends to the group's retry topic: leave --to out")
    if not dry_run:
        where = "itself alone" if only else to or "their topics"
        options.confirm(f"Send the dead letters of group {group} to {where} again?", yes)
    options.run(do_redrive, nameserver, group=group, to=to, count=count, again=again, dry_run=dry_run, only=only)


async def do_redrive(
    admin: Admin, group: str, to: str, count: int, again: bool, dry_run: bool, only: bool = False
) -> None:
    """Send, then commit: at least once."""
    topic = dead_letter_topic(group)
    try:
        await admin.route(topic)
    except GantryError as error:
        if error.code is ErrorCode.TOPIC_NOT_FOUND:
            raise GantryError(ErrorCode.NOT_FOUND, f"group {group!r} has no dead letters") from None
        raise
    bar = Progress(
        TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    sent: dict[str, int] = {}
    async with (
        PullConsumer(client=admin.client, group=f"{REDRIVE_PREFIX}{group}", auto_commit=False) as consumer,
        Producer(client=admin.client, group=f"{REDRIVE_PREFIX}{group}") as producer,
    ):
        queues = await consumer.assign(topic)
        ends: dict[MessageQueue, int] = {}
        kept: dict[MessageQueue, int] = {}
        waiting = 0
        for queue in queues:
            before = await consumer.committed(queue)
            start = None if again else before
            begin = await consumer.seek(
                queue, "earliest" if start is None else max(start, await consumer.min_offset(queue))
            )
            ends[queue] = await consumer.max_offset(queue)
            kept[queue] = min(before or 0, ends[queue])
            waiting += max(ends[queue] - begin, 0)
        with bar:
            task = bar.add_task("", total=min(waiting, count))
            while (done := sum(sent.values())) < count:
                messages = await pull_until(consumer, ends, min(REDRIVE_BATCH, count - done))
                if not messages:
                    break
                out = [letter(message, to, group if only else "") for message in messages]
                if not dry_run:
                    await producer.send_many(out)
                    # --again begins below what was sent before, and may end (--max) before it has come there.
                    await consumer.commit({queue: max(consumer.position(queue), kept[queue]) for queue in queues})
                for each in out:
                    sent[each.topic] = sent.get(each.topic, 0) + 1
                bar.update(task, completed=sum(sent.values()))
    verb = "would be sent" if dry_run else "sent"
    if not sent:
        CONSOLE.print(f"group {plain(group)} has no dead letters that were not sent again already (--again sends all)")
    for name, number in sorted(sent.items()):
        CONSOLE.print(f"{number} dead letter{'s' if number != 1 else ''} {verb} to [bold]{plain(name)}[/bold]")


async def pull_until(consumer: PullConsumer, ends: dict[MessageQueue, int], count: int) -> list[ReceivedMessage]:
    """The next messages of one queue below its end in `ends`, whose worked off queues leave it; empty: there are none.

    What fails again is a dead letter again at once: without an end that was set before, sending and failing would go round for ever. Raises BUSY where
    brokers do not give what they have.
    """
    since = monotonic()
    while True:
        for queue in [queue for queue, end in ends.items() if consumer.position(queue) >= end]:
            await consumer.seek(queue, ends.pop(queue))  # forgets what came from behind the end, too
            consumer.pause([queue])
        if not ends:
            return []
        if monotonic() - since > REDRIVE_WAIT_S:
            left = sum(end - consumer.position(queue) for queue, end in ends.items())
            brokers = ", ".join(sorted({queue.broker for queue in ends}))
            raise GantryError(
                ErrorCode.BUSY,
                f"no dead letter came from {brokers} for {REDRIVE_WAIT_S:g} s, left: {left}; run the command again: it goes on there",
            )
        messages = await consumer.pull(count, people.SETTLE_S)
        if not messages:
            continue  # slow, or they expired meanwhile: then the position is at the end now
        since = monotonic()
        first = messages[0]
        queue = MessageQueue(first.topic, first.broker, first.queue_id)
        end = ends[queue]
        if consumer.position(queue) > end:
            await consumer.seek(queue, end)  # what came from behind it is neither sent nor may be committed
        below = [message for message in messages if message.queue_offset < end]
        if below:
            return below


def letter(message: ReceivedMessage, to: str, only: str = "") -> OutMessage:
    """The message as its first sender made it; `only`: for this group alone, whose clients give it its topic back. Raises NOT_FOUND where nothing
    tells its topic."""
    pairs = message.property_map()
    topic = to or pairs.get("DLQ_ORIGIN_TOPIC") or pairs.get(props.RETRY_TOPIC) or ""
    if not topic:
        place = f"{message.topic}/{message.broker}/{message.queue_id} at offset {message.queue_offset}"
        raise GantryError(
            ErrorCode.NOT_FOUND, f"the dead letter {place} does not say where it came from: give --to TOPIC"
        )
    own = {name: value for name, value in pairs.items() if name not in props.SYSTEM_NAMES}
    if only:
        own[props.RETRY_TOPIC], topic = topic, RETRY_PREFIX + only
    return OutMessage(
        topic, message.body, tag=message.tag, keys=message.keys.split(), properties=own,
        sharding_key=pairs.get(props.SHARDING_KEY, ""),
    )  # fmt: skip


# Trace.


async def do_trace(admin: Admin, message_id: str, topic: str, as_lines: bool) -> None:
    """Trace records have the message's id and keys as keys."""
    try:
        found = await admin.query_by_key(topic, message_id)
    except GantryError as error:
        if error.code is ErrorCode.TOPIC_NOT_FOUND:
            raise GantryError(
                ErrorCode.NOT_FOUND,
                f"there is no topic {topic}: no client has written a trace (enableMsgTrace of RocketMQ's clients)",
            ) from None
        raise
    rows = [row for message in found for row in decode_trace(message.body.decode("utf-8", "replace"))]
    rows = sorted([row for row in rows if message_id in (row["id"], *row["keys"].split())], key=lambda row: row["time"])
    if not rows:
        raise GantryError(ErrorCode.NOT_FOUND, f"no trace of message {message_id!r} in topic {topic}")

    def make() -> RenderableType:
        made = table("time", "what", "group", "client", ">took", "result")
        for row in rows:
            result = "[green]ok[/green]" if row["ok"] else "[red]failed[/red]" if row["ok"] is not None else "-"
            made.add_row(
                people.moment(row["time"])[11:23] if row["time"] else "-", row["what"], plain(row["group"]), plain(row["client"]),
                f"{row['took']} ms" if row["took"] is not None else "-", result,
            )  # fmt: skip
        first = rows[0]
        head = facts([("message", first["id"]), ("topic", first["topic"] or "-"), ("keys", first["keys"] or "-")])
        return stacked(head, made)

    show_rows(rows, as_lines, make, "")


def decode_trace(text: str) -> Iterator[dict[str, Any]]:
    """Records of a trace message (RocketMQ: TraceDataEncoder): fields end with 0x01, records with 0x02; what is short is left out."""
    for record in text.split("\x02"):
        part = record.split("\x01")
        row: dict[str, Any] = {
            "what": "", "time": 0, "group": "", "topic": "", "id": "", "keys": "", "client": "", "took": None, "ok": None,
        }  # fmt: skip
        try:
            if part[0] == "Pub":
                row |= {
                    "what": "sent", "time": int(part[1]), "group": part[3], "topic": part[4], "id": part[5], "keys": part[7],
                    "client": part[14] if len(part) > 14 else "", "took": int(part[10]), "ok": part[13] == "true",
                }  # fmt: skip
            elif part[0] == "SubBefore":
                row |= {
                    "what": "delivered" if part[6] == "0" else f"delivered again ({part[6]})", "time": int(part[1]),
                    "group": part[3], "id": part[5], "keys": part[7], "client": part[8] if len(part) > 8 else "",
                }  # fmt: skip
            elif part[0] == "SubAfter":
                row |= {
                    "what": "consumed", "id": part[2], "took": int(part[3]), "ok": part[4] == "true", "keys": part[5],
                    "time": int(part[7]) if len(part) > 7 else 0, "group": part[8] if len(part) > 8 else "",
                }  # fmt: skip
            elif part[0] == "EndTransaction":
                row |= {
                    "what": f"transaction: {part[11].lower()}", "time": int(part[1]), "group": part[3], "topic": part[4],
                    "id": part[5], "keys": part[7],
                }  # fmt: skip
            else:
                continue
        except (IndexError, ValueError):
            continue
        yield row
