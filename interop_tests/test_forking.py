"""Servers of the tests as forks: output, exit status and signals are those of a process that was started."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from interop_tests.forking import Fork
from interop_tests.running import Process
from interop_tests.waiting import LIMIT_S


def started(directory: Path) -> Process:
    process = Process("up", directory, ["up", "--data", str(directory / "data")])
    process.start()
    return process


def test_how_it_ends_is_told(tmp_path: Path) -> None:
    process = Process("wrong", tmp_path, ["up", "--data", str(tmp_path / "data"), "--set", "no.such=1"])
    process.launch()
    assert isinstance(process.process, Fork)
    assert process.process.wait(LIMIT_S) == 2
    assert "no.such" in process.log()


def test_it_is_signalled_as_any_other(tmp_path: Path) -> None:
    process = started(tmp_path)
    fork = process.process
    assert fork is not None
    try:
        assert fork.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            fork.wait(0.01)
    finally:
        process.kill()
    assert fork.poll() == -signal.SIGKILL
    fork.kill()  # nobody has this number any more: nothing is sent
    process.start()
    assert process.stop() == 0
