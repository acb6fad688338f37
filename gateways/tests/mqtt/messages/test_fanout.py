"""Who gets a live message, while clients come, change their subscriptions and go."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gantrymq_gateways.mqtt.topics.mapping import match_levels
from gateways.tests.mqtt.world import Client, World


def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What is resolved from now on."""
    resolved: list[tuple[int, ...]] = []
    fanout = world.gateway.fanout
    resolve = fanout._resolve

    def count(numbers: tuple[int, ...]) -> Any:
        resolved.append(numbers)
        return resolve(numbers)

    monkeypatch.setattr(fanout, "_resolve", count)
    return resolved


def test_who_comes_joins_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("immediate")
    publisher = world.client("p")
    clients = [world.client(f"c{i}") for i in range(30)]
    resolved = counted(world, monkeypatch)
    for client in clients:
        client.subscribe("t/#")
        publisher.publish("t/x")
    assert len(resolved) == 1, "the others were added to it"
    assert [len(client.messages()) for client in clients] == list(range(30, 0, -1))


def test_a_change_of_one_filter_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("immediate")
    publisher, steady, other = world.client("p"), world.client("s"), world.client("o")
    steady.subscribe("t/x")
    other.subscribe("u")
    publisher.publish("t/x")
    publisher.publish("u")
    resolved = counted(world, monkeypatch)
    other.subscribe(("u", 0))
    other.disconnect()
    publisher.publish("t/x")
    assert resolved == []
    assert len(steady.messages()) == 2


def test_second_filter_of_one_client_delivers_once_at_the_higher_qos() -> None:
    world = World("immediate")
    publisher, client = world.client("p"), world.client("c")
    client.subscribe(("t/#", 0))
    publisher.publish("t/x")
    client.subscribe(("t/+", 1))
    publisher.publish("t/x")
    assert [packet.qos for packet in client.publishes()] == [0, 1]
    client.unsubscribe("t/+")
    publisher.publish("t/x")
    assert [packet.qos for packet in client.publishes()] == [0]


@pytest.mark.parametrize("seed", range(5))
def test_everybody_gets_what_matches_and_nobody_else(seed: int) -> None:
    rand = random.Random(seed)
    world = World("immediate", seed=seed)
    publisher = world.client("p")
    filters = ("t/#", "t/+", "t/a", "t/b", "+/a")
    has: dict[Client, set[str]] = {}
    for step in range(300):
        what = rand.random()
        if what < 0.1 or not has:
            has[world.client(f"c{step}")] = set()
        elif what < 0.15:
            client = rand.choice(list(has))
            del has[client]
            client.disconnect()
        elif what < 0.45:
            client, text = rand.choice(list(has)), rand.choice(filters)
            client.subscribe((text, rand.randint(0, 2)))
            has[client].add(text)
        elif what < 0.6:
            client, text = rand.choice(list(has)), rand.choice(filters)
            client.unsubscribe(text)
            has[client].discard(text)
        else:
            topic = rand.choice(("t/a", "t/b", "t/c", "u/a"))
            publisher.publish(topic, str(step))
            for client, texts in has.items():
                wanted = [(topic, b"%d" % step)] if any(match_levels(text, topic) for text in texts) else []
                assert client.messages() == wanted
    fanout = world.gateway.fanout
    for numbers in fanout._cache:
        assert all(numbers in fanout._resolved[number] for number in numbers)
    assert {numbers for known in fanout._resolved.values() for numbers in known} == set(fanout._cache)
