"""<TAB>: what the shell is told, by its own protocol and by bash itself."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from core.tests.cli.tab import GANTRY, press_tab
from gantrymq.client import BlockingAdmin
from interop_tests import guard
from interop_tests.running import Gantry
from interop_tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    made = Gantry(tmp_path_factory.mktemp("completion"))
    try:
        made.start()
        with BlockingAdmin(made.doors["nameserver"]) as admin:
            for topic in ("orders", "orders-eu", "payments", "a|b", "%RETRY%billing"):
                admin.create_topic(topic)
            for group in ("billing", "audit"):
                admin.create_group(group)
        yield made
    finally:
        made.stop()


def offered(server: Gantry, line: str, *wanted: str) -> None:
    """A machine under load may take longer than a <TAB> waits: it is pressed again."""
    found: list[str] = []

    def check() -> bool:
        found[:] = press_tab(line, server.doors["nameserver"])
        return bool(found)

    until(check)
    assert found == list(wanted)


def test_names(server: Gantry) -> None:
    offered(server, "gantry topic show ord", "orders", "orders-eu")
    offered(server, "gantry pull ", "orders", "orders-eu", "payments")  # not a|b, nor the system's
    offered(server, "gantry message tail orders pay", "payments")
    offered(server, "gantry group show bi", "billing")
    offered(server, "gantry offset reset billing --topic pay", "payments")
    offered(server, "gantry broker show ", "broker-a")
    offered(server, "gantry topic create x --cluster D", "DefaultCluster")
    offered(server, "gantry broker config broker-a --set autoCreateT", "autoCreateTopicEnable=")


def test_names_of_the_system_are_for_those_who_ask(server: Gantry) -> None:
    offered(server, "gantry topic show TB", "TBW102")
    offered(server, "gantry topic show %", "%RETRY%billing")
    assert press_tab("gantry topic show nothing-begins-so", server.doors["nameserver"]) == []


def test_the_server_that_the_line_names(server: Gantry) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
        assert press_tab("gantry topic show ord", nobody) == []
        line = f"gantry topic show --nameserver {server.doors['nameserver']} ord"
        until(lambda: press_tab(line, nobody) == ["orders", "orders-eu"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_itself(server: Gantry) -> None:
    """Its own script, with the words that bash would hand to it."""
    script = """
        eval "$(gantry --show-completion bash)"
        COMP_WORDS=(gantry topic show orders-) COMP_CWORD=3
        _gantry_completion gantry
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    place = shlex.quote(str(GANTRY.parent))

    def check() -> str:
        done = subprocess.run(
            ["bash", "--norc", "-c", f"PATH={place}:$PATH\n{script}"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "NAMESRV_ADDR": server.doors["nameserver"], "SHELL": "/bin/bash"} | guard.mark(),
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout

    until(lambda: check() == "orders-eu\n")
