"""Exactly once and idempotent against a real broker in a process, without Spark: each event of a task, a driver and a broker that dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from gantrymq.client import BlockingPullConsumer  # noqa: E402
from gantrymq.model.errors import GantryError  # noqa: E402
from gantrymq.spark import wire  # noqa: E402
from gantrymq.spark.writing import requests  # noqa: E402
from gantrymq.spark.writing.epochs import Epoch, Half  # noqa: E402
from gantrymq.spark.writing.sender import RowError  # noqa: E402
from gantrymq.spark.writing.tasks import Job, send_batches  # noqa: E402
from interop_tests.running import Gantry  # noqa: E402
from interop_tests.waiting import until  # noqa: E402

QUERY = "0f8fad5b-d9cb-469f-a165-70867728950e"


class Dead(Exception):
    """A driver's end."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    running = Gantry(tmp_path_factory.mktemp("epochs")).start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(requests, "REQUEST_ROWS", 7)
    yield
    wire.close_all()


class Query:
    """A streaming query that writes rows `first` to `first + 20` of two partitions in each batch."""

    def __init__(self, server: Gantry, topic: str, mode: str = "exactlyOnce") -> None:
        self.server = server
        self.topic = topic
        self.mode = mode
        self.nameservers = [server.doors["nameserver"]]

    def task(self, batch: int, partition: int, fail_at: int = -1) -> list[Half]:
        numbers: list[bytes | None] = [b"%d" % (1000 * batch + 100 * partition + row) for row in range(20)]
        if fail_at >= 0:
            numbers[fail_at] = None
        job = Job(self.nameservers, self.topic, self.mode, QUERY + self.topic, batch)
        frame = pa.record_batch({"body": pa.array(numbers, pa.binary()), "tag": ["t"] * 20})
        return send_batches([frame], job, partition)[1]

    def epoch(self, batch: int, dies_at: str = "") -> Epoch:
        def step(name: str) -> None:
            if name == dies_at:
                raise Dead(name)

        return Epoch(self.nameservers, QUERY + self.topic, batch, step)

    def rows(self) -> list[int]:
        with BlockingPullConsumer(self.nameservers[0], group="check") as consumer:
            found: list[int] = []
            # A door made the topic just now: the nameserver may not know.
            for queue in until(lambda: consumer.queues(self.topic), ignored=(GantryError,)):
                consumer.assign([queue])
                consumer.seek(queue, 0)
                while batch := consumer.pull(wait_s=0):
                    found += [int(message.body) for message in batch]
            return sorted(found)

    def undecided(self) -> int:
        epoch = self.epoch(0)
        routes = epoch._routes([])
        return sum(len(epoch._undecided(broker, address)) for broker, address in epoch._addresses(routes).items())


def expected(*batches: int) -> list[int]:
    return sorted(
        1000 * batch + 100 * partition + row for batch in batches for partition in (0, 1) for row in range(20)
    )


def test_rows_are_seen_by_the_commit(server: Gantry) -> None:
    query = Query(server, "epoch-plain")
    halves = query.task(0, 0) + query.task(0, 1)
    query.task(0, 1)  # an attempt that does not count
    query.epoch(0).commit(halves)
    assert query.rows() == expected(0)
    assert query.undecided() == 0
    query.epoch(0).commit(halves)
    assert query.rows() == expected(0)


@pytest.mark.parametrize("step", ["decide", "commit", "roll back others", "done"])
def test_a_driver_that_dies_at_each_step(server: Gantry, step: str) -> None:
    """Its batch is repeated by the next one: new attempts, perhaps other partitions, one result."""
    query = Query(server, "epoch-driver-" + step.replace(" ", "-"))
    with pytest.raises(Dead):
        query.epoch(0, step).commit(query.task(0, 0) + query.task(0, 1))
    query.epoch(0).commit(query.task(0, 1) + query.task(0, 0))
    query.epoch(1).commit(query.task(1, 0) + query.task(1, 1))
    assert query.rows() == expected(0, 1)
    assert query.undecided() == 0


def test_a_task_that_fails_and_is_repeated(server: Gantry) -> None:
    query = Query(server, "epoch-task")
    with pytest.raises(RowError, match="row 15"):
        query.task(0, 0, fail_at=15)
    query.epoch(0).commit(query.task(0, 0) + query.task(0, 1))
    assert query.rows() == expected(0)
    assert query.undecided() == 0


def test_an_aborted_batch_leaves_nothing(server: Gantry) -> None:
    query = Query(server, "epoch-abort")
    query.epoch(0).abort(query.task(0, 0))
    query.epoch(0).abort([])
    assert query.rows() == []
    assert query.undecided() == 0
    query.epoch(0).commit(query.task(0, 0) + query.task(0, 1))
    assert query.rows() == expected(0)


def test_an_abort_behind_a_commit_that_failed_changes_nothing(server: Gantry) -> None:
    query = Query(server, "epoch-abort-late")
    halves = query.task(0, 0) + query.task(0, 1)
    with pytest.raises(Dead):
        query.epoch(0, "commit").commit(halves)
    query.epoch(0).abort(halves)
    assert query.rows() == []
    query.epoch(0).commit(query.task(0, 0) + query.task(0, 1))
    assert query.rows() == expected(0)
    assert query.undecided() == 0


@pytest.mark.parametrize("step", ["decide", "commit", "done"])
def test_a_broker_that_is_killed_at_each_step(tmp_path: Path, step: str) -> None:
    server = Gantry(tmp_path).start()
    try:
        query = Query(server, "epoch-broker")

        def kill(name: str) -> None:
            if name == step:
                server.kill_and_restart()

        epoch = Epoch(query.nameservers, QUERY + query.topic, 0, kill)
        epoch.commit(query.task(0, 0) + query.task(0, 1))
        query.epoch(1).commit(query.task(1, 0) + query.task(1, 1))
        assert query.rows() == expected(0, 1)
        assert query.undecided() == 0
    finally:
        server.kill()


def test_idempotent_rows_are_stored_once(server: Gantry) -> None:
    query = Query(server, "epoch-idempotent", "idempotent")
    with pytest.raises(RowError):
        query.task(0, 0, fail_at=15)
    for _ in range(2):
        query.task(0, 0)
        query.task(0, 1)
    query.task(1, 0)
    query.task(1, 1)
    assert query.rows() == expected(0, 1)


def test_what_a_stock_broker_does_not_know_is_an_error(cluster: Any) -> None:
    job = Job([cluster.nameserver], "telemetry", "exactlyOnce", QUERY, 0)
    with pytest.raises(RowError, match="REQUEST_CODE_NOT_SUPPORTED"):
        send_batches([pa.record_batch({"body": [b"x"]})], job, 0)
