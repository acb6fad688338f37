"""The blocking clients have the methods of their twins, with the same arguments, text and results."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gantrymq.client import (
    Admin,
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingSimpleConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)

PAIRS = [
    (BlockingProducer, Producer), (BlockingPullConsumer, PullConsumer), (BlockingPushConsumer, PushConsumer),
    (BlockingSimpleConsumer, SimpleConsumer), (BlockingAdmin, Admin),
]  # fmt: skip

WITHOUT: dict[type, set[str]] = {
    Producer: {"post"},  # calls back on the loop
    # For who ends it in steps, and for the client's tools.
    PushConsumer: {"in_hand", "reset", "states", "subscriptions", "handler_of"},
    Admin: {"wait_until_known"},  # a part of create_topic
}
"""What a twin has for itself, beside `close`, which of a blocking client ends its thread too."""


def methods(kind: type) -> dict[str, Any]:
    """Public ones; not what other parts of the client call."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: method
        for name, method in found
        if not name.startswith("_") and not (method.__doc__ or "").startswith("See `ConsumerMember`")
    }


@pytest.mark.parametrize(("blocking", "twin"), PAIRS)
def test_methods_are_those_of_the_twin(blocking: type, twin: type) -> None:
    theirs = methods(twin).keys() - WITHOUT.get(twin, set())
    ours = methods(blocking)
    assert ours.keys() == theirs
    for name, method in ours.items():
        assert inspect.signature(method).parameters == inspect.signature(getattr(twin, name)).parameters, name
        assert not inspect.iscoroutinefunction(method), name


@pytest.mark.parametrize(("blocking", "twin"), PAIRS)
def test_arguments_of_the_constructor_are_those_of_the_twin(blocking: type, twin: type) -> None:
    theirs = dict(inspect.signature(twin).parameters)
    theirs.pop("client", None)
    assert dict(inspect.signature(blocking).parameters) == theirs


def test_help_has_the_text_of_the_twin() -> None:
    assert inspect.getdoc(BlockingProducer.send) == inspect.getdoc(Producer.send)
    assert BlockingAdmin.lag.__name__ == "lag"


def test_a_constructor_that_raises_leaves_no_thread() -> None:
    with pytest.raises(TypeError):
        BlockingProducer("127.0.0.1:1", nonsense=True)


def test_nothing_can_be_asked_of_a_closed_one() -> None:
    consumer = BlockingPullConsumer("127.0.0.1:1", group="g")
    consumer.close()
    consumer.close()
    with pytest.raises(Exception, match="this client is closed"):
        consumer.assignment()
    assert list(consumer) == []
