"""The official Java clients: their jars, and the programs of this directory in a JVM."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, Queue

import pytest

HERE = Path(__file__).parent
SOURCES = HERE / "src" / "main" / "java"
CACHE = Path(os.environ.get("GANTRY_CACHE", "/var/tmp/gantry-peers"))

COMMON = ("Scenarios.java", "Sending.java", "Consuming.java", "Faults.java")
LATER = "Scenarios5.java"
"""Compiled for clients of the 5.x line only."""

AT_A_TIME = 8
QUIET_S = 120.0
"""No line for so long: the JVM hangs."""


class Unavailable(Exception):
    """Why there is no such client here."""


def missing() -> str:
    """Why no Java client can run here; empty: it can."""
    found = [name for name in ("java", "javac", "mvn") if not shutil.which(name)]
    return f"{', '.join(found)} not installed (a JDK 11 or newer and Maven are needed)" if found else ""


def jars(version: str, directory: Path) -> str:
    """Class path of rocketmq-client, fetched by Maven the first time. Raises Unavailable."""
    known = CACHE / f"rocketmq-client-{version}.classpath"
    if known.exists() and all(Path(jar).exists() for jar in known.read_text().split(os.pathsep)):
        return known.read_text()
    shutil.copy(HERE / "pom.xml", directory)
    words = ["-q", "-B", f"-Drocketmq.version={version}", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    done = subprocess.run(["mvn", *words], cwd=directory, capture_output=True, text=True, timeout=250, check=False)
    if done.returncode:
        raise Unavailable(f"Maven cannot get rocketmq-client {version}: {done.stdout[-500:]}")
    found = (directory / "classpath").read_text().strip()
    CACHE.mkdir(parents=True, exist_ok=True)
    made = directory / "known"
    made.write_text(found)
    shutil.move(made, known)
    return found


def compiled(names: Iterable[str], classpath: str, directory: Path) -> Path:
    """Directory of the classes of these sources."""
    classes = directory / "classes"
    words = [
        "-nowarn",
        "--release",
        "11",
        "-d",
        str(classes),
        "-cp",
        classpath,
        *(str(SOURCES / name) for name in names),
    ]
    done = subprocess.run(["javac", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return classes


def printed(program: str, directory: Path, *arguments: str, version: str = "5.3.3") -> list[str]:
    """What one of the other programs here prints to its end; skips the test where there is no such client."""
    if missing():
        pytest.skip(missing())
    try:
        classpath = jars(version, directory)
    except Unavailable as why:
        pytest.skip(str(why))
    classes = compiled([f"{program}.java"], classpath, directory)
    words = [f"-Duser.home={directory}", "-cp", f"{classes}{os.pathsep}{classpath}", program, *arguments]
    done = subprocess.run(["java", *words], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


class Jvm:
    """Runs all scenarios. `outside(what)` does what they ask for; `results`: scenario to "ok" or what was wrong."""

    def __init__(
        self, version: str, directory: Path, nameservers: str, broker: str, prefix: str, binary: bool = False
    ) -> None:
        classpath = jars(version, directory)
        classes = compiled(COMMON if version.startswith("4.") else (*COMMON, LATER), classpath, directory)
        self._log = directory / "java.err"
        self.results: dict[str, str] = {}
        self.times: dict[str, str] = {}
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={directory}",
                 f"-Drocketmq.serialize.type={'ROCKETMQ' if binary else 'JSON'}",
                 "-Drocketmq.client.rebalance.waitInterval=1000", "-cp", f"{classes}{os.pathsep}{classpath}", "Scenarios", nameservers, broker, prefix, str(AT_A_TIME)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("GONE")

    def run(self, outside: Callable[[str], None]) -> None:
        """Until the JVM is done; raises when it dies or hangs."""
        assert self._process.stdin is not None
        while True:
            try:
                line = self._lines.get(timeout=QUIET_S)
            except Empty:
                raise AssertionError(f"the JVM is silent; done: {sorted(self.results)}\n{self.log()}") from None
            kind, _, rest = line.partition(" ")
            name, _, said = rest.partition(" ")
            if kind == "RESULT":
                self.results[name] = said
            elif kind == "TOOK":
                self.times[name] = said
            elif kind == "DO":
                outside(rest)
                self._process.stdin.write("done\n")
                self._process.stdin.flush()
            elif kind == "END":
                return
            elif kind == "GONE":
                raise AssertionError(f"the JVM ended; done: {sorted(self.results)}\n{self.log()}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
