"""A broker at a glance, and scale-in: requests of `gantry top` and `gantry broker` (docs/operations/cli.md)."""

from __future__ import annotations

from collections.abc import Generator
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq import __version__
from gantrymq.broker.broker import OWN_TABLES
from gantrymq.broker.lags import LagSweep
from gantrymq.broker.rocketmq import stats
from gantrymq.broker.tables.group_tables import DRAINING, GROUP_TABLES, STATE_TABLE
from gantrymq.broker.topics import PERM_READ, PERM_WRITE
from gantrymq.model import names
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import DRAIN, GROUP_WISHES, OVERVIEW
from gantrymq.remoting.server.overview import damage as damage_requests
from gantrymq.remoting.server.overview import lists as overview_lists
from gantrymq.remoting.server.overview import unused_topics

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.administration import Administration
    from gantrymq.remoting.server.jobs import Steps
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.store.cold import Cold

ROWS_MAX: Final = 100
"""Topics, and groups, in one answer: more than a screen has lines."""

COUNTERS_PER_STEP: Final = 500
"""Counters looked at in one go: some 500 us."""

CURSORS_PER_STEP: Final = 200
"""Cursors whose entries are counted in one go: some 400 us."""


class _Overview(msgspec.Struct):
    backlog: bool = False


class _Group(msgspec.Struct):
    group: str


class _Drain(msgspec.Struct):
    on: bool


def overview(command: Command, reply: Reply, services: Administration) -> None:
    """OVERVIEW."""
    services.jobs.run(command, reply, _overview(services, parse(command.fields, _Overview).backlog))


def _overview(services: Administration, with_backlog: bool) -> Steps:
    broker, store = services.broker, services.broker.store
    size, free = store.disk_usage()
    counts = broker.stats
    seen: dict[str, Any] = {
        "name": broker.config.name, "cluster": broker.config.cluster, "version": __version__,
        "now": broker.clock.now_ms(), "started": services.identity.started_ms, "draining": is_draining(broker),
        "put": counts.put_total, "putBytes": counts.put_bytes, "get": counts.get_total,
        "logBegin": store.log_min_position, "logEnd": store.written_position, "flushed": store.flushed_position,
        "derived": store.derived_position, "indexLagMs": store.index_lag_ms,
        "diskSize": size, "diskFree": free, "refused": broker.full,
        "topicCount": sum([not topic.system for topic in broker.topics.topics.values()]),
        "groupCount": len(services.groups.configs),
        "connections": {
            name: sum([each.connections for each in opened]) for name, opened in sorted(services.identity.listeners.items())
        },
        "waiting": {
            "delays": broker.delays.levels.pending(), "timers": broker.delays.timers.pending(),
            "halves": broker.transactions.pending, "popLeased": len(broker.pops.leases.by_id),
            "pulls": services.pulls.waiting,
        },
        "conflicts": {name: sorted(group.conflicts) for name, group in services.clients.groups.items() if group.conflicts},
    }  # fmt: skip
    yield None
    topics = yield from _busiest(broker, stats.TOPIC_PUT_NUMS)
    seen["topics"] = [{"topic": key, "rate": rate, "in": value} for rate, key, value in topics]
    readers = yield from _busiest(broker, stats.GROUP_GET_NUMS)
    seen["readers"] = [
        {"topic": key.rpartition("@")[0], "group": key.rpartition("@")[2], "rate": rate, "out": value}
        for rate, key, value in readers
    ]
    sweep = LagSweep(broker, ROWS_MAX)
    yield from sweep.steps()
    seen["lag"] = sweep.total
    seen["groups"] = [
        {"group": group, "topic": topic, "lag": lag, "members": _members(services, group)}
        for lag, topic, group in sweep.behind
    ]
    if with_backlog:
        seen["backlog"] = yield from _backlog(broker)
    return bodies.encode(seen)


def _members(services: Administration, group: str) -> int:
    found = services.clients.groups.get(group)
    return len(found.consumers) if found is not None else 0


def _busiest(broker: Broker, name: str) -> Generator[Cold | None, None, list[tuple[float, str, int]]]:
    best: list[tuple[float, str, int]] = []
    part: list[tuple[float, str, int]] = []
    for entry in broker.stats.rates(name):
        if not names.is_system_topic(entry[1].partition("@")[0]):
            part.append(entry)
        if len(part) >= COUNTERS_PER_STEP:
            best = nlargest(ROWS_MAX, [*best, *part])
            part.clear()
            yield None
    return nlargest(ROWS_MAX, [*best, *part])


def _backlog(broker: Broker) -> Generator[Cold | None, None, dict[str, int]]:
    """Entries that somebody is still to get or to acknowledge: sessions, queues, pops, delays, timers, half messages."""
    ready = unacked = 0
    for number, cursor in enumerate(list(broker.cursors.by_id.values())):
        if number % CURSORS_PER_STEP == CURSORS_PER_STEP - 1:
            yield None
        info = broker.cursors.info(cursor)
        ready += info.ready
        unacked += info.unacked
    rows = broker.tables.rows_besides(OWN_TABLES | GROUP_TABLES)
    return {"ready": ready, "unacked": unacked, "rows": rows}


def is_draining(broker: Broker) -> bool:
    """Whether gateways were told to take no new messages here."""
    return DRAINING in broker.tables.rows(STATE_TABLE)


def drain(command: Command, reply: Reply, services: Administration) -> None:
    """DRAIN: the row that gateways watch, and the permission that clients read from the nameservers; answered when both are stored."""
    on = parse(command.fields, _Drain).on
    broker = services.broker
    broker.put(STATE_TABLE, [(DRAINING, b"1" if on else None)], None, None)
    permission = PERM_READ if on else PERM_READ | PERM_WRITE
    if broker.settings.permission != permission:
        broker.settings.update({"brokerPermission": str(permission)})
    reply.answer_when_stored(command)


def group_wishes(command: Command, reply: Reply, services: Administration) -> None:
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


HANDLERS: Final = {
    OVERVIEW: overview,
    DRAIN: drain,
    GROUP_WISHES: group_wishes,
    **overview_lists.HANDLERS,
    **unused_topics.HANDLERS,
    **damage_requests.HANDLERS,
}
