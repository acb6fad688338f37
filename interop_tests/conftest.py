"""Fixtures: running servers; the table of foreign clients at the end. `server` is shared by a module and must not be killed; the others belong to one
test. `real` and `gantry` share a directory, are not started yet, and run in turn."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.clients import ClientTable, mark
from interop_tests.patience import lend
from interop_tests.real_broker import SIZES, RealBroker
from interop_tests.running import Cluster, Gantry
from interop_tests.slots import are_shared
from interop_tests.waiting import until

LIMIT_S = 900.0
"""For every test here at least: it only ends one that hangs. Longer than the time boxes of CI's stages: on a slow machine they cut off, and nothing fails."""


@pytest.fixture(scope="module", autouse=True)
def abandoned() -> Iterator[None]:
    """What a module's clients left behind is collected here, not in somebody else's test or at the end of the run."""
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """The native client waits longer here; not in the tests of other directories."""
    with pytest.MonkeyPatch.context() as patch:
        lend(patch)
        yield


TWO_GROUPS = ("test_amqp_clients", "test_amqp_queues", "test_amqp_routing", "test_mqtt_amqtt", "test_mqtt_paho")
"""Modules whose tests hold with two broker groups, too: about half of what they use lies in another group than what they publish to."""


@pytest.fixture(scope="module", params=["combined", "separated", pytest.param("two groups", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    """A running installation, once as one process and once as three; for `TWO_GROUPS` also as four, with two brokers."""
    gantry = Gantry(tmp_path_factory.mktemp("gantry"), request.param)
    try:
        yield gantry.start()
    finally:
        gantry.stop()


@pytest.fixture(scope="module")
def combined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    """As `server`, in one process: for clients that meet nothing of what the other way changes, which is between gateways and broker."""
    gantry = Gantry(tmp_path_factory.mktemp("gantry"))
    try:
        yield gantry.start()
    finally:
        gantry.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Gantry]:
    """`gantry up` for one test, which may kill and restart it."""
    gantry = Gantry(tmp_path)
    try:
        yield gantry.start()
    finally:
        gantry.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A nameserver, three brokers that have shared the slots, and two gateways."""
    found = Cluster(tmp_path, nameservers=1, brokers=3, gateways=2)
    try:
        found.start()
        until(lambda: are_shared(found, 3))
        yield found
    finally:
        found.stop()
        assert "Traceback" not in found.log()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBroker]:
    broker = RealBroker(tmp_path / "data")
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def gantry(tmp_path: Path) -> Iterator[Gantry]:
    server = Gantry(tmp_path, settings=SIZES)
    try:
        yield server
    finally:
        for process in server.processes:
            process.kill()


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" not in config.option.markexpr:  # the everyday run has no use for the table
        config.pluginmanager.register(ClientTable(), "clients")


def _holds_for(item: pytest.Item) -> bool:
    shape = (
        item.callspec.params.get("server") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    return shape != "two groups" or item.path.stem in TWO_GROUPS


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _holds_for(item)]
    for item in items:
        mark(item)
        if Path(__file__).parent in item.path.parents:
            present = item.get_closest_marker("timeout")
            item.add_marker(pytest.mark.timeout(max([LIMIT_S, *(present.args if present else ())])), append=False)
            # Foreign clients leave sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
