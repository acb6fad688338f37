"""Bringing a broker group up to date before a gateway uses it: what it says of itself, light queues, cursors and routes that the others have.

Several gateway processes may do this for the same group at once: what is made is made under a lease of that group, and the rest comes
out the same however often it is done.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from gantrymq.broker.port import EARLIEST, Route
from gantrymq.broker.routing import route_from_bytes
from gantrymq.broker.topics import PERM_WRITE
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.cluster_group import DRAINING, FOUNDER, LIGHTS_TABLE, MEMBER, STATE_TABLE, Group
from gantrymq.remoting.cluster_names import LIGHT_BITS, cluster_light, split_light
from gantrymq.remoting.cluster_steps import Steps

if TYPE_CHECKING:
    from gantrymq.remoting.cluster_port import ClusterPort


def join(cluster: ClusterPort, group: Group) -> Steps:
    """Everything that `group` needs before it is used."""
    yield from _learn(group)
    others = [other for other in cluster.ready_groups() if other is not group]
    yield from _found(cluster, group, others)
    if others:
        yield from _lights_and_cursors(cluster, group, others)
        yield from _routes(cluster, group, others)
    yield from cluster.restore(group)


def _learn(group: Group) -> Steps:
    """Its topics, its names for others' light queues, its state; all kept current from now on."""

    def topic(name: str, value: bytes | None) -> None:
        if _writable(name, value):
            group.topics.add(name)
        else:
            group.topics.discard(name)

    def light(key: str, value: bytes | None) -> None:
        if value is None:
            group.lights.pop(int(key), None)
        else:
            group.lights[int(key)] = int(value)

    def state(key: str, value: bytes | None) -> None:
        if key == DRAINING:
            group.draining = value is not None
        elif key == FOUNDER:
            group.founder = value is not None
        elif key == MEMBER:
            group.member = value is not None

    group.topics.clear()
    group.lights.clear()
    for table, watcher in (("topic", topic), (LIGHTS_TABLE, light), (STATE_TABLE, state)):
        rows: dict[str, bytes] = yield partial(group.port.watch_table, table, watcher)
        for key, value in rows.items():
            watcher(key, value)


def _writable(name: str, value: bytes | None) -> bool:
    if value is None or names.is_own_system_topic(name):
        return False
    config = json.loads(value)
    return not config.get("deleted") and bool(config["perm"] & PERM_WRITE) and config["writeQueueNums"] > 0


def _found(cluster: ClusterPort, group: Group, others: list[Group]) -> Steps:
    """Whose light ids stand as they are: those of a group that was alone once (then no gateway had to speak of clusters)."""
    founders = [other.name for other in others if other.founder]
    if not group.founder and not group.member:
        rows: dict[str, bytes] = yield partial(group.port.watch_table, "light", None)
        alone = [other for other in cluster.groups if other.registered] == [group]
        row = FOUNDER if alone or rows else MEMBER
        if row == MEMBER or not founders:
            yield partial(group.port.put, STATE_TABLE, [(row, b"1")])
        group.founder, group.member = row == FOUNDER, row == MEMBER
    if group.founder and founders:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"broker groups {group.name} and {founders[0]} each had gateways of their own before: their light queues have the same ids; "
            f"register them with different nameservers",
        )


def make_light(group: Group, light: int) -> Steps:
    """A light queue at `group` for one that another group made; its local id."""
    lease = f"light/{light}"
    epoch: int = yield partial(group.port.take_lease, lease, True, lambda name: None)
    try:
        found = group.lights.get(light)
        if found is not None:
            return found
        local: int = yield group.port.create_light
        if light in group.lights:  # another gateway took the lease meanwhile and was first
            yield partial(group.port.delete_light, local)
            return group.lights[light]
        yield partial(group.port.put, LIGHTS_TABLE, [(str(light), str(local).encode())])
        return group.lights.setdefault(light, local)
    finally:
        group.port.drop_lease(lease, epoch)


def _lights_and_cursors(cluster: ClusterPort, group: Group, others: list[Group]) -> Steps:
    """Every group's cursors in its own light queues have one here, too, before a route can fill them."""
    for other in others:
        alive: dict[str, bytes] = yield partial(other.port.watch_table, "light", None)
        for light, local in list(group.lights.items()):
            tag, own = split_light(light)
            if tag == other.tag and str(own) not in alive:  # deleted while this group was away
                yield partial(group.port.delete_light, local)
                yield partial(group.port.put, LIGHTS_TABLE, [(str(light), None)])
        yield from _copy_cursors(cluster, other, group)
        yield from _copy_cursors(cluster, group, other)


def _copy_cursors(cluster: ClusterPort, source: Group, target: Group) -> Steps:
    rows: dict[str, bytes] = yield partial(source.port.watch_table, "cursor", None)
    foreign = set(source.lights.values())
    for key, value in rows.items():
        if key == "next":
            continue
        queue, name, _ = json.loads(value)
        if not queue.startswith("~") or int(queue[1:]) in foreign:
            continue
        light = cluster_light(source.tag, int(queue[1:]))
        known = target.lights.get(light)
        local = known if known is not None else (yield from cluster.light_at(target, light))
        yield partial(target.port.open_cursor, f"~{local}", name, EARLIEST)


def _routes(cluster: ClusterPort, group: Group, others: list[Group]) -> Steps:
    here = yield from _cluster_routes(group)
    elsewhere: dict[str, Route] = {}
    for other in others:
        found = yield from _cluster_routes(other)
        for route_id, route in found.items():
            elsewhere.setdefault(route_id, route)
    stale = [
        route_id
        for route_id, route in here.items()
        if route_id not in elsewhere and route.light and route.light >> LIGHT_BITS in {other.tag for other in others}
    ]
    if stale:  # removed while this group was away
        yield partial(group.port.remove_routes, stale)
    for route_id, route in elsewhere.items():
        if route_id not in here:
            yield from _install(cluster, group, route)
    for route_id, route in here.items():
        if route_id not in elsewhere and route_id not in stale:
            for other in others:
                yield from _install(cluster, other, route)


def _cluster_routes(group: Group) -> Steps:
    """The group's routes with light ids of the cluster."""
    rows: dict[str, bytes] = yield partial(group.port.watch_table, "route", None)
    foreign = {local: light for light, local in group.lights.items()}
    routes = {}
    for route_id, value in rows.items():
        route = route_from_bytes(route_id, value)
        light = route.light and foreign.get(route.light, cluster_light(group.tag, route.light))
        routes[route_id] = Route(route_id, route.kind, route.topic, route.expression, light)
    return routes


def _install(cluster: ClusterPort, group: Group, route: Route) -> Steps:
    local = (yield from cluster.light_at(group, route.light)) if route.light else 0
    yield partial(group.port.add_route, Route(route.route_id, route.kind, route.topic, route.expression, local))
