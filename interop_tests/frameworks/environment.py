"""The frameworks run in an environment of their own, without this project in it: their needs and ours cannot disagree."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
from pathlib import Path

from interop_tests import guard
from interop_tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"

RUN_S = 150.0
"""Only ends what hangs: seconds are usual."""


@functools.cache
def directory() -> Path:
    """Where the environment's programs are; `./run` makes it the first time."""
    words = [str(ROOT / "run"), "exec", "frameworks", "python", "-c", "import sys; print(sys.executable)"]
    made = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.split()[-1]).parent


class Framework:
    """A framework's own programs against one server; what they write is below `place`."""

    def __init__(self, place: Path, **environment: str) -> None:
        self.place = place
        self._environment = environment
        self._workers: list[subprocess.Popen[bytes]] = []

    def _surroundings(self, given: dict[str, str]) -> dict[str, str]:
        plain = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.place), "PYTHONDONTWRITEBYTECODE": "1"}
        return (
            plain | {"PYTHONPATH": str(PROGRAMS), "PLACE": str(self.place)} | self._environment | given | guard.mark()
        )

    def run(self, program: str, *words: str, **environment: str) -> None:
        """One of `programs/`, to its end, which it has to reach."""
        done = subprocess.run(
            [str(directory() / "python"), str(PROGRAMS / f"{program}.py"), *words],
            env=self._surroundings(environment),
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=RUN_S,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {words}:\n{done.stdout[-4000:]}\n{self.logs()}"
        assert done.stdout.split()[-1] == "done"

    def begin(self, ready: str, command: str, *words: str, **environment: str) -> Path:
        """A framework's worker, in a session of its own, until it has said `ready`; the answer: where its log is."""
        log = self.place / f"worker{len(self._workers)}.log"
        with log.open("wb") as file:
            worker = subprocess.Popen(
                [str(directory() / command), *words],
                env=self._surroundings(environment),
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._workers.append(worker)
        until(lambda: ready in log.read_text() or worker.poll() is not None, RUN_S)
        assert worker.poll() is None, f"{command} {words}:\n{log.read_text()[-4000:]}"
        return log

    def lines(self, file: str) -> list[str]:
        path = self.place / file
        return path.read_text().splitlines() if path.exists() else []

    def has(self, file: str, wanted: set[str]) -> None:
        """Wait until these lines are in the file, and no others."""
        try:
            until(lambda: set(self.lines(file)) == wanted)
        except AssertionError as error:
            differ = sorted(set(self.lines(file)) ^ wanted)
            raise AssertionError(f"{file}: too many or too few: {differ}\n{self.logs()}") from error

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.place.glob("worker*.log")))

    def kill(self) -> None:
        """SIGKILL for every worker and its children."""
        workers, self._workers = self._workers, []
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):  # ended by itself, all of it
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
