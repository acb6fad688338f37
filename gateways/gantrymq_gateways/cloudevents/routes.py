"""EventRoutes: which events webhook subscriptions want, decided when they are stored (entry-point group `gantrymq.routes`, kind `events`).

A route is the filter of one subscription. Its expression is JSON: `types`, `source`, `filters` as in the subscription's document, `id` of the
subscription, `self` and `name`: `source` of messages that were no events, and what their topic is called, for their attributes. A route stands
under the values of one attribute that it asks for exactly, or under a prefix or suffix if there is none or many ask for the same, so that an event
meets only routes that it may match; routes with neither are tried one by one. What a message that was no event is called (`id`, `time`) is known behind the append: conditions on
these are left to whoever delivers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents.mapping import LATE_ATTRIBUTES, attributes_before
from gantrymq_gateways.cloudevents.rules.filters import Attributes, Test, compile_filters, names_in

KIND: Final = "events"

Key = tuple[str, str]
"""An attribute and a value, or the beginning or end of one."""

AFFIX_CROWD: Final = 8
"""As many routes are tried in the time that prefixes or suffixes of one more length cost."""


@dataclass(slots=True)
class _Condition:
    """One of the conditions that must all hold. `keys`: where a route may stand for it, if `dialect` is one of those that are indexed."""

    test: Test
    dialect: str
    keys: tuple[Key, ...]
    is_late: bool


class _Route:
    """`tests`: what is left to try when it was found; `known`: the same without what is known late."""

    __slots__ = ("dialect", "keys", "known", "number", "tests")

    def __init__(self, number: int, chosen: _Condition | None, conditions: list[_Condition]) -> None:
        self.number = number
        self.dialect = chosen.dialect if chosen is not None else ""
        self.keys = chosen.keys if chosen is not None else ()
        self.tests = tuple([each.test for each in conditions if each is not chosen])
        self.known = tuple([each.test for each in conditions if each is not chosen and not each.is_late])


Bucket = dict[int, _Route]


class _Affixes:
    """Routes by the beginning or the end of one attribute, by how long it is."""

    __slots__ = ("by_length", "is_prefix")

    def __init__(self, is_prefix: bool) -> None:
        self.is_prefix = is_prefix
        self.by_length: dict[int, dict[str, Bucket]] = {}

    def bucket(self, text: str) -> Bucket:
        return self.by_length.setdefault(len(text), {}).setdefault(text, {})

    def crowd(self, text: str) -> int:
        """How many stand under it."""
        return len(self.by_length.get(len(text), {}).get(text, ()))

    def discard(self, text: str, number: int) -> None:
        buckets = self.by_length[len(text)]
        bucket = buckets[text]
        bucket.pop(number, None)
        if not bucket:
            del buckets[text]
        if not buckets:
            del self.by_length[len(text)]

    def find(self, value: str, found: list[Bucket]) -> None:
        for length, buckets in self.by_length.items():
            bucket = buckets.get(value[:length] if self.is_prefix else value[-length:])
            if bucket is not None:
                found.append(bucket)


class _TopicRoutes:
    """The routes of one topic and one pair of `self` and `name`."""

    __slots__ = ("affixes", "exact", "names", "rest", "routes", "source")

    def __init__(self, source: str, names: dict[str, str]) -> None:
        self.source = source
        self.names = names
        self.routes: Bucket = {}
        self.exact: dict[str, dict[str, Bucket]] = {}
        self.affixes: dict[tuple[str, str], _Affixes] = {}
        """By dialect and attribute."""
        self.rest: Bucket = {}

    def add(self, number: int, conditions: list[_Condition]) -> None:
        route = self.routes[number] = _Route(number, self._chosen(conditions), conditions)
        if not route.keys:
            self.rest[number] = route
        for name, value in route.keys:
            if route.dialect == "exact":
                self.exact.setdefault(name, {}).setdefault(value, {})[number] = route
            else:
                place = (route.dialect, name)
                affixes = self.affixes.get(place) or _Affixes(route.dialect == "prefix")
                affixes.bucket(value)[number] = route
                self.affixes[place] = affixes

    def _chosen(self, conditions: list[_Condition]) -> _Condition | None:
        """The condition that the fewest others stand under; exact ones before prefixes and suffixes, of which the longest, unless it gets crowded."""
        best: tuple[int, int] | None = None
        chosen = None
        for condition in conditions:
            if not condition.keys or condition.is_late:
                continue
            if condition.dialect == "exact":
                rank = (sum([len(self.exact.get(name, {}).get(value, ())) + 1 for name, value in condition.keys]), 0)
            else:
                name, value = condition.keys[0]
                affixes = self.affixes.get((condition.dialect, name))
                rank = (AFFIX_CROWD + (affixes.crowd(value) if affixes is not None else 0), -len(value))
            if best is None or rank <= best:  # Of equals the later: filters tell more apart than types.
                best, chosen = rank, condition
        return chosen

    def remove(self, number: int) -> None:
        route = self.routes.pop(number)
        self.rest.pop(number, None)
        for name, value in route.keys:
            if route.dialect == "exact":
                values = self.exact[name]
                values[value].pop(number, None)
                if not values[value]:
                    del values[value]
                if not values:
                    del self.exact[name]
            else:
                affixes = self.affixes[route.dialect, name]
                affixes.discard(value, number)
                if not affixes.by_length:
                    del self.affixes[route.dialect, name]

    def match(self, message: Message, numbers: list[int]) -> None:
        attributes, is_late = attributes_before(message, self.source, self.names)
        found: list[Bucket] = [self.rest] if self.rest else []
        for name, values in self.exact.items():
            value = attributes.get(name)
            if value is not None and (bucket := values.get(value)) is not None:
                found.append(bucket)
        for (_, name), affixes in self.affixes.items():
            value = attributes.get(name)
            if value:
                affixes.find(value, found)
        for bucket in found:
            for number, route in bucket.items():
                tests = route.known if is_late else route.tests
                if not tests or _hold(tests, attributes):
                    numbers.append(number)


def _hold(tests: tuple[Test, ...], attributes: Attributes) -> bool:
    return all(test(attributes) for test in tests) if len(tests) > 1 else tests[0](attributes)


class EventRoutes:
    """See the module and `RouteSet`."""

    kind = KIND
    read_more = False

    def __init__(self) -> None:
        self._topics: dict[str, dict[tuple[str, str], _TopicRoutes]] = {}
        self._where: dict[int, tuple[str, tuple[str, str]]] = {}

    @staticmethod
    def queue_name(rows: Callable[[str], Mapping[str, bytes]], light: int) -> str:
        """The subscription behind a light queue; empty if it is none of ours."""
        row = rows("route").get(route_id(light))
        return str(json.loads(json.loads(row)[2]).get("id", "")) if row is not None else ""

    def add(self, number: int, topic: str | None, expression: str) -> bool:
        """As RouteSet.add: attributes are properties."""
        try:
            parsed = json.loads(expression)
            own, name = parsed["self"], parsed["name"]
            conditions = _conditions(parsed["types"], parsed["source"], parsed["filters"])
            if topic is None or not isinstance(own, str) or not isinstance(name, str):
                raise ValueError("it needs a topic, and texts as self and name")
        except (ValueError, KeyError, TypeError, AttributeError, GantryError) as error:
            text = f"route expression {expression[:200]!r} is not understood: {error}"
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text) from error
        self.remove(number)
        kinds = self._topics.setdefault(topic, {})
        routes = kinds.get((own, name))
        if routes is None:
            routes = kinds[own, name] = _TopicRoutes(own, {topic: name} if name else {})
        routes.add(number, conditions)
        self._where[number] = (topic, (own, name))
        return True

    def home(self, expression: str) -> str | None:
        """As RouteSet.home: a route has its topic."""
        return None

    def leading_to(self, topic: str) -> Iterable[str]:
        """As RouteSet.leading_to: none."""
        return ()

    def remove(self, number: int) -> None:
        """As RouteSet.remove."""
        where = self._where.pop(number, None)
        if where is None:
            return
        topic, kind = where
        kinds = self._topics[topic]
        kinds[kind].remove(number)
        if not kinds[kind].routes:
            del kinds[kind]
        if not kinds:
            del self._topics[topic]

    def match(self, message: Message) -> Iterable[int]:
        """As RouteSet.match."""
        kinds = self._topics.get(message.topic)
        if kinds is None:
            return ()
        numbers: list[int] = []
        for routes in kinds.values():
            routes.match(message, numbers)
        return numbers


def route_id(light: int) -> str:
    """Id of the route into a subscription's queue."""
    return f"events/{light}"


