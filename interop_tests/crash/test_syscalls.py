"""A real directory and a real kernel: killed before the n-th system call of each kind, for every n; errors injected into them; a full disk.

strace kills and injects (`inject=SYSCALL:signal=SIGKILL:when=N`). It counts per system call and thread, so the script does everything in one.
What a killed process has written stays in the page cache: this shows recovery from every intermediate state of the files, not power loss.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gantrymq.net.testing import ManualClock
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from interop_tests.crash.disk_script import CONFIG, EXIT_STORE_FAILED, TOPIC
from interop_tests.crash.promises import Id, Ledger, Queue, check_queues
from interop_tests.crash.raw_load import parse

ROOT = Path(__file__).resolve().parents[2]
STRACE = shutil.which("strace")
STEPS = 7
CALLS_MAX = 400
AT_ONCE = 4
"""Scripts that run beside one another: each waits for the disk most of its time."""
VECTORED = "pwritev,pwritev2"
"""Which of them os.pwritev calls depends on how Python was built."""

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(STRACE is None, reason="strace is not installed (Debian, Ubuntu: apt install strace)"),
]


@functools.cache
def why_not() -> str:
    """Why strace cannot trace here, or nothing."""
    done = subprocess.run(
        ["strace", "-qq", "-o", "/dev/null", "-e", "trace=none", "true"], capture_output=True, text=True, timeout=60
    )
    return done.stderr.strip()[-200:] if done.returncode else ""


@pytest.fixture(autouse=True)
def may_trace() -> None:
    if reason := why_not():
        pytest.skip(f"strace may not trace here: {reason}")


class Disk:
    """A directory, and the notes of everything that was ever sent to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lives = 0

    def run(self, *inject: str, limits: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        self.lives += 1
        script = [
            sys.executable,
            "-m",
            "interop_tests.crash.disk_script",
            str(self.directory / "data"),
            str(self.directory / "notes"),
        ]
        command = [*limits, *script, f"life{self.lives}", str(STEPS)]
        if inject:
            calls = ",".join(rule.partition(":")[0] for rule in inject)
            rules = [part for rule in inject for part in ("-e", f"inject={rule}")]
            command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", *rules, *command]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)

    def ledger(self) -> Ledger:
        ledger = Ledger()
        refused: set[Id] = set()
        for line in (self.directory / "notes").read_text().splitlines() if (self.directory / "notes").exists() else ():
            kind, who, *numbers = line.split()
            one = (who, int(numbers[0]))
            if kind == "S":
                ledger.sent.add(one)
            elif kind == "A":
                ledger.acknowledged.add(one)
                ledger.places[one] = (int(numbers[1]), int(numbers[2]))
            else:
                refused.add(one)
        ledger.sent -= refused
        return ledger

    def check(self) -> None:
        """Recovers, as the next start would, and leaves the directory as a killed process would."""
        store = MessageStore(OsFileSystem(), self.directory / "data", CONFIG, ManualClock())
        report = store.load()
        try:
            assert not report.quarantined
            queues: dict[Queue, list[tuple[int, Id]]] = {}
            for queue_id in store.queues_of(TOPIC):
                high = store.max_offset(TOPIC, queue_id)
                rows = queues[TOPIC, queue_id] = []
                for message in store.get_many([unit[:2] for unit in store.units(TOPIC, queue_id, 0, high)]):
                    assert message is not None
                    rows.append((message.queue_offset, parse(message.body.rstrip(b".").rstrip())))
                    found = store.query(
                        TOPIC, message.keys[0] if message.keys else message.property("UNIQ_KEY"), 2, 0, 1 << 60
                    )
                    assert [hit.physical_offset for hit in found] == [message.physical_offset]
            findings = check_queues(self.ledger(), queues)
            assert not findings, findings[:10]
        finally:
            abort = self.directory / "data" / "store" / "abort"
            text = abort.read_bytes()
            store.close()
            abort.write_bytes(text)


def life_and_death(place: Path, call: str, number: int) -> bool:
    """Killed at one call, recovered, and killed again now and then; False if there are not so many calls."""
    disk = Disk(place)
    place.mkdir()
    done = disk.run(f"{call}:signal=SIGKILL:when={number}")
    if done.returncode == 0:
        return False
    assert done.returncode == -signal.SIGKILL, done.stderr
    disk.check()
    if number % 5 == 0:  # killed again while it recovers, or soon after
        disk.run(f"{call}:signal=SIGKILL:when={number // 5}")
        disk.check()
    if number % 8 == 0:
        assert disk.run().returncode == 0
        disk.check()
    shutil.rmtree(place)
    return True


@pytest.mark.parametrize("call", ["fdatasync", "fsync", "ftruncate", "fallocate", "unlink", "pwrite64", VECTORED])
def test_killed_at_every_call(tmp_path: Path, call: str) -> None:
    kills = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(1, CALLS_MAX, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            alive = list(pool.map(lambda number: life_and_death(tmp_path / str(number), call, number), numbers))
            kills += sum(alive)
            if not all(alive):
                break
    assert kills, f"the script never calls {call}"
    assert kills < CALLS_MAX - AT_ONCE


@pytest.mark.parametrize("call", ["fdatasync", "pwrite64", "fsync"])
@pytest.mark.parametrize("number", [11, 14, 19])
def test_first_io_error_stops_the_store(tmp_path: Path, call: str, number: int) -> None:
    """Only one call fails, as the kernel does it: it reports lost pages once, and every later sync as fine."""
    disk = Disk(tmp_path)
    done = disk.run(f"{call}:error=EIO:when={number}")
    assert done.returncode == EXIT_STORE_FAILED, done.stderr
    assert "CRITICAL gantrymq.store" in done.stderr
    assert "Input/output error" in done.stderr
    before = disk.ledger().acknowledged
    disk.check()
    assert disk.run().returncode == 0
    assert before < disk.ledger().acknowledged
    disk.check()


@pytest.fixture(scope="module")
def at_start(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How often a start writes before the script sends anything."""
    place = tmp_path_factory.mktemp("start")
    trace = ["strace", "-f", "-qq", "-o", str(place / "calls"), "-e", "trace=pwrite64,write"]
    script = [sys.executable, "-m", "interop_tests.crash.disk_script", str(place / "data"), str(place / "notes")]
    subprocess.run([*trace, *script, "life", "1"], cwd=ROOT, check=True, timeout=200)
    before, _, _ = (place / "calls").read_text().partition('"S life 0')
    return before.count(" pwrite64(")


@pytest.mark.parametrize("number", [1, 4, 8, 16])
def test_full_disk_refuses_and_goes_on(tmp_path: Path, at_start: int, number: int) -> None:
    disk = Disk(tmp_path)
    first = at_start + number
    done = disk.run(
        f"pwrite64:error=ENOSPC:when={first}..{first + 4}", f"{VECTORED}:error=ENOSPC:when={number}..{number + 4}"
    )
    assert done.returncode == 0, done.stderr
    notes = (tmp_path / "notes").read_text().splitlines()
    assert notes[-1].startswith("A"), "it did not go on when there was room again"
    disk.check()
    assert disk.run().returncode == 0
    disk.check()


def test_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: EFBIG and no signal."""
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed (package util-linux)")
    disk = Disk(tmp_path)
    assert disk.run().returncode == 0
    done = disk.run(limits=("prlimit", "--fsize=20000"))
    assert done.returncode >= 0, "killed by a signal"
    disk.check()
    assert disk.run().returncode == 0
    disk.check()


def test_full_tmpfs(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root, and mount")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(place)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        disk = Disk(place)
        codes = [disk.run().returncode for _ in range(6)]
        assert set(codes) <= {0, 1, 2, EXIT_STORE_FAILED}, "killed by a signal"
        assert any(line.startswith("R") for line in (place / "notes").read_text().splitlines())
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
        disk.check()
        assert disk.run().returncode == 0
        disk.check()
    finally:
        subprocess.run(["umount", str(place)], check=True)
