"""`./run bench --spark --peers kafka`: Spark's source and sink beside those for Kafka, on a real Kafka, with the same Spark and the same rows.

Kafka and Spark's connector come from Maven Central (interop_tests/bench/peers/kafka.sh), or are given: --kafka HOST:PORT and --kafka-pid of one that runs,
--kafka-jars FOLDER with the connector. Where one of them cannot be had the comparison is left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from interop_tests.running import free_port

HERE: Final = Path(__file__).resolve().parent
SCRIPT: Final = HERE / "peers" / "kafka.sh"
CONNECTOR: Final = "4.2.0"
"""The newest that is published. It runs in the newer Spark, so both sides have the same one."""
CASES: Final = {
    "read": ("batch read: length of bodies, newest offset, count", 1.2, 0.7),
    "all": ("batch read, all columns", 1.0, None),
    "stream": ("stream, AvailableNow in four batches, windowed count", 1.1, None),
    "write": ("write, at least once", 1.2, None),
    "exactly": ("write, exactly once (Kafka's: at least once)", 1.0, None),
}
"""What it is; the ratios to reach: of rows a second at least, of processor time at most."""
TIMEOUT_S: Final = 1800


class UnavailableError(Exception):
    """Kafka or the connector cannot be had; the text says why."""


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --peers kafka")
    group.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka that runs (default: one is started)")
    group.add_argument("--kafka-pid", type=int, default=0, help="its process, whose processor time counts")
    group.add_argument("--kafka-jars", type=Path, help="folder with spark-sql-kafka-0-10 and what it needs")
    group.add_argument("--spark-rows", type=int, default=1_000_000, help="rows of each query")
    group.add_argument("--spark-runs", type=int, default=3, help="timed runs of each, behind one that warms up")


def script(*words: str) -> str:
    """What kafka.sh prints; raises UnavailableError with its last words."""
    done = subprocess.run(["bash", str(SCRIPT), *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"{SCRIPT.name} {words[0]} failed"]
        raise UnavailableError(lines[-1])
    return done.stdout.strip()


@contextmanager
def kafka(given: argparse.Namespace, directory: Path) -> Iterator[tuple[str, int]]:
    """Address and process."""
    if given.kafka:
        yield given.kafka, given.kafka_pid
        return
    port = free_port(1)
    pid = int(script("start", str(directory), str(port)).splitlines()[-1])
    try:
        yield f"127.0.0.1:{port}", pid
    finally:
        script("stop", str(directory))


def topic_of_this_run() -> str:
    """A Kafka that is given may have those of earlier runs."""
    return f"BenchSpark{os.getpid()}"


def measure(kind: str, address: str, pid: int, jars: str, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The figures of each case."""
    wish = {
        "format": kind,
        "address": address,
        "broker_pid": pid,
        "topic": topic_of_this_run(),
        "jars": jars,
        "rows": given.spark_rows,
        "runs": given.spark_runs,
    }
    command = [sys.executable, str(HERE / "spark_cases.py"), json.dumps(wish)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{kind}: {done.stderr[-3000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("case"): row for row in rows}


def compare(console: Console, given: argparse.Namespace, directory: Path, gantry: Any) -> dict[str, Any]:
    """Measure both and print the table; `gantry(folder)`: a server as a context. Raises UnavailableError."""
    jars = str(given.kafka_jars or script("jars", CONNECTOR))
    (directory / "beside").mkdir()
    with kafka(given, directory / "kafka") as (address, pid):
        for topic in (topic_of_this_run(), f"{topic_of_this_run()}-atLeastOnce"):
            script("topic", address.rpartition(":")[2], topic, "4")
        theirs = measure("kafka", address, pid, jars, given)
    with gantry(directory / "beside") as server:
        ours = measure("gantry", server.doors["nameserver"], server.pid, "", given)
    console.print(table(ours, theirs, given.spark_rows))
    return {"gantry": ours, "kafka": theirs}


def table(ours: dict[str, dict[str, float]], theirs: dict[str, dict[str, float]], rows: int) -> Table:
    """Rows a second and processor time (seconds per million rows, of all processes), beside Kafka's, with the ratios."""
    shown = Table(title=f"Spark, {rows:,} rows of 256 bytes with tag, key and three properties that differ, local[2]")
    for name in (
        "query",
        "rows/s",
        "Kafka's",
        "ratio",
        "to reach",
        "CPU s per million",
        "Kafka's",
        "ratio",
        "to reach",
    ):
        shown.add_column(name, justify="left" if name == "query" else "right")
    for key, (name, rate_wanted, cpu_wanted) in CASES.items():
        own, other = ours[key], theirs["write" if key == "exactly" else key]
        shown.add_row(
            name, f"{own['rows_per_s']:,.0f}", f"{other['rows_per_s']:,.0f}", f"{own['rows_per_s'] / other['rows_per_s']:.2f}", f">= {rate_wanted}",
            f"{own['cpu_s']:.2f}", f"{other['cpu_s']:.2f}", f"{own['cpu_s'] / other['cpu_s']:.2f}", f"<= {cpu_wanted}" if cpu_wanted else "",
        )  # fmt: skip
    return shown