def expression_of(document: Mapping[str, Any], subscription_id: str, source: str, name: str) -> str:
    """What a route says of a subscription's document. `source`: of messages that were no events; `name`: the topic's foreign name where it
    cannot be told from the native one, else empty."""
    wanted = {
        "types": document.get("types", []),
        "source": document.get("source", ""),
        "filters": document.get("filters", []),
        "id": subscription_id,
        "self": source,
        "name": name,
    }
    return json.dumps(wanted, separators=(",", ":"), ensure_ascii=False)


def _conditions(types: list[str], source: str, filters: list[Any]) -> list[_Condition]:
    """All that must hold, taken apart as far as it can be indexed. Raises FilterError, TypeError."""
    compile_filters(filters)
    found: list[_Condition] = []
    if types:
        kinds = frozenset(types)
        found.append(
            _Condition(
                lambda at: at["type"] in kinds, "exact", tuple([("type", kind) for kind in sorted(kinds)]), False
            )
        )
    if source:
        found.append(_condition({"exact": {"source": source}}))
    waiting = list(reversed(filters))
    while waiting:
        expression = waiting.pop()
        dialect, argument = next(iter(expression.items()))
        if dialect == "all":
            waiting.extend(reversed(argument))
        elif dialect in ("exact", "prefix", "suffix"):
            found.extend([_condition({dialect: {name: value}}) for name, value in argument.items()])
        else:
            found.append(_condition(expression))
    return found


def _condition(expression: dict[str, Any]) -> _Condition:
    test = compile_filters([expression])
    if test is None:
        raise TypeError("an empty filter")
    dialect, argument = next(iter(expression.items()))
    is_late = not LATE_ATTRIBUTES.isdisjoint(names_in(expression))
    if dialect in ("exact", "prefix", "suffix"):
        return _Condition(test, dialect, tuple(argument.items()), is_late)
    if dialect == "any":
        alternatives = [tuple(each.get("exact", {}).items()) for each in argument]
        if all(len(each) == 1 for each in alternatives):
            return _Condition(test, "exact", tuple(dict.fromkeys([each[0] for each in alternatives])), is_late)
    return _Condition(test, dialect, (), is_late)
