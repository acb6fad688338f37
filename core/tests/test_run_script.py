"""./run before any environment exists: what it says when something is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "cat", "dirname", "env", "find", "mkdir", "mv", "readlink", "rm", "sha256sum")


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the script reads, and a PATH with nothing but the tools that every system has."""
    root = tmp_path / "a checkout"
    root.mkdir()
    shutil.copy(ROOT / "run", root)
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copytree(ROOT / "locks", root / "locks")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return root


def run(root, *words):
    environment = {"HOME": str(root.parent), "PATH": str(root.parent / "bin")}
    return subprocess.run([str(root / "run"), *words], env=environment, capture_output=True, text=True, timeout=150)


def fake_python(root, name, script):
    path = root.parent / "bin" / name
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    path.chmod(0o755)


OLD = "case $2 in *version_info\\[:3\\]*) printf 3.9.2 ;; *) exit 1 ;; esac"
WITHOUT_VENV = "case $2 in *version_info\\[:3\\]*) printf 3.12.4 ;; *ensurepip*) exit 1 ;; esac"


def test_no_python(checkout):
    done = run(checkout, "up")
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed; there is no python3 on PATH" in done.stderr
    assert "apt install python3" in done.stderr


def test_old_python(checkout):
    fake_python(checkout, "python3", OLD)
    done = run(checkout, "up")
    assert done.returncode == 1
    assert "bin/python3 is Python 3.9.2" in done.stderr


def test_newer_python_beside_an_old_one(checkout):
    fake_python(checkout, "python3", OLD)
    fake_python(checkout, "python3.12", WITHOUT_VENV)
    done = run(checkout, "up")
    assert "bin/python3.12 cannot make virtual environments" in done.stderr
    assert "apt install python3-venv" in done.stderr


def test_python_that_does_not_run_is_passed_over(checkout):
    fake_python(checkout, "python3", "exit 127")
    fake_python(checkout, "python3.11", WITHOUT_VENV)
    assert "bin/python3.11 cannot make" in run(checkout, "up").stderr


def test_failed_build_leaves_nothing_but_its_words(checkout):
    fake_python(
        checkout,
        "python3",
        WITHOUT_VENV.replace("exit 1", "exit 0") + "\n[[ $1 != -m ]] || { echo no room; exit 3; }",
    )
    for tool in ("mktemp", "tail"):
        (checkout.parent / "bin" / tool).symlink_to(shutil.which(tool))
    done = run(checkout, "gantry", "--version")
    assert done.returncode == 1
    assert "no room" in done.stderr
    assert "virtual environment failed" in done.stderr
    assert [path.name for path in (checkout / ".envs").iterdir()] == [".python"]


def test_unknown_word(checkout):
    done = run(checkout, "fly")
    assert done.returncode == 1
    assert "there is no word 'fly'" in done.stderr
    assert "usage: ./run WORD" in done.stderr


def test_help(checkout):
    assert "usage: ./run WORD" in run(checkout, "help").stdout
