"""RabbitMQ's frameworks, unchanged and with their defaults, against `gantry up`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest

from interop_tests.frameworks.environment import Framework, directory
from interop_tests.running import Gantry, free_port
from interop_tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    directory()  # its first time takes longer than any test
    gantry = Gantry(tmp_path_factory.mktemp("gantry"))
    try:
        yield gantry.start()
    finally:
        gantry.stop()


@pytest.fixture
def framework(broker: Gantry, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Framework]:
    host, port = broker.address("amqp")
    made = Framework(tmp_path, AMQP_URL=f"amqp://guest:guest@{host}:{port}/", RESULTS="rpc://")
    try:
        yield made
    finally:
        made.kill()


def says(record: pytest.FixtureRequest, client: str, scenario: str) -> None:
    """For the table at the end of a run."""
    record.node.user_properties += [("client", client), ("scenario", scenario)]


CELERY_READY = " ready."


def test_celery_default_worker(framework: Framework, request: pytest.FixtureRequest) -> None:
    says(request, "Celery 5", "results by rpc://, retries, chains, ETA, expiry, remote control, events")
    framework.begin(CELERY_READY, "celery", "-A", "celery_app", "worker", "-l", "INFO")
    for scenario in ("results", "later", "control", "events"):
        framework.run("celery_client", scenario)


def test_celery_workers_find_each_other(framework: Framework, request: pytest.FixtureRequest) -> None:
    says(request, "Celery 5", "mingle, gossip, pool of threads, chord")
    results = {"RESULTS": f"file://{framework.place}", "QUEUE": "chords"}
    worker = ("celery", "-A", "celery_app", "worker", "-l", "INFO", "-P", "threads")
    first = framework.begin(CELERY_READY, *worker, "-n", "first@here", **results)
    second = framework.begin(CELERY_READY, *worker, "-n", "second@here", **results)
    assert "mingle: sync with 1 nodes" in second.read_text()
    until(lambda: "sync with second@here" in first.read_text())
    framework.run("celery_client", "chords", **results)


def test_celery_worker_killed_in_the_middle(framework: Framework, request: pytest.FixtureRequest) -> None:
    says(request, "Celery 5", "acks_late, the worker and its children killed: nothing is lost")
    worker = ("celery", "-A", "celery_app", "worker", "-l", "INFO")
    framework.begin(CELERY_READY, *worker, QUEUE="late")
    framework.run("celery_client", "write_many", QUEUE="late")
    until(lambda: len(framework.lines("written")) >= 5)
    framework.kill()  # at the latest while tasks of the second half wait
    (framework.place / "second half").touch()
    framework.begin(CELERY_READY, *worker, QUEUE="late")
    until(lambda: len(set(framework.lines("written"))) == 60)


def test_flower_shows_what_waits(framework: Framework, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    says(request, "Celery Flower", "lengths of queues by the management API")
    management, page = free_port(), free_port()
    gantry = Gantry(tmp_path / "managed", settings=(f"amqp.management_port={management}",))
    gantry.directory.mkdir()
    try:
        host, port = gantry.start().address("amqp")
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
        channel = connection.channel()
        channel.queue_declare("celery", durable=True)
        for _ in range(7):
            channel.basic_publish("", "celery", b"{}")
        channel.basic_get("celery")
        framework.begin(
            "Connected to amqp", "celery", f"--broker=amqp://guest:guest@{host}:{port}//", "flower", f"--port={page}",
            "--address=127.0.0.1", f"--broker-api=http://guest:guest@127.0.0.1:{management}/api/",
            FLOWER_UNAUTHENTICATED_API="true",
        )  # fmt: skip
        with httpx.Client(base_url=f"http://127.0.0.1:{page}", timeout=30) as flower:
            (queue,) = flower.get("/api/queues/length").json()["active_queues"]
            assert [queue[name] for name in ("name", "messages", "messages_ready", "messages_unacknowledged")] == [
                "celery", 7, 6, 1
            ]  # fmt: skip
            shown = re.sub(r"<[^>]+>|\s", " ", flower.get("/broker").text)
        assert "celery 7 1 6 0" in " ".join(shown.split())
        framework.kill()
        connection.close()
        gantry.stop()
    finally:
        gantry.kill()


def test_kombu(framework: Framework, request: pytest.FixtureRequest) -> None:
    says(request, "kombu", "simple queues, queue options, dead letters, mixin, mailbox")
    framework.run("kombu_app")


def test_dramatiq(framework: Framework, request: pytest.FixtureRequest) -> None:
    says(request, "Dramatiq", "tasks, retries, delays, dead letters")
    framework.begin("ready for action", "dramatiq", "dramatiq_app", "--processes", "1")
    framework.run("dramatiq_app")
    wanted = {f"work {number}" for number in range(100)} | {"third time", "late True"}
    framework.has("dramatiq", wanted)
    assert set(Counter(framework.lines("dramatiq")).values()) == {1}
    framework.run("dramatiq_dead")


def test_faststream(framework: Framework, request: pytest.FixtureRequest) -> None:
    says(request, "FastStream", "exchanges of every kind, requests by direct reply-to, dead letters")
    framework.run("faststream_app")


def test_taskiq(framework: Framework, request: pytest.FixtureRequest) -> None:
    says(request, "taskiq-aio-pika", "tasks, retries, delays")
    framework.begin("Listening started", "taskiq", "worker", "taskiq_app:broker", "--workers", "1")
    framework.run("taskiq_client")
    wanted = {f"work {number}" for number in range(100)} | {"third time", "late True"}
    framework.has("taskiq", wanted)


def test_nameko(framework: Framework, broker: Gantry, request: pytest.FixtureRequest) -> None:
    says(request, "nameko", "calls, events to one and to all, a queue of its own")
    host, port = broker.address("amqp")
    framework.begin(
        "Connected to amqp", "nameko", "run", "nameko_service", "--broker", f"amqp://guest:guest@{host}:{port}/"
    )
    framework.run("nameko_client")
    sums = [3, *(2 * number for number in range(20))]
    wanted = Counter([f"{who} {value}" for value in sums for who in ("one", "all")])
    wanted.update(f"order {x}" for x in [1, *range(20)])
    until(lambda: Counter(framework.lines("nameko")) == wanted)
