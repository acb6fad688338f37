"""`gantry message tail`: the newest messages of topics, and those that come, each shown when it is there.

One long poll per queue; what a broker answers is written before the queue is asked again, so nothing gathers here however fast messages come or
however slowly they are read.
"""

from __future__ import annotations

import asyncio
import fnmatch
import heapq
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Final

import typer

from gantrymq.cli import completion, names, options
from gantrymq.cli.commands import formats, people
from gantrymq.cli.options import Json, Nameserver
from gantrymq.cli.screen import CONSOLE, plain
from gantrymq.client.admin import Admin
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.consuming.offsets import max_offset, min_offset
from gantrymq.client.consuming.pulling import Subscription, pull_once
from gantrymq.client.records import ReceivedMessage
from gantrymq.logs import complain
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError

GROUP: Final = "gantry_tail"
WAIT_S: Final = 15.0
"""How long a broker holds a pull of an empty queue."""
PULL: Final = 256
"""Messages of one answer; their bytes are limited by the pull's own 4 MiB."""
LINES_MAX: Final = 10_000
"""Of `--lines`: these are kept until the newest are known."""
HISTORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bodies of those that are kept; the oldest go first."""
READ_BACK: Final = 10_000
"""Offsets of each queue that are looked at for the newest messages with a tag."""
QUEUES_MAX: Final = 4_096
"""One request waits for each."""
NEW_TOPICS_S: Final = 5.0
"""Queues and topics that are made meanwhile are found within this."""
AGAIN_S: Final = 1.0
"""Before a queue is asked again whose broker does not answer."""

Write = Callable[[ReceivedMessage], None]


def tail(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="Names, or patterns in quotes: 'orders*'.", autocompletion=completion.topics),
    ],
    tags: Annotated[str, typer.Option("--tag", help="Only these: 'a || b', or * for all.")] = "*",
    count: Annotated[int, typer.Option("--lines", "-n", min=0, max=LINES_MAX, help="So many of the newest first.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for more until Ctrl-C.")] = True,
    form: Annotated[str, typer.Option("--format", "-F", metavar="FORMAT", help=formats.HELP)] = "",
    all_: Annotated[bool, typer.Option("--all", help="Patterns match retry, dead letter and system topics, too.")] = False,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """The newest messages of topics, and those that come.

    Examples: gantry message tail orders; gantry message tail 'orders*' payments -n 0 --format '%t %g %b'
    """
    if json_ and form:
        raise typer.BadParameter("--json and --format exclude each other")
    options.run(
        do_tail, nameserver,
        topics=topics, tags=tags, count=count, follow=follow, form=form, everything=all_, as_lines=json_,
    )  # fmt: skip


async def do_tail(
    admin: Admin, topics: list[str], tags: str, count: int, follow: bool, form: str, everything: bool, as_lines: bool
) -> None:
    """First what is there, then what comes."""
    several = len(topics) > 1 or any(map(is_pattern, topics))
    write = formats.writer(form) if form else write_json if as_lines else partial(write_line, several=several)
    tailing = Tail(admin, topics, tags, everything, write)
    await tailing.begin(count)
    if follow:
        await tailing.follow()


def is_pattern(name: str) -> bool:
    """Whether a name stands for several topics."""
    return any(char in name for char in "*?[")


async def chosen(admin: Admin, wanted: Iterable[str], everything: bool) -> list[str]:
    """Topics that names and patterns stand for now. Raises TOPIC_NOT_FOUND for a name that is none."""
    shown, hidden = await names.topics(admin)
    found: dict[str, None] = {}
    for name in wanted:
        if is_pattern(name):
            found |= dict.fromkeys(fnmatch.filter([*shown, *hidden] if everything else shown, name))
        elif name in shown or name in hidden:
            found[name] = None
        else:
            raise await names.unknown_topic(admin, name)
    return list(found)


class Tail:
    """What is followed, and how far."""

    def __init__(self, admin: Admin, wanted: list[str], tags: str, everything: bool, write: Write) -> None:
        self._admin = admin
        self._wanted = wanted
        self._tags = tags
        self._everything = everything
        self._write = write
        self._positions: dict[MessageQueue, int] = {}
        """Offset of the next message of each queue."""
        self._subscriptions: dict[str, Subscription] = {}
        self._silent: set[str] = set()
        """Brokers of which it was said that they do not answer."""
        Subscription.of("", tags)  # raises for a bad expression

    async def begin(self, count: int) -> None:
        """Write the newest `count` messages; go on behind all that is there."""
        topics = await chosen(self._admin, self._wanted, self._everything)
        if not topics:
            complain(f"no topic matches {' '.join(self._wanted)} yet")
        newest = Newest(count)
        for topic in topics:
            for queue in await self._queues(topic):
                end = self._positions[queue] = await max_offset(self._admin.client, queue)
                if count:
                    await self._read_back(queue, end, newest)
        for message in newest.in_order():
            self._write(message)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        queues = (await self._admin.client.routes.route(topic, fresh=True)).read_queues()
        if len(self._positions) + len(queues) > QUEUES_MAX:
            raise ConfigError(f"over {QUEUES_MAX} queues: name fewer topics")
        return queues

    async def _read_back(self, queue: MessageQueue, end: int, newest: Newest) -> None:
        """The queue's newest messages, of which the newest of all queues stay."""
        plain = self._subscription(queue.topic).expression == "*"
        back = newest.count if plain else max(newest.count, READ_BACK)
        offset = max(end - back, await min_offset(self._admin.client, queue))
        while offset < end:
            messages, following = await self._pull(queue, offset, min(PULL, end - offset), 0.0)
            for message in messages:
                if message.queue_offset < end:
                    newest.add(queue, message)
            if following <= offset:
                return
            offset = following

    async def _pull(
        self, queue: MessageQueue, offset: int, count: int, wait_s: float
    ) -> tuple[list[ReceivedMessage], int]:
        client, subscription = self._admin.client, self._subscription(queue.topic)
        result = await pull_once(client, GROUP, queue, offset, subscription, count=count, wait_s=wait_s)
        return result.messages, result.next_offset

    def _subscription(self, topic: str) -> Subscription:
        return self._subscriptions.setdefault(topic, Subscription.of(topic, self._tags))

    async def follow(self) -> None:
        """Until cancelled: a poll per queue, and a look for new queues now and then."""
        followed: dict[MessageQueue, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                for queue in self._positions:
                    if queue not in followed:
                        followed[queue] = tasks.create_task(self._follow(queue))
                await asyncio.sleep(NEW_TOPICS_S)
                await self._find_new()
                for queue in [queue for queue, task in followed.items() if task.done()]:
                    del followed[queue]

    async def _find_new(self) -> None:
        """What was made since: from its first message on."""
        try:
            for topic in await chosen(self._admin, self._wanted, self._everything):
                for queue in await self._queues(topic):
                    self._positions.setdefault(queue, 0)
        except GantryError as error:
            if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.TOPIC_NOT_FOUND):
                raise  # else: the nameservers are away, and the brokers may be there

    async def _follow(self, queue: MessageQueue) -> None:
        """One queue, as long as its topic is there; a broker that does not answer is asked again."""
        while True:
            try:
                messages, self._positions[queue] = await self._pull(queue, self._positions[queue], PULL, WAIT_S)
            except GantryError as error:
                if error.code in (ErrorCode.TOPIC_NOT_FOUND, ErrorCode.QUEUE_NOT_FOUND):
                    complain(f"{queue} is gone")
                    del self._positions[queue]
                    return
                if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.BUSY, ErrorCode.SHUTTING_DOWN):
                    raise
                if queue.broker not in self._silent:
                    self._silent.add(queue.broker)
                    complain(f"{error.text}; trying again")
                await asyncio.sleep(AGAIN_S)
                continue
            if queue.broker in self._silent:
                self._silent.discard(queue.broker)
                complain(f"broker {queue.broker} answers again")
            for message in messages:
                self._write(message)
            if messages:
                sys.stdout.flush()


