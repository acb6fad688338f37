"""AmqpRoutes: the exchange graph, for the broker's routing (entry-point group `gantrymq.routes`, kind `amqp`).

A route is one binding. Its expression is JSON: `{"exchange", "type", "key", "queue"}` into a queue, or with `destination` instead of
`queue` into another exchange; type `default` is the binding that every queue has with the default exchange. Keys and words are
compared as native tags. A record of another door counts as published to the exchange named like its topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, TypeVar

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message

_Value = TypeVar("_Value")

KIND: Final = "amqp"
DEFAULT_EXCHANGE: Final = "(default)"
"""The default exchange in `Message.exchange` and in expressions: its own name is empty."""

DIRECT_TOPIC: Final = "rmq_sys_amqp_direct"
"""Where records for queues without a topic of their own lie (exclusive, auto-delete, not durable, server-named): tag = queue."""


def tag_of(key: str) -> str:
    """Native tag of a routing key: words between the dots; an empty key has none. Raises NAME_INVALID."""
    return names.encode_tag(key.split(".")) if key else ""


def pattern_of(key: str) -> tuple[str, ...]:
    """Words of a topic binding key, encoded; `#` next to `#` says nothing new and would cost time."""
    words: list[str] = []
    for word in key.split(".") if key else []:
        if word == "#":
            if not words or words[-1] != "#":
                words.append(word)
        else:
            words.append(word if word == "*" else names.encode_word(word))
    return tuple(words)


def matches(pattern: tuple[str, ...], words: list[str]) -> bool:
    """Whether a topic pattern matches; `*` is one word, `#` any number. At most pattern x words steps."""
    p = w = 0
    restart = -1
    restart_word = 0
    while w < len(words):
        if p < len(pattern) and pattern[p] == "#":
            restart, restart_word = p, w
            p += 1
        elif p < len(pattern) and (pattern[p] == "*" or pattern[p] == words[w]):
            p += 1
            w += 1
        elif restart >= 0:
            restart_word += 1
            p, w = restart + 1, restart_word
        else:
            return False
    while p < len(pattern) and pattern[p] == "#":
        p += 1
    return p == len(pattern)


class _Exchange:
    """Bindings of one exchange, by how they are found. A target is a route number, and the topic of the exchange that it leads to."""

    __slots__ = ("any_start", "by_key", "by_start", "everything")

    def __init__(self) -> None:
        self.everything: dict[int, str] = {}
        self.by_key: dict[str, dict[int, str]] = {}
        self.by_start: dict[str, dict[int, tuple[tuple[str, ...], str]]] = {}
        """Patterns whose first word is no wildcard, by that word."""
        self.any_start: dict[int, tuple[tuple[str, ...], str]] = {}

    def empty(self) -> bool:
        return not (self.everything or self.by_key or self.by_start or self.any_start)

    def find(self, tag: str) -> list[tuple[int, str]]:
        found = list(self.everything.items())
        exact = self.by_key.get(tag)
        if exact is not None:
            found.extend(exact.items())
        if self.by_start or self.any_start:
            words = tag.split(".") if tag else []
            patterns = list(self.any_start.items())
            if words and words[0] in self.by_start:
                patterns.extend(self.by_start[words[0]].items())
            found.extend([(number, target) for number, (pattern, target) in patterns if matches(pattern, words)])
        return found


class AmqpRoutes:
    """See the module and `RouteSet`."""

    kind = KIND

    def __init__(self) -> None:
        self._exchanges: dict[str, _Exchange] = {}
        """By native topic, which is one to one with the exchange's name."""
        self._default: dict[str, dict[int, None]] = {}
        """Route numbers by the native topic of a queue's name."""
        self._direct: dict[str, dict[int, None]] = {}
        """The same by the tag that stands for the queue in `DIRECT_TOPIC`."""
        self._where: dict[int, tuple[str, str, str]] = {}
        """Number to (type, exchange topic or empty, key)."""

    def add(self, number: int, topic: str | None, expression: str) -> bool:
        """As RouteSet.add; bindings read topic, exchange and tag only."""
        try:
            parsed = json.loads(expression)
            exchange, kind, key = parsed["exchange"], parsed["type"], parsed["key"]
            destination = parsed.get("destination", "")
            target = names.encode_topic(destination) if destination else ""
            node = names.encode_topic(exchange)
            if kind == "default":
                self._default.setdefault(names.encode_topic(key), {})[number] = None
                self._direct.setdefault(names.encode_word(key), {})[number] = None
            elif kind == "fanout":
                self._exchange(node).everything[number] = target
            elif kind == "direct":
                self._exchange(node).by_key.setdefault(tag_of(key), {})[number] = target
            elif kind == "topic":
                self._add_pattern(node, number, key, target)
            else:
                raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"exchange type {kind!r} is not known")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"AMQP route expression {expression[:200]!r} is not understood: {error}"
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text) from error
        self._where[number] = (kind, node, key)
        return False

    def _exchange(self, node: str) -> _Exchange:
        found = self._exchanges.get(node)
        if found is None:
            found = self._exchanges[node] = _Exchange()
        return found

    def _add_pattern(self, node: str, number: int, key: str, target: str) -> None:
        exchange = self._exchange(node)
        pattern = pattern_of(key)
        if "*" not in pattern and "#" not in pattern:
            exchange.by_key.setdefault(tag_of(key), {})[number] = target
        elif pattern[0] in ("*", "#"):
            exchange.any_start[number] = (pattern, target)
        else:
            exchange.by_start.setdefault(pattern[0], {})[number] = (pattern, target)

    def home(self, expression: str) -> str | None:
        """As RouteSet.home: a binding has its topic."""
        return None

    def remove(self, number: int) -> None:
        """As RouteSet.remove."""
        where = self._where.pop(number, None)
        if where is None:
            return
        kind, node, key = where
        if kind == "default":
            _drop(self._default, names.encode_topic(key), number)
            _drop(self._direct, names.encode_word(key), number)
            return
        exchange = self._exchanges[node]
        exchange.everything.pop(number, None)
        exchange.any_start.pop(number, None)
        _drop(exchange.by_key, tag_of(key), number)
        pattern = pattern_of(key)
        if pattern:
            _drop(exchange.by_start, pattern[0], number)
        if exchange.empty():
            del self._exchanges[node]

    def match(self, message: Message) -> Iterable[int]:
        """As RouteSet.match."""
        exchange = message.exchange
        tag = message.tag
        if exchange == DEFAULT_EXCHANGE:
            if message.topic == DIRECT_TOPIC:
                return self._direct.get(tag, ())
            return self._default.get(message.topic, ())
        start = self._exchanges.get(message.topic)
        numbers: list[int] = []
        if exchange is None and not tag:
            numbers.extend(self._default.get(message.topic, ()))
        if start is None:
            return numbers
        visited = {message.topic}
        waiting = [start]
        while waiting:
            for number, target in waiting.pop().find(tag):
                if not target:
                    numbers.append(number)
                elif target not in visited:
                    visited.add(target)
                    following = self._exchanges.get(target)
                    if following is not None:
                        waiting.append(following)
        return numbers


def _drop(index: dict[str, dict[int, _Value]], key: str, number: int) -> None:
    numbers = index.get(key)
    if numbers is not None and number in numbers:
        del numbers[number]
        if not numbers:
            del index[key]
