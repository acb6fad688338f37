"""A broker at a glance, taking it out of service, and removing topics that nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq import __version__
from gantrymq.administration.reading import Steps, patiently
from gantrymq.broker.broker import OWN_TABLES
from gantrymq.broker.consuming.known.table import KEEPER
from gantrymq.broker.lags import LagSweep
from gantrymq.broker.retention.unused import UnusedTopics, load_topic_users
from gantrymq.broker.rocketmq import stats
from gantrymq.broker.tables.group_tables import DRAINING, GROUP_TABLES, STATE_TABLE
from gantrymq.broker.topics import PERM_READ, PERM_WRITE
from gantrymq.model import names

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.broker import Broker
    from gantrymq.store.cold import Cold

ROWS_MAX: Final = 100
"""Topics, and groups, in one answer: more than a screen has lines."""

COUNTERS_PER_STEP: Final = 500
"""Counters looked at in one go: some 500 us."""

CURSORS_PER_STEP: Final = 200
"""Cursors whose entries are counted in one go: some 400 us."""

TOPICS_STEP: Final = 20
"""Topics looked at, or removed, in one go: some 500 us."""


class Pruned(NamedTuple):
    """`unused`: [topic, made at (ms, or 0)], removed if that was asked for; `kept`: (topic, why); `named`: topics in rows of doors."""

    unused: list[list[Any]]
    kept: list[tuple[str, str]]
    named: list[str]


class Overview:
    """`members_of(group)`: ids of its connected clients; `subscribed(topic)`: a connected group subscribes to it."""

    def __init__(
        self,
        broker: Broker,
        reading: Reading,
        members_of: Callable[[str], Collection[str]],
        subscribed: Callable[[str], bool],
    ) -> None:
        self._broker = broker
        self._reading = reading
        self._members_of = members_of
        self._subscribed = subscribed

    def steps(self, with_backlog: bool, more: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """Totals, positions, the busiest topics and the groups that are farthest behind, with `more` from the caller. `with_backlog`: also how many entries
        cursors still have to deliver."""
        broker, store = self._broker, self._broker.store
        size, free = store.disk_usage()
        counts = broker.stats
        seen: dict[str, Any] = {
            "name": broker.config.name, "cluster": broker.config.cluster, "version": __version__,
            "now": broker.clock.now_ms(), "draining": self.is_draining(), "slots": broker.slots.show(),
            "forward": {name: broker.sending.show(name) for name in broker.sending.peers},
            "put": counts.put_total, "putBytes": counts.put_bytes, "get": counts.get_total,
            "logBegin": store.log_min_position, "logEnd": store.written_position, "flushed": store.flushed_position,
            "derived": store.derived_position, "indexLagMs": store.index_lag_ms,
            "diskSize": size, "diskFree": free, "refused": broker.full,
            "topicCount": sum([not topic.system for topic in broker.topics.topics.values()]),
            "waiting": {
                "delays": broker.delays.levels.pending(), "timers": broker.delays.timers.pending(),
                "halves": broker.transactions.pending, "popLeased": len(broker.pops.leases.by_id),
            },
        }  # fmt: skip
        seen["waiting"] |= more["waiting"]
        seen |= {key: value for key, value in more.items() if key != "waiting"}
        yield None
        topics = yield from _busiest(broker, stats.TOPIC_PUT_NUMS)
        seen["topics"] = [{"topic": key, "rate": rate, "in": value} for rate, key, value in topics]
        readers = yield from _busiest(broker, stats.GROUP_GET_NUMS)
        seen["readers"] = [
            {"topic": key.rpartition("@")[0], "group": key.rpartition("@")[2], "rate": rate, "out": value}
            for rate, key, value in readers
        ]
        sweep = LagSweep(ROWS_MAX)
        yield from sweep.groups(store, broker.topics.topics, broker.offsets)
        yield from sweep.shared(broker.cursors, broker.queues.name_of)
        seen["lag"] = sweep.total
        seen["groups"] = [
            {"group": group, "topic": topic, "lag": lag, "members": len(self._members_of(group))}
            for lag, topic, group in sweep.behind
        ]
        if with_backlog:
            seen["backlog"] = yield from _backlog(broker)
        return seen

    def is_draining(self) -> bool:
        """Whether gateways were told to take no new messages here."""
        return DRAINING in self._broker.tables.rows(STATE_TABLE)

    def drain(self, on: bool) -> None:
        """Take no new messages any more (or again): writes the row that gateways watch, and the permission that clients get from nameservers."""
        broker = self._broker
        broker.put(STATE_TABLE, [(DRAINING, b"1" if on else None)], None, None)
        permission = PERM_READ if on else PERM_READ | PERM_WRITE
        if broker.settings.permission != permission:
            broker.settings.update({"brokerPermission": str(permission)})

    def prune(self, older_ms: int, remove: list[str] | None) -> Steps[Pruned]:
        """Topics that were made by their first use, at least `older_ms` ago, and that nobody needs now. Those of them that `remove` names are deleted."""
        broker, reading = self._broker, self._reading
        unused = UnusedTopics(broker, load_topic_users(), self._subscribed)
        gone: list[list[Any]] = []
        kept: list[tuple[str, str]] = []
        try:
            yield from unused.survey()
            while (yield from patiently(reading, lambda _: unused.check_waiting())):
                yield None
            for number, name in enumerate(unused.candidates() if remove is None else remove):
                if number % TOPICS_STEP == TOPICS_STEP - 1:
                    yield None
                topic = broker.topics.topics.get(name)
                made_ms = topic.config.created_ms if topic is not None else 0
                why = yield from patiently(reading, lambda _: unused.why_used(name, older_ms))  # noqa: B023 (called at once)
                if why:
                    kept.append((name, why))
                else:
                    if remove is not None:
                        unused.remove(name)
                    gone.append([name, made_ms])
        finally:
            unused.close()
        if gone and remove is not None:
            stored: list[object] = []
            broker.when_stored(None, lambda token, result: stored.append(result))
            while not stored:
                yield None
        return Pruned(gone, kept, sorted(unused.named))


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


def _backlog(broker: Broker) -> Generator[Cold | None, None, dict[str, Any]]:
    """How many entries are still to be delivered or acknowledged: of sessions, queues, pops, delays, timers and half messages; and how many rows are
    for gateways to move, by table as well."""
    ready = unacked = 0
    for number, cursor_id in enumerate(broker.cursors.ids()):
        if number % CURSORS_PER_STEP == CURSORS_PER_STEP - 1:
            yield None
        if broker.cursors.has_nothing(cursor_id) or (cursor := broker.cursors.view(cursor_id)) is None:
            continue
        if cursor.group == KEEPER:
            continue
        info = broker.cursors.info(cursor)
        ready += info.ready
        unacked += info.unacked
    tables = broker.tables.rows_besides(OWN_TABLES | GROUP_TABLES)
    return {"ready": ready, "unacked": unacked, "rows": sum(tables.values()), "tables": tables}
