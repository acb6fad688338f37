"""lapin, the Rust client, unchanged, against `gantry up`."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.amqp_clients.program import fetched, ran_beside_a_server

HERE: Final = Path(__file__).parent / "rust"
DOWNLOAD_S: Final = 300.0
BUILD_S: Final = 1200.0
"""Every crate is compiled: a minute and a half of two processors."""

SCENARIOS: Final = (
    "publish-and-consume", "large-body", "nack-to-the-dead-letters", "mandatory-return", "headers-of-every-type", "routing", "transactions",
    "errors-close-the-channel-only", "reconnect-after-a-restart",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cargo"), reason="cargo (Rust) is not installed")]


def built(directory: Path) -> Path:
    """The program. Raises Unavailable when the crates cannot be had."""
    project = shutil.copytree(HERE, directory / "rust", ignore=shutil.ignore_patterns("target"))
    fetched(["cargo", "fetch", "--locked", "--quiet"], project, DOWNLOAD_S, "what Cargo.toml names")
    words = ["cargo", "build", "--locked", "--offline", "--quiet"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return project / "target" / "debug" / "scenarios"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    yield from ran_beside_a_server(built, tmp_path_factory.mktemp("rust"))


@pytest.mark.timeout(BUILD_S + DOWNLOAD_S + 300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(ran: dict[str, str], scenario: str, record_property: Callable[[str, object], None]) -> None:
    version = tomllib.loads((HERE / "Cargo.toml").read_text())["dependencies"]["lapin"]["version"]
    record_property("client", f"lapin (Rust) {version}")
    record_property("scenario", scenario)
    assert ran.get(scenario) == "ok", ran["log"]


@pytest.mark.timeout(BUILD_S + DOWNLOAD_S + 300)
def test_every_scenario_is_listed(ran: dict[str, str]) -> None:
    assert sorted(ran.keys() - {"log"}) == sorted(SCENARIOS)
