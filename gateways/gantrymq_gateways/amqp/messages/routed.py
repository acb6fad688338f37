"""The queues that a publish of a traced vhost goes to, as this gateway's definitions say: `routed_queues` of the firehose.

The broker chooses when it stores the message, by the same bindings and the same code (`exchanges/graph.py`). Exchanges are looked at when the first
message comes to them, and followed from then on.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import GantryError
from gantrymq_gateways.amqp.definitions import Definitions
from gantrymq_gateways.amqp.exchanges.bindings import expression_of, route
from gantrymq_gateways.amqp.exchanges.graph import Node, View
from gantrymq_gateways.amqp.origin import clean, full_name, local, prefix_of, tag_of
from gantrymq_gateways.amqp.rows import Binding
from gantrymq_gateways.amqp.wire.content import Properties
from gantrymq_gateways.amqp.wire.values import lookup, text_of

BINDINGS_MAX: Final = 20_000
"""Of the exchanges that are followed, together: 1 KiB and 10 us each, and nobody else is served meanwhile."""


class _Followed:
    """An exchange: its bindings by number, and their numbers by row."""

    __slots__ = ("bindings", "node", "numbers")

    def __init__(self) -> None:
        self.node = Node()
        self.bindings: dict[int, Binding] = {}
        self.numbers: dict[str, int] = {}


class RoutedQueues:
    """Of one vhost."""

    def __init__(self, definitions: Definitions, vhost: str) -> None:
        self._definitions = definitions
        self._prefix = prefix_of(vhost)
        self._followed: dict[str, _Followed] = {}
        self._count = 0
        self._last = 0

    def changed(self, exchange: str, row: str, binding: Binding | None) -> None:
        """A binding was made, or is gone (None). `row` empty: something else about the exchange is different; `exchange` empty: about all."""
        if not exchange:
            self._followed.clear()
            self._count = 0
        elif not row:
            gone = self._followed.pop(exchange, None)
            self._count -= len(gone.bindings) if gone is not None else 0
        elif (followed := self._followed.get(exchange)) is not None:
            self._forget(followed, row)
            if binding is not None and binding.finished:
                self._add(exchange, followed, row, binding)

    def of(self, exchange: str, key: str, properties: Properties) -> list[str] | None:
        """Names of queues; None where nobody can know: the exchanges have too many bindings, or one leaves it to chance."""
        keys = [key]
        for name in ("CC", "BCC"):
            further = lookup(properties.headers or [], name)
            keys += [text_of(each) for each in further.value] if further is not None and further.kind == "A" else []
        if not exchange:
            names = dict.fromkeys(full_name(self._prefix, each) for each in keys)
            return [local(name) for name in names if name in self._definitions.queues]
        try:
            view = View.of(properties, [tag_of(each) for each in keys])
        except GantryError:
            return None
        found = self._walk(self._prefix + clean(exchange), view)
        return None if found is None else [local(name) for name in found]

    def _walk(self, start: str, view: View) -> dict[str, None] | None:
        found: dict[str, None] = {}
        waiting, visited = [start], {start}
        while waiting:
            followed = self._follow(waiting.pop())
            if followed is None:
                return None
            for number, target in followed.node.find(view):
                if not target:
                    found[followed.bindings[number].destination] = None
                elif target not in visited:
                    visited.add(target)
                    waiting.append(target)
        return found

    def _follow(self, exchange: str) -> _Followed | None:
        followed = self._followed.get(exchange)
        if followed is not None:
            return followed
        known = self._definitions.known_exchange(exchange)
        followed = _Followed()
        if known is None:
            return followed
        rows = self._definitions.rows_from(exchange)
        if known.rules.routed == "x-random" or self._count + len(rows) > BINDINGS_MAX:
            return None
        for row, binding in rows.items():
            if binding.finished:
                self._add(exchange, followed, row, binding)
        alternate = self._definitions.alternate(known)
        if alternate:
            followed.node.alternates[0] = alternate
        self._followed[exchange] = followed
        return followed

    def _add(self, exchange: str, followed: _Followed, row: str, binding: Binding) -> None:
        known = self._definitions.known_exchange(exchange)
        if known is None:
            return
        expression = expression_of(binding, known.rules)
        target = "" if binding.to_queue else binding.destination
        self._last += 1
        self._count += 1
        followed.numbers[row], followed.bindings[self._last] = self._last, binding
        identity = route("", "", expression, 0).expression
        followed.node.add(self._last, known.rules.routed, binding.key, target, expression, identity)

    def _forget(self, followed: _Followed, row: str) -> None:
        number = followed.numbers.pop(row, 0)
        if number:
            self._count -= 1
            followed.node.remove(number, followed.bindings.pop(number).key)
