"""`./run bench split`: what a gateway in a process of its own costs, beside everything in one process.

usage: bench split [--quick] [--only WORD ...] [--json FILE]

Both installations at once, measured in turns; CPU of all their processes per message, warm-up included. Lowest of the rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from interop_tests.bench.loads import generator
from interop_tests.bench.proc_cpu import tree_cpu
from interop_tests.bench.servers import wide_console
from interop_tests.running import Gantry

SHAPES: Final = ("combined", "separated")
MOST: Final = 1.4
"""Times the CPU of everything in one process."""
MQTT_WARM: Final = 1.1
"""Messages that mqtt_load.py sends, warm-up included, for each that it is asked for."""

Row = tuple[str, str, str, list[str], float]
"""Name, door, script, arguments, messages for each that is asked for."""
ROWS: Final[list[Row]] = [
    ("MQTT QoS 0 publish", "mqtt", "mqtt_load.py", ["pub", "--qos", "0"], MQTT_WARM),
    ("MQTT QoS 1 publish, window 100", "mqtt", "mqtt_load.py", ["pub", "--qos", "1", "--window", "100"], MQTT_WARM),
    ("AMQP confirmed publish, window 100", "amqp", "amqp_load.py", ["publish", "--window", "100"], 1.0),
]


def run(row: Row, gantry: Gantry, count: int) -> float:
    """Microseconds a message, of all processes."""
    name, door, script, arguments, times = row
    host, port = gantry.address(door)
    pids = [process.pid for process in gantry.processes]
    where = [host, str(port)] if door == "mqtt" else ["--host", host, "--port", str(port)]
    words = [*where, *arguments] if door == "mqtt" else [arguments[0], *where, *arguments[1:]]
    before = tree_cpu(pids)
    got = generator(script, *words, "--count" if door == "mqtt" else "--messages", str(count))
    if "error" in got:
        raise SystemExit(f"{name}: {got['error']}")
    return (tree_cpu(pids) - before) / count / times * 1e6


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench split", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name contains one of these words")
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args(arguments)
    count, rounds = (40_000, 2) if args.quick else (200_000, 3)
    rows = [row for row in ROWS if not args.only or any(word.lower() in row[0].lower() for word in args.only)]
    found: dict[str, dict[str, Any]] = {row[0]: {} for row in rows}
    with tempfile.TemporaryDirectory(prefix="gantry-bench-") as directory:
        installed = {}
        try:
            for shape in SHAPES:
                place = Path(directory) / shape
                place.mkdir()
                installed[shape] = Gantry(place, shape).start()
            for row in rows:
                costs: dict[str, list[float]] = {shape: [] for shape in SHAPES}
                for _ in range(rounds):
                    for shape in SHAPES:
                        costs[shape].append(run(row, installed[shape], count))
                found[row[0]] = {shape: round(min(each), 2) for shape, each in costs.items()}
        finally:
            for gantry in installed.values():
                gantry.stop()
    table = Table(title="CPU of all processes per message, microseconds")
    for column in ("case", "one process", "gateway of its own", "ratio", "to reach"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, figures in found.items():
        ratio = figures["separated"] / figures["combined"]
        table.add_row(name, str(figures["combined"]), str(figures["separated"]), f"{ratio:.2f}", f"<= {MOST}")
    wide_console().print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))
    return 0
