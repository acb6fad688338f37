"""Router: which light queues and taps a record enters. Knows no protocol: kinds are `RouteSet`s that gateways register.

Results are cached per (topic, AMQP exchange of origin, tag), unless a route that may match the topic reads more of the message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from itertools import chain
from typing import Any, Final, Protocol

from gantrymq.broker.matches import NO_MATCH, RouteMatch, Tap
from gantrymq.broker.port import Done, Route
from gantrymq.broker.routing.api import RouteSet
from gantrymq.broker.routing.plain import PlainRoutes
from gantrymq.broker.tables.group_tables import LIGHT_BITS
from gantrymq.broker.topics import CACHE_MAX, Topic
from gantrymq.model import names
from gantrymq.model.dialect import quick_json
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.multimap import MultiMap
from gantrymq.model.indexes.shared import shared
from gantrymq.model.message import Message
from gantrymq.store.log.forwarded import Forwarded

ROUTES_MAX = 2_000_000
"""Routes of all kinds, volatile ones included; bounds what a fleet of subscribers can make the broker remember."""


OTHERS: Final = 1 << LIGHT_BITS
"""From here on light queues are those of other broker groups."""


class Elsewhere(Protocol):
    """The other broker groups (broker/forward/sending.py)."""

    def sent(self, lights: set[int]) -> tuple[set[int], bytes, bool]:
        """Of what a message matches: the queues here, forward queues included; the mark for the others; whether that is all that match."""


class _Target:
    """Of a route into a queue, as there are very many; `_WideTarget` is of any."""

    __slots__ = ("kind", "light", "topic")

    tap: Tap | None = None
    number = 0
    uncached = False
    home: str | None = None
    """See `RouteSet.home`."""

    def __init__(self, kind: str, topic: str | None, light: int) -> None:
        self.kind = kind
        self.topic = topic
        self.light = light


class _WideTarget(_Target):
    __slots__ = ("home", "number", "tap", "uncached")

    def __init__(self, kind: str, topic: str | None, light: int, tap: Tap | None, number: int) -> None:
        super().__init__(kind, topic, light)
        self.tap = tap
        self.number = number
        self.uncached = False
        self.home = None


def load_route_sets() -> dict[str, RouteSet]:
    """Every kind that is installed (entry-point group `gantrymq.routes`)."""
    return {point.name: point.load()() for point in entry_points(group="gantrymq.routes")}


class Router:
    """All routes. `topics` is the broker's live dictionary: changing a route refreshes the topics that it may concern. `stored(route_id)`: the
    row of a durable route as the log has it; expressions are kept there alone."""

    def __init__(
        self, sets: dict[str, RouteSet], topics: dict[str, Topic], stored: Callable[[str], bytes | None]
    ) -> None:
        self._sets = sets
        self._stored = stored
        self._topics = topics
        self._targets: dict[int, _Target] = {}
        """Of those that are not in `_plain`, as `_by_id` and `_by_light`."""
        self._by_id: dict[str, int] = {}
        self._by_light: MultiMap[int, str] = MultiMap()
        self._plain = PlainRoutes()
        self._next = 1
        self._used: dict[str, int] = {}
        self._any_topic = 0
        self._of_topic: dict[str, int] = {}
        self._homes: dict[str, int] = {}
        self._tapped_any = 0
        self._tapped_of: dict[str, int] = {}
        """Volatile routes of any topic, and by topic."""
        self._uncached_any = 0
        self._uncached_of: dict[str, int] = {}
        self._same: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._remembering: dict[str, Topic] = {}
        """Topics with results in their caches, perhaps."""
        self._unstored: dict[str, list[Route | None]] = {}
        """By id: the route that the log has, then those that were added since and are not there yet, until it is removed."""
        self._elsewhere: Elsewhere | None = None

    def add(self, route: Route) -> None:
        """Install a durable route, replacing one of the same id. Raises ILLEGAL_ARGUMENT for an unknown kind or bad expression."""
        known = self._topics.get(route.topic) if route.topic is not None else None  # whose name is the same object
        topic = known.name if known is not None else route.topic and shared(route.topic)
        target = _Target(route.kind, topic, route.light)
        number = self._install(target, route.expression)
        self._forget(route.route_id)
        simple = self._targets[number] is target  # it did not become a wide one
        if simple and self._plain.put(route.route_id, number, target.kind, topic, route.light):
            del self._targets[number]
            return
        self._by_id[route.route_id] = number
        if route.light:
            self._by_light.add(route.light, route.route_id)

    def add_unstored(self, route: Route, on_done: Done) -> Done:
        """As `add`, of a route on its way to the log. The answer is called with what became of it, and calls `on_done`: a route that the log
        refused gives place to the one before it."""
        before = self.durable(route.route_id)
        self.add(route)
        line = self._unstored.setdefault(route.route_id, [before])
        line.append(route)

        def done(token: Any, result: Any) -> None:
            if self._unstored.get(route.route_id) is line:  # else it was removed meanwhile
                self._decided(route, line, not isinstance(result, GantryError))
            on_done(token, result)

        return done

    @property
    def routes(self) -> dict[str, Route]:
        """Durable routes by id, put together anew each time."""
        ids = chain(self._by_id, self._plain.ids())
        return {route_id: route for route_id in ids if (route := self.durable(route_id)) is not None}

    def durable(self, route_id: str) -> Route | None:
        """The route in force."""
        line = self._unstored.get(route_id)
        if line is not None:
            return line[-1]
        if not self.number_of(route_id):
            return None
        row = self._stored(route_id)
        return route_from_bytes(route_id, row) if row is not None else None

    def _decided(self, route: Route, line: list[Route | None], stored: bool) -> None:
        at = next(place for place in range(1, len(line)) if line[place] is route)
        if stored:
            del line[:at]
        else:
            del line[at]
            if at == len(line):
                self._forget(route.route_id)
                if (newest := line[-1]) is not None:
                    self.add(newest)
        if len(line) == 1:
            del self._unstored[route.route_id]

    def remove(self, route_id: str) -> bool:
        """Forget a durable route; False if unknown."""
        self._unstored.pop(route_id, None)
        return self._forget(route_id)

    def _forget(self, route_id: str) -> bool:
        number = self._by_id.pop(route_id, 0)
        if not number:
            if plain := self._plain.number(route_id):
                self._uninstall(plain)
            return bool(plain)
        self._by_light.discard(self._targets[number].light, route_id)
        self._uninstall(number)
        return True

    def routes_of_light(self, light: int) -> list[str]:
        """Ids of the routes into a light queue."""
        number = self._plain.number_of_light(light)
        return [*([self._plain.id_of(number)] if number else []), *self._by_light.of(light)]

    def lights(self) -> set[int]:
        """Light queues that durable routes lead to."""
        return {target.light for target in self._targets.values()} - {0} | set(self._plain.lights())

    def add_volatile(self, tap: Tap, number: int, kind: str, topic: str | None, expression: str) -> None:
        """A route into a tap; the same number again replaces it. Raises ILLEGAL_ARGUMENT."""
        own = self._install(_WideTarget(kind, topic, 0, tap, number), expression)
        old = tap.numbers.get(number)
        if old is not None:
            self._uninstall(old)
        tap.numbers[number] = own

    def remove_volatile(self, tap: Tap, number: int) -> None:
        """Unknown numbers are ignored."""
        own = tap.numbers.pop(number, None)
        if own is not None:
            self._uninstall(own)

    def close_tap(self, tap: Tap) -> None:
        """Drop all routes of a tap."""
        for number in list(tap.numbers):
            self.remove_volatile(tap, number)
        tap.batch.clear()

    def new_topic(self, topic: Topic) -> None:
        """A topic object was made: tell it whether routes concern it."""
        topic.routed = self._concerned(topic.name)

    def elsewhere(self, groups: Elsewhere) -> None:
        """Routes may lead to other broker groups, too: light queues from `OTHERS` on are theirs."""
        self._elsewhere = groups

    def anew(self, any_topic: int = 0) -> None:
        """Nothing that is remembered holds any more. `any_topic`: so many more of what concerns every topic."""
        self._any_topic += any_topic
        remembering, self._remembering = self._remembering, {}
        for topic in remembering.values():
            topic.cache.clear()
        if any_topic:
            for topic in self._topics.values():
                topic.routed = self._concerned(topic.name)

    def ids_from(self, begin: int, end: int, prefix: str) -> list[str]:
        """Ids of the routes into light queues from `begin` to below `end`, and of others that begin so."""
        plain = [f"{kind}/{light}" for kind, light in self._plain.between(begin, end)]
        return plain + [route_id for route_id in self._by_id if route_id.startswith(prefix)]

    @property
    def following(self) -> int:
        """Number of the route that is installed next; they rise."""
        return self._next

    def number_of(self, route_id: str) -> int:
        """Of a durable route that is there; 0: it is not."""
        return self._by_id.get(route_id) or self._plain.number(route_id)

    def new_set(self, kind: str) -> RouteSet:
        """For routes of a kind that is installed, apart from those that are in force."""
        made: RouteSet = type(self._sets[kind])()
        return made

    def own_lights(self, message: Message, below: int | None = None) -> set[int]:
        """This group's light queues that a message matches, by the routes below that number; nothing is remembered."""
        found: set[int] = set()
        for kind in self._used:
            for number in self._sets[kind].match(message):
                if below is None or number < below:
                    target = self._targets.get(number)
                    found.add(self._plain.light(number) if target is None else target.light)
        return {light for light in found if 0 < light < OTHERS}

    def route(self, topic: Topic, message: Message) -> RouteMatch:
        """Match a message of a topic whose cache has no answer."""
        if isinstance(message, Forwarded):
            return RouteMatch(message.lights, (), NO_MATCH.kinds)
        lights: set[int] = set()
        taps: dict[Tap, set[int]] = {}
        kinds = set()
        targets = self._targets
        repeats = not self._uncached_any and not self._uncached_of.get(topic.name)
        for kind in self._used:
            routes = self._sets[kind]
            matched = routes.match(message)
            repeats = repeats and not routes.read_more
            for number in matched:
                kinds.add(kind)
                target = targets.get(number)
                if target is None:
                    lights.add(self._plain.light(number))
                elif target.tap is not None:
                    taps.setdefault(target.tap, set()).add(target.number)
                elif target.light:
                    lights.add(target.light)
        mark = b""
        if self._elsewhere is not None and not _stays(topic.name):
            lights, mark, is_sure = self._elsewhere.sent(lights)
            if not is_sure:  # nobody knows which of them match there
                kinds.update(self._sets)
        if lights or taps:
            hit = RouteMatch(
                self._interned(tuple(sorted(lights))),
                tuple([(tap, self._interned(tuple(sorted(numbers)))) for tap, numbers in taps.items()]),
                frozenset(kinds),
                mark,
            )
        else:
            hit = NO_MATCH
        if repeats:
            topic.remember(message.exchange, message.tag, hit)
            self._remembering[topic.name] = topic
        return hit

    def _interned(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._same) >= CACHE_MAX:
            self._same.clear()
        return self._same.setdefault(numbers, numbers)

    def _install(self, target: _Target, expression: str) -> int:
        routes = self._sets.get(target.kind)
        if routes is None:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"route kind {target.kind!r} is not installed here; known: {', '.join(sorted(self._sets)) or 'none'}",
            )
        if len(self._targets) + self._plain.count >= ROUTES_MAX:
            raise GantryError(
                ErrorCode.LIMIT_REACHED, f"{ROUTES_MAX} routes exist; remove subscriptions or bindings first"
            )
        number = self._next
        target.kind = routes.kind  # one object for all
        uncached = routes.add(number, target.topic, expression)
        home = routes.home(expression) if target.topic is None else None
        if uncached or home is not None:
            target = _WideTarget(target.kind, target.topic, target.light, target.tap, target.number)
            target.uncached, target.home = uncached, home
        self._next += 1
        self._targets[number] = target
        self._used[target.kind] = self._used.get(target.kind, 0) + 1
        self._count(target, 1)
        self._refresh(target)
        return number

    def _uninstall(self, number: int) -> None:
        target = self._targets.pop(number, None)
        if target is None:
            target = _Target(*self._plain.form(number), 0)
            self._plain.take(number)
        leading = self._leading_to(target)
        self._sets[target.kind].remove(number)
        left = self._used[target.kind] - 1
        if left:
            self._used[target.kind] = left
        else:
            del self._used[target.kind]
        self._count(target, -1)
        self._refresh(target, leading)

    def _count(self, target: _Target, step: int) -> None:
        if target.tap is not None and target.topic is None:
            self._tapped_any += step
        elif target.tap is not None and target.topic is not None:
            _count_in(self._tapped_of, target.topic, step)
        if target.topic is None:
            self._any_topic += step
            self._uncached_any += step if target.uncached else 0
            if target.home is not None:
                _count_in(self._homes, target.home, step)
            return
        _count_in(self._of_topic, target.topic, step)
        if target.uncached:
            _count_in(self._uncached_of, target.topic, step)

    def _concerned(self, name: str) -> bool:
        return bool(self._any_topic or self._of_topic.get(name)) or name == names.FORWARDED_TOPIC

    def names_topic(self, topic: str) -> bool:
        """Whether a route is about this very topic."""
        return topic in self._of_topic or topic in self._homes

    def is_tapped(self, topic: str) -> bool:
        """Whether a volatile route may match its records: who is behind it may keep their positions, and nobody else knows these."""
        return bool(self._tapped_any) or topic in self._tapped_of

    def _leading_to(self, target: _Target) -> list[str]:
        return [] if target.topic is None else [target.topic, *self._sets[target.kind].leading_to(target.topic)]

    def _refresh(self, target: _Target, leading: list[str] | None = None) -> None:
        """What is remembered of the topics whose messages a route may concern is forgotten."""
        if target.topic is not None:
            for name in self._leading_to(target) if leading is None else leading:
                topic = self._topics.get(name)
                if topic is not None:
                    topic.cache.clear()
                    topic.routed = self._concerned(name)
            return
        remembering, self._remembering = self._remembering, {}
        for topic in remembering.values():
            topic.cache.clear()
        if self._any_topic == (1 if leading is None else 0):  # the first of these routes came, or the last went
            for topic in self._topics.values():
                topic.routed = self._concerned(topic.name)


def _count_in(counter: dict[str, int], topic: str, step: int) -> None:
    count = counter.get(topic, 0) + step
    if count:
        counter[topic] = count
    else:
        counter.pop(topic, None)


def _stays(topic: str) -> bool:
    """No other group wants its records: our rows, and what waits. Queues are routed to from a system topic of a door."""
    return names.is_own_system_topic(topic) or topic in names.ROCKETMQ_SYSTEM_TOPICS


_text = json.JSONEncoder(separators=(",", ":")).encode


def route_to_bytes(route: Route) -> bytes:
    """Value of a durable route in table `route`."""
    moves = [route.moves] if route.moves else []
    return _text([route.kind, route.topic, route.expression, route.light, *moves]).encode()


def route_from_bytes(route_id: str, data: bytes) -> Route:
    """Back from `route_to_bytes`."""
    kind, topic, expression, light, *moves = quick_json(data)
    return Route(route_id, kind, topic, expression, light, *moves)
