"""AMQP clients of a simulation, at two gateways: channels and connections that come and go over one queue whose bindings change.

Promise: what a publisher of any door got its acknowledgement for while a binding of the queue took it reaches the consumers until one
acknowledges or drops it, once, and never after that; nothing else does; who gets it again is told so; what is left at the end lies in the
order it was published.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gantrymq_gateways.amqp.wire.content import Properties, encode_properties
from gantrymq_gateways.mqtt.topics.mapping import match_levels
from gateways.tests.amqp.peer import Content, Peer, Server, call, parse, publish
from gateways.tests.simulation import Simulation

PERSISTENT = encode_properties(Properties(delivery_mode=2))
TOPICS = ["q", "a", "a/b", "a/b/c", "d/b"]
BINDINGS = {("a", "#"): "a/#", ("a", "*"): "a/+", ("a", "b.*"): "a/b/+", ("d", "b"): "d/b", ("t", "#"): "t/#"}
"""Exchange and key of a binding, and the MQTT filter that takes the same; the queue's binding with the default exchange is always there."""


class Client:
    """One connection with one channel, and what it holds, by delivery tag."""

    def __init__(self, server: Server) -> None:
        self.peer: Peer = server.client()
        self.peer.call("confirm.select", False)
        self.held: dict[int, bytes] = {}
        self.consuming = False


