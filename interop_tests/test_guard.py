"""A killed test process leaves nothing behind of what it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interop_tests import guard
from interop_tests.waiting import until

BEGUN = """
import subprocess, sys
from pathlib import Path
from interop_tests import guard
from interop_tests.running import Process

guard.begin()
server = Process("ns", Path(sys.argv[1]), ["nameserver", "--data", sys.argv[1] + "/data"])
server.launch()
lone = 'setsid nohup sleep 1000 >/dev/null 2>&1 </dev/null & echo $!'  # as rocketmq.sh starts a JVM
print(server.pid, subprocess.run(["bash", "-c", lone], capture_output=True, text=True).stdout.strip(), flush=True)
sys.stdin.read()
"""


def runs(pid: int) -> bool:
    """It has not ended, or only nobody has asked how."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for the end of another process as Linux alone can")
def test_what_a_killed_test_process_started_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-c", BEGUN, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        server, single = [int(word) for word in test.stdout.readline().split()]
        assert runs(server)
        assert runs(single)
        test.send_signal(signal.SIGKILL)
    until(lambda: not runs(server) and not runs(single))


def test_a_process_that_cannot_be_killed_does_not_keep_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[bytes] = []

    def kill_marked(entry: bytes) -> int:
        rounds.append(entry)
        assert len(rounds) <= guard.ROUNDS_MAX
        return 1

    monkeypatch.setattr(guard, "kill_marked", kill_marked)
    guard.kill_all(b"x")
    assert rounds == [b"x"] * guard.ROUNDS_MAX
