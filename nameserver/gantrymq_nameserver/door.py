"""The nameserver's requests: one handler per code over the routing table and the KV configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from gantrymq.auth.members.key import ClusterKey
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.api import Wheel
from gantrymq.remoting import headers, java_properties
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import VERSION_V4_9_4, RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Row
from gantrymq.remoting.door import RemotingDoor
from gantrymq.remoting.headers import parse
from gantrymq.remoting.request_classes import class_of
from gantrymq_nameserver import register_body
from gantrymq_nameserver.kv import ORDER_NAMESPACE, KVTable
from gantrymq_nameserver.routes import Live, RouteTable
from gantrymq_nameserver.settings import NameserverSettings

log = logging.getLogger(__name__)

TIMEOUT_MS_MIN: Final = 1_000
TIMEOUT_MS_MAX: Final = 3_600_000
"""Heartbeat timeouts a broker may ask for; beyond them routes would flap, or stay for ever."""

ROUTES_CACHED_MAX: Final = 20_000
"""Topics whose encoded answers are kept until their route changes: some 300 bytes each. Encoding one takes some 10 us."""

UNIT: Final = 1
UNIT_SUB: Final = 2
"""Bits of a topic's sysFlag."""

CODE = RequestCode


class State:
    """What all connections of the nameserver share. `save(done)`: write KV table and settings, then `done(error text
    or empty)`."""

    def __init__(
        self,
        wheel: Wheel,
        order_messages: bool,
        save: Callable[[Callable[[str], None]], None],
        key: ClusterKey | None = None,
        brokers: Collection[str] = (),
        certificates: frozenset[str] = frozenset(),
    ) -> None:
        """`key`, `certificates`: what brokers show before they register; `brokers`: names of those that may, none: all."""
        self.wheel = wheel
        self.key = key
        self.certificates = certificates
        self.brokers = frozenset(brokers)
        self.save = save
        self.kv = KVTable()
        self.routes = RouteTable(self._route_changed)
        self.settings = NameserverSettings(order_messages)
        self.cache: dict[str, list[bytes | None]] = {}
        """Encoded answers by topic, standard and dialect, as long as they are true."""

    def _route_changed(self, topic: str | None) -> None:
        if topic is None:
            self.cache.clear()
        else:
            self.cache.pop(topic, None)

    def route_body(self, topic: str, standard: bool) -> bytes | None:
        """Encoded TopicRouteData, or None."""
        kept = self.cache.get(topic)
        body = kept[standard] if kept is not None else None
        if body is not None:
            return body
        found = self.routes.route(topic)
        if found is None:
            return None
        queues, groups = found
        order = self.kv.get(ORDER_NAMESPACE, topic) if self.settings.order_messages else None
        brokers = groups if standard else [_dialect(group) for group in groups]
        body = bodies.encode(bodies.TopicRoute(brokers, queues, {}, order))
        if kept is None:
            if len(self.cache) >= ROUTES_CACHED_MAX:
                self.cache.clear()
            kept = self.cache[topic] = [None, None]
        kept[standard] = body
        return body


def _dialect(group: bodies.BrokerData) -> bodies.DialectBrokerData:
    return bodies.DialectBrokerData(
        group.cluster, group.broker_name, bodies.dialect_map(group.broker_addrs), group.enable_acting_master
    )


