"""Bringing a broker group up to date before a gateway uses it: what it says of itself, light queues, cursors and routes that the others have.
Where the cluster has slots nothing of that is copied (`owned/join.py`).

Several gateway processes may do this for the same group at once: what is made is made under a lease of that group, and the rest comes
out the same however often it is done.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from gantrymq.broker.port import EARLIEST, CursorInfo, Route
from gantrymq.broker.routing.router import route_from_bytes
from gantrymq.broker.tables.forward_table import TABLE as FORWARD_TABLE
from gantrymq.broker.tables.forward_table import door_queues
from gantrymq.broker.tables.group_tables import (
    DRAINING,
    FIRST_GROUP,
    GONE_TABLE,
    LIGHT_BITS,
    LIGHTS_TABLE,
    MEMBER,
    METADATA_GROUP,
    STATE_TABLE,
    TAG,
)
from gantrymq.broker.tables.slot_table import HEAD, SLOTS_TABLE
from gantrymq.broker.topics import PERM_WRITE
from gantrymq.cluster.group import Group
from gantrymq.cluster.names import cluster_light, split_light
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps, pause

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster

log = logging.getLogger(__name__)

LEASE_TRIES: Final = 200
LEASE_PAUSE_MS: Final = 50
"""Ten seconds for another gateway that makes the same light queue; it needs two answers of the group, or its lease ends with it."""
MISSED_WAIT_MS: Final = 60_000
"""A group that missed routes is refused for so long while those that have them stay away: two registrations of a broker, or its restart. Then
all that is sent would be lost to everybody, not only to the queues of those routes."""


def join(cluster: Cluster, group: Group) -> Steps:
    """Everything that `group` needs, behind `learn`, before it is used, also what happens meanwhile: nothing is left when this returns.

    Result: keys of what is gone, which no group needs any more when all are in use."""
    known: set[tuple[int, int]] = set()
    gone: set[str] = set()
    # Of its own keys those of light queues alone count: routes and cursors may have come back elsewhere meanwhile.
    own: set[str] = yield from _gone([group])
    given: set[str] = set()
    """Routes that only this group had, and which others have from it now."""
    begun = False
    while True:
        others = [
            other
            for other in cluster.ready_groups()
            if other is not group and (other.index, other.attempt) not in known
        ]
        if others or not begun:
            if others:
                group.refused_ms = None
            elif group.missed:
                _wait_for_who_knows(cluster, group)
            known.update([(other.index, other.attempt) for other in others])
            yield from found(cluster, group, others)
            if others:
                gone |= yield from _gone(others)
                # At all of them: what joins at the same time has them from this group, or this one from that.
                for other in list(cluster.ready_groups()):
                    yield from _drop_gone_lights(other, own | gone)
                yield from _lights_and_cursors(cluster, group, others, gone)
                yield from _routes(cluster, group, others, gone, given)
            if not begun:
                yield from cluster.restore(group)
            begun = True
        elif group.pending:
            for call in group.take_pending():
                yield from call(group)
        else:
            return gone | own


def _wait_for_who_knows(cluster: Cluster, group: Group) -> None:
    """A group that missed a change is not used before one that did not is back, unless none of those is registered any more or comes in time."""
    knowing = ", ".join([other.name for other in cluster.groups if other.registered and not other.missed])
    if not knowing:
        return
    now_ms = cluster.wheel.now_ms()
    if group.refused_ms is None:
        group.refused_ms = now_ms
    if now_ms - group.refused_ms < MISSED_WAIT_MS:
        raise GantryError(ErrorCode.UNAVAILABLE, f"it missed changes, and {knowing} is not in use")
    log.warning(
        "broker group %s is used although it missed changes: %s was not in use for %d s. What is sent now does not reach "
        "subscriptions and bindings that were made while %s was away",
        group.name, knowing, MISSED_WAIT_MS // 1000, group.name,
    )  # fmt: skip


def _gone(others: list[Group]) -> Steps:
    """Keys of what was deleted while groups were away."""
    found: set[str] = set()
    for other in others:
        rows: dict[str, bytes] = yield partial(other.port.watch_table, GONE_TABLE, None)
        found.update(rows)
    return found


def gone_key(kind: str, name: str) -> str:
    """Key in the table of what is gone: `route` and its id, `light` and its id, `cursor` and `<light>/<name>`."""
    return f"{kind}/{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def learn(cluster: Cluster, group: Group) -> Steps:
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
            cluster.members_changed()
        elif key.startswith(TAG):
            (group.inherited.discard if value is None else group.inherited.add)(int(key[len(TAG) :]))
        elif key == FIRST_GROUP:
            group.first_group = value is not None
        elif key == MEMBER:
            group.member = value is not None

    def slot(key: str, value: bytes | None) -> None:
        if key == HEAD:
            group.has_slots = value is not None
        cluster.slots.learn(key, value)

    group.topics.clear()
    group.inherited.clear()
    group.lights.clear()
    group.has_slots = False
    for table, watcher in ((SLOTS_TABLE, slot), ("topic", topic), (LIGHTS_TABLE, light), (STATE_TABLE, state)):
        rows: dict[str, bytes] = yield partial(group.port.watch_table, table, watcher)
        if table == SLOTS_TABLE:
            cluster.slots.refuse_another(group.name, rows)
        for key, value in rows.items():
            watcher(key, value)
    if METADATA_GROUP in rows and not group.has_slots:
        keeper = rows[METADATA_GROUP].decode()
        raise GantryError(
            ErrorCode.UNAVAILABLE, f"it has no table of slots yet, and waits for its metadata group {keeper}"
        )
    # The rows of the last loop: its disk may be another one than before.
    group.first_group, group.member = FIRST_GROUP in rows, MEMBER in rows


def _writable(name: str, value: bytes | None) -> bool:
    if value is None or names.is_own_system_topic(name):
        return False
    config = json.loads(value)
    return not config.get("deleted") and bool(config["perm"] & PERM_WRITE) and config["writeQueueNums"] > 0


def found(cluster: Cluster, group: Group, others: list[Group]) -> Steps:
    """Whose light ids stand as they are: those of a group that was alone once (then no gateway had to speak of clusters)."""
    firsts = [other.name for other in others if other.first_group]
    if not group.first_group and not group.member:
        _refuse_a_taken_tag(cluster, group)
        rows: dict[str, bytes] = yield partial(group.port.watch_table, "light", None)
        forward: dict[str, bytes] = yield partial(group.port.watch_table, FORWARD_TABLE, None)
        alone = [other for other in cluster.groups if other.registered] == [group]
        used = door_queues(rows, forward) if forward else rows
        row = FIRST_GROUP if alone or used else MEMBER
        group.first_group, group.member = row == FIRST_GROUP, row == MEMBER
        if row == MEMBER or not firsts:
            yield partial(group.port.put, STATE_TABLE, [(row, b"1")])
    if group.first_group and firsts:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"broker groups {group.name} and {firsts[0]} each had gateways of their own before: their light queues have the same ids; "
            f"register them with different nameservers",
        )


def _refuse_a_taken_tag(cluster: Cluster, group: Group) -> None:
    """A group that was in no cluster yet must not have the tag of one that is, or was: its light queues would have ids that others have.

    Of two new ones that come at once the first by name stays, whichever gateway looks."""
    others = [other for other in cluster.groups if other is not group and other.registered]
    why = ""
    for other in others:
        if group.tag in other.inherited or any(split_light(light)[0] == group.tag for light in other.lights):
            why = f"{other.name} has queues of an earlier group of that name"
    for other in others:
        if group.tag == other.tag and (other.ready or other.member or other.first_group or other.name < group.name):
            why = f"its name has the same 20-bit hash as {other.name}"
    if why:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"broker group {group.name} is new here, and the ids of its light queues would be those of others: {why}; give it another broker.name",
        )


def make_light(cluster: Cluster, group: Group, light: int) -> Steps:
    """A light queue at `group` for one that another group made; its local id."""
    lease = f"light/{light}"
    epoch = yield from _lease(cluster, group, lease)
    try:
        found = group.lights.get(light)
        if found is not None:  # its row came before the lease that its maker gave up
            return found
        local: int = yield group.port.create_light
        yield partial(group.port.put, LIGHTS_TABLE, [(str(light), str(local).encode())])
        return group.lights.setdefault(light, local)
    finally:
        group.port.drop_lease(lease, epoch)


def _lease(cluster: Cluster, group: Group, name: str) -> Steps:
    """A lease of a group, waited for; raises LEASE_HELD in the end."""
    for _ in range(LEASE_TRIES):
        try:
            epoch: int = yield partial(group.port.take_lease, name, False, lambda name: None)
            return epoch
        except GantryError as error:
            if error.code is not ErrorCode.LEASE_HELD:
                raise
        at_ms = cluster.wheel.now_ms() + LEASE_PAUSE_MS
        yield pause(lambda go_on: cluster.wheel.call_at(at_ms, lambda now_ms: go_on()))  # noqa: B023 (called at once)
    raise GantryError(ErrorCode.LEASE_HELD, f"broker group {group.name}: {name} is held by another gateway")


def _lights_and_cursors(cluster: Cluster, group: Group, others: list[Group], gone: set[str]) -> Steps:
    """Every group's cursors in its own light queues have one here, too, before a route can fill them."""
    yield from _drop_gone(group, others, gone)
    for other in others:
        # Ours before theirs: what another gateway makes meanwhile is there first at its maker, then here.
        ours = list(group.lights.items())
        alive: dict[str, bytes] = yield partial(other.port.watch_table, "light", None)
        for light, local in ours:
            tag, own = split_light(light)
            at_other = str(own) in alive if tag == other.tag else light in other.lights
            if other is _decider(cluster, group, others, tag) and not at_other:  # deleted while this group was away
                yield partial(group.port.delete_light, local)
                yield partial(group.port.put, LIGHTS_TABLE, [(str(light), None)])
        yield from _copy_cursors(cluster, other, group)
        yield from _copy_cursors(cluster, group, other)


