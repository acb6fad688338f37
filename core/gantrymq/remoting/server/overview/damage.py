"""Damaged records: who waits for them, and that he shall wait no more. Requests of `gantry store damage` (docs/operations/store-tools.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import DAMAGE_LIST, DAMAGE_SKIP
from gantrymq.remoting.server.jobs import patiently

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.administration import Administration
    from gantrymq.remoting.server.jobs import Steps
    from gantrymq.remoting.server.reads import Reading
    from gantrymq.remoting.server.reply import Reply

WAITING_MAX: Final = 100
"""Names of those who wait for one record: more fill no screen."""


class _Skip(msgspec.Struct):
    position: int
    queue: str = ""
    offset: int = -1


def damage_list(command: Command, reply: Reply, services: Administration) -> None:
    """DAMAGE_LIST."""
    services.jobs.run(command, reply, _list(services.broker, services.reading))


def _list(broker: Broker, reading: Reading) -> Steps:
    store, cursors = broker.store, broker.cursors
    rows = []
    for entry in list(store.damage.entries.values()):
        if (yield from patiently(reading, lambda reading: reading.store.is_mended(entry))):  # noqa: B023 (called at once)
            store.damage.forget(entry)
            cursors.end_waiting(entry.key, deliver=True)
            continue
        waiting = cursors.waiting_for(entry.key)
        rows.append({
            "position": entry.position, "bytes": entry.size, "queue": entry.queue, "offset": entry.offset, "unit": entry.is_unit,
            "what": entry.what, "found": entry.found_ms, "skipped": entry.skipped, "waits": len(waiting),
            "waiting": [
                {"queue": cursor.queue, "group": cursor.group, "offset": offset} for cursor, offset in waiting[:WAITING_MAX]
            ],
        })  # fmt: skip
        yield None
    return bodies.encode({"records": sorted(rows, key=lambda row: row["position"])})


def damage_skip(command: Command, reply: Reply, services: Administration) -> None:
    """DAMAGE_SKIP; answered when it is as safe as an acknowledgement."""
    asked = parse(command.fields, _Skip)
    broker = services.broker
    entries = broker.store.damage.at(asked.position, asked.queue, asked.offset)
    if not entries:
        raise GantryError(
            ErrorCode.NOT_FOUND,
            f"no such damaged record at position {asked.position} is listed (gantry store damage list)",
        )
    entries = [entry for entry in entries if not entry.skipped] or entries
    if len({(entry.queue, entry.offset) for entry in entries}) > 1:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"{len(entries)} entries with position {asked.position} are listed: name queue and offset, too",
        )
    skipped = 0
    for entry in entries:
        skipped += broker.cursors.end_waiting(entry.key, deliver=False)
        broker.store.damage.skip(entry)
    reply.answer_when_stored(command, bodies.encode({"skipped": skipped}))


HANDLERS: Final = {
    DAMAGE_LIST: damage_list,
    DAMAGE_SKIP: damage_skip,
}