class NameserverDoor(RemotingDoor):
    """One connection of a client or a broker."""

    def __init__(self, state: State) -> None:
        super().__init__(state.wheel, TABLE, key=state.key, certificates=state.certificates)
        self.state = state

    def left(self, reason: str) -> None:
        """A broker lives as long as its connection."""
        gone = self.state.routes.connection_closed(self)
        if gone:
            log.info("%s: broker connection closed, removed %s", self.link.peer, ", ".join(gone))

    def answer(self, command: Command, body: bytes = b"", **fields: str) -> None:
        """Answer with success."""
        self.connection.respond(command, ResponseCode.SUCCESS, None, fields, body)

    # Routes

    def _route(self, command: Command) -> None:
        header = parse(command.fields, headers.RouteHeader)
        standard = command.version >= VERSION_V4_9_4 or header.accept_standard_json_only is True
        body = None if names.is_own_system_topic(header.topic) else self.state.route_body(header.topic, standard)
        if body is None:
            self.refuse(
                command,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic[:255]}; "
                "create the topic on a broker, and see that the broker is registered here",
            )
        else:
            self.answer(command, body)

    def _cluster(self, command: Command) -> None:
        routes = self.state.routes
        clusters = {name: sorted(brokers) for name, brokers in routes.clusters.items()}
        if command.version >= VERSION_V4_9_4:
            self.answer(command, bodies.encode(bodies.ClusterInfo(routes.groups, clusters)))
        else:
            table = {name: _dialect(group) for name, group in routes.groups.items()}
            self.answer(command, bodies.encode({"brokerAddrTable": table, "clusterAddrTable": clusters}))

    def _members(self, command: Command) -> None:
        header = parse(command.fields, headers.MemberGroupHeader)
        group = self.state.routes.groups.get(header.broker_name)
        addresses = dict(group.broker_addrs) if group is not None and group.cluster == header.cluster_name else {}
        body = bodies.MemberGroupBody(bodies.MemberGroup(header.cluster_name, header.broker_name, addresses))
        self.answer(command, bodies.encode(body))

    def _all_topics(self, command: Command) -> None:
        self._topics(command, sorted(self.state.routes.topics))

    def _topics_of_cluster(self, command: Command) -> None:
        self._topics(command, self.state.routes.topics_of(parse(command.fields, headers.ClusterHeader).cluster))

    def _topics(self, command: Command, topics: list[str]) -> None:
        self.answer(command, bodies.encode(bodies.TopicList(topics)))

    def _system_topics(self, command: Command) -> None:
        # RocketMQ's brokers make a topic of each cluster's and each broker's name.
        routes = self.state.routes
        found = sorted({*routes.clusters, *routes.groups})
        address = next((a for group in routes.groups.values() for a in group.broker_addrs.values()), None)
        self.answer(command, bodies.encode(bodies.TopicList(found, address)))

    def _unit_topics(self, command: Command) -> None:
        tests: dict[int, Callable[[int], bool]] = {
            CODE.GET_UNIT_TOPIC_LIST: lambda flag: bool(flag & UNIT),
            CODE.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda flag: bool(flag & UNIT_SUB),
            CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda flag: flag & (UNIT | UNIT_SUB) == UNIT_SUB,
        }
        self._topics(command, self.state.routes.topics_with(tests[command.code]))

    def _delete_topic(self, command: Command) -> None:
        header = parse(command.fields, headers.DeleteTopicHeader)
        self.state.routes.delete_topic(header.topic, header.cluster_name or None)
        log.info("%s: topic %s deleted from the routes", self.link.peer, header.topic[:255])
        self.answer(command)

    def _wipe_write(self, command: Command) -> None:
        self.answer(command, wipeTopicCount=str(self._write_perm(command, False)))

    def _add_write(self, command: Command) -> None:
        self.answer(command, addTopicCount=str(self._write_perm(command, True)))

    def _write_perm(self, command: Command, writable: bool) -> int:
        name = parse(command.fields, headers.BrokerNameHeader).broker_name
        count = self.state.routes.change_write_perm(name, writable)
        log.info("%s: %d topics of broker %s %s", self.link.peer, count, name[:255], ("closed", "open")[writable])
        return count

    # Brokers

    def _check_broker(self, name: str) -> None:
        """Raises NO_PERMISSION for a broker that nobody has named."""
        known = self.state.brokers
        if known and name not in known:
            log.warning("%s: broker %s is refused: it is none of nameserver.brokers", self.link.peer, name[:255])
            text = f"broker {name[:255]} is none of those that may register here (nameserver.brokers): {', '.join(sorted(known))}"
            raise GantryError(ErrorCode.NO_PERMISSION, text)

    def _register(self, command: Command) -> None:
        header = parse(command.fields, headers.RegisterBrokerHeader)
        self._check_broker(header.broker_name)
        table = register_body.read(header, command.body)
        state = self.state
        live = Live(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        live.ha_address = header.ha_server_addr[:255]
        if header.heartbeat_timeout_millis is not None:
            live.timeout_ms = max(TIMEOUT_MS_MIN, min(header.heartbeat_timeout_millis, TIMEOUT_MS_MAX))
        new = state.routes.version_of(live.cluster, live.address) is None
        acting = header.enable_acting_master is True
        complete = command.fields.get("gantryCompleteTable") == "true"
        since = command.fields.get("gantrySince")
        if since is not None and not self._has(live, table.data_version, since):
            # Changes of a version that we do not have: the broker sends everything.
            self.answer(command, gantryUnknown="true")
            return
        gone = register_body.gone_topics(command.body) if since is not None else ()
        ha_address, master = state.routes.register(live, self, state.wheel.now_ms(), table, acting, complete, gone)
        if new:
            log.info(
                "%s: broker %s/%d of cluster %s registered at %s, %d topics",
                self.link.peer, live.broker_name, live.broker_id, live.cluster, live.address,
                len(table.topic_config_table),
            )  # fmt: skip
        order = state.kv.namespaces.get(ORDER_NAMESPACE) if state.settings.order_to_brokers else None
        body = bodies.encode(bodies.KVTable(order)) if order else b""
        fields = {"haServerAddr": ha_address, "masterAddr": master} if master else {}
        self.answer(command, body, **fields)

    def _has(self, live: Live, version: bodies.DataVersion, since: str) -> bool:
        known = self.state.routes.version_of(live.cluster, live.address)
        return known is not None and known.timestamp == version.timestamp and str(known.counter) == since

    def _unregister(self, command: Command) -> None:
        header = parse(command.fields, headers.UnregisterBrokerHeader)
        self._check_broker(header.broker_name)
        routes = self.state.routes
        if routes.unregister(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr):
            log.info("%s: broker %s/%d unregistered", self.link.peer, header.broker_name, header.broker_id)
        self.answer(command)

    def _data_version(self, command: Command) -> None:
        header = parse(command.fields, headers.DataVersionHeader)
        self._check_broker(header.broker_name)
        version = bodies.decode(command.body, bodies.DataVersion)
        state = self.state
        known = state.routes.version_of(header.cluster_name, header.broker_addr)
        if known == version:
            state.routes.heartbeat(header.cluster_name, header.broker_name, header.broker_addr, state.wheel.now_ms())
        body = bodies.encode(known) if known is not None else b""
        self.answer(command, body, changed="false" if known == version else "true")

    def _heartbeat(self, command: Command) -> None:
        header = parse(command.fields, headers.BrokerHeartbeatHeader)
        self._check_broker(header.broker_name)
        now_ms = self.state.wheel.now_ms()
        self.state.routes.heartbeat(header.cluster_name, header.broker_name, header.broker_addr, now_ms)
        self.answer(command)

    def _register_topic(self, command: Command) -> None:
        header = parse(command.fields, headers.DeleteTopicHeader)
        route = bodies.decode(command.body, bodies.ReadTopicRoute)
        for queue in route.queue_datas:
            self._check_broker(queue.broker_name)
        self.state.routes.take_topic(header.topic, route.queue_datas)
        self.answer(command)

    # Settings

    def _get_settings(self, command: Command) -> None:
        self.answer(command, java_properties.write(self.state.settings.shown()))

    def _update_settings(self, command: Command) -> None:
        try:
            self.state.settings.update(java_properties.read(command.body))
        except GantryError as error:
            code = (
                ResponseCode.NO_PERMISSION if error.code is ErrorCode.NO_PERMISSION else ResponseCode.INVALID_PARAMETER
            )
            self.refuse(command, code, error.text)
            return
        log.info("%s: settings changed: %s", self.link.peer, self.state.settings.changed)
        self._saved(command)

    # KV configuration

    def _put_kv(self, command: Command) -> None:
        header = parse(command.fields, headers.KVHeader)
        self.state.kv.put(header.namespace, header.key, header.value)
        self._saved(command)

    def _delete_kv(self, command: Command) -> None:
        header = parse(command.fields, headers.KVHeader)
        self.state.kv.delete(header.namespace, header.key)
        self._saved(command)

    def _saved(self, command: Command) -> None:
        self.state.cache.clear()

        def done(error: str) -> None:
            if not self.open:
                return
            if error:
                self.refuse(command, ResponseCode.SYSTEM_ERROR, error)
            else:
                self.answer(command)
            self.link.mark()

        self.state.save(done)

    def _get_kv(self, command: Command) -> None:
        header = parse(command.fields, headers.KVHeader)
        value = self.state.kv.get(header.namespace, header.key)
        if value is None:
            text = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            raise GantryError(ErrorCode.NOT_FOUND, text)
        self.answer(command, value=value)

    def _list_kv(self, command: Command) -> None:
        namespace = parse(command.fields, headers.KVHeader).namespace
        values = self.state.kv.namespaces.get(namespace)
        if values is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"No config item, Namespace: {namespace}")
        self.answer(command, bodies.encode(bodies.KVTable(values)))


