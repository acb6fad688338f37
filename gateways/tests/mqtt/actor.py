"""MQTT clients of a simulation: they come, go, break off and are taken over.

Promise: what a publisher got a PUBACK for while a persistent session was subscribed reaches that session, at least once, nothing else
does, and the first deliveries of one topic come in the order they were published. So does what is published at other doors.
"""

from __future__ import annotations

from pathlib import Path

from gantrymq_gateways.mqtt.topics.mapping import match_levels
from gateways.tests.mqtt.world import Client, World
from gateways.tests.simulation import Simulation

TOPICS = ["a", "a/b", "a/c", "a/b/c", "d/b"]
FILTERS = ["a/#", "a/+", "+/b", "#", "a/b", "d/#"]


class Subscriber:
    """One persistent session, what it must get and what it got."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.client: Client | None = None
        self.filters: set[str] = set()
        self.expected: list[tuple[str, bytes]] = []
        self.possible: set[tuple[str, bytes]] = set()
        """Messages whose filter was dropped while they waited: they may come or not."""
        self.got: list[tuple[str, bytes]] = []

    def take(self) -> None:
        if self.client is not None:
            for publish in self.client.publishes():
                # An overlap is delivered once: whatever comes again says so [MQTT-3.3.1-1].
                message = (publish.topic.decode(), publish.payload)
                assert publish.dup or message not in self.got
                if not message[0].startswith("%"):  # a dead letter of another door
                    self.got.append(message)


class MqttActor:
    """`real` is `local` or `remote`: over the real broker under `directory` instead of the simulation's port."""

    def __init__(self, simulation: Simulation, real: str = "", directory: Path | None = None) -> None:
        self.simulation = simulation
        self.random = simulation.random
        mode, inflight_max = real or simulation.mode, self.random.choice([1, 3, 100])
        self.world = World(mode, port=simulation.port, directory=directory, inflight_max=inflight_max)
        self.subscribers = [Subscriber(f"s{i}") for i in range(3)]
        self.number = 0
        self.actions = [self.publish] * 8 + [self.connect] * 3
        self.actions += [self.lose, self.leave, self.subscribe, self.subscribe, self.unsubscribe]

    def publish(self) -> None:
        publisher = self.world.client("publisher")
        for _ in range(self.random.randrange(1, 6)):
            self.number += 1
            topic, payload = self.random.choice(TOPICS), b"%d" % self.number
            publisher.publish(topic, payload)
            self.simulation.published(topic, payload)
        publisher.disconnect()

    def published(self, topic: str, payload: bytes) -> None:
        for subscriber in self.subscribers:
            if any(match_levels(f, topic) for f in subscriber.filters):
                subscriber.expected.append((topic, payload))

    def _connect(self, subscriber: Subscriber, acks: bool) -> None:
        subscriber.take()
        client = self.world.client(subscriber.client_id, acks, clean=False)
        if subscriber.filters:
            assert client.present
        subscriber.client = client
        subscriber.take()

    def connect(self) -> None:
        self._connect(self.random.choice(self.subscribers), self.random.random() < 0.7)

    def _connected(self) -> tuple[Subscriber, Client] | None:
        live = [(s, s.client) for s in self.subscribers if s.client is not None and not s.client.closed]
        return self.random.choice(live) if live else None

    def lose(self) -> None:
        if found := self._connected():
            found[1].link.lose()
            self.world.settle()

    def leave(self) -> None:
        if found := self._connected():
            found[1].disconnect()

    def subscribe(self) -> None:
        if found := self._connected():
            subscriber, client = found
            chosen = self.random.sample(FILTERS, 2)
            packets = client.packets
            assert client.subscribe(*chosen) == [1, 1]
            client.packets = packets + [p for p in client.packets if p not in packets]
            subscriber.filters.update(chosen)

    def unsubscribe(self) -> None:
        found = self._connected()
        if not found or not found[0].filters:
            return
        subscriber, client = found
        gone = self.random.choice(sorted(subscriber.filters))
        client.unsubscribe(gone)
        subscriber.filters.discard(gone)
        # What no remaining filter holds may still be on its way or not.
        subscriber.possible.update([each for each in subscriber.expected if match_levels(gone, each[0])])
        subscriber.expected = [each for each in subscriber.expected if not match_levels(gone, each[0])]

    def check(self) -> None:
        self.world.settle()
        for subscriber in self.subscribers:
            subscriber.take()

    def restart(self) -> None:
        self.world = self.world.restart(self.simulation.port)
        for subscriber in self.subscribers:
            subscriber.client = None

    def heal(self) -> None:
        for subscriber in self.subscribers:
            self._connect(subscriber, acks=True)
            self.check_all(subscriber)
            again = self.world.client(subscriber.client_id, clean=False)
            assert again.messages() == []

    def check_all(self, subscriber: Subscriber) -> None:
        first = list(dict.fromkeys(subscriber.got))
        missing = set(subscriber.expected) - set(first)
        assert not missing
        invented = set(first) - set(subscriber.expected) - subscriber.possible
        assert not invented
        for topic in {topic for topic, _ in first}:
            order = [self.simulation.order[message] for message in first if message[0] == topic]
            assert order == sorted(order)

    def close(self) -> None:
        """Let go of the files of every life."""
        self.world.close()
