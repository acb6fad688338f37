"""A persistent session merges the queues of its filters: whose answer the others wait for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gantrymq.broker.port import Done
from gantrymq.model.errors import ErrorCode, GantryError
from gateways.tests.mqtt.world import World


@pytest.mark.parametrize("fails", [False, True])
def test_the_answer_for_an_ended_subscription_lets_the_others_go_on(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe("a", "b")
    acquire = world.port.acquire
    held: list[partial[None]] = []

    def slow(cursor: int, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        def answer(token: Any, result: Any) -> None:
            if token.text == "b":
                held.append(partial(on_done, token, GantryError(ErrorCode.NOT_FOUND) if fails else result))
            else:
                on_done(token, result)

        acquire(cursor, holder, count_max, bytes_max, token, answer)

    monkeypatch.setattr(world.port, "acquire", slow)
    publisher = world.client("p")
    publisher.publish("b")
    publisher.publish("a")
    client.unsubscribe("b")
    assert client.messages() == []
    (late,) = held
    late()
    world.settle()
    assert client.messages() == [("a", b"x")]
    publisher.publish("a", "next")
    assert client.messages() == [("a", b"next")]