class AmqpActor:
    """`real` is `local` or `remote`: one gateway over the real broker under `directory` instead of two over the simulation's port."""

    def __init__(self, simulation: Simulation, real: str = "", directory: Path | None = None) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.servers = [Server(mode=real, directory=directory)] if real else [Server(simulation.port) for _ in range(2)]
        self.lives = [*self.servers]
        self.clients = [Client(self.random.choice(self.servers)) for _ in range(3)]
        self.bound: set[tuple[str, str]] = set()
        self.expected: dict[bytes, None] = {}
        """All that came into the queue, in order."""
        self.seen: set[bytes] = set()
        self.done: set[bytes] = set()
        self.number = 0
        peer = self.clients[0].peer
        peer.declare("q")
        for exchange in {exchange for exchange, _ in BINDINGS}:
            answer = peer.call("exchange.declare", 0, exchange, "topic", False, True, False, False, False, [])
            assert answer == [(1, "exchange.declare-ok", [])]
        self.settle()
        acts = [self.ack, self.ack_all, self.nack, self.reject, self.drop, self.consume, self.cancel, self.recover]
        self.actions = [self.publish] * 6 + [self.get, self.get_no_ack, self.bind, self.bind, self.unbind, *acts]
        self.actions += [self.qos, self.close_channel, self.lose]

    def _any(self) -> Client:
        return self.random.choice(self.clients)

    def _ask(self, client: Client, *data: bytes, no_ack: bool = False) -> list[Any]:
        """What comes back besides deliveries."""
        answers = client.peer.ask(*data)
        self._take(client, answers, no_ack)
        return [answer for answer in answers if not isinstance(answer[1], Content)]

    def _call(self, client: Client, name: str, *arguments: Any, no_ack: bool = False) -> list[Any]:
        return self._ask(client, call(1, name, *arguments), no_ack=no_ack)

    def _take(self, client: Client, answers: list[Any], no_ack: bool = False) -> None:
        for answer in answers:
            if isinstance(answer[1], Content):
                body, (tag, again) = answer[1].body, answer[1].arguments[answer[1].name == "basic.deliver" :][:2]
                assert body in self.expected, "invented"
                assert body not in self.done, "delivered after it was done"
                assert body not in {held for other in self.clients for held in other.held.values()}, "delivered twice"
                assert again or body not in self.seen, "delivered again without a word"
                self.seen.add(body)
                if no_ack:
                    self.done.add(body)
                else:
                    client.held[tag] = body

    def _some(self) -> tuple[Client, int] | None:
        """A client and a tag that it holds."""
        client = self._any()
        return (client, self.random.choice(sorted(client.held))) if client.held else None

    def publish(self) -> None:
        client = self._any()
        sent = [(self.random.choice(TOPICS), b"amqp%d" % (self.number + n)) for n in range(self.random.randrange(1, 4))]
        self.number += len(sent)
        for topic, body in sent:
            self.simulation.published(topic, body)
        frames = []
        for topic, body in sent:
            exchange, _, levels = topic.partition("/")
            address = ("", "q") if topic == "q" else (exchange, levels.replace("/", "."))
            frames.append(publish(1, *address, body, PERSISTENT))
        answers = self._ask(client, *frames)
        assert {name for _, name, _ in answers} == {"basic.ack"}

    def published(self, topic: str, payload: bytes) -> None:
        if topic == "q" or any(match_levels(BINDINGS[binding], topic) for binding in self.bound):
            self.expected[payload] = None

    def bind(self) -> None:
        exchange, key = binding = self.random.choice(list(BINDINGS))
        assert self._call(self._any(), "queue.bind", 0, "q", exchange, key, False, []) == [(1, "queue.bind-ok", [])]
        self.bound.add(binding)

    def unbind(self) -> None:
        exchange, key = binding = self.random.choice(list(BINDINGS))
        assert self._call(self._any(), "queue.unbind", 0, "q", exchange, key, []) == [(1, "queue.unbind-ok", [])]
        self.bound.discard(binding)

    def get(self) -> None:
        self._call(self._any(), "basic.get", 0, "q", False)

    def get_no_ack(self) -> None:
        self._call(self._any(), "basic.get", 0, "q", True, no_ack=True)

    def ack(self) -> None:
        if found := self._some():
            client, tag = found
            self.done.add(client.held.pop(tag))
            self._call(client, "basic.ack", tag, False)

    def ack_all(self) -> None:
        client = self._any()
        self.done.update(client.held.values())
        client.held.clear()
        self._call(client, "basic.ack", 0, True)

    def nack(self) -> None:
        if found := self._some():
            client, tag = found
            client.held = {other: body for other, body in client.held.items() if other > tag}
            self._call(client, "basic.nack", tag, True, True)

    def reject(self) -> None:
        if found := self._some():
            client, tag = found
            del client.held[tag]
            self._call(client, "basic.reject", tag, True)

    def drop(self) -> None:
        if found := self._some():
            client, tag = found
            self.done.add(client.held.pop(tag))
            self._call(client, "basic.reject", tag, False)

    def consume(self) -> None:
        client = self._any()
        if not client.consuming:
            client.consuming = True
            self._call(client, "basic.consume", 0, "q", "c", False, False, False, False, [])

    def cancel(self) -> None:
        client = self._any()
        client.consuming = False
        self._call(client, "basic.cancel", "c", False)

    def recover(self) -> None:
        client = self._any()
        client.held.clear()
        self._call(client, "basic.recover", True)

    def qos(self) -> None:
        self._call(self._any(), "basic.qos", 0, self.random.randrange(4), self.random.random() < 0.5)

    def close_channel(self) -> None:
        client = self._any()
        client.held.clear()
        client.consuming = False
        assert self._call(client, "channel.close", 200, "", 0, 0)[-1] == (1, "channel.close-ok", [])
        self._ask(client, call(1, "channel.open", ""), call(1, "confirm.select", False))

    def lose(self) -> None:
        index = self.random.randrange(len(self.clients))
        self.clients[index].peer.link.lose()
        self.clients[index].held.clear()
        self.settle()
        self.clients[index] = Client(self.random.choice(self.servers))

    def settle(self) -> None:
        """Both gateways, until neither has anything for the other."""
        while any(server.settle() for server in self.servers):
            pass

    def check(self) -> None:
        self.settle()
        for client in self.clients:
            self._take(client, parse(client.peer.link.take()))

    def restart(self) -> None:
        self.servers = [server.restart(self.simulation.port) for server in self.servers]
        self.lives += self.servers
        self.clients = [Client(self.random.choice(self.servers)) for _ in self.clients]

    def heal(self) -> None:
        for client in self.clients:
            client.peer.link.lose()
        self.settle()
        self.clients = [last] = [Client(self.servers[0])]
        waiting = [body for body in self.expected if body not in self.done]
        for body in waiting:
            self._call(last, "basic.get", 0, "q", True, no_ack=True)
            assert body in self.done, "lost, or out of its order"
        assert self._call(last, "basic.get", 0, "q", True) == [(1, "basic.get-empty", [""])]

    def close(self) -> None:
        """Let go of the files of every life."""
        for server in self.lives:
            if server.real is not None:
                server.real.close()
