"""AmqpRoutes: the exchange graph, for the broker's routing (entry-point group `gantrymq.routes`, kind `amqp`).

A route is one binding. Its expression is JSON: `{"exchange", "type", "key", "queue"}` into a queue, or with `destination` instead of
`queue` into another exchange; type `default` is the binding that every queue has with the default exchange, type `alternate` leads to
the exchange for what no binding wants. `arguments` (base64 of a table): of a headers binding; `hash_header`, `hash_property`: of a
consistent hash. Keys and words are compared as native tags. A record of another door counts as published to the exchange named like its
topic. A route's topic is that of its exchange; earlier versions had none.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gantrymq.model import names
from gantrymq.model.dialect import quick_json
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.multimap import MultiMap
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.exchanges.graph import Node, View, name_of_tag, split_keys
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE, DIRECT_TOPIC, KIND
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.queues.dead import AmqpDeadLetters
from gantrymq_gateways.amqp.wire.constants import AmqpError

PLACES_MAX: Final = 10_000
Place = tuple[str, str, str]
"""Of a route: type, topic of its exchange or empty, topic of the exchange that it leads to or empty."""

_BAD: Final = (ValueError, KeyError, TypeError, AttributeError, AmqpError, struct.error)


class AmqpRoutes:
    """See the module and `RouteSet`."""

    kind = KIND

    def __init__(self) -> None:
        self.read_more = False
        """As RouteSet.read_more."""
        self._exchanges: dict[str, Node] = {}
        """By native topic, which is one to one with the exchange's name."""
        self._sources: dict[str, dict[str, int]] = {}
        """By topic of an exchange: those with bindings to it, and how many."""
        self._default: MultiMap[str, int] = MultiMap()
        """Route numbers by the native topic of a queue's name."""
        self._direct: MultiMap[str, int] = MultiMap()
        """The same by the tag that stands for the queue in `DIRECT_TOPIC`."""
        self._where: dict[int, tuple[Place, str] | str] = {}
        """Number to its place and key; to the topic alone, of a binding with the default exchange that has a topic of its own."""
        self._places: dict[Place, Place] = {}
        """One object for all routes of a place, which are many; at most `PLACES_MAX`, then it begins anew."""
        self._renderer = Renderer({})
        self.dead_letters = AmqpDeadLetters(self._has_topic)
        """How the broker makes dead letters of AMQP queues."""

    @staticmethod
    def queue_name(rows: Callable[[str], Mapping[str, bytes]], light: int) -> str:
        """What an AMQP queue is called, by its binding with the default exchange; empty if the light queue is none."""
        row = rows("route").get(f"amqp.q.{light}")
        return str(json.loads(json.loads(row)[2]).get("queue", "")) if row is not None else ""

    def add(self, number: int, topic: str | None, expression: str) -> bool:
        """As RouteSet.add; `read_more` tells what a match has read."""
        try:
            parsed = quick_json(expression)
            exchange, kind, key = parsed["exchange"], parsed["type"], parsed["key"]
            destination = parsed.get("destination", "")
            target = names.encode_topic(destination) if destination else ""
            node = names.encode_topic(exchange)
            if kind == "default":
                if topic != DIRECT_TOPIC:
                    own = names.encode_topic(key)
                    if own == topic:
                        own = key = topic  # one object in all tables
                    self._default.add(own, number)
                if topic is None or topic == DIRECT_TOPIC:
                    self._direct.add(names.encode_word(key), number)
            else:
                found = self._exchanges.get(node) or Node()
                found.add(number, kind, key, target, parsed, expression)
                self._exchanges[node] = found
        except _BAD as error:
            text = f"AMQP route expression {expression[:200]!r} is not understood: {error}"
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text) from error
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        place = kind, node, target
        only = key is topic and kind == "default"
        self._where[number] = key if only else (self._places.setdefault(place, place), key)
        if target:
            sources = self._sources.setdefault(target, {})
            sources[node] = sources.get(node, 0) + 1
        return False

    def _has_topic(self, name: str) -> bool:
        """Whether the queue of that name has a topic of its own."""
        return names.encode_word(name) not in self._direct and names.encode_topic(name) in self._default

    def home(self, expression: str) -> str | None:
        """As RouteSet.home: a binding has its topic."""
        return None

    def leading_to(self, topic: str) -> Iterable[str]:
        """As RouteSet.leading_to: the exchanges from which messages come to this one, over others, too."""
        found: dict[str, None] = {}
        waiting = [topic]
        while waiting:
            for source in self._sources.get(waiting.pop(), ()):
                if source not in found:
                    found[source] = None
                    waiting.append(source)
        return found

    def remove(self, number: int) -> None:
        """As RouteSet.remove."""
        where = self._where.pop(number, None)
        if where is None:
            return
        if isinstance(where, str):
            self._default.discard(where, number)
            return
        (kind, node, target), key = where
        if kind == "default":
            self._default.discard(names.encode_topic(key), number)
            self._direct.discard(names.encode_word(key), number)
            return
        exchange = self._exchanges[node]
        exchange.remove(number, key)
        if exchange.empty():
            del self._exchanges[node]
        if target:
            sources = self._sources[target]
            sources[node] -= 1
            if not sources[node]:
                del sources[node]
            if not sources:
                del self._sources[target]

    def match(self, message: Message) -> Iterable[int]:
        """As RouteSet.match."""
        tag = message.tag
        exchange, further = split_keys(message.exchange)
        self.read_more = bool(further)
        if exchange == DEFAULT_EXCHANGE:
            return self._by_default(message, further)
        numbers: list[int] = []
        if exchange is None and not tag:
            numbers.extend(self._default.of(message.topic))
        start = self._exchanges.get(message.topic)
        if start is not None:
            self._walk(start, View(message, [tag, *further], self._renderer), numbers)
        return numbers

    def _by_default(self, message: Message, further: list[str]) -> Iterable[int]:
        direct = message.topic == DIRECT_TOPIC
        found = self._direct.of(message.tag) if direct else self._default.of(message.topic)
        if not further:
            return found
        numbers = list(found)
        for key in further:
            name = name_of_tag(key)
            numbers.extend(self._default.of(names.encode_topic(name)))
            numbers.extend(self._direct.of(names.encode_word(name)))
        return numbers

    def _walk(self, start: Node, view: View, numbers: list[int]) -> None:
        visited = {id(start)}
        waiting = [start]
        while waiting:
            for number, target in waiting.pop().find(view):
                if not target:
                    numbers.append(number)
                    continue
                following = self._exchanges.get(target)
                if following is not None and id(following) not in visited:
                    visited.add(id(following))
                    waiting.append(following)
        self.read_more = self.read_more or view.read_more
