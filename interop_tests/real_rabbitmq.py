"""A real RabbitMQ 4.0.5 for tests, made by bench/peers/rabbitmq.sh."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

from interop_tests.running import free_port
from interop_tests.waiting import until

PEER: Final = Path(__file__).parent / "bench" / "peers" / "rabbitmq.sh"
START_S: Final = 500.0
"""The first time a Debian with RabbitMQ in it is made, of about 500 MB."""

MISSING: Final = "" if os.geteuid() == 0 and shutil.which("unshare") else "RabbitMQ runs in a chroot, which needs root"


def peer(*words: str, log: Path) -> None:
    """A word of the script; its output goes to a file, which RabbitMQ keeps open."""
    with log.open("ab") as output:
        done = subprocess.run(
            ["bash", str(PEER), *words], stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=START_S, check=False,
            env=dict(os.environ) | {"MANAGEMENT": "1"},
        )  # fmt: skip
    if done.returncode:
        pytest.skip(f"there is no RabbitMQ here: {log.read_text()[-500:]}")


class RabbitMQ:
    """One, with an address like `running.Gantry`'s."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.port = free_port(1, 2, 3)
        self._log = directory / "script.log"

    def start(self) -> RabbitMQ:
        """Until it answers; skips the test where it cannot be had."""
        peer("start", str(self.directory), str(self.port), log=self._log)
        return self

    def kill(self) -> None:
        """kill -9."""
        pid = int((self.directory / "pid").read_text())
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())
        (
            self.directory / "pid"
        ).unlink()  # whoever should wait for it may not have done so: to the script it would be running

    def stop(self) -> None:
        peer("stop", str(self.directory), log=self._log)

    def address(self, _door: str) -> tuple[str, int]:
        return "127.0.0.1", self.port
