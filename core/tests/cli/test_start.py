"""What a start imports: every <TAB> and every short command is one, so that what only others need stays out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, sys
def tell():
    print("loaded:", *sys.modules, file=sys.stderr, flush=True)
atexit.register(tell)
end = os._exit
os._exit = lambda code: (tell(), end(code))  # as a <TAB> ends whom no server answers
from gantrymq.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

SERVERS = {
    "gantrymq.server", "gantrymq.broker", "gantrymq.store", "gantrymq.net.doors", "gantrymq.net.http", "gantrymq.net.listen",
    "gantrymq.net.pump", "uvloop",
}  # fmt: skip
"""What only servers need, and those who look at their directories; of `net` a client has what dials out."""

PRODUCERS = {"gantrymq.client.producing.producer", "gantrymq.client.pushing.push", "gantrymq.client.blocking"}

ASKING = {"asyncio", "anyio", "msgspec", "rich", "gantrymq.client", "gantrymq.remoting", "gantrymq.config"}
"""What talks to a server, and what draws its answer."""


def loaded(line: str, **environment: str) -> set[str]:
    """Modules at the end of `gantry LINE`, where no server answers."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line.split()], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env=os.environ | {"NAMESRV_ADDR": "127.0.0.1:1"} | environment,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return set(done.stderr.partition("loaded:")[2].split())


def completed(line: str) -> set[str]:
    """Modules at the end of <TAB> behind `gantry LINE`."""
    words = f"gantry {line}"
    return loaded("", _GANTRY_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))


def assert_without(found: set[str], names: set[str]) -> None:
    """None of them, and nothing went wrong before they could be imported."""
    assert "gantrymq.cli.main" in found
    assert sorted(found & names) == []


def test_the_version_needs_no_parser() -> None:
    assert_without(loaded("--version"), SERVERS | PRODUCERS | ASKING | {"typer", "gantrymq.cli.app"})


@pytest.mark.parametrize("line", ["--help", "up --help", "send --help", "no-such-command"])
def test_help_asks_nobody(line: str) -> None:
    found = loaded(line)
    assert "typer" in found
    assert_without(found, SERVERS | PRODUCERS | ASKING)


@pytest.mark.parametrize("line", ["to", "topic", "send --ta"])
def test_words_of_the_command_line_ask_nobody(line: str) -> None:
    found = completed(line)
    assert "typer" in found
    assert_without(found, SERVERS | PRODUCERS | ASKING)


@pytest.mark.parametrize("line", ["topic show o", "group show g", "broker show b", "send t"])
def test_a_name_is_completed_by_what_asks_for_it(line: str) -> None:
    found = completed(line)
    assert "gantrymq.client.admin" in found
    assert_without(
        found,
        SERVERS
        | PRODUCERS
        | {"gantrymq.cli.commands.top", "gantrymq.cli.commands.messages", "gantrymq.cli.store.check"},
    )


def test_a_command_imports_its_own_group() -> None:
    found = loaded("topic list --json")
    assert "gantrymq.cli.commands.topics" in found
    others = {"top", "messages", "groups", "brokers", "store", "configuration", "transactions"}
    assert_without(found, SERVERS | {f"gantrymq.cli.{name}" for name in others})
