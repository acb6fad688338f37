"""The script of continuous integration, with a stand-in for the words of ./run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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


def run(directory, words, begun_s=0):
    """The script with `words` as ./run, as if it had run for `begun_s` seconds already."""
    (directory / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", directory / ".ci" / "run")
    (directory / "run").write_text(words)
    (directory / "run").chmod(0o755)
    environment = os.environ | {"SECONDS": str(begun_s)}
    command = [directory / ".ci" / "run"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)


def test_a_stage_leaves_no_process_and_a_failure_is_told(tmp_path):
    done = run(tmp_path, LEAVES_SOMETHING)
    left = [int(line) for line in (tmp_path / "left").read_text().split()]
    until(lambda: not any(map(runs, left)))
    assert [line for line in done.stdout.splitlines() if "still ran" in line] != []
    assert "=== test: failed: exit status 3" in done.stdout
    assert "=== interop: passed" in done.stdout
    assert "word crash -m crash and not slow" in done.stdout
    assert "word crash -x -m crash and slow" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("begun_s", "faults", "chance", "interop"),
    [(0, 480, 300, 2500), (1300, 480, 300, 1200), (1500, 400, 300, 1000), (2000, 60, 300, 500), (2400, 60, 300, 300)],
)
def test_boxed_stages_have_what_the_others_left_of_the_whole_time(tmp_path, begun_s, faults, chance, interop):
    done = run(tmp_path, "#!/usr/bin/env bash\n", begun_s)
    boxes = [int(box) for box in re.findall(r"at most (\d+) s", done.stdout)]
    assert boxes[1] == chance
    for box, most in zip(boxes, (faults, chance, interop), strict=True):
        assert most - 20 < box <= most, "the stages themselves take a moment"
    assert done.returncode == 0


def commit(directory, time_s):
    git = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    environment = os.environ | {"GIT_COMMITTER_DATE": f"{time_s} +0000"}
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True, env=environment)


@pytest.mark.parametrize(
    ("time_s", "order"),
    [(1_800_000_000, "java/test_a.py test_b.py test_c.py"), (1_800_000_001, "test_b.py test_c.py java/test_a.py")],
)
def test_each_commit_begins_the_foreign_suites_elsewhere(tmp_path, time_s, order):
    for name in ("deploy/test_image.py", "java/test_a.py", "test_b.py", "test_c.py"):
        file = tmp_path / "interop_tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    commit(tmp_path, time_s)
    done = run(tmp_path, "#!/usr/bin/env bash\necho word $*\n")
    files = " ".join(f"interop_tests/{name}" for name in order.split())
    assert f"word interop {files} -x" in done.stdout
    assert f"file {time_s % 3 + 1} of 3: {files.split()[0]}" in done.stdout
