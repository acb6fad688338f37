"""Shared subscriptions: who gets what, what becomes of it when a member leaves, two gateways, kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.model.errors import GantryError
from gantrymq_gateways.mqtt.sessions.shared_group import ACQUIRE_MAX
from gantrymq_gateways.mqtt.tables import FILTER_GRACE_MS
from gantrymq_gateways.mqtt.topics.shared import bare, check_shared, group_name, is_shared
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import Ack, Publish
from gateways.tests.mqtt.sides import Side, Site
from gateways.tests.mqtt.world import Client, World

SHARE = "$share/g/t/#"


@pytest.fixture(params=["immediate", "late", "shuffled", "local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, seed=11, directory=tmp_path / "first")
    yield world
    world.close()


def members(world: World, count: int, text: str = SHARE, **fields: object) -> list[Client]:
    clients = [world.client(f"m{i}", **fields) for i in range(count)]
    for client in clients:
        assert client.subscribe(text) == [1]
    return clients


def bodies(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.publishes()]


def publish_some(world: World, count: int, topic: str = "t/x", first: int = 0) -> None:
    publisher = world.client(f"p{first}-{len(world.clients)}")
    for i in range(first, first + count):
        publisher.publish(topic, str(i))
    publisher.disconnect()


@pytest.mark.parametrize("clean", [True, False])
def test_each_message_goes_to_one_member_in_turn(world: World, clean: bool) -> None:
    clients = members(world, 3, clean=clean)
    publish_some(world, 9)
    got = [bodies(client) for client in clients]
    assert sorted(got[0] + got[1] + got[2]) == [b"%d" % i for i in range(9)]
    assert [len(part) for part in got] == [3, 3, 3]


def test_an_ordinary_subscription_gets_every_message_beside_a_group(world: World) -> None:
    """A session that has both gets a copy for each: they are subscriptions of their own (MQTT 5, 4.8.2)."""
    (member,) = members(world, 1)
    other = world.client("o")
    other.subscribe("t/#")
    member.subscribe("t/x")
    publish_some(world, 2)
    assert sorted(bodies(member)) == [b"0", b"0", b"1", b"1"]
    assert bodies(other) == [b"0", b"1"]


def test_two_groups_and_queue_get_a_copy_each(world: World) -> None:
    a = world.client("a")
    a.subscribe("$share/one/t/x")
    b = world.client("b")
    b.subscribe("$share/two/t/x")
    queue = world.client("q")
    queue.subscribe("$queue/t/x")
    publish_some(world, 2)
    assert [bodies(client) for client in (a, b, queue)] == [[b"0", b"1"]] * 3


def test_retained_messages_are_not_sent_to_a_group(world: World) -> None:
    world.client("p").publish("t/x", "kept", retain=True)
    (member,) = members(world, 1)
    assert member.publishes() == []


@pytest.mark.parametrize("clean", [True, False])
def test_what_a_member_held_comes_back_in_order_when_it_leaves(world: World, clean: bool) -> None:
    slow = world.client("slow", acks=False, clean=clean)
    slow.subscribe(SHARE)
    publish_some(world, 4)
    first = slow.publishes()
    slow.send(Ack(c.PUBACK, first[1].packet_id))
    quick = world.client("quick")
    quick.subscribe(SHARE)
    publish_some(world, 2, first=4)
    assert b"0" not in bodies(quick)
    slow.disconnect()
    again = quick.publishes()
    assert [packet.payload for packet in again][:3] == [b"0", b"2", b"3"]
    assert again[0].dup  # [MQTT-3.3.1-1]: it was possibly delivered before


def test_a_member_that_does_not_acknowledge_gets_no_more_than_its_window(tmp_path: Path) -> None:
    world = World("immediate", inflight_max=5)
    slow = world.client("slow", acks=False)
    slow.subscribe(SHARE)
    quick = world.client("quick")
    quick.subscribe(SHARE)
    publish_some(world, 50)
    assert len(bodies(slow)) == 5
    assert len(bodies(quick)) == 45


def test_a_group_of_the_slow_waits_and_goes_on(world: World) -> None:
    slow = world.client("slow", acks=False)
    slow.subscribe(SHARE)
    count = world.gateway.config.inflight_max + 3
    publish_some(world, count)
    got = slow.publishes()
    assert len(got) == world.gateway.config.inflight_max
    slow.send(*[Ack(c.PUBACK, packet.packet_id) for packet in got])
    assert bodies(slow) == [b"%d" % i for i in range(len(got), count)]


@pytest.mark.parametrize("clean", [True, False])
def test_unsubscribe_ends_membership(world: World, clean: bool) -> None:
    a, b = members(world, 2, clean=clean)
    a.unsubscribe(SHARE)
    publish_some(world, 4)
    assert bodies(a) == []
    assert len(bodies(b)) == 4
    b.unsubscribe(SHARE)
    assert world.gateway.lifecycle.shared.groups == {}


def test_granted_qos_0_is_sent_without_acknowledgement(world: World) -> None:
    client = world.client("zero", acks=False)
    assert client.subscribe((SHARE, 0)) == [0]
    publish_some(world, 600)
    got = client.publishes()
    assert [packet.payload for packet in got] == [b"%d" % i for i in range(600)]
    assert {packet.qos for packet in got} == {0}  # [MQTT-4.8.2-3]


def test_a_kept_members_group_keeps_messages_and_its_place(world: World) -> None:
    (member,) = members(world, 1, clean=False)
    member.disconnect()
    publish_some(world, 3)
    world = world.restart()
    world.advance(FILTER_GRACE_MS * 3)
    publish_some(world, 1, first=3)
    member = world.client("m0", clean=False)
    assert member.present
    assert bodies(member) == [b"0", b"1", b"2", b"3"]


def test_nothing_is_lost_or_repeated_by_kill(world: World) -> None:
    holding = world.client("m", clean=False, acks=False)
    holding.subscribe(SHARE)
    publish_some(world, 3)
    first = holding.publishes()
    holding.send(Ack(c.PUBACK, first[0].packet_id))
    world = world.restart()
    other = world.client("n")
    other.subscribe(SHARE)
    assert bodies(other) == [b"1", b"2"]


def test_a_group_of_clean_members_ends_a_while_after_the_last(world: World) -> None:
    (member,) = members(world, 1)
    for _ in range(8):
        world.advance(FILTER_GRACE_MS // 2)  # as long as somebody is there it stays
    publish_some(world, 1)
    assert bodies(member) == [b"0"]
    member.disconnect()
    publish_some(world, 1, first=1)
    (member,) = members(world, 1)  # within the grace time what came meanwhile is there
    assert bodies(member) == [b"1"]
    member.disconnect()
    for _ in range(6):
        world.advance(FILTER_GRACE_MS // 2)
    publish_some(world, 1, first=2)
    (member,) = members(world, 1)
    assert bodies(member) == []


@pytest.mark.parametrize("text", ["$share", "$share/", "$share/g", "$share/g/", "$share//t", "$share/+/t", "$share/a#/t",
                                  "$share/g/$share/h/t", "$share/g/$queue/t", "$queue", "$queue/"])  # fmt: skip
def test_malformed_shared_subscriptions_are_refused(text: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2], and the classes of NanoMQ's CVE-2025-68699."""
    assert is_shared(text)
    with pytest.raises(GantryError):
        check_shared(text)


