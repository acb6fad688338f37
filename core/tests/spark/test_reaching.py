"""Servers that cannot be reached, as the driver meets them: an error within ten seconds. Once something has answered it is more patient."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark import wire
from gantrymq.spark.planning.options import for_batch, parse
from gantrymq.spark.planning.planner import Planner
from gantrymq.spark.wire import FIRST_FOR_S, RETRY_FOR_S, Metadata

LIMIT_S = 10.0


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.topics["t"] = {"broker-a": 1}
    yield cluster
    wire.close_all()
    cluster.close()


def errors_of(calls: list[Callable[[], object]]) -> list[str]:
    """What each says that has UNAVAILABLE in time; all wait side by side."""

    def one(call: Callable[[], object]) -> str:
        begun = time.monotonic()
        try:
            with pytest.raises(GantryError) as caught:
                call()
        finally:
            wire.close_all()  # of this thread
        assert time.monotonic() - begun < LIMIT_S
        assert caught.value.code is ErrorCode.UNAVAILABLE
        return caught.value.text

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def source_and_sink(*nameservers: str) -> list[Callable[[], object]]:
    """How each of them first asks."""
    options = for_batch(parse({"topic": "t", "nameserver": ";".join(nameservers)}))
    return [Planner(options).batch, lambda: Metadata(options.nameservers).reach(("t",))]


def test_the_source_and_the_sink_say_what_cannot_be_reached(silent: str, refused: str) -> None:
    tried = [[address] * count for address in (silent, refused) for count in (1, 4)]
    texts = iter(errors_of([call for nameservers in tried for call in source_and_sink(*nameservers)]))
    for (address, *_), source, sink in zip(tried, texts, texts, strict=True):
        for text in (source, sink):
            assert address in text
            assert "start one there (`gantry up`), or name another: option nameserver" in text


def test_a_broker_that_does_not_answer_is_found_in_time_too(cluster: FakeCluster) -> None:
    cluster.broker().mute = set(RequestCode)
    for text in errors_of(source_and_sink(cluster.nameserver)):
        assert cluster.broker().address in text


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
