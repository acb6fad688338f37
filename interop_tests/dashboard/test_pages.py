"""What rocketmq-dashboard's pages ask (`Pages.java`, with the library that the dashboard uses): the same answers as from RocketMQ."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interop_tests.java import official
from interop_tests.mqadmin import driver
from interop_tests.real_broker import REAL_BROKER, RUN_S, peer
from interop_tests.running import Gantry, free_port

PAGES = ("cluster", "topics", "consumers", "messages", "trace", "producer", "dlq", "dashboard", "reset", "delete")
SOURCE = Path(__file__).parent / "Pages.java"

pytestmark = REAL_BROKER


def shown(nameserver: str, classpath: str, home: Path) -> list[str]:
    """What the pages show of a cluster, in their order."""
    home.mkdir()
    words = [
        "java", "-Xmx256m", *official.PATIENT, *driver.OPENS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}",
        "-cp", classpath, "Pages", nameserver,
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S, check=False)
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["END"], f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return lines[:-1]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The pages of a RocketMQ cluster and of ours."""
    directory = tmp_path_factory.mktemp("dashboard")
    classpath = official.classes_of(SOURCE, official.needed(official.peer_jars))
    found: dict[str, list[str]] = {}
    nameserver, broker = free_port(), free_port(-2, 1)
    real = str(directory / "real")
    gantry = Gantry(directory)
    with ThreadPoolExecutor(2) as together:  # most of their time is the consumer's waiting
        try:
            gantry.start()
            ours = together.submit(shown, gantry.doors["nameserver"], classpath, directory / "home-ours")
            peer("start", real, str(nameserver), str(broker))
            found["RocketMQ"] = shown(f"127.0.0.1:{nameserver}", classpath, directory / "home-real")
            found["GantryMQ"] = ours.result()
        finally:
            peer("kill", real)
            gantry.stop()
    return found


@pytest.mark.parametrize("page", PAGES)
def test_page(sides: dict[str, list[str]], page: str, record_property: Callable[[str, object], None]) -> None:
    record_property("client", "what rocketmq-dashboard asks (Java, rocketmq-tools 5.3.3)")
    record_property("scenario", page)
    real, ours = [[line for line in sides[name] if line.split(" ", 1)[0] == page] for name in ("RocketMQ", "GantryMQ")]
    assert real, "the page shows nothing"
    assert ours == real


def test_every_page_is_compared(sides: dict[str, list[str]]) -> None:
    assert {line.split(" ", 1)[0] for line in sides["GantryMQ"]} == set(PAGES)
