"""Which requests a broker answers as the owner of a slot."""

from __future__ import annotations

from functools import partial

import pytest

from gantrymq.broker.tables.forward_table import CAME, ENDED
from gantrymq.broker.tables.forward_table import TABLE as FORWARD_TABLE
from gantrymq.broker.tables.group_tables import (
    LIGHT_BITS,
    LIGHTS_TABLE,
    METADATA_GROUP,
    MOVED_TABLE,
    STATE_TABLE,
    TAG,
)
from gantrymq.cluster.row_moves import AGAIN_MS, LAST_ROUND_MS
from gantrymq.cluster.slots.keeping import tell_gateways
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.slots.slot_site import SlotSite, node_of


def test_requests_of_another_epoch_are_refused() -> None:
    site = SlotSite("a", "b")
    slots = site.nodes["a"].broker.slots
    mine, theirs = site.table().owned_by("a")[0], site.table().owned_by("b")[0]
    epoch = site.table().slots[mine].epoch
    slots.check((mine, epoch))
    for under, text in (
        ((mine, epoch - 1), "older epoch"),
        ((mine, epoch + 1), "has not heard yet"),
        ((theirs, site.table().slots[theirs].epoch), "is b's"),
    ):
        with pytest.raises(GantryError, match=text) as caught:
            slots.check(under)
        assert caught.value.code is ErrorCode.NOT_OWNER


@pytest.mark.parametrize("has_keeper", [False, True])
def test_a_broker_with_parts_of_others_queues_does_not_start(has_keeper: bool) -> None:
    """After a drain to this one, with the version before, they are its own, whoever made them."""
    before = Node(MemoryFileSystem(), True)
    light = str(77 << LIGHT_BITS | 5)
    before.call("put", STATE_TABLE, [(f"{TAG}77", b"old")])
    before.call("put", LIGHTS_TABLE, [(light, b"1")])
    disk = before.files.after_process_crash()
    start = partial(node_of, "b") if has_keeper else lambda files: Node(files, True)
    again = start(disk.after_process_crash())
    assert light in again.broker.tables.rows(LIGHTS_TABLE)
    again.call("put", STATE_TABLE, [(f"{TAG}77", None)])
    parts = again.files.after_process_crash()
    with pytest.raises(
        GantryError, match=r"has parts of 1 queues .*drain the cluster to one broker with the version before"
    ) as caught:
        start(parts)
    assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT


def test_a_broker_that_has_had_slots_may_have_queues_under_ids_of_others() -> None:
    site = SlotSite("a", "b")
    site.nodes["b"].call("put", LIGHTS_TABLE, [(str(77 << LIGHT_BITS | 5), b"1")])
    site.start("b", site.kill("b"))
    assert site.nodes["b"].broker.slots.show()["silent"] == ""


def test_a_broker_says_whether_it_is_to_have_the_table() -> None:
    node = node_of("b", MemoryFileSystem())
    tell_gateways(node.broker)
    node.flush()
    assert node.broker.tables.rows(STATE_TABLE)[METADATA_GROUP] == b"a"
    without = Node(node.files.after_process_crash(), False)
    assert without.broker.tables.rows(STATE_TABLE)[METADATA_GROUP] == b"a"
    tell_gateways(without.broker)
    without.turn.run_until_quiet()
    assert METADATA_GROUP not in without.broker.tables.rows(STATE_TABLE)


def test_what_a_broker_has_of_moved_queues_is_its_own_whoevers_slot_it_would_be() -> None:
    site = SlotSite("a", "b")
    slots = site.nodes["b"].broker.slots
    keys = [str(number) for number in range(100)]
    with pytest.raises(GantryError, match="a new row of table mine is a's, not b's"):
        slots.refuse_elsewhere("mine", keys)
    slots.refuse_elsewhere(MOVED_TABLE, keys)
    slots.refuse_elsewhere(FORWARD_TABLE, [f"{kind}{key}" for kind in (f"{CAME}a/", ENDED) for key in keys])
    assert site.nodes["b"].call("put", MOVED_TABLE, [(key, b"0 1") for key in keys]) is None
    site.move("b", "a", site.table().owned_by("b"))
    gateway = site.gateway()
    site.wait(LAST_ROUND_MS + 2 * AGAIN_MS)
    assert len(gateway.groups) == 2
    assert len(site.nodes["b"].broker.tables.rows(MOVED_TABLE)) == len(keys)
    assert not site.nodes["a"].broker.tables.rows(MOVED_TABLE)
