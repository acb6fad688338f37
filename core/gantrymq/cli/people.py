"""What `gantry topic`, `send`, `pull` and `query` do: the native client, and tables for the terminal."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import anyio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gantrymq.client.admin import Admin
from gantrymq.client.consumer import PullConsumer
from gantrymq.client.producer import Producer
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.server import parse_nameservers

BODY_SHOWN_MAX: Final = 200
"""Characters of a body in a table; --json shows all of it."""

SETTLE_S: Final = 0.5
"""Without --follow: no message for so long means the end of the topic. A pull with less waiting may miss a slow broker."""

FOLLOW_S: Final = 15.0
"""With --follow: how long one long poll waits before the next."""

CONSOLE: Final = Console(highlight=False)


def run(name: str, nameserver: str, arguments: dict[str, Any]) -> None:
    """Run the command `name` on an event loop. Raises GantryError or ConfigError."""
    if nameserver:
        parse_nameservers(nameserver, "--nameserver")
    command = COMMANDS[name]

    async def main() -> None:
        await command(nameserver, **arguments)

    anyio.run(main)  # asyncio's own loop: a few requests do not pay for importing another


def explain(error: GantryError, nameserver: str) -> str:
    """A failure with what to do about it."""
    if error.code is ErrorCode.UNAVAILABLE:
        hint = "" if nameserver else " --nameserver or NAMESRV_ADDR name another nameserver"
        return f"{error.text} (is `gantry up` running?{hint})"
    if error.code is ErrorCode.TOPIC_NOT_FOUND:
        return f"{error.text} (see `gantry topic list`)"
    return error.text


async def topic_create(nameserver: str, name: str, queues: int, cluster: str, broker: str) -> None:
    """Create and say where."""
    async with Admin(nameserver) as admin:
        brokers = await admin.create_topic(name, queues, cluster, broker)
    CONSOLE.print(f"topic [bold]{escape(name)}[/bold]: {queues} queues on {escape(', '.join(brokers))}")


async def topic_list(nameserver: str, system: bool) -> None:
    """A row per topic; one whose brokers do not answer is shown without numbers."""
    table = Table("topic", "brokers", title=None)
    table.add_column("queues", justify="right")
    table.add_column("messages", justify="right")
    async with Admin(nameserver) as admin:
        for name in await admin.topics(system):
            try:
                stats = await admin.topic_stats(name)
            except GantryError as error:
                table.add_row(escape(name), f"[red]{escape(error.text)}[/red]", "?", "?")
                continue
            brokers = sorted({row.queue.broker for row in stats})
            table.add_row(
                escape(name), escape(", ".join(brokers)), str(len(stats)), f"{sum(row.messages for row in stats):,}"
            )
    CONSOLE.print(table if table.row_count else "no topics")


async def topic_delete(nameserver: str, name: str) -> None:
    """Delete and say so."""
    async with Admin(nameserver) as admin:
        await admin.delete_topic(name)
    CONSOLE.print(f"topic [bold]{escape(name)}[/bold] deleted")


async def send(
    nameserver: str, topic: str, body: bytes, tag: str, keys: list[str], properties: dict[str, str], sharding_key: str
) -> None:
    """Send and show where the message is."""
    async with Producer(nameserver) as producer:
        result = await producer.send(
            topic, body, tag=tag, keys=keys, properties=properties or None, sharding_key=sharding_key
        )
    place = result.queue
    CONSOLE.print(
        f"[green]stored[/green] {escape(str(place))} offset {result.queue_offset}  id [bold]{result.message_id}[/bold]"
        + ("" if result.durable else "  [yellow](not yet on disk or copied)[/yellow]")
    )


async def pull(
    nameserver: str, topic: str, tags: str, start_at: str, group: str, count: int, follow: bool, as_json: bool
) -> None:
    """Show messages until the end of the topic, `count`, or Ctrl-C."""
    shown = 0
    gathered: list[ReceivedMessage] = []
    at = parse_start(start_at)
    async with PullConsumer(nameserver, group=group or "gantry_pull", tags=tags) as consumer:
        queues = await consumer.assign(topic)
        if not group:
            for queue in queues:
                await (consumer.seek_to_time(queue, at) if isinstance(at, int) else consumer.seek(queue, at))
        try:
            while shown < count:
                messages = await consumer.pull(count - shown, FOLLOW_S if follow else SETTLE_S)
                if not messages and not follow:
                    break
                if follow or as_json:
                    show(messages, as_json)
                else:
                    gathered += messages  # one table for all queues
                shown += len(messages)
        except asyncio.CancelledError:
            if not follow:
                raise
        finally:
            show(gathered, as_json)
        if group:
            await consumer.commit()
    if not shown and not as_json:
        CONSOLE.print("no messages")


async def query(nameserver: str, topic: str, key: str, message_id: str, count: int, as_json: bool) -> None:
    """Find by key or by id; by id every detail is shown."""
    async with Admin(nameserver) as admin:
        if key:
            messages = await admin.query_by_key(topic, key, count)
            if not messages:
                raise GantryError(ErrorCode.NOT_FOUND, f"topic {topic!r} has no message with key {key!r}")
            show(messages, as_json)
            return
        message = await admin.view(message_id, topic)
    if as_json:
        show([message], True)
        return
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in as_object(message).items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
        table.add_row(name, escape(text))
    CONSOLE.print(table)


COMMANDS: Final[dict[str, Any]] = {
    "topic_create": topic_create,
    "topic_list": topic_list,
    "topic_delete": topic_delete,
    "send": send,
    "pull": pull,
    "query": query,
}


def parse_start(text: str) -> str | int:
    """`earliest`, `latest`, or a time as milliseconds since the epoch. Raises ConfigError."""
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"\d{10,15}", text):
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f'--from "{text}": must be earliest, latest, a time such as 2026-01-31T12:00, or milliseconds since 1970'
        ) from None


def show(messages: Sequence[ReceivedMessage], as_json: bool) -> None:
    """Print some messages: JSON lines, or a table."""
    if as_json:
        for message in messages:
            sys.stdout.write(json.dumps(as_object(message), ensure_ascii=False) + "\n")
        sys.stdout.flush()
        return
    if not messages:
        return
    several = len({message.broker for message in messages}) > 1
    table = Table(title=escape(messages[0].topic))
    table.add_column("queue", justify="right", no_wrap=True)
    table.add_column("offset", justify="right", no_wrap=True)
    for name in ("tag", "keys"):
        table.add_column(name, overflow="fold")
    table.add_column("time", no_wrap=True)
    table.add_column("body", overflow="fold")
    for message in messages:
        table.add_row(
            escape(f"{message.broker}/{message.queue_id}") if several else str(message.queue_id),
            str(message.queue_offset),
            escape(message.tag),
            escape(message.keys),
            moment(message.store_ms)[:19].replace("T", " "),
            escape(body_text(message.body)),
        )
    CONSOLE.print(table)


def as_object(message: ReceivedMessage) -> dict[str, Any]:
    """A message for JSON; a body that is not UTF-8 becomes `body_base64`."""
    body = message.body
    try:
        content = {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode("ascii")}
    return {
        "topic": message.topic,
        "broker": message.broker,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tag": message.tag,
        "keys": message.keys,
        "born": moment(message.born_ms),
        "born_host": message.born_host,
        "stored": moment(message.store_ms),
        "properties": message.property_map(),
        **content,
    }


def moment(at_ms: int) -> str:
    """Local time with milliseconds and offset."""
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def body_text(body: bytes) -> str:
    """The beginning of a body on one line: text where it is text, else hexadecimal."""
    part = body[: 4 * BODY_SHOWN_MAX]
    try:
        text = part.decode("utf-8", "strict" if len(part) == len(body) else "ignore")
    except UnicodeDecodeError:
        text = ""
    if not text or not all(char.isprintable() or char in "\r\n\t" for char in text):
        text = f"{len(body)} bytes: {body[: BODY_SHOWN_MAX // 3].hex(' ')}" if body else ""
    text = " ".join(text.splitlines())
    return text if len(text) <= BODY_SHOWN_MAX else text[: BODY_SHOWN_MAX - 3] + "..."
