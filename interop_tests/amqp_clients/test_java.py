"""RabbitMQ's Java client and Spring AMQP, unchanged, against `gantry up`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.amqp_clients.program import Unavailable, amqp_url, fetched, outside, results
from interop_tests.java import official
from interop_tests.running import Gantry

HERE: Final = Path(__file__).parent / "java"
DOWNLOAD_S: Final = 400.0

SCENARIOS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Plain": (
        "amqp-client",
        (
            "publish-and-consume", "confirms-by-listener", "headers-of-every-type", "nack-to-the-dead-letters", "mandatory-return", "exchanges",
            "queue-arguments", "consumers", "transactions", "questions-and-answers", "errors-close-the-channel-only", "recovers-after-a-restart",
        ),
    ),
    "Spring": (
        "spring-rabbit",
        (
            "listeners", "listener-of-a-topic", "headers", "correlated-confirms", "returns", "refused-to-the-dead-letters", "quorum-queue-counts",
            "time-to-live", "delayed-exchange", "priorities", "transacted-channel", "questions-and-answers", "batch-of-a-direct-container",
            "consumer-priority-and-exclusive", "listener-goes-on-after-a-restart",
        ),
    ),
}  # fmt: skip
"""Program to the artifact that it proves, and its scenarios."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(official.missing()), reason=official.missing())]


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The programs and their jars, fetched by Maven; skips where they cannot be had."""
    directory = tmp_path_factory.mktemp("maven")
    shutil.copy(HERE / "pom.xml", directory)
    words = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    try:
        fetched(words, directory, DOWNLOAD_S, "what pom.xml names")
    except Unavailable as why:
        pytest.skip(str(why))
    jars = (directory / "classpath").read_text().strip()
    classes = directory / "classes"
    official.compile_sources(sorted(HERE.glob("*.java")), jars, classes, "17")
    return f"{classes}{os.pathsep}{jars}"


@pytest.fixture(scope="module", params=SCENARIOS)
def ran(
    request: pytest.FixtureRequest, classpath: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    directory = tmp_path_factory.mktemp("gantry")
    gantry = Gantry(directory)
    try:
        gantry.start()
        words = ["java", "-Xmx256m", *official.PATIENT, "-cp", classpath, request.param, amqp_url(gantry)]
        yield request.param, results(words, directory, outside(gantry))
        gantry.stop()
    finally:
        gantry.kill()


def test_scenarios(
    ran: tuple[str, dict[str, str]], classpath: str, record_property: Callable[[str, object], None]
) -> None:
    program, found = ran
    artifact, scenarios = SCENARIOS[program]
    version = re.search(rf"{artifact}-([0-9.]+)\.jar", classpath)
    record_property("client", f"{artifact} (Java) {version[1] if version else ''}")
    record_property("scenario", ", ".join(scenarios).replace("-", " "))
    log = found.pop("log")
    assert found == dict.fromkeys(scenarios, "ok"), log
