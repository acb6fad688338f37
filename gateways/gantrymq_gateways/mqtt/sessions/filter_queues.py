"""Light queues of the filters of persistent sessions: each filter has one, which all its sessions share."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from gantrymq.broker.port import BrokerPort, Done, Route
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, call, run
from gantrymq_gateways.mqtt.routes import KIND
from gantrymq_gateways.mqtt.sessions.sessions import SessionTools
from gantrymq_gateways.mqtt.tables import FILTER_TABLE, SessionTable, marked, removed
from gantrymq_gateways.mqtt.topics.shared import bare


class FilterQueues:
    """Procedures on them."""

    def __init__(self, port: BrokerPort, table: SessionTable, tools: SessionTools) -> None:
        self._rules = tools.rules
        self._port = port
        self._table = table
        self._now_ms = tools.now_ms
        self._installed: set[int] = set()
        """Light queues whose route this process has seen installed."""
        self._creating: dict[str, list[tuple[object, Done]]] = {}
        self._note_topic = tools.note_topic

    def lost(self) -> None:
        """The broker went away."""
        self._installed.clear()

    def unused(self, now_ms: int) -> list[tuple[int, bytes]]:
        """Take those that nobody used for the grace time out of what this process knows, with their rows: for `remove`."""
        found = [(light, self._table.filter_row(light)) for light in self._table.unused_filters(now_ms)]
        for light, _ in found:
            self.gone(light)
        return found

    def gone(self, light: int) -> None:
        """The queue does not exist any more."""
        self._table.changed_filter(str(light), None, self._now_ms())
        self._installed.discard(light)

    def need_topic(self, text: str) -> Steps:
        """A topic comes into being at its first subscription. Raises GantryError for one that nobody may subscribe to."""
        text = bare(text)
        topic = self._rules.home_of(text)
        if topic is None:
            return
        if names.is_own_system_topic(topic):
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {topic} belongs to the broker itself")
        if not names.is_closed_to_gateways(topic):
            yield call(self._port.ensure_topic, topic, True)
            # Whoever publishes there, over another door perhaps: this subscriber's topics begin with what it asked for.
            first_level = text.partition("/")[0]
            if topic == names.encode_topic(first_level):
                self._note_topic(first_level, topic)

    def queue_of(self, text: str) -> Generator[Call, Any, int]:
        """The light queue that the filter feeds, its route installed."""
        light = self._table.light_of(text)
        if not self._table.is_safe(light, self._now_ms()):
            light = yield partial(self._take, text)
        if light not in self._installed:
            topic, expression = self._rules.filter_route(bare(text))
            yield call(self._port.add_route, Route(route_id(light), KIND, topic, expression, light))
            self._installed.add(light)
        return light

    def _take(self, text: str, token: object, on_done: Done) -> None:
        """Take or make a filter's light queue once, however many sessions come for it at a time. Result: its id."""
        waiting = self._creating.get(text)
        if waiting is not None:
            waiting.append((token, on_done))
            return
        waiting = self._creating[text] = [(token, on_done)]
        made: list[int] = []

        def ended(error: GantryError | None) -> None:
            del self._creating[text]
            for waiter, done in waiting:
                done(waiter, error if error is not None else made[0])

        run(self._find_or_make(text, made), ended)

    def _find_or_make(self, text: str, made: list[int]) -> Steps:
        while found := self._table.light_of(text):
            value = self._table.filter_row(found)
            if self._table.is_safe(found, self._now_ms()) or (yield from self._mark(found, value)):
                made.append(found)
                return
            if self._table.filter_row(found) == value:
                self.gone(found)  # What became of it the table will tell.
        light: int = yield partial(self._port.create_light, name=f"{FILTER_TABLE}/{text}")
        value = text.encode()
        # The row first: a filter that is nowhere noted could never be removed.
        yield call(self._port.put, FILTER_TABLE, [(str(light), value)])
        self._table.changed_filter(str(light), value, self._now_ms())
        made.append(light)

    def _mark(self, light: int, value: bytes) -> Generator[Call, Any, bool]:
        """Take a queue that nobody used for a while. False: another gateway removed or took it first."""
        taken = marked(value, f"{self._now_ms():x}")
        fits: list[bool] = yield call(self._port.put_if, FILTER_TABLE, [(str(light), value, taken)])
        if fits[0]:
            self._table.changed_filter(str(light), taken, self._now_ms())
        return fits[0]

    def needs_mark(self, light: int, now_ms: int) -> bool:
        """No session's row uses the queue, and a while ago it was last said that somebody does."""
        return self._table.is_unused(light) and not self._table.is_safe(light, now_ms)

    def keep(self, light: int) -> Generator[Call, Any, bool]:
        """Say that the queue is in use though no session's row says so. False: it is being removed, or is gone."""
        value = self._table.filter_row(light)
        if not value or value == removed(value):
            return False
        if (yield from self._mark(light, value)):
            return True
        now = self._table.filter_row(light)
        # Another gateway said it, or the row's change is on its way.
        return now == value or (bool(now) and now != removed(now))

    def remove(self, light: int, value: bytes) -> Steps:
        """Nobody uses the filter any more: its route, its queue, its row. `value`: the row as it was then."""
        fits: list[bool] = yield call(self._port.put_if, FILTER_TABLE, [(str(light), value, removed(value))])
        if not fits[0]:
            return  # Another gateway takes or removes it.
        yield call(self._port.remove_routes, [route_id(light)])
        yield call(self._port.delete_light, light)
        yield call(self._port.put, FILTER_TABLE, [(str(light), None)])


def route_id(light: int) -> str:
    """Id of the route of a filter's light queue."""
    return f"mqtt/{light}"
