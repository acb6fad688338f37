"""Queues that go to another broker group with what is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gantrymq.broker.forward.holding import HELD_MESSAGES_MAX, HOLD_MS
from gantrymq.broker.port import EARLIEST, Outcome
from gantrymq.broker.tables.forward_table import TABLE
from gantrymq.broker.tables.group_tables import MOVED_TABLE
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import Policy
from tests.cluster.forward.forward_site import ForwardSite, code_of

NAME = 7 << 33 | 1
"""The queue's id in the cluster."""


def move(site: ForwardSite, source: str, target: str, light: int, name: int = NAME) -> Any:
    return site.ask(target, "take_queues", source, [(light, name)])


def light_of(site: ForwardSite, where: str, name: int = NAME) -> int:
    return int(site.nodes[where].broker.tables.rows(MOVED_TABLE).get(str(name), b"0"))


def cursor_of(site: ForwardSite, where: str, name: int = NAME) -> int:
    cursor: int = site.ask(where, "open_cursor", f"~{light_of(site, where, name)}", "g", EARLIEST).cursor
    return cursor


def test_a_queue_goes_with_what_is_in_it_and_everybody_sends_to_the_new_place():
    site = ForwardSite("a", "b", "c")
    light, cursor = site.queue("b", "a", "r1")
    for number, name in enumerate(("a", "b", "c")):
        site.publish(name, b"%d" % number)
    site.wait(100)
    deliveries = site.ask("b", "acquire", cursor, 1, 2, 1 << 20)
    site.nodes["b"].port.settle([(cursor, deliveries[0].offset, Outcome.ACK)])
    site.run()
    assert move(site, "b", "c", light) is None
    site.wait(100)
    for number, name in enumerate(("a", "b", "c")):
        site.publish(name, b"%d" % (number + 3))
    site.wait(200)
    left = {b"0", b"1", b"2"} - {deliveries[0].message.body}
    taken = site.taken("c", cursor_of(site, "c"))
    assert {message.body for message in taken[:2]} == left and len(taken) == 5
    assert {message.body for message in taken[2:]} == {b"3", b"4", b"5"}
    assert str(light) not in site.nodes["b"].broker.tables.rows("light")
    assert site.nodes["b"].broker.tables.rows(MOVED_TABLE)[str(NAME)] == b"0"
    assert not any(key.startswith(("leaving", "coming")) for node in site.nodes.values() for key in node.broker.tables.rows(TABLE))
    assert all(not node.broker.holding.targets for node in site.nodes.values())
