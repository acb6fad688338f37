"""The script of continuous integration, with a stand-in for the words of ./run."""

import shutil
import subprocess
from pathlib import Path

from interop_tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
LEAVES_SOMETHING = """#!/usr/bin/env bash
echo "word $*"
[[ $1 != test ]] || exit 3
[[ $1 != crash ]] || { setsid nohup sleep 1000 >/dev/null 2>&1 & echo $! >left; sleep 1000 & echo $! >>left; }
"""


def runs(pid):
    """Not ended; one that nobody has asked for its exit status has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_stage_leaves_no_process_and_a_failure_is_told(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "run").write_text(LEAVES_SOMETHING)
    (tmp_path / "run").chmod(0o755)
    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, timeout=100, check=False)
    left = [int(line) for line in (tmp_path / "left").read_text().split()]
    until(lambda: not any(map(runs, left)))
    assert [line for line in done.stdout.splitlines() if "still ran" in line] != []
    assert "=== test: failed: exit status 3" in done.stdout
    assert "=== interop: passed" in done.stdout
    assert "word crash -m crash and not slow" in done.stdout
    assert "word crash -x -m crash and slow" in done.stdout
    assert done.returncode == 1
