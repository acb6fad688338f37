"""What a test process has started ends with it, however it ends: killed, too, when no fixture is torn down any more.

`begin` puts a mark into the environment, which whatever is started from then on inherits, also what left its parent and session (the JVMs of
rocketmq.sh); a process of its own waits for the end of the test process and kills everything that has the mark. Linux only: elsewhere nobody waits.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
from pathlib import Path

VARIABLE = "GANTRY_TEST_RUN"
"""Its value is another one in every test process."""

GONE_S = 1.0
"""One that is not gone so long after its signal is asked again."""

ROUNDS_MAX = 60
"""Then what still runs stays: a process that is stuck in the kernel does not end by a signal, and must not keep the guard for ever."""


def begin() -> None:
    """Called once by a test process. The guard is in a session of its own: what is sent to the whole group of a test run passes it by."""
    if not hasattr(os, "pidfd_open"):
        return
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    os.environ[VARIABLE] = secrets.token_hex(16)
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[VARIABLE]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=others,
    ).returncode = 0  # nobody waits for it: it ends after this process


def mark() -> dict[str, str]:
    """For an environment that is not this process's own."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def wait_for_end(pid: int) -> None:
    """Of the parent; it may have ended before this process began."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    if os.getppid() == pid:
        select.select([handle], [], [])


def kill_marked(entry: bytes) -> int:
    """Kill every process that was started with this in its environment; the answer: how many."""
    killed = 0
    for number in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]:
        with contextlib.suppress(OSError):  # gone meanwhile, or of somebody else
            handle = os.pidfd_open(number)  # first, so that the number cannot be another process's at the signal
            try:
                if entry in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    select.select([handle], [], [], GONE_S)
                    killed += 1
            finally:
                os.close(handle)
    return killed


def kill_all(entry: bytes) -> None:
    """`kill_marked` until it finds none: one of them may have started another meanwhile."""
    for _ in range(ROUNDS_MAX):
        if not kill_marked(entry):
            return


def main() -> None:
    """`guard.py PID TOKEN`"""
    pid, token = sys.argv[1:]
    wait_for_end(int(pid))
    kill_all(f"{VARIABLE}={token}".encode())


if __name__ == "__main__":
    main()