def _run(command: Command, door: NameserverDoor, method: Callable[[NameserverDoor, Command], None]) -> None:
    method(door, command)


_METHODS: Final[dict[RequestCode, Callable[[NameserverDoor, Command], None]]] = {
    CODE.GET_ROUTEINFO_BY_TOPIC: NameserverDoor._route,
    CODE.REGISTER_BROKER: NameserverDoor._register,
    CODE.UNREGISTER_BROKER: NameserverDoor._unregister,
    CODE.QUERY_DATA_VERSION: NameserverDoor._data_version,
    CODE.BROKER_HEARTBEAT: NameserverDoor._heartbeat,
    CODE.GET_BROKER_MEMBER_GROUP: NameserverDoor._members,
    CODE.GET_BROKER_CLUSTER_INFO: NameserverDoor._cluster,
    CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NameserverDoor._all_topics,
    CODE.GET_TOPICS_BY_CLUSTER: NameserverDoor._topics_of_cluster,
    CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS: NameserverDoor._system_topics,
    CODE.GET_UNIT_TOPIC_LIST: NameserverDoor._unit_topics,
    CODE.GET_HAS_UNIT_SUB_TOPIC_LIST: NameserverDoor._unit_topics,
    CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NameserverDoor._unit_topics,
    CODE.PUT_KV_CONFIG: NameserverDoor._put_kv,
    CODE.GET_KV_CONFIG: NameserverDoor._get_kv,
    CODE.DELETE_KV_CONFIG: NameserverDoor._delete_kv,
    CODE.GET_KVLIST_BY_NAMESPACE: NameserverDoor._list_kv,
    CODE.WIPE_WRITE_PERM_OF_BROKER: NameserverDoor._wipe_write,
    CODE.ADD_WRITE_PERM_OF_BROKER: NameserverDoor._add_write,
    CODE.DELETE_TOPIC_IN_NAMESRV: NameserverDoor._delete_topic,
    CODE.REGISTER_TOPIC_IN_NAMESRV: NameserverDoor._register_topic,
    CODE.GET_NAMESRV_CONFIG: NameserverDoor._get_settings,
    CODE.UPDATE_NAMESRV_CONFIG: NameserverDoor._update_settings,
}

TABLE: Final = {int(code): Row(class_of(code), _run, method) for code, method in _METHODS.items()}
