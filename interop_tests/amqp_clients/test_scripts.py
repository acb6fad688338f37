"""php-amqplib and Ruby's Bunny, unchanged, against `gantry up`. No registry is asked for them: they are here as packages of the system, or not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from interop_tests.amqp_clients.program import amqp_url, outside, results
from interop_tests.running import Gantry

HERE: Final = Path(__file__).parent


class Client(NamedTuple):
    name: str
    interpreter: str
    version: tuple[str, ...]
    """What says the client's version; fails where the client is not."""
    program: str
    scenarios: tuple[str, ...]


CLIENTS: Final = (
    Client(
        "php-amqplib", "php", ("-r", "require 'PhpAmqpLib/autoload.php'; echo PhpAmqpLib\\Package::VERSION;"), "php/scenarios.php",
        (
            "publish-and-consume", "large-body", "nack-to-the-dead-letters", "mandatory-return", "headers-of-every-type", "routing", "transactions",
            "errors-close-the-channel-only", "again-after-a-restart",
        ),
    ),
    Client(
        "Bunny (Ruby)", "ruby", ("-e", "require 'bunny'; print Bunny::VERSION"), "ruby/scenarios.rb",
        (
            "publish-and-consume", "large-body", "nack-to-the-dead-letters", "mandatory-return", "headers-of-every-type", "routing",
            "quorum-queue-counts", "transactions", "errors-close-the-channel-only", "consumer-goes-on-after-a-restart",
        ),
    ),
)  # fmt: skip

pytestmark = pytest.mark.slow


def version_of(client: Client) -> str:
    """Skips where the client is not installed."""
    if not shutil.which(client.interpreter):
        pytest.skip(f"{client.interpreter} is not installed")
    words = [client.interpreter, *client.version]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"{client.name} is not installed")
    return done.stdout


@pytest.fixture
def gantry(tmp_path: Path) -> Iterator[Gantry]:
    made = Gantry(tmp_path)
    yield made
    made.kill()


@pytest.mark.parametrize("client", CLIENTS, ids=[client.interpreter for client in CLIENTS])
def test_scenarios(
    client: Client, gantry: Gantry, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("client", f"{client.name} {version_of(client)}")
    record_property("scenario", ", ".join(client.scenarios).replace("-", " "))
    gantry.start()
    words = [client.interpreter, str(HERE / client.program), amqp_url(gantry)]
    found = results(words, tmp_path, outside(gantry))
    gantry.stop()
    log = found.pop("log")
    assert found == dict.fromkeys(client.scenarios, "ok"), log
