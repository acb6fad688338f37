"""The official Java clients: their jars, and the programs of this directory in a JVM."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, Queue

import pytest

HERE = Path(__file__).parent
SOURCES = HERE / "src" / "main" / "java"
CACHE = Path(os.environ.get("GANTRY_CACHE", "/var/tmp/gantry-peers"))

COMMON = ("Scenarios.java", "Sending.java", "Consuming.java", "Faults.java", "Patient.java")
LATER = "Scenarios5.java"
"""Compiled for clients of the 5.x line only."""

PEER = HERE.parent / "bench" / "peers" / "rocketmq.sh"

AT_A_TIME = 8
QUIET_S = 300.0
"""No line for so long: the JVM hangs."""

JAVA_MIN = 17
DOWNLOAD_S = 600.0
"""Maven is given up after so long; what it has by then is there the next time."""
COMPILE_S = 300.0
RUN_S = 600.0
"""Only ends what hangs: half a minute is usual."""

PATIENT = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dcom.rocketmq.remoting.client.connect.timeout=30000",
    "-Dfile.encoding=UTF-8",
)
"""Options of a short-lived JVM on a busy machine: little work at its start, no connection given up after three seconds, and texts in UTF-8 whatever
the locale."""


class Unavailable(Exception):
    """Why there is no such client here."""


@functools.cache
def missing() -> str:
    """Why no Java client and no real broker can run here; empty: they can."""
    found = [name for name in ("java", "javac", "mvn") if not shutil.which(name)]
    if found:
        return f"{', '.join(found)} not installed (a JDK {JAVA_MIN} or newer and Maven are needed)"
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"java cannot be run: {error}"
    number = re.search(r'version "(\d+)', said)
    if number is None or int(number[1]) < JAVA_MIN:
        return f"a JDK {JAVA_MIN} or newer is needed, java is {said.splitlines()[:1]}"
    return ""


def needed(find: Callable[[], str]) -> str:
    """What `find` gives; where it says Unavailable, the test is skipped."""
    if missing():
        pytest.skip(missing())
    try:
        return find()
    except Unavailable as why:
        pytest.skip(str(why))


def fetched(words: list[str], directory: str) -> tuple[str, str]:
    """(what it printed, why it did not work) of a command that asks Maven's repositories."""
    environment = os.environ | {
        "MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} -Daether.connector.connectTimeout=15000 -Dmaven.wagon.http.connectionTimeout=15000"
    }
    try:
        done = subprocess.run(
            words, cwd=directory, env=environment, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"Maven did not bring it within {DOWNLOAD_S:g} s"
    return done.stdout, f"{done.stdout[-300:]}{done.stderr[-500:]}" if done.returncode else ""


@functools.cache
def _client(version: str) -> tuple[str, str]:
    known = CACHE / f"rocketmq-client-{version}.classpath"
    if known.exists() and all(Path(jar).exists() for jar in known.read_text().split(os.pathsep)):
        return known.read_text(), ""
    words = ["-q", "-B", f"-Drocketmq.version={version}", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    with tempfile.TemporaryDirectory(prefix="gantry-maven-") as directory:
        shutil.copy(HERE / "pom.xml", directory)
        _, why = fetched(["mvn", *words], directory)
        if why:
            return "", f"Maven cannot get rocketmq-client {version}: {why}"
        found = (Path(directory) / "classpath").read_text().strip()
    CACHE.mkdir(parents=True, exist_ok=True)
    made = known.with_name(f"{known.name}.{os.getpid()}")
    made.write_text(found)
    made.replace(known)
    return found, ""


@functools.cache
def _peer() -> tuple[str, str]:
    printed, why = fetched(["bash", str(PEER), "classpath"], "/")
    return ("", f"Maven cannot get RocketMQ 5.3.3: {why}") if why else (printed.split()[-1], "")


def jars(version: str) -> str:
    """Class path of rocketmq-client, fetched by Maven the first time; asked once per run. Raises Unavailable."""
    found, why = _client(version)
    if why:
        raise Unavailable(why)
    return found


def peer_jars() -> str:
    """Class path of a whole RocketMQ 5.3.3, likewise."""
    found, why = _peer()
    if why:
        raise Unavailable(why)
    return found


@functools.cache
def classes_of(source: Path, classpath: str) -> str:
    """Class path with the class of a program of one file, compiled once per run: `java X.java` compiles at each start."""
    made = Path(tempfile.mkdtemp(prefix="gantry-classes-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    compile_sources([source], classpath, made)
    return f"{made}{os.pathsep}{classpath}"


def compile_sources(sources: Iterable[Path], classpath: str, classes: Path, release: str = "11") -> None:
    """Programs into a directory of classes; `release`: the oldest Java that may run them."""
    words = [
        "-J-XX:TieredStopAtLevel=1",
        "-encoding",
        "UTF-8",
        "-nowarn",
        "--release",
        release,
        "-sourcepath",  # what they use of the programs here is compiled with them
        str(SOURCES),
        "-d",
        str(classes),
        "-cp",
        classpath,
    ]
    done = subprocess.run(
        ["javac", *words, *map(str, sources)], capture_output=True, text=True, timeout=COMPILE_S, check=False
    )
    assert done.returncode == 0, done.stderr


def compiled(names: Iterable[str], classpath: str, directory: Path) -> Path:
    """Directory of the classes of these sources."""
    classes = directory / "classes"
    compile_sources([SOURCES / name for name in names], classpath, classes)
    return classes


def printed(program: str, directory: Path, *arguments: str, version: str = "5.3.3", header: str = "JSON") -> list[str]:
    """What one of the other programs here prints to its end; skips the test where there is no such client. `header`: how it writes requests."""
    classpath = classes_of(SOURCES / f"{program}.java", needed(lambda: jars(version)))
    words = [
        *PATIENT, f"-Duser.home={directory}", f"-Drocketmq.serialize.type={header}",
        "-Drocketmq.client.rebalance.waitInterval=1000", "-cp", classpath, program, *arguments,
    ]  # fmt: skip
    done = subprocess.run(["java", *words], capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


class Jvm:
    """Runs all scenarios. `outside(what)` does what they ask for; `results`: scenario to "ok" or what was wrong."""

    def __init__(
        self, version: str, directory: Path, nameservers: str, broker: str, prefix: str, binary: bool = False
    ) -> None:
        classpath = jars(version)
        classes = compiled(COMMON if version.startswith("4.") else (*COMMON, LATER), classpath, directory)
        self._log = directory / "java.err"
        self.results: dict[str, str] = {}
        self.times: dict[str, str] = {}
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                ["java", "-Xmx256m", *PATIENT, f"-Duser.home={directory}",
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
