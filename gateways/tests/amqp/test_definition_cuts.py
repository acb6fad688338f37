"""A power cut at any moment of declarations, bindings and deletions: after the start each queue and binding has all that belongs to it, or nothing is left.

What makes one is written without waiting for each of its parts, so their order in the log is what the next start relies on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.procedures.driver import Steps, run
from gantrymq_gateways.amqp.definitions import GROUP, DefinitionLimits, Definitions
from gantrymq_gateways.amqp.exchanges.bindings import default_routes
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.rows import QUEUE_TABLE, Binding, Exchange, QueueDefinition
from gantrymq_gateways.amqp.wire.values import Field, encode_table
from tests.broker.node import Node
from tests.store.crash_states import CrashFiles, cut_everywhere

TTL = encode_table([("x-message-ttl", Field("l", 60_000))])
EXCHANGE = Exchange("e", "topic")
REFUSED = GantryError(ErrorCode.BUSY, "later")


class AmqpNode(Node):
    routes: Mapping[str, Callable[[], Any]] = {"amqp": AmqpRoutes}

    def __init__(self, files: CrashFiles) -> None:
        super().__init__(files, sync=False)
        self.definitions = Definitions(
            self.port, DefinitionLimits(), lambda queue: None, lambda: None, lambda vhost: None,
            lambda token, on_done: on_done(token, None),
        )  # fmt: skip
        self.do(self.definitions.start())

    def do(self, steps: Steps) -> Any:
        ends: list[Any] = []
        run(steps, ends.append)
        self.turn.run_until_quiet()
        (end,) = ends
        return end


def queue_of(name: str, arguments: bytes = b"", durable: bool = True) -> QueueDefinition:
    return QueueDefinition(name, 0, durable, False, False, arguments)


class Story:
    def __init__(self, files: CrashFiles, seed: int) -> None:
        self.files = files
        self.lot = random.Random(seed)

    def run(self) -> None:
        node = AmqpNode(self.files)
        definitions = node.definitions
        node.do(definitions.create_exchange(EXCHANGE))
        for number in range(6):
            name = f"q{number % 3}"
            known = definitions.queues.get(name)
            if known is not None:
                node.do(definitions.delete_queue(known))
            made, _ = node.do(definitions.create_queue(queue_of(name, TTL if number % 2 else b"")))
            for key in ("a", "b"):
                binding = Binding("e", True, name, key, b"")
                node.do(definitions.bind(binding, EXCHANGE, made.light))
            node.do(definitions.unbind(Binding("e", True, name, "a", b"")))
            if self.lot.random() < 0.5:
                node.flush()
            if self.lot.random() < 0.3:
                node.background()

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        node = AmqpNode(files)
        definitions, broker = node.definitions, node.broker
        routes = set(broker.tables.rows("route")) - {key for key in broker.tables.rows("route") if key[:7] == "amqp.a."}
        wanted = {"amqp.b." + binding.row for binding in definitions.bindings()}
        for queue in definitions.queues.values():
            assert queue.finished
            wanted |= {route.route_id for route in default_routes(queue)}
            cursor = broker.cursors.find(f"~{queue.light}", GROUP)
            assert cursor is not None
            assert (cursor.managed is not None) == (queue.arguments == TTL), "its policy"
        assert routes == wanted
        for binding in definitions.bindings():
            assert binding.destination in definitions.queues


def test_a_cut_leaves_nothing_half_done() -> None:
    cut_everywhere(lambda files: Story(files, 1), 1, 5)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [2, 3])
def test_a_cut_at_each_moment_leaves_nothing_half_done(seed: int) -> None:
    cut_everywhere(lambda files: Story(files, seed), seed, 1)


def test_parts_are_written_in_the_order_in_which_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A declaration takes three appends; a binding and a deletion take one. `-` before a row that goes, `.` behind one that is finished."""
    node = AmqpNode(CrashFiles())
    definitions = node.definitions
    node.do(definitions.create_exchange(EXCHANGE))
    node.do(definitions.create_queue(queue_of("q")))
    node.do(definitions.delete_queue(definitions.queues["q"]))
    appends: list[list[str]] = []
    append = node.store.append

    def noting(batch: list[Message], *rest: Any) -> Any:
        appends.append([word_of(message) for message in batch])
        return append(batch, *rest)

    monkeypatch.setattr(node.store, "append", noting)
    made, _ = node.do(definitions.create_queue(queue_of("q")))
    node.do(definitions.bind(Binding("e", True, "q", "k", b""), EXCHANGE, made.light))
    node.do(definitions.unbind(Binding("e", True, "q", "k", b"")))
    node.do(definitions.bind(Binding("e", True, "q", "k", b""), EXCHANGE, made.light))
    node.do(definitions.delete_queue(definitions.queues["q"]))
    assert appends == [
        ["light", "light"],
        ["amqp_queue", "cursor", "cursor"],
        ["route", "amqp_queue."],
        ["amqp_binding", "route", "amqp_binding."],
        ["amqp_binding", "-route", "-amqp_binding"],
        ["amqp_binding", "route", "amqp_binding."],
        ["amqp_queue", "-light", "-route", "-route", "-cursor", "-amqp_binding", "-amqp_queue"],
    ]


def word_of(message: Message) -> str:
    """A row's table."""
    table = message.topic.removeprefix(names.SYSTEM_PREFIX)
    if not message.body:
        return "-" + table
    finished = table in ("amqp_queue", "amqp_binding") and b'"finished":false' not in message.body
    return table + ("." if finished else "")


def test_what_is_refused_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that the broker refuses: the binding's row is not finished, and neither is a queue's."""
    node = AmqpNode(CrashFiles())
    definitions = node.definitions
    node.do(definitions.create_exchange(EXCHANGE))
    made, _ = node.do(definitions.create_queue(queue_of("q")))

    def refuse(self: Any, route: Any, token: Any, on_done: Any) -> None:
        on_done(token, REFUSED)

    monkeypatch.setattr(type(node.port), "add_route", refuse)
    assert node.do(definitions.bind(Binding("e", True, "q", "k", b""), EXCHANGE, made.light)) is REFUSED
    assert definitions.bindings() == []
    assert node.do(definitions.create_queue(queue_of("other"))) is REFUSED
    assert not definitions.queues["other"].finished
    monkeypatch.undo()
    again = AmqpNode(node.files.after_process_crash())  # type: ignore[arg-type]
    assert list(again.definitions.queues) == ["q"]
    assert again.definitions.bindings() == []
    assert set(again.broker.tables.rows(QUEUE_TABLE)) == {"q"}
