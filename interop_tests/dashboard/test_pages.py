"""What rocketmq-dashboard's pages ask (`Pages.java`, with the library that the dashboard uses): the same answers as from RocketMQ."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from interop_tests.mqadmin import driver
from interop_tests.mqadmin.test_mqadmin import free_port
from interop_tests.running import Gantry

PAGES = ("cluster", "topics", "consumers", "messages", "trace", "producer", "dlq", "dashboard", "reset", "delete")
SOURCE = Path(__file__).parent / "Pages.java"
RUN_S = 240
"""Some 20 s are usual; the consumer itself needs most of them."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(driver.missing()), reason=driver.missing()),
]


def shown(nameserver: str, classes: Path, jars: str, home: Path) -> list[str]:
    """What the pages show of a cluster, in their order."""
    home.mkdir()
    words = [
        "java", "-Xmx256m", "-XX:+UseSerialGC", *driver.OPENS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}",
        "-cp", f"{classes}{os.pathsep}{jars}", "Pages", nameserver,
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S, check=False)
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["END"], f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return lines[:-1]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The pages of a RocketMQ cluster and of ours, one after the other."""
    directory = tmp_path_factory.mktemp("dashboard")
    jars = driver.classpath()
    classes = directory / "classes"
    subprocess.run(["javac", "-nowarn", "-d", str(classes), "-cp", jars, str(SOURCE)], check=True, timeout=120)
    found = {}
    nameserver, broker = free_port(), free_port()
    real = directory / "real"
    environment = os.environ | {"RMQ_XMX": "512m", "RMQ_XMX_OTHER": "192m"}
    try:
        command = [str(driver.PEER), "start", str(real), str(nameserver), str(broker)]
        subprocess.run(command, check=True, env=environment, timeout=900, stdout=subprocess.DEVNULL)
        found["RocketMQ"] = shown(f"127.0.0.1:{nameserver}", classes, jars, directory / "home-real")
    finally:
        subprocess.run([str(driver.PEER), "stop", str(real)], check=False, timeout=90, stdout=subprocess.DEVNULL)
    gantry = Gantry(directory)
    try:
        gantry.start()
        found["GantryMQ"] = shown(gantry.doors["nameserver"], classes, jars, directory / "home-ours")
    finally:
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
