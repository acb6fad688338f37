"""Routes of the broker that stand for bindings: of queues to the default exchange, of exchanges to queues and exchanges."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Protocol

from gantrymq.broker.port import Route
from gantrymq_gateways.amqp.exchanges.arguments import Rules
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE, DIRECT_TOPIC, KIND, local
from gantrymq_gateways.amqp.properties.mapping import topic_of


class NamedQueue(Protocol):
    """As definitions.QueueDefinition."""

    @property
    def name(self) -> str: ...

    @property
    def light(self) -> int: ...

    @property
    def shared(self) -> bool: ...


class Bound(Protocol):
    """As definitions.Binding."""

    @property
    def source(self) -> str: ...

    @property
    def to_queue(self) -> bool: ...

    @property
    def destination(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def arguments(self) -> bytes: ...


_text = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def route(route_id: str, topic: str, expression: dict[str, str], light: int) -> Route:
    """One that leads to a light queue; 0: to another exchange."""
    return Route(route_id, KIND, topic, _text(expression), light)


def alternate_id(exchange: str) -> str:
    """Id of the route to an exchange's alternate exchange."""
    return "amqp.a." + hashlib.sha256(exchange.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def default_routes(queue: NamedQueue) -> list[Route]:
    """The bindings that every queue has with the default exchange. Records of other doors come to a queue over the topic of its name, so
    one without a topic of its own has two, unless the server made its name."""
    expression = {"exchange": DEFAULT_EXCHANGE, "type": "default", "key": queue.name, "queue": queue.name}
    if queue.shared:
        return [route(f"amqp.q.{queue.light}", topic_of(queue.name), expression, queue.light)]
    routes = [route(f"amqp.q.{queue.light}", DIRECT_TOPIC, expression, queue.light)]
    if not local(queue.name).startswith("amq."):
        routes.append(route(f"amqp.n.{queue.light}", topic_of(queue.name), expression, queue.light))
    return routes


def expression_of(binding: Bound, rules: Rules) -> dict[str, str]:
    """What the broker's route says of a binding of an exchange with these rules."""
    expression = {"exchange": binding.source, "type": rules.routed, "key": binding.key}
    expression["queue" if binding.to_queue else "destination"] = binding.destination
    if rules.routed == "headers":
        expression["arguments"] = base64.b64encode(binding.arguments).decode()
    if rules.hash_header:
        expression["hash_header"] = rules.hash_header
    if rules.hash_property:
        expression["hash_property"] = rules.hash_property
    return expression
