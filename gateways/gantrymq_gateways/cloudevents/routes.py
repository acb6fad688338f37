"""EventRoutes: which events webhook subscriptions want, decided when they are stored (entry-point group `gantrymq.routes`, kind `events`).

A route is the filter of one subscription. Its expression is JSON: `types`, `source`, `filters` as in the subscription's document, `id` of the
subscription, `self` and `name`: `source` of messages that were no events, and what their topic is called, for their attributes. `not` is moved inwards
and the filter taken apart into conditions that must all hold. A route stands under the values, prefixes or suffixes that one of them asks for, best an
exact value that few others ask for, so that an event meets only routes that it may match. Routes of one place that share a condition, as any that have
`not` alone, are a group that is tried once: those that tell themselves apart by what they do not want match nearly all. What a message that was no event
is called (`id`, `time`) is known behind the append: conditions on these are left to whoever delivers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents.mapping import LATE_ATTRIBUTES, attributes_before
from gantrymq_gateways.cloudevents.rules.filters import COMPARISONS, Attributes, Test, compile_filters, names_in

KIND: Final = "events"

Key = tuple[str, str, str]
"""A dialect (exact, prefix or suffix), an attribute, and its value or the beginning or end of it."""

AFFIX_CROWD: Final = 8
"""As many routes are tried in the time that prefixes or suffixes of one more length cost."""


@dataclass(slots=True)
class _Condition:
    """One of the conditions that must all hold. `text`: the same for the same condition of others; `keys`: where a route may stand for it, none
    if it is of a kind that is not indexed."""

    test: Test
    text: str
    keys: tuple[Key, ...]
    is_late: bool


class _Route:
    """`shared`: text of the condition that is tried for its whole group, empty if none is; `tests`: what is then left to try; `known`: the same
    without what is known late; `texts`: of all conditions that were left when it was found."""

    __slots__ = ("keys", "known", "number", "shared", "tests", "texts")

    def __init__(self, number: int, keys: tuple[Key, ...], left: list[_Condition], shared: _Condition | None) -> None:
        self.number = number
        self.keys = keys
        self.shared = shared.text if shared is not None else ""
        self.texts = tuple([each.text for each in left])
        self.tests = tuple([each.test for each in left if each is not shared])
        self.known = tuple([each.test for each in left if each is not shared and not each.is_late])


class _Group:
    """Routes of one place that share a condition, which comes first; without one there is nothing to try for all."""

    __slots__ = ("routes", "test")

    def __init__(self, test: Test | None) -> None:
        self.test = test
        self.routes: dict[int, _Route] = {}


class _Place:
    """Routes that are found together."""

    __slots__ = ("groups", "size")

    def __init__(self) -> None:
        self.groups: dict[str, _Group] = {}
        """By text of the condition."""
        self.size = 0

    def add(self, route: _Route, test: Test | None) -> None:
        group = self.groups.get(route.shared)
        if group is None:
            group = self.groups[route.shared] = _Group(test)
        group.routes[route.number] = route
        self.size += 1

    def discard(self, route: _Route) -> None:
        routes = self.groups[route.shared].routes
        del routes[route.number]
        self.size -= 1
        if not routes:
            del self.groups[route.shared]

    def match(self, attributes: Attributes, is_late: bool, numbers: list[int]) -> None:
        for group in self.groups.values():
            if group.test is not None and not group.test(attributes):
                continue
            for number, route in group.routes.items():
                tests = route.known if is_late else route.tests
                if not tests or _hold(tests, attributes):
                    numbers.append(number)


class _Values:
    """Places by the value of one attribute, or by its beginning or end: then by how long that is, too."""

    __slots__ = ("by_length", "dialect")

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.by_length: dict[int, dict[str, _Place]] = {}

    def _length(self, text: str) -> int:
        return len(text) if self.dialect != "exact" else 0

    def place(self, text: str) -> _Place:
        return self.by_length.setdefault(self._length(text), {}).setdefault(text, _Place())

    def crowd(self, text: str) -> int:
        """How many stand under it."""
        place = self.by_length.get(self._length(text), {}).get(text)
        return place.size if place is not None else 0

    def discard(self, text: str, route: _Route) -> None:
        length = self._length(text)
        places = self.by_length[length]
        place = places[text]
        place.discard(route)
        if not place.size:
            del places[text]
        if not places:
            del self.by_length[length]

    def find(self, value: str, found: list[_Place]) -> None:
        for length, places in self.by_length.items():
            if self.dialect == "exact":
                place = places.get(value)
            else:
                place = places.get(value[:length] if self.dialect == "prefix" else value[-length:])
            if place is not None:
                found.append(place)


class _TopicRoutes:
    """The routes of one topic and one pair of `self` and `name`."""

    __slots__ = ("asked", "names", "rest", "routes", "source", "values")

    def __init__(self, source: str, names: dict[str, str]) -> None:
        self.source = source
        self.names = names
        self.routes: dict[int, _Route] = {}
        self.values: dict[tuple[str, str], _Values] = {}
        """By dialect and attribute."""
        self.rest = _Place()
        """Routes that stand under no value."""
        self.asked: dict[str, int] = {}
        """How many routes have a condition left to try, by its text."""

    def add(self, number: int, conditions: list[_Condition]) -> None:
        chosen = self._chosen(conditions)
        left = [each for each in conditions if each is not chosen]
        shared = max(
            (each for each in left if not each.is_late), key=lambda each: self.asked.get(each.text, 0), default=None
        )
        route = _Route(number, chosen.keys if chosen is not None else (), left, shared)
        self.routes[number] = route
        test = shared.test if shared is not None else None
        for text in route.texts:
            self.asked[text] = self.asked.get(text, 0) + 1
        if not route.keys:
            self.rest.add(route, test)
        for dialect, name, value in route.keys:
            values = self.values.get((dialect, name))
            if values is None:
                values = self.values[dialect, name] = _Values(dialect)
            values.place(value).add(route, test)

    def _chosen(self, conditions: list[_Condition]) -> _Condition | None:
        """The condition that the fewest others stand under; exact ones before prefixes and suffixes, of which the longest, unless it gets crowded."""
        best: tuple[int, int] | None = None
        chosen = None
        for condition in conditions:
            if not condition.keys or condition.is_late:
                continue
            rank = (
                sum([self._crowd(key) for key in condition.keys]),
                -min([0 if dialect == "exact" else len(value) for dialect, _, value in condition.keys]),
            )
            if best is None or rank <= best:  # Of equals the later: filters tell more apart than types.
                best, chosen = rank, condition
        return chosen

    def _crowd(self, key: Key) -> int:
        dialect, name, value = key
        values = self.values.get((dialect, name))
        return (1 if dialect == "exact" else AFFIX_CROWD) + (values.crowd(value) if values is not None else 0)

    def remove(self, number: int) -> None:
        route = self.routes.pop(number)
        for text in route.texts:
            self.asked[text] -= 1
            if not self.asked[text]:
                del self.asked[text]
        if not route.keys:
            self.rest.discard(route)
        for dialect, name, value in route.keys:
            values = self.values[dialect, name]
            values.discard(value, route)
            if not values.by_length:
                del self.values[dialect, name]

    def match(self, message: Message, numbers: list[int]) -> None:
        attributes, is_late = attributes_before(message, self.source, self.names)
        found = [self.rest] if self.rest.size else []
        for (_, name), values in self.values.items():
            value = attributes.get(name)
            if value:  # Nobody asks for an empty one.
                values.find(value, found)
        for place in found:
            place.match(attributes, is_late, numbers)


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
        keys = tuple([("exact", "type", kind) for kind in sorted(kinds)])
        found.append(_Condition(lambda at: at["type"] in kinds, json.dumps(sorted(kinds)), keys, False))
    if source:
        found.append(_condition({"exact": {"source": source}}))
    waiting = [(each, False) for each in reversed(filters)]
    while waiting:
        expression, is_negated = waiting.pop()
        dialect, argument = next(iter(expression.items()))
        if dialect == "not":
            waiting.append((argument, not is_negated))
        elif dialect == ("any" if is_negated else "all"):
            waiting.extend([(each, is_negated) for each in reversed(argument)])
        elif is_negated:
            found.append(_condition({"not": expression}))
        elif dialect in COMPARISONS:
            found.extend([_condition({dialect: {name: value}}) for name, value in argument.items()])
        else:
            found.append(_condition(expression))
    return found


def _condition(expression: dict[str, Any]) -> _Condition:
    test = compile_filters([expression])
    if test is None:
        raise TypeError("an empty filter")
    text = json.dumps(expression, sort_keys=True)
    return _Condition(test, text, _keys(expression), not LATE_ATTRIBUTES.isdisjoint(names_in(expression)))


def _keys(expression: dict[str, Any]) -> tuple[Key, ...]:
    """Of a comparison of one attribute, or of any of several; none for what is neither."""
    alternatives = expression.get("any", [expression])
    keys: dict[Key, None] = {}
    for dialect, argument in [next(iter(each.items())) for each in alternatives]:
        if dialect not in COMPARISONS or len(argument) != 1:
            return ()
        keys[dialect, *next(iter(argument.items()))] = None
    return tuple(keys)
