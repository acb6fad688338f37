"""Random histories: nothing confirmed is lost or invented, whatever channels and connections do; and garbage never escapes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq_gateways.amqp.wire.codec import method_frame
from gantrymq_gateways.amqp.wire.constants import METHODS
from gateways.tests.amqp.peer import Content, Peer, Server, call, parse, publish
from gateways.tests.amqp.wire.test_codec import SAMPLES

OPERATIONS = (
    "publish", "publish", "publish", "get", "get no_ack", "ack", "ack all", "nack", "reject", "drop", "consume", "cancel",
    "recover", "close channel", "lose connection", "qos",
)  # fmt: skip


class Client:
    """One connection with one channel, and what it holds."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.open()

    def open(self) -> None:
        self.peer: Peer = self.server.client()
        self.peer.call("confirm.select", False)
        self.held: dict[int, bytes] = {}
        self.consuming = False


class World:
    """Some clients, one queue, and a ledger of what became of every message."""

    def __init__(self, mode: str) -> None:
        self.server = Server(mode=mode)
        self.clients = [Client(self.server) for _ in range(3)]
        self.clients[0].peer.declare("q")
        self.number = 0
        self.confirmed: set[bytes] = set()
        self.done: set[bytes] = set()

    def take(self, client: Client, messages: list[Any], no_ack: bool = False) -> None:
        for item in messages:
            if isinstance(item[1], Content):
                body = item[1].body
                assert body in self.confirmed, "invented"
                assert body not in self.done, "delivered after it was done"
                if no_ack:
                    self.done.add(body)
                else:
                    client.held[item[1].arguments[1 if item[1].name == "basic.deliver" else 0]] = body

    def collect(self) -> None:
        """What consumers were sent meanwhile."""
        self.server.settle()
        for client in self.clients:
            self.take(client, parse(client.peer.link.take()))

    def step(self, operation: str, client: Client, pick: int) -> None:
        peer = client.peer
        tag = sorted(client.held)[pick % len(client.held)] if client.held else 0
        match operation:
            case "publish":
                body = b"%d" % self.number
                self.number += 1
                self.confirmed.add(body)
                self.take(client, peer.ask(publish(1, "", "q", body)))
            case "get" | "get no_ack":
                self.take(client, peer.call("basic.get", 0, "q", operation != "get"), operation != "get")
            case "ack" if tag:
                self.done.add(client.held.pop(tag))
                self.take(client, peer.call("basic.ack", tag, False))
            case "ack all":
                self.done.update(client.held.values())
                client.held.clear()
                self.take(client, peer.call("basic.ack", 0, True))
            case "nack" if tag:
                for other in [other for other in client.held if other <= tag]:
                    del client.held[other]
                self.take(client, peer.call("basic.nack", tag, True, True))
            case "reject" if tag:
                del client.held[tag]
                self.take(client, peer.call("basic.reject", tag, True))
            case "drop" if tag:
                self.done.add(client.held.pop(tag))
                self.take(client, peer.call("basic.reject", tag, False))
            case "consume" if not client.consuming:
                client.consuming = True
                self.take(client, peer.call("basic.consume", 0, "q", "c", False, False, False, False, []))
            case "cancel":
                client.consuming = False
                self.take(client, peer.call("basic.cancel", "c", False))
            case "recover":
                client.held.clear()
                self.take(client, peer.call("basic.recover", True))
            case "qos":
                self.take(client, peer.call("basic.qos", 0, pick % 4, pick % 8 >= 4))
            case "close channel":
                client.held.clear()
                client.consuming = False
                out = peer.ask(call(1, "channel.close", 200, "", 0, 0))
                assert out[-1] == (1, "channel.close-ok", [])
                peer.ask(call(1, "channel.open", ""), call(1, "confirm.select", False))
            case "lose connection":
                peer.link.lose()
                client.open()
        self.collect()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["immediate", "late", "shuffled"]),
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2), st.integers(0, 7)), max_size=40),
)
def test_nothing_is_lost_and_nothing_invented(mode: str, steps: list[tuple[str, int, int]]) -> None:
    world = World(mode)
    for operation, index, pick in steps:
        world.step(operation, world.clients[index], pick)
    for client in world.clients:
        client.peer.link.lose()
    world.server.settle()
    last = Client(world.server)
    while True:
        ((_, got),) = [item[-2:] for item in last.peer.ask(call(1, "basic.get", 0, "q", True))] or [(0, 0)]
        if not isinstance(got, Content):
            break
        assert got.body in world.confirmed - world.done
        world.done.add(got.body)
    assert world.done == world.confirmed


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(METHODS)), max_size=12), st.binary(max_size=30))
def test_any_methods_in_any_order_are_answered(names: list[str], garbage: bytes) -> None:
    server = Server()
    peer = server.client(1, 2)
    for name in names:
        method = METHODS[name]
        arguments = tuple("q" if letter == "s" else [] if letter == "F" else SAMPLES[letter] for letter in method.spec)
        peer.raw(method_frame(1 if method.class_id != 10 else 0, method, arguments))
    peer.raw(garbage)
    assert server.client().declare("other") == [(1, "queue.declare-ok", ["other", 0, 0])]
