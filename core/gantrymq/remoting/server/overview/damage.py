"""Damaged records: who waits for them, and that he shall wait no more. Requests of `gantry store damage` (docs/operations/store-tools.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import DAMAGE_LIST, DAMAGE_SKIP

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools


class _Skip(msgspec.Struct):
    position: int
    queue: str = ""
    offset: int = -1


def damage_list(command: Command, reply: Reply, services: Tools) -> None:
    """DAMAGE_LIST."""
    services.jobs.run(command, reply, _list(services))


def _list(services: Tools) -> Steps[bytes]:
    rows = yield from services.damage.rows()
    return bodies.encode({"records": rows})


def damage_skip(command: Command, reply: Reply, services: Tools) -> None:
    """DAMAGE_SKIP; answered when it is as safe as an acknowledgement."""
    asked = parse(command.fields, _Skip)
    skipped = services.damage.skip(asked.position, asked.queue, asked.offset)
    reply.answer_when_stored(command, bodies.encode({"skipped": skipped}))


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    DAMAGE_LIST: damage_list,
    DAMAGE_SKIP: damage_skip,
}
