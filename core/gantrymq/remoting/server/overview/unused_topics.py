"""PRUNE_TOPICS: which topics that came into being at their first use are unused, and their removal (`gantry topic prune --unused`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import PRUNE_TOPICS

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools


class _Prune(msgspec.Struct, rename="camel"):
    older_ms: int = 0
    remove: bool = False


def prune(command: Command, reply: Reply, services: Tools) -> None:
    """PRUNE_TOPICS."""
    asked = parse(command.fields, _Prune)
    remove = bodies.decode(command.body, list[str]) if asked.remove else None
    services.jobs.run(command, reply, _prune(services, asked.older_ms, remove))


def _prune(services: Tools, older_ms: int, remove: list[str] | None) -> Steps[bytes]:
    found = yield from services.overview.prune(older_ms, remove)
    return bodies.encode(found._asdict())


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {PRUNE_TOPICS: prune}
