"""One exchange of the graph: its bindings by how they are found, and the exchange for what none of them wants."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.multimap import MultiMap
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.exchanges.hashing import Choice, Ring
from gantrymq_gateways.amqp.exchanges.headers import HeadersMatch, comparable
from gantrymq_gateways.amqp.exchanges.patterns import Pattern, pattern_of
from gantrymq_gateways.amqp.origin import tag_of
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties
from gantrymq_gateways.amqp.wire.values import Table, read_table

HASHED_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
"""What `hash-property` of a consistent hash may name."""


_NOBODY: Final = Renderer({})


class View:
    """A message on its way through the graph: its tags, and its property list, which is put together if somebody asks."""

    __slots__ = ("_headers", "_message", "_properties", "_renderer", "read_more", "tags")

    def __init__(self, message: Message | None, tags: list[str], renderer: Renderer) -> None:
        self._message = message
        self._renderer = renderer
        self._properties: Properties | None = None
        self._headers: dict[str, tuple[str, Any]] | None = None
        self.tags = tags
        self.read_more = False
        """Something else than topic, exchange and tag decided."""

    @classmethod
    def of(cls, properties: Properties, tags: list[str]) -> View:
        """Of a message that is no record yet."""
        view = cls(None, tags, _NOBODY)
        view._properties = properties
        return view

    def properties(self) -> Properties:
        """As AMQP shows them."""
        self.read_more = True
        if self._properties is None and self._message is not None:
            self._properties = decode_properties(self._renderer.render(self._message).properties)
        return self._properties or Properties()

    def headers(self) -> dict[str, tuple[str, Any]]:
        """By name, to be compared; the first of a name counts."""
        if self._headers is None:
            table = self.properties().headers or []
            self._headers = {name: comparable(field) for name, field in reversed(table)}
        return self._headers


class Node:
    """Bindings of one exchange. A target is the topic of the exchange that a route leads to, empty for a queue."""

    __slots__ = (
        "_any_start",
        "_by_key",
        "_by_start",
        "_choices",
        "_everything",
        "_headers",
        "_rings",
        "_targets",
        "alternates",
    )

    def __init__(self) -> None:
        self._targets: dict[int, str] = {}
        self._everything: dict[int, None] = {}
        self._by_key: MultiMap[str, int] = MultiMap()
        self._by_start: dict[str, dict[int, Pattern]] = {}
        """Patterns whose first word is no wildcard, by that word."""
        self._any_start: dict[int, Pattern] = {}
        self._headers: dict[int, HeadersMatch] = {}
        self._rings: dict[tuple[str, str], Ring] = {}
        """By what of the message is hashed: a header, a property."""
        self._choices: dict[str, Choice] = {}
        self.alternates: dict[int, str] = {}

    def empty(self) -> bool:
        """Nothing is bound."""
        return not (self._targets or self.alternates)

    def targets(self) -> set[str]:
        """Topics of the exchanges that it leads to."""
        return {*self._targets.values(), *self.alternates.values()} - {""}

    def add(self, number: int, kind: str, key: str, target: str, parsed: dict[str, Any], identity: str) -> None:
        """A binding. Raises GantryError, or ValueError and others for a bad expression."""
        if kind == "alternate":
            self.alternates[number] = target
            return
        if kind == "fanout":
            self._everything[number] = None
        elif kind == "direct":
            self._by_key.add(tag_of(key), number)
        elif kind == "topic":
            self._add_pattern(number, key)
        elif kind == "headers":
            self._headers[number] = HeadersMatch(_table(parsed.get("arguments", "")))
        elif kind == "x-consistent-hash":
            hashed = str(parsed.get("hash_header", "")), str(parsed.get("hash_property", ""))
            self._rings.setdefault(hashed, Ring()).add(number, identity, int(key))
        elif kind in ("x-random", "x-modulus-hash"):
            self._choices.setdefault(kind, Choice()).add(number, identity)
        else:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"exchange type {kind!r} is not known")
        self._targets[number] = target

    def _add_pattern(self, number: int, key: str) -> None:
        words = pattern_of(key)
        if "*" not in words and "#" not in words:
            self._by_key.add(tag_of(key), number)
        elif words[0] in ("*", "#"):
            self._any_start[number] = Pattern(words)
        else:
            self._by_start.setdefault(words[0], {})[number] = Pattern(words)

    def remove(self, number: int, key: str) -> None:
        """Forget a binding of this key."""
        self.alternates.pop(number, None)
        if self._targets.pop(number, None) is None:
            return
        self._everything.pop(number, None)
        self._any_start.pop(number, None)
        self._headers.pop(number, None)
        self._by_key.discard(tag_of(key), number)
        words = pattern_of(key)
        if words and (patterns := self._by_start.get(words[0])) is not None:
            patterns.pop(number, None)
            if not patterns:
                del self._by_start[words[0]]
        for hashed, ring in list(self._rings.items()):
            ring.remove(number)
            if not ring:
                del self._rings[hashed]
        for kind, choice in list(self._choices.items()):
            choice.remove(number)
            if not choice:
                del self._choices[kind]

    def find(self, view: View) -> list[tuple[int, str]]:
        """Routes of the bindings that want the message, each with its target; those of the alternate exchange if none does."""
        numbers = list(self._everything)
        for tag in view.tags:
            numbers.extend(self._by_key.of(tag))
            if self._by_start or self._any_start:
                numbers.extend(self._matching(tag))
        if self._headers:
            headers = view.headers()
            numbers.extend([number for number, match in self._headers.items() if match.matches(headers)])
        if self._rings or self._choices:
            numbers.extend(self._chosen(view))
        if not numbers:
            return list(self.alternates.items())
        targets = self._targets
        return [(number, targets[number]) for number in numbers]

    def _matching(self, tag: str) -> list[int]:
        words = tag.split(".") if tag else []
        patterns = list(self._any_start.items())
        if words and words[0] in self._by_start:
            patterns.extend(self._by_start[words[0]].items())
        return [number for number, pattern in patterns if pattern.matches(words)]

    def _chosen(self, view: View) -> list[int]:
        found = []
        for (header, name), ring in self._rings.items():
            if header:
                found.append(ring.choose(repr(view.headers().get(header))))
            elif name:
                found.append(ring.choose(str(getattr(view.properties(), name, None))))
            else:
                found += [ring.choose(tag) for tag in view.tags]
        for kind, choice in self._choices.items():
            if kind == "x-random":
                view.read_more = True
                found.append(choice.any())
            else:
                found += [choice.by_hash(tag) for tag in view.tags]
        return found


def _table(text: str) -> Table:
    data = b64decode(text, validate=True)
    return read_table(data, 0, len(data))[0] if data else []


def split_keys(exchange: str | None) -> tuple[str | None, list[str]]:
    """`Message.exchange` without, and with, the further keys of a message that has several (`props.ORIGIN_KEYS`)."""
    if exchange is None or "\x01" not in exchange:
        return exchange, []
    exchange, _, keys = exchange.partition("\x01")
    return exchange, [key.removeprefix("=") for key in keys.split(" ")]


def name_of_tag(tag: str) -> str:
    """The queue's name that a key of the default exchange stands for."""
    return ".".join([names.decode_escapes(word, "") for word in tag.split(".")])
