"""Every message type, every way to consume and the administration of RocketMQ's own Go client, unchanged, against `gantry up`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from interop_tests.golang import official
from interop_tests.running import Gantry

SCENARIOS = (
    "sync", "async", "one-way", "batch", "compressed", "ordered", "delay-level", "timer", "transaction", "request-reply", "trace",
    "clustering", "broadcast", "tag-filter", "sql-filter", "retry", "retry-ordered", "dead-letter", "offsets", "pull", "poll",
    "topics", "groups",
)  # fmt: skip

QUICK = ("transactions.check_interval_ms=500", "transactions.timeout_ms=300", "transactions.check_max=1000000")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(official.missing()), reason=official.missing()),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], str]]:
    """Results of all scenarios, and what the client logged."""
    directory = tmp_path_factory.mktemp("go")
    try:
        program = official.built(directory)
    except official.Unavailable as why:
        pytest.skip(str(why))
    gantry = Gantry(directory, settings=QUICK)
    try:
        gantry.start()
        yield official.run(program, gantry.doors["nameserver"], gantry.doors["broker"], "go", directory)
    finally:
        gantry.stop()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(
    ran: tuple[dict[str, str], str], scenario: str, record_property: Callable[[str, object], None]
) -> None:
    results, log = ran
    record_property("client", f"rocketmq-client-go {official.version()}")
    record_property("scenario", scenario)
    assert results.get(scenario) == "ok", log


def test_every_scenario_is_listed(ran: tuple[dict[str, str], str]) -> None:
    assert sorted(ran[0]) == sorted(SCENARIOS)
