"""Routes of kind `mqtt`: topic filters over native topic and tag words, in tries walked without recursion.

Expression: a JSON array with the encoded words of the filter behind its first level, `+` and `#` being the wildcards (an
encoded word never holds them). The first level is the route's topic; None: any that wildcards may match. Or, of a gateway with
`mqtt.topic_rules`, an object of filter and rules: the rules travel with the route, for the broker has none of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.topics.mapping import filter_route, words_of
from gantrymq_gateways.mqtt.topics.rules import TopicRules, parse_ruled
from gantrymq_gateways.mqtt.wire.constants import TOPIC_LEVELS_MAX

KIND: Final = "mqtt"


class _Node:
    """One level: routes that end here, routes that end here with `#`, and the levels below."""

    __slots__ = ("below", "ending", "rest")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.ending: dict[int, None] = {}
        self.rest: dict[int, None] = {}

    def is_empty(self) -> bool:
        return not (self.below or self.ending or self.rest)


class FilterTrie:
    """Filters as word lists -> numbers."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root = _Node()

    def add(self, words: list[str], number: int) -> None:
        node = self.root
        for word in words:
            if word == "#":
                node.rest[number] = None
                return
            below = node.below.get(word)
            if below is None:
                below = node.below[word] = _Node()
            node = below
        node.ending[number] = None

    def remove(self, words: list[str], number: int) -> None:
        """Forget the number and every level that nobody needs any more."""
        path: list[tuple[_Node, str]] = []
        node = self.root
        for word in words:
            if word == "#":
                break
            path.append((node, word))
            below = node.below.get(word)
            if below is None:
                return
            node = below
        if words and words[-1] == "#":
            node.rest.pop(number, None)
        else:
            node.ending.pop(number, None)
        while path and node.is_empty():
            node, word = path.pop()
            del node.below[word]

    def match(self, words: list[str], found: list[int]) -> None:
        """Append the numbers of all filters that match the words of a tag.

        `#` also matches the level above it [MQTT 4.7.1.2]. At most two nodes per node and level are walked.
        """
        nodes = [self.root]
        for word in words:
            following: list[_Node] = []
            for node in nodes:
                found.extend(node.rest)
                below = node.below.get(word)
                if below is not None:
                    following.append(below)
                below = node.below.get("+")
                if below is not None:
                    following.append(below)
            if not following:
                return
            nodes = following
        for node in nodes:
            found.extend(node.rest)
            found.extend(node.ending)


class MqttRoutes:
    """The RouteSet of MQTT filters."""

    kind = KIND
    read_more = False

    def __init__(self) -> None:
        self._by_topic: dict[str, FilterTrie] = {}
        self._any = FilterTrie()
        self._routes: dict[int, tuple[str | None, list[str]]] = {}
        self._ruled: dict[tuple[object, ...], tuple[TopicRules, MqttRoutes]] = {}
        """Routes with topic rules, by the rules: there is one configuration, or for a while two."""

    @staticmethod
    def queue_name(rows: Callable[[str], Mapping[str, bytes]], light: int) -> str:
        """The filter behind a light queue; empty if it is none of ours."""
        return rows("mqtt_filter").get(str(light), b"").partition(b"\0")[0].decode("utf-8", "replace")

    def add(self, number: int, topic: str | None, expression: str) -> bool:
        if expression.startswith("{"):
            rules, text = parse_ruled(expression)
            plain = filter_route(text)
            self.remove(number)
            _, routes = self._ruled.setdefault((rules.pairs, rules.levels), (rules, MqttRoutes()))
            return routes.add(number, *plain)
        words = parse_expression(expression)
        self.remove(number)
        self._routes[number] = (topic, words)
        if topic is None:
            self._any.add(words, number)
        else:
            self._by_topic.setdefault(topic, FilterTrie()).add(words, number)
        return False

    def home(self, expression: str) -> str | None:
        """As RouteSet.home: the native topic that rules give the filter."""
        if not expression.startswith("{"):
            return None
        rules, text = parse_ruled(expression)
        return rules.home_of(text)

    def leading_to(self, topic: str) -> Iterable[str]:
        """As RouteSet.leading_to: none."""
        return ()

    def remove(self, number: int) -> None:
        route = self._routes.pop(number, None)
        if route is None:
            for key, (_, routes) in list(self._ruled.items()):
                routes.remove(number)
                if not routes._routes:
                    del self._ruled[key]
            return
        topic, words = route
        if topic is None:
            self._any.remove(words, number)
            return
        trie = self._by_topic[topic]
        trie.remove(words, number)
        if trie.root.is_empty():
            del self._by_topic[topic]

    def match(self, message: Message) -> Iterable[int]:
        found: list[int] = []
        if self._routes or self._ruled:
            words = words_of(message.tag)
            self._find(message.topic, words, found)
            for rules, routes in self._ruled.values():
                routes._find(*rules.view(message.topic, words), found)
        return found

    def _find(self, topic: str, words: list[str], found: list[int]) -> None:
        trie = self._by_topic.get(topic)
        if trie is not None:
            trie.match(words, found)
        if not self._any.root.is_empty() and names.matches_wildcards(topic):
            self._any.match(words, found)


def parse_expression(expression: str) -> list[str]:
    """Words of a route expression; raises GantryError(ILLEGAL_ARGUMENT)."""
    try:
        words = json.loads(expression)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or "#" in words[:-1]:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"route expression {expression[:80]!r} is not a JSON array of tag words",
        )
    if len(words) > TOPIC_LEVELS_MAX:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"a filter of {len(words)} levels, at most {TOPIC_LEVELS_MAX} are allowed",
        )
    return words
