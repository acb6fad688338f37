"""Servers without the start of Python: one process beside each test process imports the product once, and every `gantry` server of the tests is a fork of
it. What they import costs a second of a processor, several hundred times in a run. `python -m gantrymq` itself is for test_hardened.py, test_surroundings.py,
test_first_five_minutes.py, deploy/ and the demonstration.

The parent's half is `Forks`; run as a program this file is the process that is forked. They talk over a socket: a request is a line of JSON with the files
of the child's output and of its end, the answer is its pid.
"""

from __future__ import annotations

import array
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

REQUEST_BYTES_MAX = 65_536


class Fork:
    """As `subprocess.Popen`, as far as the tests use that."""

    def __init__(self, pid: int, end: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end
        """Read end of a pipe: the exit status comes when the process ends."""

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._ended()
        assert self.returncode is not None
        return self.returncode

    def _ended(self) -> None:
        said = os.read(self._end, 16)
        os.close(self._end)
        self.returncode = int(said or -signal.SIGKILL)  # nothing: whoever would have told was killed, and it with that

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Forks:
    """The process that is forked, started when the first server is wanted. It ends with this one."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "interop_tests.forking", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment, cwd=Path(__file__).parents[1],
            )  # fmt: skip
        self.process.returncode = 0  # nobody waits for it

    def start(self, command: list[str], output: IO[bytes]) -> Fork:
        """`gantry COMMAND`, whose output goes to this file."""
        ended, tells = os.pipe()
        request = json.dumps([command, os.getcwd()]).encode()
        assert len(request) < REQUEST_BYTES_MAX
        files = array.array("i", [output.fileno(), tells])
        self._ours.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        os.close(tells)
        return Fork(int(self._ours.recv(16)), ended)


_forks: list[Forks] = []


def start(command: list[str], output: IO[bytes], environment: dict[str, str]) -> Fork:
    """A server with this environment, which is the same for all of one test process."""
    if not _forks:
        _forks.append(Forks(environment))
    return _forks[0].start(command, output)


class Child(BaseException):
    """Raised where the fork is: it is what the process goes on with."""

    def __init__(self, command: list[str]) -> None:
        self.command = command


class Parent:
    """What is forked."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the test process is gone; in each child it raises `Child`."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._requests:
                    self._tell(key.fd, *key.data)
                elif not self._fork():
                    return

    def _fork(self) -> bool:
        request, files, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES_MAX, 2)
        if not request:
            return False
        output, tells = files
        pid = os.fork()
        if pid == 0:
            command, directory = json.loads(request)
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._selector.close()
            self._requests.detach()
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.chdir(directory)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise Child(command)
        os.close(output)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, tells))
        self._requests.send(b"%d" % pid)
        return True

    def _tell(self, ended: int, pid: int, tells: int) -> None:
        self._selector.unregister(ended)
        os.close(ended)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(tells, b"%d" % status)
        os.close(tells)


def import_everything() -> None:
    """What servers import when they start."""
    from importlib.metadata import entry_points

    import gantrymq.cli.main
    import gantrymq.server  # noqa: F401

    for group in ("gantrymq.services", "gantrymq.routes", "gantrymq.tables", "gantrymq.topic_users"):
        for point in entry_points(group=group):
            point.load()


def main() -> None:
    import gc

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_everything()
    gc.freeze()
    try:
        Parent(socket.socket(fileno=int(sys.argv[1]))).serve()
    except Child as child:
        from gantrymq.cli.main import main as gantry

        sys.exit(gantry(child.command))


if __name__ == "__main__":
    main()
