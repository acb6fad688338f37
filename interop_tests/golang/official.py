"""RocketMQ's Go client: its version, and the scenarios of this directory as a program."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
MODULE: Final = "github.com/apache/rocketmq-client-go/v2"

DOWNLOAD_S: Final = 200
BUILD_S: Final = 800
"""The first time: everything is compiled, Go's own library, too."""

RUN_S: Final = 700
"""The client itself looks every 20 s at its queues and every 30 s at its topics; 40 s are usual."""


class Unavailable(Exception):
    """Why there is no such client here."""


def missing() -> str:
    """Why no Go client can run here; empty: it can."""
    return "" if shutil.which("go") else "go not installed (Go 1.21 or newer is needed)"


def version() -> str:
    """The client's version, as `go.mod` has it."""
    words = next(line for line in (HERE / "go.mod").read_text().splitlines() if MODULE in line).split()
    return words[-1]


def built(directory: Path) -> Path:
    """The program, made in `directory`. Raises Unavailable when the client's source cannot be had."""
    try:
        got = subprocess.run(["go", "mod", "download"], cwd=HERE, capture_output=True, timeout=DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the source of {MODULE} {version()} did not come within {DOWNLOAD_S} s") from None
    if got.returncode:
        raise Unavailable(
            f"the source of {MODULE} {version()} cannot be had (`go mod download` in interop_tests/golang says why)"
        )
    program = directory / "scenarios"
    words = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, nameservers: str, broker: str, prefix: str, directory: Path) -> tuple[dict[str, str], str]:
    """Results by scenario ("ok" or what was wrong) and the end of the client's log."""
    log = directory / "go.err"
    with log.open("wb") as errors:
        done = subprocess.run(
            [str(program), nameservers, broker, prefix],
            env={**os.environ, "HOME": str(directory)},  # the client keeps a broadcast consumer's offsets there
            stdout=subprocess.PIPE, stderr=errors, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip
    said = log.read_text(errors="replace")[-4000:]
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["END"], f"exit code {done.returncode}\n{done.stdout}\n{said}"
    results = [line.split(" ", 2) for line in lines if line.startswith("RESULT ")]
    return {name: result for _, name, result in results}, said
