"""Dead letters of any property list: headers added behind a list's own are the same as those of a list that is taken apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.message import Message
from gantrymq_gateways.amqp.properties.mapping import native_target
from gantrymq_gateways.amqp.properties.reading import PropertyReader
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.queues.dead import AmqpDeadLetters
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table, lookup
from gateways.tests.amqp.wire.test_codec import properties_

NOW_MS = 1_700_000_000_123
TEXT: Table = [("a", Field("S", b"text"))]
USUAL = Properties(content_type="text/plain", headers=TEXT, delivery_mode=2, message_id="1", type="t")
BY_KEY = {"exchange": "", "key": "dead"}


class ApartLetters(AmqpDeadLetters):
    """Every list is taken apart."""

    def _first(self, *arguments: Any) -> None:
        return None


class AddedLetters(AmqpDeadLetters):
    """No list is."""

    def _again(self, *arguments: Any) -> Any:
        raise AssertionError


def stored(properties: Properties) -> Message:
    native = PropertyReader(properties.user_id or "", special=True).read(encode_properties(properties)).native
    made = Message("e", b"body", native_target("e", "k", "") + native, "k")
    made.exchange = "e"
    return made


def death(kind: type[AmqpDeadLetters], message: Message, target: dict[str, Any], reason: str) -> Any:
    found = kind(lambda name: False).copy(message, "v\nq", target, reason, NOW_MS)
    assert found is not None
    made, rounds = found
    rendered = Renderer({}).render(made)
    address = made.topic, made.tag, made.exchange, made.demand_route, made.body
    return address, rendered.tail, decode_properties(rendered.properties), rounds


@given(
    properties_,
    st.sampled_from([BY_KEY, {"exchange": "x", "key": None}, {"exchange": "x", "key": "other"}]),
    st.sampled_from(["rejected", "expired", "maxlen", "delivery_limit"]),
    st.sampled_from([None, "60000"]),
)
def test_a_list_of_any_kind(
    properties: Properties, target: dict[str, Any], reason: str, expiration: str | None
) -> None:
    properties.expiration = expiration
    message = stored(properties)
    message.born_ms = message.store_ms = 0
    assert death(AmqpDeadLetters, message, target, reason) == death(ApartLetters, message, target, reason)


@pytest.mark.parametrize(
    "properties",
    [
        USUAL,
        Properties(),
        Properties(headers=[]),
        Properties(expiration="500"),
        Properties(correlation_id="c", reply_to="r", expiration="500", delivery_mode=1, priority=3, timestamp=5),
        Properties(headers=[("b", Field("S", b"x" * 300)), ("c", Field("F", TEXT)), ("d", Field("t", True))]),
        Properties(headers=[*TEXT, *TEXT]),
    ],
)
def test_the_first_death_is_added(properties: Properties) -> None:
    """Without taking the list apart, and with what every list has."""
    _, _, shown, _ = death(AddedLetters, stored(properties), BY_KEY, "expired")
    own = [] if properties.headers is None else properties.headers
    assert shown.headers[: len(own)] == own
    names = [name for name, _ in shown.headers[len(own) :]]
    assert names[0] == "x-death"
    assert names[1:] == [
        f"x-{which}-death-{name}" for which in ("first", "last") for name in ("reason", "queue", "exchange")
    ]
    (entry,) = lookup(shown.headers, "x-death").value
    had = [] if properties.expiration is None else [("original-expiration", Field("S", b"500"))]
    assert entry.value == [
        *had,
        ("count", Field("l", 1)),
        ("reason", Field("S", b"expired")),
        ("queue", Field("S", b"q")),
        ("time", Field("T", NOW_MS // 1000)),
        ("exchange", Field("S", b"e")),
        ("routing-keys", Field("A", [Field("S", b"k")])),
    ]
    assert shown.expiration is None


@pytest.mark.parametrize(
    "headers",
    [
        [("x-death", Field("S", b"own"))],
        [("x-first-death-reason", Field("S", b"own"))],
        [("CC", Field("A", [Field("S", b"l")]))],
        [("x-last-death-queue", Field("S", b"own"))],
    ],
)
def test_what_has_to_be_looked_at_is_taken_apart(headers: Table) -> None:
    with pytest.raises(AssertionError):
        death(AddedLetters, stored(Properties(headers=headers)), BY_KEY, "rejected")


def test_what_is_remembered_is_bounded() -> None:
    letters = AmqpDeadLetters(lambda name: False)
    message = stored(USUAL)
    for number in range(600):
        letters.copy(message, "q", {"exchange": "", "key": f"dead{number}"}, "rejected", number * 1_000)
    assert len(letters._headers) <= 256
    assert len(letters._addresses) <= 256
    assert len(letters._reader._added) <= 64
