"""The programs that driver.py talks to: which client in which versions, and how they are made where their tools are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from interop_tests.java import official
from interop_tests.test_remoting_foreign import node_project

HERE: Final = Path(__file__).parent
AIOMQTT: Final = "2.5.1"
GMQTT: Final = "0.8.0"
DOWNLOAD_S: Final = 200
BUILD_S: Final = 800
"""The first time: everything is compiled, Go's own library, too."""


@dataclass(frozen=True)
class Kind:
    """A client. `made`: the words that start its program, made in a directory; skips the test where that cannot be done."""

    name: str
    levels: tuple[int, ...]
    schemes: tuple[str, ...]
    made: Callable[[Path], list[str]]


def _node(directory: Path) -> list[str]:
    return ["node", str(node_project(directory) / "mqtt_client.js")]


def _go(directory: Path) -> list[str]:
    if not shutil.which("go"):
        pytest.skip("go not installed (Go 1.24 or newer is needed)")
    sources = HERE / "golang"
    try:
        got = subprocess.run(
            ["go", "mod", "download"], cwd=sources, capture_output=True, timeout=DOWNLOAD_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the source of Paho's Go clients did not come within {DOWNLOAD_S} s")
    if got.returncode:
        pytest.skip("the source of Paho's Go clients cannot be had (`go mod download` in mqtt_clients/golang says why)")
    program = directory / "paho"
    words = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    done = subprocess.run(words, cwd=sources, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return [str(program)]


def _java(directory: Path) -> list[str]:
    classpath = official.needed(_paho_jars)
    classes = official.classes_of(HERE / "java" / "PahoDriver.java", classpath)
    return ["java", "-Xmx256m", *official.PATIENT, "-cp", classes, "PahoDriver"]


def _paho_jars() -> str:
    """Class path of both, which Maven brings the first time. Raises official.Unavailable."""
    words = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    with tempfile.TemporaryDirectory(prefix="gantry-maven-") as directory:
        shutil.copy(HERE / "java" / "pom.xml", directory)
        _, why = official.fetched(words, directory)
        if why:
            raise official.Unavailable(f"Maven cannot get Paho's Java clients: {why}")
        return (Path(directory) / "classpath").read_text().strip()


def _python(package: str, version: str) -> Callable[[Path], list[str]]:
    """In a directory of its own: gmqtt brings a top-level package `tests`, which would stand before those here."""

    def made(directory: Path) -> list[str]:
        wanted = f"{package}=={version}"
        words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(directory), wanted]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{wanted} did not come within {DOWNLOAD_S} s")
        if done.returncode:
            pytest.skip(f"{wanted} cannot be had: {done.stderr[-500:]}")
        return ["env", f"PYTHONPATH={directory}", sys.executable, str(HERE / "python" / f"drive_{package}.py")]

    return made


def _found(file: Path, pattern: str) -> str:
    found = re.search(pattern, file.read_text())
    assert found is not None, f"{file}: no {pattern}"
    return found[1]


def _kinds() -> list[Kind]:
    mods = HERE / "golang" / "go.mod"
    node = _found(HERE.parent / "node" / "package-lock.json", r'node_modules/mqtt": \{\s*"version": "([^"]+)')
    go3, go5 = _found(mods, r"paho\.mqtt\.golang (\S+)"), _found(mods, r"paho\.golang (\S+)")
    java = _found(HERE / "java" / "pom.xml", r"<version>(\d+\.\d+\.\d+)</version>")
    return [
        Kind(f"aiomqtt {AIOMQTT}", (4, 5), ("tcp", "ws"), _python("aiomqtt", AIOMQTT)),
        Kind(f"gmqtt {GMQTT}", (4, 5), ("tcp",), _python("gmqtt", GMQTT)),
        Kind(f"MQTT.js {node}", (3, 4, 5), ("tcp", "ws"), _node),
        Kind(f"paho.mqtt.golang {go3}", (3, 4), ("tcp", "ws"), _go),
        Kind(f"paho.golang {go5}", (5,), ("tcp",), _go),
        Kind(f"Paho Java mqttv3 {java}", (3, 4), ("tcp", "ws"), _java),
        Kind(f"Paho Java mqttv5 {java}", (5,), ("tcp", "ws"), _java),
    ]


KINDS: Final = _kinds()
