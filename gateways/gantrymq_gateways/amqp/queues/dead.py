"""Dead letters as RabbitMQ makes them: `x-death`, `x-first-death-*`, `x-last-death-*`, and what would go round for ever.

They are made in the broker (broker/queues), which knows nothing of AMQP: this is what the kind `amqp` hands it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gantrymq.model import names
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE, DIRECT_TOPIC, KIND, full_name, local, own_prefix, tag_of
from gantrymq_gateways.amqp.properties import residue
from gantrymq_gateways.amqp.properties.mapping import body_of, native_target, topic_of
from gantrymq_gateways.amqp.properties.reading import Content, PropertyReader, headers_at
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.wire.content import decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table, encode_table, lookup, read_shortstr, text_of

DEATHS: Final = "x-death"
DEATHS_MAX: Final = 1_000
"""Entries of x-death that are kept: one per queue and reason."""
REJECTED: Final = "rejected"
HEADERS_MAX: Final = 256
"""Remembered headers of a first death, which hold a second, and places that dead letters go to; of 500 bytes."""
_DEATH: Final = b"-death"
_CC: Final = b"\x02CC"


class AmqpDeadLetters:
    """See the module. `has_topic(name)`: the queue has a topic of its own."""

    def __init__(self, has_topic: Callable[[str], bool]) -> None:
        self._has_topic = has_topic
        self._renderer = Renderer({})
        self._reader = PropertyReader("", special=True)
        self._headers: dict[tuple[str, str, str, str, int, str | None], bytes] = {}
        self._addresses: dict[tuple[str, str, str, bool], tuple[str, str, bytes, str]] = {}

    def copy(
        self, message: Message, queue: str, target: dict[str, Any], reason: str, now_ms: int
    ) -> tuple[Message, frozenset[str]] | None:
        """As model.queue_policy.DeadLetters.copy."""
        rendered = self._renderer.render(message)
        exchange, at = read_shortstr(rendered.tail, 0)
        key, _ = read_shortstr(rendered.tail, at)
        prefix, queue = own_prefix(queue), local(queue)
        first = self._first(rendered.properties, queue, reason, exchange, key, now_ms)
        if first is not None:
            content, key = first, key if target.get("key") is None else target["key"]
            rounds = frozenset() if reason == REJECTED else frozenset((full_name(prefix, queue),))
        else:
            content, key, deaths = self._again(rendered.properties, queue, target, reason, exchange, key, now_ms)
            rounds = _went_round(deaths, prefix)
        return self._addressed(target["exchange"], prefix, key, content.native, body_of(message)), rounds

    def _first(self, raw: bytes, queue: str, reason: str, exchange: str, key: str, now_ms: int) -> Content | None:
        """The list of a message that never was a dead letter and says nothing that has to be looked at: the headers stand behind its own."""
        if _DEATH in raw or _CC in raw or (raw[0] << 8 | raw[1]) & residue.USER_ID:
            return None
        raw, expiration = _without_expiration(raw)
        now_s = now_ms // 1000
        place = queue, reason, exchange, key, now_s, expiration
        headers = self._headers.get(place)
        if headers is None:
            if len(self._headers) >= HEADERS_MAX:
                self._headers.clear()
            deaths = _deaths([], queue, reason, exchange, [key], now_s, expiration)
            table = encode_table(_with_deaths([], deaths, queue, reason, exchange))
            headers = self._headers[place] = table[4:]
        return self._reader.read(raw, headers)

    def _again(
        self, raw: bytes, queue: str, target: dict[str, Any], reason: str, exchange: str, key: str, now_ms: int
    ) -> tuple[Content, str, list[Table]]:
        """Any list, its first routing key, and its deaths."""
        properties = decode_properties(raw)
        headers = list(properties.headers or [])
        keys = [key, *_further_keys(headers)]
        deaths = _deaths(headers, queue, reason, exchange, keys, now_ms // 1000, properties.expiration)
        if target.get("key") is not None:
            headers = [(name, field) for name, field in headers if name != "CC"]
            keys = [target["key"]]
        properties.headers = _with_deaths(headers, deaths, queue, reason, exchange)
        properties.expiration = None
        user = properties.user_id
        reader = self._reader if user is None else PropertyReader(user, special=True)
        return reader.read(encode_properties(properties)), keys[0], deaths

    def _addressed(self, exchange: str, prefix: str, key: str, native: bytes, body: bytes) -> Message:
        name = "" if exchange else full_name(prefix, key)
        place = exchange, key, name, bool(name) and self._has_topic(name)
        address = self._addresses.get(place)
        if address is None:
            if len(self._addresses) >= HEADERS_MAX:
                self._addresses.clear()
            address = self._addresses[place] = _address(*place)
        topic, tag, first, origin = address
        made = Message(topic, body, first + native, tag)
        made.exchange, made.demand_route = origin, KIND
        return made


def _address(exchange: str, key: str, name: str, has_topic: bool) -> tuple[str, str, bytes, str]:
    """Topic, tag, first properties and exchange of what goes to an exchange, or else by name to a queue."""
    if exchange:
        tag = tag_of(key)
        return topic_of(exchange), tag, native_target(exchange, tag, ""), exchange
    topic, tag, rest = DIRECT_TOPIC, names.encode_word(name), ""
    if has_topic:
        topic, tag = topic_of(name), ""
        rest = key if names.decode_escapes(topic, "") != name else ""
    return topic, tag, native_target("", tag, rest), DEFAULT_EXCHANGE


def _without_expiration(raw: bytes) -> tuple[bytes, str | None]:
    """A list with a table, which may be empty, and without an expiration; that."""
    flags = raw[0] << 8 | raw[1]
    if flags & residue.HEADERS and not flags & residue.EXPIRATION:
        return raw, None
    at = headers_at(raw)
    if not flags & residue.HEADERS:
        raw = raw[:at] + b"\0\0\0\0" + raw[at:]
    if not flags & residue.EXPIRATION:
        return b"%c%c%b" % (flags >> 8 | residue.HEADERS >> 8, flags & 255, raw[2:]), None
    at += 4 + int.from_bytes(raw[at : at + 4], "big") + (flags & (residue.DELIVERY_MODE | residue.PRIORITY)).bit_count()
    for _ in range((flags & (residue.CORRELATION_ID | residue.REPLY_TO)).bit_count()):
        at += 1 + raw[at]
    expiration, stop = read_shortstr(raw, at)
    flags = (flags | residue.HEADERS) & ~residue.EXPIRATION
    return b"%c%c%b%b" % (flags >> 8, flags & 255, raw[2:at], raw[stop:]), expiration


def _further_keys(headers: Table) -> list[str]:
    field = lookup(headers, "CC")
    if field is None or field.kind != "A":
        return []
    return [text_of(item) for item in field.value if item.kind == "S"]


def _deaths(
    headers: Table, queue: str, reason: str, exchange: str, keys: list[str], now_s: int, expiration: str | None
) -> list[Table]:
    """Entries of x-death, the newest first; one of this queue and reason counts on."""
    field = lookup(headers, DEATHS)
    known = [item.value for item in field.value if item.kind == "F"] if field is not None and field.kind == "A" else []
    for index, death in enumerate(known):
        if _text(death, "queue") == queue and _text(death, "reason") == reason:
            del known[index]
            counted = [(name, _raised(value) if name == "count" else value) for name, value in death]
            return [counted, *known]
    entry: Table = [("original-expiration", _string(expiration))] if expiration is not None else []
    entry += [
        ("count", Field("l", 1)),
        ("reason", _string(reason)),
        ("queue", _string(queue)),
        ("time", Field("T", now_s)),
        ("exchange", _string(exchange)),
        ("routing-keys", Field("A", [_string(key) for key in keys])),
    ]
    return [entry, *known[: DEATHS_MAX - 1]]


def _with_deaths(headers: Table, deaths: list[Table], queue: str, reason: str, exchange: str) -> Table:
    here = {"reason": reason, "queue": queue, "exchange": exchange}
    last = {f"x-last-death-{name}" for name in here}
    kept = [(name, field) for name, field in headers if name != DEATHS and name not in last]
    kept.append((DEATHS, Field("A", [Field("F", entry) for entry in deaths])))
    if lookup(headers, "x-first-death-reason") is None:
        kept += [(f"x-first-death-{name}", _string(value)) for name, value in here.items()]
    kept += [(f"x-last-death-{name}", _string(value)) for name, value in here.items()]
    return kept


def _went_round(deaths: list[Table], prefix: str) -> frozenset[str]:
    """Queues that the message comes from without anybody having rejected it on the way: it must not enter them again (rabbit_dead_letter: is_cycle)."""
    found = []
    for entry in deaths:
        if _text(entry, "reason") == REJECTED:
            break
        found.append(full_name(prefix, _text(entry, "queue")))
    return frozenset(found)


def _text(entry: Table, name: str) -> str:
    field = lookup(entry, name)
    return text_of(field) if field is not None else ""


def _raised(field: Field) -> Field:
    return Field("l", int(field.value) + 1) if isinstance(field.value, int) else Field("l", 1)


def _string(text: str) -> Field:
    return Field("S", text.encode("utf-8", "surrogatepass"))