@pytest.mark.parametrize("text", ["$share/", "$share/g", "$share/g/", "$share//t", "$queue/", "$share/g/$share/h/t"])
def test_a_refused_one_is_a_suback_code(text: str) -> None:
    world = World("immediate")
    client = world.client("c")
    assert client.subscribe(text, "t") == [0x80, 1]
    assert not client.closed


def test_names() -> None:
    assert (bare("$share/g/a/b"), group_name("$share/g/a/b")) == ("a/b", "g")
    assert (bare("$queue/a/b"), group_name("$queue/a/b")) == ("a/b", "")
    assert bare("a/b") == "a/b"
    check_shared("$share/g//")  # the filter `/`


# Strategies


def strategy_world(strategy: str, **settings: object) -> World:
    return World("immediate", shared_strategy=strategy, **settings)


def test_least_inflight_prefers_who_acknowledges() -> None:
    world = strategy_world("least_inflight")
    slow = world.client("slow", acks=False)
    slow.subscribe(SHARE)
    quick = world.client("quick")
    quick.subscribe(SHARE)
    publish_some(world, 20)
    assert len(bodies(slow)) == 1
    assert len(bodies(quick)) == 19


def test_sticky_stays_with_one_until_it_leaves() -> None:
    world = strategy_world("sticky")
    a, b = members(world, 2)
    publish_some(world, 5)
    assert (len(bodies(a)), len(bodies(b))) == (5, 0)
    a.disconnect()
    publish_some(world, 5)
    assert len(bodies(b)) == 5


