"""docs/first-five-minutes.md, typed as it stands there into a shell, against a server of its own ports: what comes is what the page says."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from interop_tests import guard
from interop_tests.running import VIP, Gantry

PAGE = (Path(__file__).parents[1] / "docs" / "first-five-minutes.md").read_text()
PORTS = {"nameserver": 9876, "broker": 10911, "metrics": 5557, "mqtt": 1883, "amqp": 5672, "cloudevents": 8080}
"""What the page says, of each door."""
INSTALL = "python3 -m venv .envs/try && .envs/try/bin/pip install --quiet "
"""The one command that is not run, for it needs the internet: the packages are those that the tests have."""


def commands(page: str) -> list[tuple[str, str]]:
    """Each command with the output that is shown below it. Lines behind `>` go on with the command."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif line.startswith(">") and not found[-1][1]:
                found[-1][0].append(line[2:])
            else:
                found[-1][1].append(line)
    return [("\n".join(command), "\n".join(output)) for command, output in found]


def as_pattern(shown: str) -> str:
    """`...` alone on a line stands for any lines, elsewhere for anything in its line; blanks at a line's end do not count."""
    lines = [
        "(?:.*\n)*?" if line == "..." else r".*?".join(map(re.escape, line.split("..."))) + " *\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


def test_the_page_as_written(own_server: Gantry, tmp_path: Path) -> None:
    ports = {said: int(own_server.doors[door].rpartition(":")[2]) for door, said in PORTS.items()}
    ports[PORTS["broker"] + VIP] = ports[PORTS["broker"]] + VIP
    page = re.sub(r"\b(\d{4,5})\b", lambda number: str(ports.get(int(number[0]), number[0])), PAGE)
    (tmp_path / ".envs" / "try" / "bin").mkdir(parents=True)
    for path, words in (("run", '-m gantrymq "${@:2}"'), (".envs/try/bin/python", '"$@"')):
        program = tmp_path / path
        program.write_text(f"#!/usr/bin/env bash\nexec {shlex.quote(sys.executable)} {words}\n")
        program.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "100",
        "NAMESRV_ADDR": own_server.doors["nameserver"], "no_proxy": "*",
    } | guard.mark()  # fmt: skip

    (first, begun), *rest = commands(page)
    assert first == "./run up"
    begun = begun.replace(" (--data not given)", "").replace("gantry-data", "data")
    assert re.search(as_pattern(begun), own_server.log()), own_server.log()
    for command, shown in rest:
        if command.startswith(INSTALL):
            for package in command.removeprefix(INSTALL).split():
                assert importlib.metadata.version(package)
            continue
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stdout + (
            done.stderr if "./run" in command else ""
        )  # curl and the clients tell of their progress there
        assert re.fullmatch(as_pattern(shown), said if not said or said.endswith("\n") else said + "\n"), (
            f"$ {command}\n{said}\n{done.stderr}"
        )


def test_what_a_line_of_the_page_stands_for() -> None:
    assert commands("```console\n$ a <<E\n> b\n> E\nc\n$ d\n```\ntext\n```console\n$ e\n...\n```") == [
        ("a <<E\nb\nE", "c"), ("d", ""), ("e", "..."),
    ]  # fmt: skip
    assert re.fullmatch(as_pattern("a ... c\n...\nz"), "a b c  \n1\n2\nz\n")
    assert not re.fullmatch(as_pattern("a\n..."), "b\n")
    assert not re.fullmatch(as_pattern(""), "noise\n")
