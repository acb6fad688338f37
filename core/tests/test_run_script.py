"""./run before any environment exists: what it says when something is missing, and while it installs."""

import os
import pty
import re
import shutil
import subprocess
import tomllib
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


def test_the_short_demonstration_needs_no_spark(checkout):
    fake_python(checkout, "python3", WITHOUT_VENV.replace("exit 1", "exit 0") + "\n[[ $1 != -m ]] || exit 3")
    for tool in ("mktemp", "tail"):
        (checkout.parent / "bin" / tool).symlink_to(shutil.which(tool))
    assert "Making the 'demo' environment" in run(checkout, "demo", "--no-spark").stderr
    whole = run(checkout, "demo").stderr
    assert "Making the 'spark' environment" in whole
    assert "Shorter: ./run demo --no-spark" in whole


def pins(name):
    """(package, marker) -> version of a lock."""
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    found = re.findall(r"^([a-z0-9._-]+)==(\S+) (.*)\\$", text, re.MULTILINE)
    return {(package, marker.strip()): version for package, version, marker in found}


def test_a_package_has_one_version_in_all_environments():
    """So that what was tried in one holds in another; a marker may choose between two. This project is not in the frameworks' environment, and that of
    the oldest Spark has another Spark."""
    versions = {}
    for lock in sorted(path.stem for path in ROOT.glob("locks/*.txt") if path.stem != "frameworks"):
        for package, version in pins(lock).items():
            if (lock, *package) != ("oldest", "pyspark", ""):
                versions.setdefault(package, {}).setdefault(version, []).append(lock)
    assert len(versions) > 80
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_two_sparks_that_are_tried_are_the_bounds_that_are_promised():
    """The oldest in its own environment, the newest in the one of all tests; pyproject.toml, the doctor and docs/spark.md say the same. A newer one in
    the lock (./run lock --upgrade) is to be named in the docs, with what it changes."""
    from gantrymq.spark.local.doctor import PYSPARK_MIN

    oldest, newest = pins("oldest")["pyspark", ""], pins("spark")["pyspark", ""]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    least = ".".join(map(str, PYSPARK_MIN))
    assert oldest == f"{least}.0"
    assert f"pyspark>={least}" in extras["spark"]
    assert f"pyspark[pipelines]>={least}" in extras["pipelines"]
    assert (ROOT / "locks" / "oldest.in").read_text().splitlines()[-1] == f"pyspark=={oldest}"
    page = (ROOT / "docs" / "spark.md").read_text()
    assert f"(pyspark {least} or newer)" in page
    assert f"with the oldest, {oldest}, and the newest, {newest}" in page
    assert "./run exec oldest" in (ROOT / ".ci" / "run").read_text()


PIP = """[[ $* == *base.txt* ]] || exit 0
read -r line <{pipe}
[[ $line == begin ]]
mkdir -p "$TMPDIR/pip-unpack-1"
printf '%3000000d' 0 >"$TMPDIR/pip-unpack-1/h11.whl"
echo "Ignoring colorama: markers 'x' don't match your environment"
echo 'Requirement already satisfied: packaging==26.3 in /x (from -r base.txt (line 1))'
echo 'Collecting anyio==4.16.0 (from -r base.txt (line 1))'
echo 'Collecting h11==0.16.0'
read -r line <{pipe}
[[ $line == on ]]
"""
MAKES_VENV = (
    WITHOUT_VENV.replace("exit 1", "exit 0")
    + '\n[[ $2 != venv ]] || { mkdir -p "$3/bin"; ln -s {pip} "$3/bin/python"; }'
)


@pytest.fixture
def slow_pip(checkout):
    """A Python whose virtual environments have a pip that stops in the middle of its work, for a line in this pipe."""
    for tool in ("du", "grep", "ln", "mktemp", "sleep", "tail"):
        (checkout.parent / "bin" / tool).symlink_to(shutil.which(tool))
    pipe, pip = checkout.parent / "pipe", checkout.parent / "pip"
    os.mkfifo(pipe)
    pip.write_text(f"#!{shutil.which('bash')}\n" + PIP.replace("{pipe}", str(pipe)))
    pip.chmod(0o755)
    fake_python(checkout, "python3", MAKES_VENV.replace("{pip}", str(pip)))
    return pipe


@pytest.mark.parametrize(("terminal", "between"), [("", "\n"), ("xterm", "\r\x1b[K")])
def test_what_is_downloaded_is_shown(checkout, slow_pip, terminal, between):
    ours, theirs = pty.openpty() if terminal else os.pipe()
    environment = {"HOME": str(checkout.parent), "PATH": str(checkout.parent / "bin"), "TERM": terminal or "dumb"}
    with subprocess.Popen(
        [checkout / "run", "exec", "base", "bash", "-c", ":"], env=environment, stderr=theirs
    ) as script:
        os.close(theirs)
        seen = b""
        while not re.search(rb", \d+ s", seen):
            seen += (more := os.read(ours, 4096))
            assert more, seen
        slow_pip.write_text("begin\n")  # what is left out of the list is known from here on
        while not re.search(rb"downloading h11: 3 of \d+ packages, 3 of about 10 MB, \d+ s", seen):
            seen += (more := os.read(ours, 4096))
            assert more, seen
        slow_pip.write_text("on\n")
        while more := read_end(ours):
            seen += more
    os.close(ours)
    pinned = re.findall(r"^\S+==", (ROOT / "locks/base.txt").read_text(), re.MULTILINE)
    assert set(re.findall(rb"of (\d+) packages", seen)) == {b"%d" % (len(pinned) - 1)}
    assert script.returncode == 0
    text = seen.decode().replace("\r\n", "\n")
    assert "About 10 MB to download and 80 MB on disk: 20 to 40 s on an idle machine" in text
    assert f"{between}  downloading h11" in text
    assert re.search(r"  packages of locks/base.txt +\d+\.\d s\n", text)


def read_end(descriptor):
    """What comes until nobody can write any more, which a terminal tells with an error."""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
