"""RabbitMQ's Go client, and Watermill over it, unchanged, against `gantry up`."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.amqp_clients.program import fetched, ran_beside_a_server

HERE: Final = Path(__file__).parent
DOWNLOAD_S: Final = 200.0
BUILD_S: Final = 800.0
"""The first time: Go's own library is compiled, too."""

SCENARIOS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "go": (
        "github.com/rabbitmq/amqp091-go",
        (
            "publish-and-consume", "confirms", "nack-to-the-dead-letters", "mandatory-return", "headers-of-every-type", "routing", "queue-arguments",
            "transactions", "consumers-are-told", "errors-close-the-channel-only", "reconnect-after-a-restart",
        ),
    ),
    "watermill": (
        "github.com/ThreeDotsLabs/watermill-amqp/v3",
        (
            "durable-queue", "queue-without-durability", "durable-pub-sub", "pub-sub-without-durability", "topic-exchange", "nack-and-come-back",
            "nack-to-the-dead-letters", "transactions", "confirms-over-a-pool-of-channels", "mandatory", "queue-arguments", "router",
            "reconnect-after-a-restart",
        ),
    ),
}  # fmt: skip
"""Directory of the program to the module that it proves, and its scenarios."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("go"), reason="go is not installed")]


def built(source: Path, module: str, directory: Path) -> Path:
    """The program. Raises Unavailable when the client's source cannot be had."""
    fetched(["go", "mod", "download"], source, DOWNLOAD_S, module)
    program = directory / "scenarios"
    words = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module", params=SCENARIOS)
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    module, _ = SCENARIOS[request.param]
    for found in ran_beside_a_server(
        functools.partial(built, HERE / request.param, module), tmp_path_factory.mktemp(request.param)
    ):
        yield request.param, found


def test_scenarios(ran: tuple[str, dict[str, str]], record_property: Callable[[str, object], None]) -> None:
    program, found = ran
    module, scenarios = SCENARIOS[program]
    lines = (HERE / program / "go.mod").read_text().splitlines()
    version = next(line.split()[-1] for line in lines if f"{module} " in line)
    record_property("client", f"{module.removeprefix('github.com/')} (Go) {version}")
    record_property("scenario", ", ".join(scenarios).replace("-", " "))
    log = found.pop("log")
    assert found == dict.fromkeys(scenarios, "ok"), log
