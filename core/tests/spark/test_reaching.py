"""Servers that cannot be reached, as the driver meets them: an error within ten seconds. Once something has answered it is more patient."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark import wire
from gantrymq.spark.options import for_batch, parse
from gantrymq.spark.planning import Planner
from gantrymq.spark.wire import FIRST_FOR_S, RETRY_FOR_S, Metadata

LIMIT_S = 10.0


@pytest.fixture(params=["silent", "refused"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if request.param == "silent":
            bound.listen(64)
        yield f"127.0.0.1:{bound.getsockname()[1]}"
    wire.close_all()


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.topics["t"] = {"broker-a": 1}
    yield cluster
    wire.close_all()
    cluster.close()


def error_of(call: object) -> GantryError:
    begun = time.monotonic()
    with pytest.raises(GantryError) as caught:
        call()  # type: ignore[operator]
    assert time.monotonic() - begun < LIMIT_S
    assert caught.value.code is ErrorCode.UNAVAILABLE
    return caught.value


@pytest.mark.parametrize("count", [1, 4])
def test_the_source_and_the_sink_say_what_cannot_be_reached(address: str, count: int) -> None:
    options = for_batch(parse({"topic": "t", "nameserver": ";".join([address] * count)}))
    for call in (Planner(options).batch, lambda: Metadata(options.nameservers).reach(("t",))):
        text = error_of(call).text
        assert address in text
        assert "start one there (`gantry up`), or name another: option nameserver" in text


def test_a_broker_that_does_not_answer_is_found_in_time_too(cluster: FakeCluster) -> None:
    cluster.broker().mute = set(RequestCode)
    options = for_batch(parse({"topic": "t", "nameserver": cluster.nameserver}))
    assert cluster.broker().address in error_of(Planner(options).batch).text
    assert cluster.broker().address in error_of(lambda: Metadata(options.nameservers).reach(("t",))).text


def test_what_has_answered_once_is_waited_for_longer(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    planner = Planner(for_batch(parse({"topic": "t", "nameserver": cluster.nameserver})))
    planner.batch()
    cluster.stop("broker-a")
    wire.close_all()
    monkeypatch.setattr(wire.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(wire.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(GantryError):
        planner.batch()
    assert FIRST_FOR_S < RETRY_FOR_S - 3 < now[0] <= RETRY_FOR_S


def test_a_sink_may_write_to_a_topic_that_its_first_message_makes(cluster: FakeCluster) -> None:
    Metadata([cluster.nameserver]).reach(("not there yet",))
    Metadata([cluster.nameserver]).reach(())
