"""All topics, and all groups, in one answer: `gantry topic list` and `gantry group list` of 20,000 would else ask 20,000 times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.administration.figures import Ends
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import GROUP_LIST, TOPIC_LIST

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools

ROWS_PER_PART: Final = 200
"""Rows encoded in one go: some 100 us."""


class _None(msgspec.Struct):
    pass


def topic_list(command: Command, reply: Reply, services: Tools) -> None:
    """TOPIC_LIST."""
    parse(command.fields, _None)
    services.jobs.run(command, reply, _topic_list(services))


def _topic_list(services: Tools) -> Steps[bytes]:
    ends = Ends(services.reading)
    rows: list[tuple[str, int, int | None]] = []
    parts: list[bytes] = []
    yield None
    for topic in list(services.topics.table.topics.values()):
        if topic.system:
            continue
        found = yield from ends.of(topic.name)
        queues = max(topic.config.read_queues, topic.config.write_queues)
        rows.append((topic.name, queues, found[0] - found[1] if found is not None else None))
        if len(rows) >= ROWS_PER_PART:
            parts.append(bodies.encode(rows)[1:-1])
            rows = []
    parts.append(bodies.encode(rows)[1:-1])
    return b'{"topics":[%b]}' % b",".join([part for part in parts if part])


def group_list(command: Command, reply: Reply, services: Tools) -> None:
    """GROUP_LIST."""
    parse(command.fields, _None)
    services.jobs.run(command, reply, _group_list(services))


def _group_list(services: Tools) -> Steps[bytes]:
    ends = Ends(services.reading)
    rows: list[dict[str, object]] = []
    parts: list[bytes] = []
    yield None
    for group in sorted({*services.groups.configs, *services.committed.groups()}):
        row = yield from services.figures.group_row(group, ends)
        rows.append(row._asdict())
        if len(rows) >= ROWS_PER_PART:
            parts.append(bodies.encode(rows)[1:-1])
            rows = []
            yield None
    parts.append(bodies.encode(rows)[1:-1])
    return b'{"groups":[%b]}' % b",".join([part for part in parts if part])


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    TOPIC_LIST: topic_list,
    GROUP_LIST: group_list,
}
