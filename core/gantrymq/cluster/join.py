"""Bringing a broker group into use: what it says of itself is read, and what is open in this process is opened there. Nothing is copied.

Several groups need a table of slots (docs/decisions/0013): without it nothing that is published at one would reach the queues of another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.broker.tables.forward_table import TABLE as FORWARD_TABLE
from gantrymq.broker.tables.forward_table import door_queues
from gantrymq.broker.tables.group_tables import (
    DRAINING,
    FIRST_GROUP,
    LIGHTS_TABLE,
    MEMBER,
    METADATA_GROUP,
    MOVED_TABLE,
    STATE_TABLE,
    TAG,
    moved_from,
)
from gantrymq.broker.tables.slot_table import HEAD, SLOTS_TABLE
from gantrymq.broker.topics import PERM_WRITE
from gantrymq.cluster.names import split_light
from gantrymq.cluster.slots.changes import Readable
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster, Group

NOT_USED: Final = "broker group %s is not used yet: %s"
"""What the log says of a group and why."""
_REMEDY: Final = ": give all brokers the same broker.metadata_group (docs/operations/cluster.md)"


def reasons(complaints: Iterable[str]) -> str:
    """Why groups are not used, in one text: what is to be done stands in it once."""
    said = list(dict.fromkeys(complaints))
    parts = [text.removesuffix(_REMEDY) for text in said]
    return "; ".join(parts) + (_REMEDY if any(text.endswith(_REMEDY) for text in said) else "")


def join(cluster: Cluster, group: Group) -> Steps:
    """Everything that `group` needs, behind `learn`, before it is used, also what happens meanwhile: nothing is left when this returns."""
    known: set[tuple[int, int]] = set()
    begun = False
    while True:
        others = [
            other
            for other in cluster.ready_groups()
            if other is not group and (other.index, other.attempt) not in known
        ]
        if others or not begun:
            known.update([(other.index, other.attempt) for other in others])
            _refuse_without_slots(cluster, group)
            yield from found(cluster, group, others)
            if not begun:
                yield from cluster.restore(group)
            begun = True
        elif group.pending:
            for call in group.take_pending():
                yield from call(group)
        else:
            return


def _refuse_without_slots(cluster: Cluster, group: Group) -> None:
    """A group without a table is used alone or not at all, and of several new ones that come at once none. Raises UNAVAILABLE."""
    others = [other for other in cluster.groups if other is not group]
    without = ", ".join([other.name for other in others if other.ready and not other.has_slots])
    registered = ", ".join([other.name for other in others if other.registered])
    why = ""
    if group.has_slots:
        why = f"has a table of slots, and {without}, which is in use, has none" if without else ""
    elif without:
        why = f"has no table of slots, nor has {without}, which is in use"
    elif cluster.slots.known:
        why = "has no table of slots, which the cluster has"
    elif registered and not group.was_used and not group.first_group:
        why = f"has no table of slots, and {registered} is registered, too"
    if why:
        raise GantryError(
            ErrorCode.UNAVAILABLE,
            f"broker group {group.name} {why}{_REMEDY}",
        )


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

    def moved(key: str, value: bytes | None) -> None:
        light = int(key)
        if value is None:
            group.moved.pop(light, None)
        else:
            group.moved[light] = moved_from(value).light
        cluster.queue_moved(light)

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
        if is_taken and readable.rows([(key, value)]):
            group.has_slots = group.has_slots if key != HEAD else value is not None
            cluster.slots.learn(key, value)

    is_taken, readable = False, Readable(f"broker group {group.name}")
    group.topics.clear()
    group.inherited.clear()
    for table, watcher in (
        (SLOTS_TABLE, slot),
        ("topic", topic),
        (LIGHTS_TABLE, light),
        (MOVED_TABLE, moved),
        (STATE_TABLE, state),
    ):
        rows: dict[str, bytes] = yield partial(group.port.watch_table, table, watcher)
        if table == SLOTS_TABLE:
            rows = readable.known(rows)
            cluster.slots.refuse_another(group.name, rows)
            group.has_slots = HEAD in rows
            if group.has_slots:  # before anything is asked by it
                _refuse_without_slots(cluster, group)
            is_taken = True
        elif table == LIGHTS_TABLE:  # kept until here: who asks meanwhile is not sent to the group that made a queue
            group.lights.clear()
        elif table == MOVED_TABLE:
            group.moved.clear()
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
        theirs = [*other.lights, *[light for light, own in other.moved.items() if own]]
        if group.tag in other.inherited or any(split_light(light)[0] == group.tag for light in theirs):
            why = f"{other.name} has queues of an earlier group of that name"
    for other in others:
        if group.tag == other.tag and (other.ready or other.member or other.first_group or other.name < group.name):
            why = f"its name has the same 20-bit hash as {other.name}"
    if why:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"broker group {group.name} is new here, and the ids of its light queues would be those of others: {why}; give it another broker.name",
        )
