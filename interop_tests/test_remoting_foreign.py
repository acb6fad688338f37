"""RocketMQ clients that nobody here wrote: `ali-ons` for Node.js and the official Java client, against one running server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from interop_tests.java.official import printed
from interop_tests.running import Gantry

HERE = Path(__file__).parent
COUNT = 20
DOWNLOAD_S = 200.0
RUN_S = 600.0
"""Only ends what hangs."""


def command(*arguments: str | Path, cwd: Path, timeout_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        timeout=timeout_s,
        capture_output=True,
        text=True,
        check=False,
    )


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def node_project(directory: Path) -> Path:
    """The programs of `node/` with what they need; skips the test where that cannot be had."""
    needs("node", "npm")
    project = shutil.copytree(HERE / "node", directory / "node", ignore=shutil.ignore_patterns("node_modules"))
    words = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000")
    try:
        installed = command(*words, "--cache", directory / "npm", cwd=project, timeout_s=DOWNLOAD_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm ci brought nothing within {DOWNLOAD_S:g} s")
    if installed.returncode:
        pytest.skip(f"npm ci failed (no registry?): {installed.stderr[-500:]}")
    return project


@pytest.mark.slow
def test_node(own_server: Gantry, tmp_path: Path) -> None:
    project = node_project(tmp_path)
    done = command("node", "talk.js", own_server.doors["nameserver"], "node-talk", str(COUNT), cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["sent"] == ["SEND_OK true"] * COUNT
    wanted = {f"m{i}": ["even", f"k{i}", f"d{i}"] for i in range(0, COUNT, 2)}
    assert seen["received"] == {**wanted, "large100000": ["even", None, None]}


@pytest.mark.slow
@pytest.mark.java
def test_java(own_server: Gantry, tmp_path: Path) -> None:
    lines = printed("Talk", tmp_path, own_server.doors["nameserver"], "java-talk", str(COUNT))
    kinds = ("even", "odd")
    wanted = [f"pull m{i} {kinds[i % 2]} k{i} d{i}" for i in range(2 * COUNT)] + ["pull large100000 large klarge null"]
    assert sorted(line for line in lines if line.startswith("pull ")) == sorted(wanted)
    wanted = [f"push m{i} even k{i} d{i}" for i in range(0, 2 * COUNT, 2)]
    assert sorted(line for line in lines if line.startswith("push ")) == sorted(wanted)
