"""The command in whatever surroundings somebody has: locale, terminal, width, colours, time zone, no home."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.client import Producer
from interop_tests import guard
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S

BODY = "grün 漢字 \N{GRINNING FACE}"
ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
SURROUNDINGS = {
    "nothing": {},
    "C": {"LC_ALL": "C", "LANG": "C", "TERM": "dumb"},
    "ascii": {**ASCII, "TERM": "dumb", "COLUMNS": "abc"},
    "latin-1": {"PYTHONIOENCODING": "latin-1", "TZ": "Asia/Kathmandu", "COLUMNS": "7"},
    "colours": {"FORCE_COLOR": "1", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "300"},
    "no colours": {"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "unknown", "TZ": "nowhere", "HOME": "/nonexistent"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    """With one message that no small encoding has."""
    made = Gantry(tmp_path_factory.mktemp("surroundings"))
    try:
        made.start()
        asyncio.run(send(made.doors["nameserver"]))
        made.wait_for_topic("letters")
        yield made
    finally:
        made.stop()


async def send(nameserver: str) -> None:
    async with Producer(nameserver) as producer:
        await producer.send("letters", BODY.encode(), tag="t")


def surroundings(server: Gantry, name: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "NAMESRV_ADDR": server.doors["nameserver"],
        **SURROUNDINGS[name],
        **guard.mark(),
    }


def run(environment: dict[str, str], *words: str) -> str:
    """What it printed, which some encoding of ASCII's family has to be."""
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", *words], env=environment, capture_output=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode(environment.get("PYTHONIOENCODING", "utf-8"))


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_message_is_shown(server: Gantry, name: str) -> None:
    environment = surroundings(server, name)
    (line,) = run(environment, "message", "tail", "letters", "--no-follow", "--json").splitlines()
    assert json.loads(line)["body"] == BODY
    shown = run(environment, "message", "tail", "letters", "--no-follow")
    assert "gr" in shown
    assert ("\x1b[" in shown) is (name == "colours")
    assert ("grün" in shown) is (name != "ascii")
    assert ("gr\\u00fcn" in shown) is (name == "ascii")


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_tables_are_printed(server: Gantry, name: str) -> None:
    environment = surroundings(server, name)
    assert "127.0.0" in run(environment, "cluster")


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_on_which_nothing_can_be_drawn_gets_a_snapshot(server: Gantry, term: str) -> None:
    ours, theirs = pty.openpty()
    environment = surroundings(server, "nothing") | {"TERM": term}
    with subprocess.Popen(
        [sys.executable, "-m", "gantrymq", "top"], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as top:
        os.close(theirs)
        text = read_all(ours)
    os.close(ours)
    assert top.returncode == 0, text
    assert "letters" in text
    assert "\x1b" not in text


def read_all(descriptor: int) -> str:
    """Until the other side is closed, which a terminal tells with an error."""
    text = b""
    while True:
        try:
            more = os.read(descriptor, 65536)
        except OSError:
            more = b""
        if not more:
            return text.decode()
        text += more


def test_a_wrong_setting_is_told_in_ascii(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", "up", "--data", str(tmp_path / "d"), "--set", "mqtt.port=grün"],
        env={"PATH": os.environ["PATH"], **ASCII, **guard.mark()}, capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"mqtt.port" in done.stderr
