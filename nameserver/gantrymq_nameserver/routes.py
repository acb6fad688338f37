"""The routing table: which broker groups exist, which topics they hold, and who is alive. In memory, sans-IO.

Everything here comes back by itself: brokers register again every 30 s. Not kept: KV configuration (`kv.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import MASTER_ID, Perm
from gantrymq.remoting.json_bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    TopicConfigBody,
    TopicConfigTable,
)

HEARTBEAT_MS: Final = 120_000
"""A broker that was silent for so long is dropped (RocketMQ's channel expiry); brokers register every 30
s."""

BROKERS_MAX: Final = 4096
"""Registered brokers (master or slave); far above RocketMQ's largest clusters."""

TOPICS_MAX: Final = 200_000
"""Topics of all brokers; at about 1 KiB each this is the memory a nameserver may take."""

SAME_MAX: Final = 10_000
"""Different tables of queues that are kept once."""

NAME_CHARS_MAX: Final = 255
"""Cluster and broker names; RocketMQ's file and JMX names end there too."""

TOPIC_CHARS_MAX: Final = 255
"""Registered topics: retry topics of pop consumers are longer than the 127 that a producer may use."""

QUEUES_MAX: Final = 65_536
"""Queues of a topic on one broker."""

_NAME = re.compile(r"[A-Za-z0-9_%|.\-]+\Z")
_TOPIC = re.compile(r"[%A-Za-z0-9_|\-]+\Z")
_ADDRESS = re.compile(r"[^\s\x00-\x1f\x7f]+:[0-9]{1,5}\Z")


def check_name(what: str, name: str) -> None:
    """Raise NAME_INVALID for a cluster or broker name that would not be one."""
    if len(name) > NAME_CHARS_MAX or _NAME.match(name) is None:
        raise GantryError(
            ErrorCode.NAME_INVALID,
            f"{what} {name[:64]!r}: allowed are 1 to {NAME_CHARS_MAX} of [A-Za-z0-9_%|.-]",
        )


def check_address(address: str) -> None:
    """Raise NAME_INVALID unless it is host:port."""
    if len(address) > NAME_CHARS_MAX or _ADDRESS.match(address) is None:
        raise GantryError(ErrorCode.NAME_INVALID, f"broker address {address[:64]!r} is not HOST:PORT")


class Live:
    """One broker process. `owner`: the connection it came over; when that closes, the broker is gone."""

    __slots__ = (
        "address",
        "broker_id",
        "broker_name",
        "cluster",
        "ha_address",
        "owner",
        "seen_ms",
        "timeout_ms",
        "version",
    )

    def __init__(self, cluster: str, broker_name: str, broker_id: int, address: str) -> None:
        self.cluster = cluster
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.address = address
        self.ha_address = ""
        self.owner: object = None
        self.seen_ms = 0
        self.timeout_ms = HEARTBEAT_MS
        self.version: DataVersion | None = None


class RouteTable:
    """Routes by topic, broker groups by name. Times are milliseconds of the monotonic clock. `on_route_change` is called with a topic whose route
    changed, or None: many may have; answers that were made before are stale."""

    def __init__(self, on_route_change: Callable[[str | None], None] = lambda topic: None) -> None:
        self.clusters: dict[str, set[str]] = {}
        self.groups: dict[str, BrokerData] = {}
        self.topics: dict[str, dict[str, QueueData]] = {}
        """Queues by topic and broker name; changed by `_set`."""
        self._same: dict[frozenset[tuple[str, int, int, int, int]], dict[str, QueueData]] = {}
        """Such tables are never changed: topics with the same queues have one object."""
        self._topics_of: dict[str, set[str]] = {}
        """Topics by broker name: what concerns one broker costs as much as that broker has topics."""
        self._wiped: dict[str, dict[str, int]] = {}
        """Broker groups without write permission: what each topic's permission was, and will be again."""
        self._live: dict[tuple[str, str], Live] = {}
        self._owned: dict[object, set[tuple[str, str]]] = {}
        """Brokers by cluster and address, and by connection."""
        self._on_route_change = on_route_change

    def register(
        self, live: Live, owner: object, now_ms: int, wrapper: TopicConfigTable, acting_master: bool, complete: bool,
        gone: Sequence[str] = (),
    ) -> tuple[str, str]:  # fmt: skip
        """Take in a broker and its topics; returns addresses (HA, Remoting) of its master if it is a slave,
        else empty.

        `complete`: the body names every topic, so others of this broker are dropped; else it has changed ones alone, and
        `gone` are the deleted ones.
        """
        check_name("cluster name", live.cluster)
        check_name("broker name", live.broker_name)
        check_address(live.address)
        if not 0 <= live.broker_id < 1 << 63:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"broker id {live.broker_id} is negative or over 63 bits")
        key = (live.cluster, live.address)
        old = self._live.get(key)
        if old is None and len(self._live) >= BROKERS_MAX:
            raise GantryError(ErrorCode.BUSY, f"{BROKERS_MAX} brokers are registered; stop some before adding more")
        if old is not None and old.broker_name != live.broker_name:
            # The process at this address has another name now; nobody answers for the old one any more.
            self._remove(key, old)
            old = None
        group = self._join(live, acting_master)
        version = wrapper.data_version
        # Equal versions of the same process: nothing changed, and write permissions taken away meanwhile stay
        # away.
        changed = old is None or old.version != version
        if old is not None:
            self._disown(key, old)
        live.owner, live.seen_ms = owner, now_ms
        self._live[key] = live
        self._owned.setdefault(owner, set()).add(key)
        if changed:
            acting = acting_master and live.broker_id == min(group.broker_addrs)
            if live.broker_id == MASTER_ID or acting:
                self._take_topics(live, wrapper.topic_config_table, acting and live.broker_id != MASTER_ID, complete)
                for topic in gone:
                    self._drop_queues(topic, live.broker_name)
        live.version = version
        master = group.broker_addrs.get(MASTER_ID, "")
        if live.broker_id == MASTER_ID or not master:
            return "", ""
        master_live = self._live.get((live.cluster, master))
        return (master_live.ha_address if master_live else ""), master

    def _join(self, live: Live, acting_master: bool) -> BrokerData:
        group = self.groups.get(live.broker_name)
        if group is not None and group.cluster != live.cluster:
            raise GantryError(
                ErrorCode.ALREADY_EXISTS,
                f"broker name {live.broker_name} belongs to cluster {group.cluster}, not {live.cluster}: choose another name",
            )
        if group is None:
            group = self.groups[live.broker_name] = BrokerData(live.cluster, live.broker_name, {})
        known = (dict(group.broker_addrs), group.enable_acting_master)
        group.enable_acting_master = acting_master
        # A slave that became master, or a moved process: one address stands for one id.
        for broker_id, address in list(group.broker_addrs.items()):
            if address == live.address and broker_id != live.broker_id:
                del group.broker_addrs[broker_id]
        before = group.broker_addrs.get(live.broker_id)
        if before is not None and before != live.address:
            gone = self._live.pop((live.cluster, before), None)
            if gone is not None:
                self._disown((live.cluster, before), gone)
        group.broker_addrs[live.broker_id] = live.address
        if known != (group.broker_addrs, acting_master):
            self._on_route_change(None)
        self.clusters.setdefault(live.cluster, set()).add(live.broker_name)
        return group

    def _take_topics(self, live: Live, table: dict[str, TopicConfigBody], read_only: bool, complete: bool) -> None:
        broker = live.broker_name
        own = self._topics_of.setdefault(broker, set())
        wiped = self._wiped.get(broker)
        for topic, config in table.items():
            queues = self.topics.get(topic)
            if queues is None:
                if len(topic) > TOPIC_CHARS_MAX or _TOPIC.match(topic) is None:
                    continue
                if len(self.topics) >= TOPICS_MAX:
                    raise GantryError(
                        ErrorCode.TOPIC_LIMIT, f"{TOPICS_MAX} topics are registered; {topic} was left out"
                    )
                queues = {}
            perm = (config.perm & ~Perm.WRITE if read_only else config.perm) & 7
            if wiped is not None:
                wiped[topic] = perm
                perm &= ~Perm.WRITE
            data = QueueData(
                broker,
                max(0, min(config.read_queue_nums, QUEUES_MAX)),
                max(0, min(config.write_queue_nums, QUEUES_MAX)),
                perm,
                config.topic_sys_flag,
            )
            if queues.get(broker) != data:
                self._set(topic, {**queues, broker: data})
                own.add(topic)
                self._on_route_change(topic)
        if complete:
            for topic in own - table.keys():
                self._drop_queues(topic, broker)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self.topics.get(topic)
        if queues is None or broker_name not in queues:
            return
        self._set(topic, {name: data for name, data in queues.items() if name != broker_name})
        self._on_route_change(topic)
        own = self._topics_of.get(broker_name)
        if own is not None:
            own.discard(topic)
        self._wiped.get(broker_name, {}).pop(topic, None)

    def _set(self, topic: str, queues: dict[str, QueueData]) -> None:
        """Without queues it is unknown."""
        if not queues:
            self.topics.pop(topic, None)
            return
        same = frozenset(
            (each.broker_name, each.read_queue_nums, each.write_queue_nums, each.perm, each.topic_sys_flag)
            for each in queues.values()
        )
        if len(self._same) >= SAME_MAX:
            self._same.clear()
        self.topics[topic] = self._same.setdefault(same, queues)

    def _set_perm(self, topic: str, broker_name: str, perm: int) -> None:
        queues = self.topics[topic]
        self._set(topic, {**queues, broker_name: msgspec.structs.replace(queues[broker_name], perm=perm)})

    def take_topic(self, topic: str, wanted: Sequence[QueueData]) -> None:
        """A topic's queues as somebody else than their brokers says (REGISTER_TOPIC_IN_NAMESRV); unknown brokers are left out."""
        for data in wanted:
            group = self.groups.get(data.broker_name)
            if group is None:
                continue
            config = TopicConfigBody(
                topic, data.read_queue_nums, data.write_queue_nums, data.perm, topic_sys_flag=data.topic_sys_flag
            )
            self._take_topics(Live(group.cluster, data.broker_name, MASTER_ID, ""), {topic: config}, False, False)

    def _disown(self, key: tuple[str, str], live: Live) -> None:
        owned = self._owned.get(live.owner)
        if owned is not None:
            owned.discard(key)
            if not owned:
                del self._owned[live.owner]

    def unregister(self, cluster: str, broker_name: str, broker_id: int, address: str) -> bool:
        """Forget a broker; False if it is not registered so."""
        live = self._live.get((cluster, address))
        if live is None or live.broker_name != broker_name or live.broker_id != broker_id:
            return False
        self._remove((cluster, address), live)
        return True

    def _remove(self, key: tuple[str, str], live: Live) -> None:
        del self._live[key]
        self._disown(key, live)
        group = self.groups.get(live.broker_name)
        if group is not None and group.broker_addrs.get(live.broker_id) == live.address:
            del group.broker_addrs[live.broker_id]
            if not group.broker_addrs:
                self._remove_group(group)
            elif live.broker_id == MASTER_ID and group.enable_acting_master:
                self._without_write(live.broker_name)
            self._on_route_change(None)

    def _remove_group(self, group: BrokerData) -> None:
        del self.groups[group.broker_name]
        names = self.clusters.get(group.cluster)
        if names is not None:
            names.discard(group.broker_name)
            if not names:
                del self.clusters[group.cluster]
        for topic in self._topics_of.pop(group.broker_name, ()):
            self._drop_queues(topic, group.broker_name)
        self._wiped.pop(group.broker_name, None)

    def _without_write(self, broker_name: str) -> None:
        for topic in self._topics_of.get(broker_name, ()):
            self._set_perm(topic, broker_name, self.topics[topic][broker_name].perm & ~Perm.WRITE)

    def connection_closed(self, owner: object) -> list[str]:
        """Remove every broker that registered over this connection; returns their names."""
        gone = []
        for key in list(self._owned.get(owner, ())):
            live = self._live[key]
            self._remove(key, live)
            gone.append(f"{live.broker_name}/{live.broker_id} {live.address}")
        return gone

    def expire(self, now_ms: int) -> list[str]:
        """Remove brokers that were silent for longer than their timeout; returns their names."""
        gone = []
        for key, live in list(self._live.items()):
            if now_ms - live.seen_ms > live.timeout_ms:
                self._remove(key, live)
                gone.append(f"{live.broker_name}/{live.broker_id} {live.address}")
        return gone

    def heartbeat(self, cluster: str, broker_name: str, address: str, now_ms: int) -> bool:
        """The broker is alive; False if it must register first, under this name."""
        live = self._live.get((cluster, address))
        if live is None or live.broker_name != broker_name:
            return False
        live.seen_ms = now_ms
        return True

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        """Version of the topics that the broker last registered."""
        live = self._live.get((cluster, address))
        return live.version if live is not None else None

    def route(self, topic: str) -> tuple[list[QueueData], list[BrokerData]] | None:
        """Queues and broker groups of a topic, None if nobody has it."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        names = sorted(name for name in queues if name in self.groups)
        if not names:
            return None
        return [queues[name] for name in names], [self.groups[name] for name in names]

    def change_write_perm(self, broker_name: str, writable: bool) -> int:
        """Take the write permission from every topic of a broker group, also from those that it makes later, or give it back as it
        was; returns how many topics it has."""
        topics = self._topics_of.get(broker_name, set())
        if writable:
            before = self._wiped.pop(broker_name, {})
            for topic in topics:
                perm = self.topics[topic][broker_name].perm
                self._set_perm(topic, broker_name, before.get(topic, perm | Perm.WRITE | Perm.READ))
        elif topics and broker_name not in self._wiped:
            before = self._wiped[broker_name] = {}
            for topic in topics:
                before[topic] = self.topics[topic][broker_name].perm
                self._set_perm(topic, broker_name, before[topic] & ~Perm.WRITE)
        self._on_route_change(None)
        return len(topics)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget a topic, in one cluster or everywhere. Unknown names are ignored."""
        names = list(self.topics.get(topic, ())) if cluster is None else list(self.clusters.get(cluster, ()))
        for name in names:
            self._drop_queues(topic, name)

    def topics_of(self, cluster: str) -> list[str]:
        """Topics that some broker of the cluster holds."""
        return sorted(set().union(*[self._topics_of.get(name, ()) for name in self.clusters.get(cluster, ())]))

    def topics_with(self, test: Callable[[int], bool]) -> list[str]:
        """Topics whose sysFlag on some broker passes `test`."""
        return sorted(t for t, queues in self.topics.items() if any(test(q.topic_sys_flag) for q in queues.values()))
