"""What `gantry send`, `pull` and `query` do: the native client, and tables for the terminal."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from gantrymq.cli import names
from gantrymq.cli.screen import CONSOLE
from gantrymq.cli.screen import table as columns
from gantrymq.client.admin import Admin
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.model.names import check_group

BODY_SHOWN_MAX: Final = 200
"""Characters of a body in a table; --json shows all of it."""

SETTLE_S: Final = 0.5
"""Without --follow: no message for so long means the end of the topic. A pull with less waiting may miss a slow broker."""

FOLLOW_S: Final = 15.0
"""With --follow: how long one long poll waits before the next."""


async def send(
    admin: Admin, topic: str, body: bytes, tag: str, keys: list[str], properties: dict[str, str], sharding_key: str
) -> None:
    """Send and show where the message is; a topic that it makes is said, for it may be a slip of the pen."""
    from gantrymq.client.producing.producer import Producer

    near = await _near_if_new(admin, topic)
    async with Producer(client=admin.client) as producer:
        result = await producer.send(
            topic, body, tag=tag, keys=keys, properties=properties or None, sharding_key=sharding_key
        )
    place = result.queue
    if near is not None:
        await admin.wait_until_known(topic, {place.broker})  # or the next command would not find it
        queues = len((await admin.client.routes.publish_route(topic, fresh=True)).write_queues())
        CONSOLE.print(f"[yellow]created topic {escape(topic)} with {queues} queues[/yellow]{escape(near)}")
    CONSOLE.print(
        f"[green]stored[/green] {escape(str(place))} offset {result.queue_offset}  id [bold]{result.message_id}[/bold]"
        + ("" if result.durable else "  [yellow](not yet on disk or copied)[/yellow]")
    )


async def _near_if_new(admin: Admin, topic: str) -> str | None:
    """None for a topic that is there, else what may have been meant (`names.near`)."""
    try:
        await admin.route(topic)
    except GantryError as error:
        if error.code is not ErrorCode.TOPIC_NOT_FOUND:
            raise
        return names.near(topic, (await names.topics(admin))[0])
    return None


async def pull(
    admin: Admin, topic: str, tags: str, start_at: str, group: str | None, count: int, follow: bool, as_json: bool
) -> None:
    """Show messages until the end of the topic, `count`, or Ctrl-C."""
    from gantrymq.client.consuming.consumer import PullConsumer

    shown = 0
    gathered: list[ReceivedMessage] = []
    at = parse_start(start_at)
    if group is not None:
        check_group(group)  # before anything is shown that could not be committed
    async with PullConsumer(client=admin.client, group=group or "gantry_pull", tags=tags) as consumer:
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


async def query(admin: Admin, topic: str, key: str, message_id: str, count: int, as_json: bool) -> None:
    """Find by key or by id; by id every detail is shown."""
    if key:
        messages = await admin.query_by_key(topic, key, count)
        if not messages:
            raise GantryError(ErrorCode.NOT_FOUND, f"topic {topic!r} has no message with key {key!r}")
        show(messages, as_json)
        return
    message = await admin.view(message_id, topic)
    show_one(message, as_json)


def show_one(message: ReceivedMessage, as_json: bool) -> None:
    """Every detail of a message."""
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


def parse_start(text: str, option: str = "--from") -> str | int:
    """`earliest`, `latest`, or a time as milliseconds since the epoch. Raises ConfigError."""
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"\d{10,15}", text):
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f'{option} "{text}": must be earliest, latest, a time such as 2026-01-31T12:00, or milliseconds since 1970'
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
    table = columns(">queue", ">offset", "tag", "keys", ">time", "body", title=escape(messages[0].topic))
    for message in messages:
        table.add_row(
            escape(f"{message.broker}/{message.queue_id}") if several else str(message.queue_id),
            str(message.queue_offset),
            escape(message.tag),
            escape(message.keys),
            moment(message.store_ms, "seconds"),
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


def moment(at_ms: int, exact: str = "milliseconds") -> str:
    """Local time with its offset, ISO 8601; `exact`: `isoformat`'s timespec."""
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(timespec=exact)
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
