"""mqadmin 5.3.3 in one JVM: `Driver.java`, compiled once, fed with commands."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from interop_tests.java import official

HERE: Final = Path(__file__).resolve().parent
OPENS: Final = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.nio", "java.util", "java.lang", "jdk.internal.ref")
] + ["--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"]


def compiled(jars: str) -> Path:
    """Directory with the driver's classes, beside the jars."""
    source = HERE / "Driver.java"
    name = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    made = Path(jars.split(os.pathsep)[0]).parent.parent / f"driver-{name}"
    if not made.exists():
        building = made.with_name(f"{made.name}.{os.getpid()}")
        subprocess.run(
            ["javac", "-encoding", "UTF-8", "-d", str(building), "-cp", jars, str(source)],
            check=True,
            timeout=official.COMPILE_S,
        )
        with suppress(OSError):  # another process was faster
            building.rename(made)
    return made


class Driver:
    """The JVM; commands run one after the other."""

    def __init__(self, home: Path) -> None:
        jars = official.needed(official.peer_jars)
        (home / "logs").mkdir(parents=True, exist_ok=True)
        self._errors = (home / "driver.err").open("wb")
        self._process = subprocess.Popen(
            ["java", "-Xmx384m", *official.PATIENT, *OPENS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}",
             "-cp", f"{compiled(jars)}{os.pathsep}{jars}", "Driver"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            cwd=home,  # consumerStatus leaves directories where it runs
        )  # fmt: skip

    def run(self, *words: str, limit_ms: int = 20_000) -> str:
        """One command; what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        parts = [word.encode() for word in words]
        request = struct.pack(">ii", len(parts), limit_ms)
        self._process.stdin.write(request + b"".join([struct.pack(">i", len(part)) + part for part in parts]))
        self._process.stdin.flush()
        head = self._process.stdout.read(4)
        if len(head) < 4:
            raise AssertionError(f"the JVM ended while it ran {' '.join(words)}")
        (size,) = struct.unpack(">i", head)
        return self._process.stdout.read(size).decode()

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
