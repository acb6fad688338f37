"""Routes of kind `mqtt`: topic filters over native topic and tag words, in tries walked without recursion.

Expression: a JSON array with the encoded words of the filter behind its first level, `+` and `#` being the wildcards (an
encoded word never holds them). The first level is the route's topic; None: any that wildcards may match. Or, of a gateway with
`mqtt.topic_rules`, an object of filter and rules: the rules travel with the route, for the broker has none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gantrymq.model import names
from gantrymq.model.dialect import quick_json
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.topics.mapping import filter_route, words_of
from gantrymq_gateways.mqtt.topics.rules import TopicRules, parse_ruled
from gantrymq_gateways.mqtt.wire.constants import TOPIC_LEVELS_MAX

KIND: Final = "mqtt"


ANY_TOPIC: Final = "\0"
"""In place of a topic: no topic contains it."""

SHARED_WORDS_MAX: Final = 4_096
"""Words of filters that are kept once, however many filters have them: the words of a fleet's topics beside the names of its devices."""


class _Node:
    """One level: routes that end here, routes that end here with `#`, and what is below: a level, or the number of the one filter that there is."""

    __slots__ = ("below", "ending", "rest")

    def __init__(self) -> None:
        self.below: dict[str, _Node | int] | None = None
        self.ending: dict[int, None] | None = None
        self.rest: dict[int, None] | None = None

    def is_empty(self) -> bool:
        return not (self.below or self.ending or self.rest)

    def hold(self, words: tuple[str, ...], at: int, number: int) -> None:
        """Take the first filter, of which the words from `at` on lie below."""
        if at == len(words):
            self.ending = {number: None}
        elif words[at] == "#":
            self.rest = {number: None}
        else:
            self.below = {words[at]: number}


class FilterTrie:
    """Numbers of filters by their words from the second on; `filters`: the words of each number. A filter that nothing branches off
    from has no levels of its own: most of a fleet's end so, each with the name of its device."""

    __slots__ = ("_filters", "root")

    def __init__(self, filters: Mapping[int, tuple[str, ...]]) -> None:
        self._filters = filters
        self.root = _Node()

    def add(self, number: int) -> None:
        words, node = self._filters[number], self.root
        for at in range(1, len(words)):
            word = words[at]
            if word == "#":
                if node.rest is None:
                    node.rest = {}
                node.rest[number] = None
                return
            if node.below is None:
                node.below = {}
            below = node.below.get(word)
            if below is None:
                node.below[word] = number
                return
            if isinstance(below, int):
                level = _Node()
                level.hold(self._filters[below], at + 1, below)
                node.below[word] = below = level
            node = below
        if node.ending is None:
            node.ending = {}
        node.ending[number] = None

    def remove(self, number: int) -> None:
        """Forget the number and every level that nobody needs any more."""
        words, node = self._filters[number], self.root
        path: list[tuple[dict[str, _Node | int], str]] = []
        nodes = [node]
        for word in words[1:]:
            if word == "#":
                break
            below = node.below.get(word) if node.below is not None else None
            if below is None or node.below is None:
                return
            if isinstance(below, int):
                if below == number:
                    del node.below[word]
                    self._prune(nodes, path)
                return
            path.append((node.below, word))
            node = below
            nodes.append(node)
        held = node.rest if words[-1] == "#" and len(words) > 1 else node.ending
        if held is not None:
            held.pop(number, None)
        self._prune(nodes, path)

    @staticmethod
    def _prune(nodes: list[_Node], path: list[tuple[dict[str, _Node | int], str]]) -> None:
        while path and nodes[-1].is_empty():
            nodes.pop()
            below, word = path.pop()
            del below[word]

    def match(self, words: list[str], found: list[int]) -> None:
        """Append the numbers of all filters that match the words of a tag.

        `#` also matches the level above it [MQTT 4.7.1.2]. At most two nodes per node and level are walked.
        """
        nodes = [self.root]
        for at, word in enumerate(words, 1):
            following: list[_Node] = []
            for node in nodes:
                if node.rest is not None:
                    found.extend(node.rest)
                levels = node.below
                if levels is None:
                    continue
                below = levels.get(word)
                if isinstance(below, _Node):
                    following.append(below)
                elif below is not None and fits(self._filters[below], words, at):
                    found.append(below)
                below = levels.get("+")
                if below is None:
                    continue
                if isinstance(below, _Node):
                    following.append(below)
                elif fits(self._filters[below], words, at):
                    found.append(below)
            if not following:
                return
            nodes = following
        for node in nodes:
            if node.rest is not None:
                found.extend(node.rest)
            if node.ending is not None:
                found.extend(node.ending)


def fits(filter_words: tuple[str, ...], words: list[str], at: int) -> bool:
    """Whether what a filter says behind its word `at` matches the words of a tag from `at` on: the filter's first word is its topic."""
    place = at
    for wanted in filter_words[at + 1 :]:
        if wanted == "#":
            return True
        if place == len(words) or (wanted != "+" and wanted != words[place]):
            return False
        place += 1
    return place == len(words)


class MqttRoutes:
    """The RouteSet of MQTT filters."""

    kind = KIND
    read_more = False

    def __init__(self) -> None:
        self._by_topic: dict[str, FilterTrie | int] = {}
        """The number alone, where a topic has one filter."""
        self._routes: dict[int, tuple[str, ...]] = {}
        """By number: topic and words."""
        self._any = FilterTrie(self._routes)
        self._shared: dict[str, str] = {}
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
        self._routes[number] = (ANY_TOPIC if topic is None else topic, *[self._once(word) for word in words])
        if topic is None:
            self._any.add(number)
            return False
        known = self._by_topic.get(topic)
        if known is None:
            self._by_topic[topic] = number
            return False
        if isinstance(known, int):
            only, known = known, FilterTrie(self._routes)
            known.add(only)
            self._by_topic[topic] = known
        known.add(number)
        return False

    def _once(self, word: str) -> str:
        if len(self._shared) < SHARED_WORDS_MAX:
            return self._shared.setdefault(word, word)
        return self._shared.get(word, word)

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
        words = self._routes.get(number)
        if words is None:
            for key, (_, routes) in list(self._ruled.items()):
                routes.remove(number)
                if not routes._routes:
                    del self._ruled[key]
            return
        topic = words[0]
        known = self._by_topic.get(topic)
        if topic == ANY_TOPIC:
            self._any.remove(number)
        elif isinstance(known, FilterTrie):
            known.remove(number)
            if known.root.is_empty():
                del self._by_topic[topic]
        else:
            del self._by_topic[topic]
        del self._routes[number]

    def match(self, message: Message) -> Iterable[int]:
        found: list[int] = []
        if self._routes or self._ruled:
            words = words_of(message.tag)
            self._find(message.topic, words, found)
            for rules, routes in self._ruled.values():
                routes._find(*rules.view(message.topic, words), found)
        return found

    def _find(self, topic: str, words: list[str], found: list[int]) -> None:
        known = self._by_topic.get(topic)
        if isinstance(known, FilterTrie):
            known.match(words, found)
        elif known is not None and fits(self._routes[known], words, 0):
            found.append(known)
        if not self._any.root.is_empty() and names.matches_wildcards(topic):
            self._any.match(words, found)


def parse_expression(expression: str) -> list[str]:
    """Words of a route expression; raises GantryError(ILLEGAL_ARGUMENT)."""
    try:
        words = quick_json(expression)
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