class Newest:
    """The newest messages by the time that they were stored: `count` at most, and `HISTORY_BYTES_MAX`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._heap: list[tuple[int, MessageQueue, int, ReceivedMessage]] = []
        self._bytes = 0

    def add(self, queue: MessageQueue, message: ReceivedMessage) -> None:
        """Keep it if it is one of them."""
        heapq.heappush(self._heap, (message.store_ms, queue, message.queue_offset, message))
        self._bytes += len(message.raw_body)
        while len(self._heap) > self.count or (self._bytes > HISTORY_BYTES_MAX and len(self._heap) > 1):
            self._bytes -= len(heapq.heappop(self._heap)[3].raw_body)

    def in_order(self) -> list[ReceivedMessage]:
        """Oldest first."""
        return [entry[3] for entry in sorted(self._heap)]


def write_json(message: ReceivedMessage) -> None:
    """One object on one line."""
    people.show([message], True)


def write_line(message: ReceivedMessage, several: bool) -> None:
    """When, where, tag and the beginning of the body."""
    place = f"{message.broker}/{message.queue_id}/{message.queue_offset}"
    place = f"{message.topic}/{place}" if several else place
    tag = f" [magenta]{plain(message.tag)}[/magenta]" if message.tag else ""
    CONSOLE.print(
        f"[dim]{people.moment(message.store_ms)[11:23]}[/dim] [cyan]{plain(place)}[/cyan]{tag} {plain(people.body_text(message.body))}",
        soft_wrap=True,
    )
