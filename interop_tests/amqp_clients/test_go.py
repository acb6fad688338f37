"""RabbitMQ's Go client, unchanged, against `gantry up`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.amqp_clients.program import fetched, ran_beside_a_server

HERE: Final = Path(__file__).parent / "go"
MODULE: Final = "github.com/rabbitmq/amqp091-go"
DOWNLOAD_S: Final = 200.0
BUILD_S: Final = 800.0
"""The first time: Go's own library is compiled, too."""

SCENARIOS: Final = (
    "publish-and-consume", "confirms", "nack-to-the-dead-letters", "mandatory-return", "headers-of-every-type", "routing", "queue-arguments",
    "transactions", "consumers-are-told", "errors-close-the-channel-only", "reconnect-after-a-restart",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("go"), reason="go is not installed")]


def built(directory: Path) -> Path:
    """The program. Raises Unavailable when the client's source cannot be had."""
    fetched(["go", "mod", "download"], HERE, DOWNLOAD_S, MODULE)
    program = directory / "scenarios"
    words = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    yield from ran_beside_a_server(built, tmp_path_factory.mktemp("go"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(ran: dict[str, str], scenario: str, record_property: Callable[[str, object], None]) -> None:
    version = next(line.split()[-1] for line in (HERE / "go.mod").read_text().splitlines() if MODULE in line)
    record_property("client", f"amqp091-go {version}")
    record_property("scenario", scenario)
    assert ran.get(scenario) == "ok", ran["log"]


def test_every_scenario_is_listed(ran: dict[str, str]) -> None:
    assert sorted(ran.keys() - {"log"}) == sorted(SCENARIOS)
