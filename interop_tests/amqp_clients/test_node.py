"""RabbitMQ's Node.js clients, unchanged and with their defaults, against `gantry up`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.amqp_clients.program import Unavailable, amqp_url, fetched, outside, results
from interop_tests.running import Gantry

HERE: Final = Path(__file__).parent / "node"
DOWNLOAD_S: Final = 300.0

SCENARIOS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "amqplib.js": (
        "amqplib",
        (
            "publish-and-consume", "large-body", "nack-to-the-dead-letters", "nack-and-come-back", "mandatory-return", "routing", "queue-options",
            "answers-by-direct-reply-to", "errors-close-the-channel-only", "consumers-are-told", "reconnect-after-a-restart",
        ),
    ),
    "connection-manager.js": (
        "amqp-connection-manager",
        ("publish-and-consume", "nack-to-the-dead-letters", "mandatory-return", "what-is-published-while-away-comes-later"),
    ),
    "rascal.js": (
        "rascal",
        (
            "publish-and-consume", "nack-to-the-dead-letters", "republished-until-it-works", "later-by-a-queue-that-nobody-reads",
            "mandatory-return", "reconnect-after-a-restart",
        ),
    ),
    "rabbitmq-client.js": (
        "rabbitmq-client",
        (
            "publish-and-consume", "dropped-to-the-dead-letters", "mandatory-return", "questions-and-answers", "a-queue-that-is-not-there",
            "reconnect-after-a-restart",
        ),
    ),
    "nestjs.js": (
        "@nestjs/microservices",
        (
            "questions-and-answers", "answers-of-many-parts", "what-a-handler-throws-is-the-answer", "events", "events-wait-for-their-service",
            "acknowledged-by-hand", "refused-to-the-dead-letters", "time-to-live-and-headers", "wildcards-of-a-topic-exchange",
            "a-fanout-of-two-services", "service-goes-on-after-a-restart",
        ),
    ),
}  # fmt: skip
"""Program to the package that it proves, and its scenarios."""

NODE_MIN: Final = 20
"""What NestJS asks for."""


def major() -> int:
    """Node's, 0 where there is none."""
    if not shutil.which("node"):
        return 0
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return int(done.stdout.strip("v").partition(".")[0])


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(major() < NODE_MIN, reason=f"node {NODE_MIN} or later is not installed"),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs with what they need; skips where that cannot be had."""
    directory = tmp_path_factory.mktemp("node")
    made = shutil.copytree(HERE, directory / "amqp", ignore=shutil.ignore_patterns("node_modules"))
    words = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000"]
    try:
        fetched([*words, "--cache", str(directory / "npm")], made, DOWNLOAD_S, "what package.json names")
    except Unavailable as why:
        pytest.skip(str(why))
    return made


@pytest.fixture(scope="module", params=SCENARIOS)
def ran(
    request: pytest.FixtureRequest, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    gantry = Gantry(tmp_path_factory.mktemp("gantry"))
    try:
        gantry.start()
        yield request.param, results(["node", request.param, amqp_url(gantry)], project, outside(gantry))
        gantry.stop()
    finally:
        gantry.kill()


def test_scenarios(
    ran: tuple[str, dict[str, str]], project: Path, record_property: Callable[[str, object], None]
) -> None:
    program, found = ran
    package, scenarios = SCENARIOS[program]
    version = json.loads((project / "node_modules" / package / "package.json").read_text())["version"]
    record_property("client", f"{package} (Node.js) {version}")
    record_property("scenario", ", ".join(scenarios).replace("-", " "))
    log = found.pop("log")
    assert found == dict.fromkeys(scenarios, "ok"), log
