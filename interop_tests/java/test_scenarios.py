"""Every message type and every way to consume with RocketMQ's own Java clients of the 4.9 and the 5.x line, unchanged, against two
nameservers and a broker in processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gantrymq.client.admin import Admin
from gantrymq.model.errors import GantryError
from interop_tests.java import official
from interop_tests.running import Cluster
from interop_tests.waiting import until

VERSIONS = ("5.3.3", "4.9.8")

SCENARIOS = (
    "sync", "async", "one-way", "batch", "ordered", "delay-level", "transaction", "request-reply", "compressed-zlib", "query",
    "clustering", "broadcast", "retry-dead-letter", "tag-filter", "sql-filter", "sql-lost-heartbeat", "pull",
    "lite-pull-subscribe", "lite-pull-assign", "from-timestamp", "offset-reset", "two-nameservers", "broker-restart",
)  # fmt: skip
SINCE_5 = ("timer", "recall", "pop", "compressed-lz4", "compressed-zstd")
"""The 4.9 client has no such thing."""

QUICK = ("transactions.check_interval_ms=500", "transactions.timeout_ms=300", "transactions.check_max=1000000")
QUEUES = 4
KILL_AFTER_S = 0.1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(official.missing()), reason=official.missing()),
]


class Outside:
    """What the scenarios cannot do themselves."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._killing: threading.Thread | None = None

    def __call__(self, what: str) -> None:
        name, *words = what.split()
        getattr(self, name.replace("-", "_"))(*words)

    def remake(self, scenario: str) -> None:
        """Delete the topic and make it again: its queues go on where they were."""

        async def make() -> None:
            async with Admin(self._cluster.process("ns1").doors["nameserver"]) as admin:
                await admin.delete_topic(f"{self._prefix}-{scenario}")
                await admin.create_topic(f"{self._prefix}-{scenario}", QUEUES)

        asyncio.run(make())

    def kill_nameserver(self) -> None:
        self._cluster.process("ns0").kill()

    def start_nameserver(self) -> None:
        self._cluster.process("ns0").start()

    def kill_broker_soon(self) -> None:
        self._killing = threading.Thread(target=self._kill_broker)
        self._killing.start()

    def _kill_broker(self) -> None:
        threading.Event().wait(KILL_AFTER_S)
        broker = self._cluster.process("broker0")
        broker.kill()
        broker.start()

    def broker_is_back(self) -> None:
        assert self._killing is not None
        self._killing.join()


def make_topics(nameserver: str, prefix: str) -> bool:
    async def make() -> None:
        async with Admin(nameserver) as admin:
            await asyncio.gather(*(admin.create_topic(f"{prefix}-{name}", QUEUES) for name in (*SCENARIOS, *SINCE_5)))

    asyncio.run(make())
    return True


@pytest.fixture(scope="module", params=VERSIONS)
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    """(version, results by scenario) of one JVM."""
    version: str = request.param
    directory = tmp_path_factory.mktemp("java")
    cluster = Cluster(directory, nameservers=2, brokers=1, gateways=0, settings=QUICK)
    try:
        cluster.start()
        where = [process.doors["nameserver"] for process in cluster.processes if "nameserver" in process.doors]
        prefix = "j" + version.replace(".", "")
        for nameserver in where:
            until(
                partial(make_topics, nameserver, prefix), ignored=(GantryError,)
            )  # the broker registers itself after it is ready
        try:
            jvm = official.Jvm(version, directory, ";".join(where), cluster.process("broker0").doors["broker"], prefix)
        except official.Unavailable as why:
            pytest.skip(str(why))
        try:
            jvm.run(Outside(cluster, prefix))
        finally:
            jvm.close()
        yield version, jvm.results | {"log": jvm.log()}
        cluster.stop()
    finally:
        for process in cluster.processes:
            process.kill()


@pytest.mark.parametrize("scenario", [*SCENARIOS, *SINCE_5])
def test_scenario(
    ran: tuple[str, dict[str, str]], scenario: str, record_property: Callable[[str, object], None]
) -> None:
    version, results = ran
    record_property("client", f"rocketmq-client (Java) {version}")
    record_property("scenario", scenario)
    if version.startswith("4.") and scenario in SINCE_5:
        pytest.skip(f"the client {version} has no such thing")
    assert results[scenario] == "ok", results["log"]


def test_every_scenario_is_listed(ran: tuple[str, dict[str, str]]) -> None:
    assert ran[1].keys() - {"log"} <= {*SCENARIOS, *SINCE_5}