def _decider(cluster: Cluster, group: Group, others: list[Group], tag: int) -> Group | None:
    """Who among `others` says which light queues with this tag there are: the group that made them, else its heir."""
    if group.decides(tag) or any(
        known.tag == tag and known not in others for known in cluster.groups if known.registered
    ):
        return None
    found = [other for other in others if other.decides(tag)]
    return next((other for other in found if other.tag == tag), found[0] if found else None)


def _drop_gone(group: Group, others: list[Group], gone: set[str]) -> Steps:
    """Its light queues, and cursors in light queues, that were deleted at the others while it was away."""
    if not any(not key.startswith("route/") for key in gone):
        return
    yield from _drop_gone_lights(group, gone)
    elsewhere: set[tuple[int, str]] = set()
    for other in others:
        elsewhere |= {(light, name) for light, _, name in (yield from _cursors(other))}
    for light, queue, name in (yield from _cursors(group)):
        if (light, name) not in elsewhere and gone_key("cursor", f"{light}/{name}") in gone:
            info: CursorInfo = yield partial(group.port.open_cursor, queue, name, EARLIEST)
            yield partial(group.port.delete_cursor, info.cursor)


def _drop_gone_lights(group: Group, gone: set[str]) -> Steps:
    """Its light queues, also those that stand for others', that were deleted while it was away. Nothing that came back can be lost: an id is
    never used again."""
    if not any(key.startswith("light/") for key in gone):
        return
    rows: dict[str, bytes] = yield partial(group.port.watch_table, "light", None)
    foreign = {local: light for light, local in group.lights.items()}
    for local in [int(key) for key in rows if key.isdigit()]:
        light = foreign.get(local) or cluster_light(group.tag, local)
        if gone_key("light", str(light)) in gone:
            yield partial(group.port.delete_light, local)
            if local in foreign:
                yield partial(group.port.put, LIGHTS_TABLE, [(str(light), None)])