def test_hash_topic_sends_a_topic_to_one_member() -> None:
    world = strategy_world("hash_topic")
    clients = members(world, 3)
    for i in range(12):
        publish_some(world, 3, topic=f"t/{i}")
    owners: dict[str, set[int]] = {}
    for index, client in enumerate(clients):
        for topic, _ in client.messages():
            owners.setdefault(topic, set()).add(index)
    assert len(owners) == 12
    assert all(len(who) == 1 for who in owners.values())
    assert set.union(*owners.values()) == {0, 1, 2}


def test_hash_client_sends_a_publishers_messages_to_one_member() -> None:
    world = strategy_world("hash_client")
    clients = members(world, 3)
    for name in ("a", "b", "c", "d", "e", "f", "g", "h"):
        publisher = world.client(f"pub-{name}")
        for i in range(3):
            publisher.publish(f"t/{i}", name)
    owners: dict[bytes, set[int]] = {}
    for index, client in enumerate(clients):
        for body in bodies(client):
            owners.setdefault(body, set()).add(index)
    assert len(owners) == 8
    assert all(len(who) == 1 for who in owners.values())
    assert len(set.union(*owners.values())) > 1


def test_key_keeps_a_topics_order_while_members_come_and_go() -> None:
    world = strategy_world("key")
    a = world.client("a", acks=False)
    a.subscribe(SHARE)
    publish_some(world, 3, topic="t/k")
    held = a.publishes()
    b = world.client("b", acks=False)
    b.subscribe(SHARE)
    publish_some(world, 3, topic="t/k", first=3)
    assert bodies(a) == [b"3", b"4", b"5"]  # the topic is a's as long as it has something of it
    assert bodies(b) == []
    publish_some(world, 2, topic="t/other")
    a.send(Ack(c.PUBACK, held[0].packet_id))
    a.disconnect()
    mine = [packet.payload for packet in b.publishes() if packet.topic == b"t/k"]
    assert mine == [b"1", b"2", b"3", b"4", b"5"]


# Two gateways


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def at(side: Side, client_id: str, acks: bool = True) -> Client:
    client = Client(side, acks)  # type: ignore[arg-type]  # what a Client needs of its world
    return client.connect(client_id)


def test_members_of_two_gateways_share_one_queue(site: Site) -> None:
    old, new = at(site.old, "a"), at(site.new, "b")
    for client in (old, new):
        assert client.subscribe(SHARE) == [1]
    publisher = at(site.new, "p")
    for i in range(40):
        publisher.publish("t/x", str(i))
    got = bodies(old) + bodies(new)
    assert sorted(got, key=int) == [b"%d" % i for i in range(40)]


def test_what_a_member_held_goes_to_the_other_gateway(site: Site) -> None:
    old, new = at(site.old, "a", acks=False), at(site.new, "b")
    old.subscribe(SHARE)
    publisher = at(site.new, "p")
    for i in range(5):
        publisher.publish("t/x", str(i))
    assert len(bodies(old)) == 5
    new.subscribe(SHARE)
    assert bodies(new) == []
    old.disconnect()
    assert bodies(new) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_full_member_leaves_the_rest_to_the_other_gateway(site: Site) -> None:
    stuck, quick = at(site.old, "a", acks=False), at(site.new, "b")
    stuck.subscribe(SHARE)
    quick.subscribe(SHARE)
    publisher = at(site.new, "p")
    count = ACQUIRE_MAX + 200
    publisher.send(*[Publish(b"t/x", b"%d" % i, 2, i + 1) for i in range(count)])
    held = bodies(stuck)
    assert len(held) <= site.old.gateway.config.inflight_max
    assert sorted(held + bodies(quick), key=int) == [b"%d" % i for i in range(count)]


def test_key_is_served_by_one_gateway_at_a_time(tmp_path: Path) -> None:
    """Else a topic's messages would go to members of both at once."""
    site = Site(tmp_path, shared_strategy="key")
    try:
        old, new = at(site.old, "a"), at(site.new, "b")
        for client in (old, new):
            client.subscribe(SHARE)
        publisher = at(site.new, "p")
        for i in range(6):
            publisher.publish("t/x", str(i))
        assert bodies(old) == [b"%d" % i for i in range(6)]
        old.disconnect()
        for i in range(6, 9):
            publisher.publish("t/x", str(i))
        site.wheel.advance(15_000)
        site.settle()
        assert bodies(new) == [b"6", b"7", b"8"]
    finally:
        site.close()
