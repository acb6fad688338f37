"""A foreign client's scenarios, as a program in a process of its own.

It prints a line "RESULT name ok" or "RESULT name what was wrong" for each scenario, "DO what" for what it cannot do itself (then it waits for a line),
and "END" when all are done.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Final

import pytest

from interop_tests import guard
from interop_tests.running import Gantry

QUIET_S: Final = 200.0
"""No line for so long: the program hangs. A scenario gives up after 100 s itself."""


class Unavailable(Exception):
    """Why there is no such client here."""


def fetched(words: list[str], directory: Path, limit_s: float, what: str) -> str:
    """What a command printed that asks a package registry. Raises Unavailable where that does not answer or refuses."""
    try:
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} cannot be had: nothing came within {limit_s:g} s") from None
    if done.returncode:
        raise Unavailable(f"{what} cannot be had: {done.stdout[-300:]}{done.stderr[-500:]}")
    return done.stdout


def ran_beside_a_server(built: Callable[[Path], Path], directory: Path) -> Iterator[dict[str, str]]:
    """Results of the program that `built` makes in `directory`, for a fixture; skips where its parts cannot be had."""
    try:
        program = built(directory)
    except Unavailable as why:
        pytest.skip(str(why))
    gantry = Gantry(directory)
    try:
        gantry.start()
        yield results([str(program), amqp_url(gantry)], directory, outside(gantry))
        gantry.stop()
    finally:
        gantry.kill()


def outside(gantry: Gantry) -> Callable[[str], None]:
    """What scenarios ask for, done to this server."""

    def do(what: str) -> None:
        if what != "restart":
            raise AssertionError(f"unknown: {what}")
        gantry.kill_and_restart()

    return do


def amqp_url(gantry: Gantry, vhost: str = "%2F") -> str:
    """Of the one account there is."""
    host, port = gantry.address("amqp")
    return f"amqp://guest:guest@{host}:{port}/{vhost}"


def results(words: list[str], directory: Path, do: Callable[[str], None]) -> dict[str, str]:
    """Results by scenario; under "log" the end of what it wrote to stderr. Raises when the program dies or hangs."""
    log = directory / "program.err"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            words, cwd=directory, env=dict(os.environ) | guard.mark(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line.rstrip("\n"))
        lines.put("GONE")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    found: dict[str, str] = {}
    try:
        while True:
            kind, _, rest = _next(lines, found, log).partition(" ")
            if kind == "RESULT":
                name, _, found[name] = rest.partition(" ")
            elif kind == "DO":
                do(rest)
                process.stdin.write("done\n")
                process.stdin.flush()
            elif kind == "END":
                return found | {"log": _end(log)}
            elif kind == "GONE":
                raise AssertionError(f"the program ended; done: {found}\n{_end(log)}")
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdin.close()
        process.stdout.close()


def _next(lines: Queue[str], found: dict[str, str], log: Path) -> str:
    try:
        return lines.get(timeout=QUIET_S)
    except Empty:
        raise AssertionError(f"the program is silent; done: {found}\n{_end(log)}") from None


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-6000:]
