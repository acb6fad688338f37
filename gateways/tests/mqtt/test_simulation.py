"""Whole gateways under a seed: clients come, go, break off and are taken over, the server is killed; then all heals.

Promise: what a publisher got a PUBACK for while a persistent session was subscribed reaches that session, at least once, nothing else
does, and the first deliveries of one topic come in the order they were published.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gantrymq.net.procedures import order
from gantrymq_gateways.mqtt.sessions import sessions
from gantrymq_gateways.mqtt.topics.mapping import match_levels
from gateways.tests.mqtt.world import Client, World

TOPICS = ["a", "a/b", "a/c", "a/b/c", "d/b"]
FILTERS = ["a/#", "a/+", "+/b", "#", "a/b", "d/#"]
STEPS = 60


class Subscriber:
    """One persistent session, what it must get and what it got."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.client: Client | None = None
        self.filters: set[str] = set()
        self.expected: list[tuple[str, bytes]] = []
        self.possible: set[bytes] = set()
        """Payloads whose filter was dropped while they waited: they may come or not."""
        self.got: list[tuple[str, bytes]] = []

    def take(self) -> None:
        if self.client is not None:
            for publish in self.client.publishes():
                # An overlap is delivered once: whatever comes again says so [MQTT-3.3.1-1].
                message = (publish.topic.decode(), publish.payload)
                assert publish.dup or message not in self.got
                self.got.append(message)


class Simulation:
    def __init__(self, mode: str, seed: int, directory: Path | None = None) -> None:
        self.random = random.Random(seed)
        self.world = World(mode, seed, directory=directory, inflight_max=self.random.choice([1, 3, 100]))
        self.subscribers = [Subscriber(f"s{i}") for i in range(3)]
        self.number = 0

    def run(self) -> None:
        actions = (
            [self.publish] * 8
            + [self.connect] * 3
            + [self.lose, self.leave, self.subscribe, self.subscribe, self.unsubscribe]
        )
        for _ in range(STEPS):
            self.random.choice(actions)()
            for subscriber in self.subscribers:
                subscriber.take()
            if self.random.random() < 0.03:
                self.kill()
        for subscriber in self.subscribers:
            self._connect(subscriber, acks=True)
            subscriber.take()
            self.check(subscriber)
            again = self.world.client(subscriber.client_id, clean=False)
            assert again.messages() == []

    def publish(self) -> None:
        publisher = self.world.client("publisher")
        for _ in range(self.random.randrange(1, 6)):
            self.number += 1
            topic, payload = self.random.choice(TOPICS), b"%d" % self.number
            publisher.publish(topic, payload)
            for subscriber in self.subscribers:
                if any(match_levels(f, topic) for f in subscriber.filters):
                    subscriber.expected.append((topic, payload))
        publisher.disconnect()

    def _connect(self, subscriber: Subscriber, acks: bool) -> None:
        subscriber.take()
        client = self.world.client(subscriber.client_id, acks, clean=False)
        if subscriber.filters:
            assert client.present
        subscriber.client = client
        subscriber.take()

    def connect(self) -> None:
        self._connect(self.random.choice(self.subscribers), self.random.random() < 0.7)

    def _connected(self) -> Subscriber | None:
        live = [s for s in self.subscribers if s.client is not None and not s.client.closed]
        return self.random.choice(live) if live else None

    def lose(self) -> None:
        subscriber = self._connected()
        if subscriber is not None and subscriber.client is not None:
            subscriber.client.link.lose()
            self.world.settle()

    def leave(self) -> None:
        subscriber = self._connected()
        if subscriber is not None and subscriber.client is not None:
            subscriber.client.disconnect()

    def subscribe(self) -> None:
        subscriber = self._connected()
        if subscriber is not None and subscriber.client is not None:
            chosen = self.random.sample(FILTERS, 2)
            packets = subscriber.client.packets
            assert subscriber.client.subscribe(*chosen) == [1, 1]
            subscriber.client.packets = packets + [p for p in subscriber.client.packets if p not in packets]
            subscriber.filters.update(chosen)

    def unsubscribe(self) -> None:
        subscriber = self._connected()
        if subscriber is None or subscriber.client is None or not subscriber.filters:
            return
        gone = self.random.choice(sorted(subscriber.filters))
        subscriber.client.unsubscribe(gone)
        subscriber.filters.discard(gone)
        # What no remaining filter holds may still be on its way or not.
        kept = []
        for topic, payload in subscriber.expected:
            if match_levels(gone, topic):
                subscriber.possible.add(payload)
            else:
                kept.append((topic, payload))
        subscriber.expected = kept

    def kill(self) -> None:
        self.world = self.world.restart()
        for subscriber in self.subscribers:
            subscriber.client = None

    def check(self, subscriber: Subscriber) -> None:
        first = list(dict.fromkeys(subscriber.got))
        missing = set(subscriber.expected) - set(first)
        assert not missing
        invented = {payload for _, payload in first} - {p for _, p in subscriber.expected} - subscriber.possible
        assert not invented
        for topic in TOPICS:
            order = [int(payload) for t, payload in first if t == topic]
            assert order == sorted(order)


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("seed", range(12))
def test_simulation(mode: str, seed: int) -> None:
    Simulation(mode, seed).run()


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("seed", range(12, 16))
def test_simulation_with_a_turn_for_every_piece_of_work(mode: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "TURN_WORK", 1)
    monkeypatch.setattr(sessions, "ASK_MAX", 1)
    Simulation(mode, seed).run()


@pytest.mark.parametrize("mode", ["local", "remote"])
@pytest.mark.parametrize("seed", range(4))
def test_simulation_over_the_real_broker(mode: str, seed: int, tmp_path: Path) -> None:
    simulation = Simulation(mode, seed, tmp_path / "first")
    try:
        simulation.run()
    finally:
        simulation.world.close()