def _cursors(group: Group) -> Steps:
    """Cursors in the group's light queues: (light queue in the cluster, the group's name of it, name of the cursor)."""
    rows: dict[str, bytes] = yield partial(group.port.watch_table, "cursor", None)
    foreign = {local: light for light, local in group.lights.items()}
    found = []
    for key, value in rows.items():
        if key == "next":
            continue
        queue, name, _ = json.loads(value)
        if queue.startswith("~"):
            local = int(queue[1:])
            found.append((foreign.get(local) or cluster_light(group.tag, local), queue, name))
    return found


def _copy_cursors(cluster: Cluster, source: Group, target: Group) -> Steps:
    have = {(light, name) for light, _, name in (yield from _cursors(target))}
    for light, _, name in (yield from _cursors(source)):
        if source.decides(split_light(light)[0]) and (light, name) not in have:
            local = yield from cluster.light_at(target, light)
            yield partial(target.port.open_cursor, f"~{local}", name, EARLIEST)


def _routes(cluster: Cluster, group: Group, others: list[Group], gone: set[str], given: set[str]) -> Steps:
    here: dict[str, Route] = yield from _cluster_routes(group)
    elsewhere: dict[str, Route] = {}
    for other in others:
        found = yield from _cluster_routes(other)
        for route_id, route in found.items():
            elsewhere.setdefault(route_id, route)
    makers = {other.tag for other in others}.union(*[other.inherited for other in others])
    alone = [route_id for route_id in here if route_id not in elsewhere]
    stale = [
        route_id
        for route_id in alone
        if (here[route_id].light and here[route_id].light >> LIGHT_BITS in makers)
        or gone_key("route", route_id) in gone
    ]
    if stale:  # removed while this group was away
        yield partial(group.port.remove_routes, stale)
    if withdrawn := [route_id for route_id in stale if route_id in given]:  # who knows of that came after those
        for other in list(cluster.ready_groups()):
            yield partial(other.port.remove_routes, withdrawn)
    for route_id, route in elsewhere.items():
        mine = here.get(route_id)
        if route_id in cluster.withdrawn:
            continue  # meanwhile; this group hears of it, too, before it is used
        if mine is None or (mine != route and route.light >> LIGHT_BITS != group.tag):
            yield from _install(cluster, group, route)
        elif mine != route:  # nobody could change it without this group
            alone.append(route_id)
    for route_id in set(alone) - set(stale):
        given.add(route_id)
        for other in others:
            if route_id not in cluster.withdrawn:
                yield from _install(cluster, other, here[route_id])


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


def _install(cluster: Cluster, group: Group, route: Route) -> Steps:
    local = (yield from cluster.light_at(group, route.light)) if route.light else 0
    yield partial(group.port.add_route, Route(route.route_id, route.kind, route.topic, route.expression, local))
