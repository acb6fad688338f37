"""A broker at a glance, and scale-in: requests of `gantry top` and `gantry broker` (docs/operations/cli.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import DRAIN, GROUP_WISHES, OVERVIEW
from gantrymq.remoting.server.overview import damage as damage_requests
from gantrymq.remoting.server.overview import lists as overview_lists
from gantrymq.remoting.server.overview import unused_topics

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools


class _Overview(msgspec.Struct):
    backlog: bool = False


class _Group(msgspec.Struct):
    group: str


class _Drain(msgspec.Struct):
    on: bool


def overview(command: Command, reply: Reply, services: Tools) -> None:
    """OVERVIEW."""
    services.jobs.run(command, reply, _overview(services, parse(command.fields, _Overview).backlog))


def _overview(services: Tools, with_backlog: bool) -> Steps[bytes]:
    listeners, clients = services.identity.listeners, services.clients
    more = {
        "started": services.identity.started_ms,
        "groupCount": len(services.groups.configs),
        "connections": {name: sum([each.connections for each in opened]) for name, opened in sorted(listeners.items())},
        "waiting": {"pulls": services.pulls.waiting},
        "conflicts": {name: sorted(group.conflicts) for name, group in clients.groups.items() if group.conflicts},
    }
    seen = yield from services.overview.steps(with_backlog, more)
    return bodies.encode(seen)


def drain(command: Command, reply: Reply, services: Tools) -> None:
    """DRAIN; answered when it is stored."""
    services.overview.drain(parse(command.fields, _Drain).on)
    reply.answer_when_stored(command)


def group_wishes(command: Command, reply: Reply, services: Tools) -> None:
    """GROUP_WISHES: as the members' last heartbeats said; a broadcast group's are left out, its members may differ."""
    found = services.clients.groups.get(parse(command.fields, _Group).group)
    members = found.consumers if found is not None else {}
    wishes = {
        client_id: {
            topic: text if kind == "TAG" else f"{kind}: {text}" for topic, (kind, text) in consumer.wanted.items()
        }
        for client_id, consumer in sorted(members.items())
    }
    reply.respond(command, body=bodies.encode({"wishes": wishes}))


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    OVERVIEW: overview,
    DRAIN: drain,
    GROUP_WISHES: group_wishes,
    **overview_lists.HANDLERS,
    **unused_topics.HANDLERS,
    **damage_requests.HANDLERS,
}
