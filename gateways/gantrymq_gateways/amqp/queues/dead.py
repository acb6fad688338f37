"""Dead letters as RabbitMQ makes them: `x-death`, `x-first-death-*`, `x-last-death-*`, and what would go round for ever.

They are made in the broker (broker/queues), which knows nothing of AMQP: this is what the kind `amqp` hands it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gantrymq.model import names
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE, DIRECT_TOPIC, KIND, full_name, local, own_prefix, tag_of
from gantrymq_gateways.amqp.properties.mapping import body_of, native_target, topic_of
from gantrymq_gateways.amqp.properties.reading import PropertyReader
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.wire.content import decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table, lookup, read_shortstr, text_of

DEATHS: Final = "x-death"
DEATHS_MAX: Final = 1_000
"""Entries of x-death that are kept: one per queue and reason."""


class AmqpDeadLetters:
    """See the module. `has_topic(name)`: the queue has a topic of its own."""

    def __init__(self, has_topic: Callable[[str], bool]) -> None:
        self._has_topic = has_topic
        self._renderer = Renderer({})
        self._reader = PropertyReader("", special=True)

    def copy(
        self, message: Message, queue: str, target: dict[str, Any], reason: str, now_ms: int
    ) -> tuple[Message, frozenset[str]] | None:
        """As model.queue_policy.DeadLetters.copy."""
        rendered = self._renderer.render(message)
        exchange, at = read_shortstr(rendered.tail, 0)
        key, _ = read_shortstr(rendered.tail, at)
        properties = decode_properties(rendered.properties)
        headers = list(properties.headers or [])
        keys = [key, *_further_keys(headers)]
        prefix, queue = own_prefix(queue), local(queue)
        deaths = _deaths(headers, queue, reason, exchange, keys, now_ms, properties.expiration)
        if target.get("key") is not None:
            headers = [(name, field) for name, field in headers if name != "CC"]
            keys = [target["key"]]
        properties.headers = _with_deaths(headers, deaths, queue, reason, exchange)
        properties.expiration = None
        user = properties.user_id
        reader = self._reader if user is None else PropertyReader(user, special=True)
        content = reader.read(encode_properties(properties))
        made = self._addressed(target["exchange"], prefix, keys[0], content.native, body_of(message))
        return made, _went_round(deaths, prefix)

    def _addressed(self, exchange: str, prefix: str, key: str, native: bytes, body: bytes) -> Message:
        if exchange:
            tag = tag_of(key)
            made = Message(topic_of(exchange), body, native_target(exchange, tag, "") + native, tag)
            made.exchange = exchange
        else:
            name = full_name(prefix, key)
            topic, tag, rest = DIRECT_TOPIC, names.encode_word(name), ""
            if self._has_topic(name):
                topic, tag = topic_of(name), ""
                rest = key if names.decode_escapes(topic, "") != name else ""
            made = Message(topic, body, native_target("", tag, rest) + native, tag)
            made.exchange = DEFAULT_EXCHANGE
        made.demand_route = KIND
        return made


def _further_keys(headers: Table) -> list[str]:
    field = lookup(headers, "CC")
    if field is None or field.kind != "A":
        return []
    return [text_of(item) for item in field.value if item.kind == "S"]


def _deaths(
    headers: Table, queue: str, reason: str, exchange: str, keys: list[str], now_ms: int, expiration: str | None
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
        ("time", Field("T", now_ms // 1000)),
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
        if _text(entry, "reason") == "rejected":
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
