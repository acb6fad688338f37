"""`./run bench`: what one broker process does, measured by load generators in processes of their own; beside real peers if asked.

usage: bench [amqp|mqtt] [--quick] [--only NAME ...] [--peers rocketmq mosquitto rabbitmq kafka] [--[no-]spark] [--json FILE]
       bench amqp [--peers rabbitmq], bench mqtt [--peers mosquitto]: the rows of one door alone
       bench mqtt --scale ...: very many MQTT clients and sessions (mqtt_scale.py)
       bench --spark --peers kafka: Spark's source and sink beside those for Kafka, nothing else
       bench store ...: the store alone (store.py)
       bench native ...: native messages beside RocketMQ and the compiled build (native.py)
       bench fair ...: a neighbour beside the worst clients of each door (fair.py)
       bench admin ...: many topics, groups, connections and clients (admin.py)
       bench forward ...: records that another broker group's queues want, idle groups, foreign routes (forward.py)
       bench split ...: a gateway in a process of its own beside everything in one (split.py)
       bench auth ...: users, policies and 10,000 rules beside an open server (auth.py)

Every figure of a server is CPU of its process (all threads) per message, so that a busy machine changes it little; rates are what
this machine gave. The servers are all there at once and measured in turns, case by case. Generators pre-encode their frames. Peers are started by interop_tests/bench/peers/*.sh.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from interop_tests.bench import spark_peers
from interop_tests.bench.amqp_rows import rows as amqp_rows
from interop_tests.bench.loads import amqp, generator, mqtt, pull, send
from interop_tests.bench.mqtt_rows import rows as mqtt_rows
from interop_tests.bench.servers import certify, gantry, peer, wide_console, with_tls

KAFKA = "kafka"
"""Beside Spark's source and sink only."""


@dataclass
class Case:
    """One row: which generator, with what, and which of its figures to show."""

    name: str
    peer: str
    """Peer that has this case too, or empty."""
    target: str = ""
    beside: str = ""
    """The case of ours that the ratio is to; empty: the peer's."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


def cases(count: int) -> list[tuple[Case, Any]]:
    """Name, peer, target, and what to run."""
    return [
        *[(Case(name, "" if "WebSocket" in name else "mosquitto", reach, beside), run)  # Debian builds Mosquitto without
          for name, beside, reach, run in mqtt_rows(count, mqtt)],
        *[
            (Case(f"send {mix}, window {window}", "rocketmq", f"<= {0.45 if mix == 'real' else 0.5} x RocketMQ"),
             partial(send, mix=mix, window=window, connections=1, messages=count))
            for mix in ("same", "tags", "keys", "real")
            for window in (32, 256)
        ],
        (Case("send real, window 1", "rocketmq", "<= 0.4 x RocketMQ"), lambda s: send(s, "real", 1, 1, count // 10)),
        (Case("send real, 256 connections, window 1", "rocketmq", "<= 0.45 x RocketMQ"), lambda s: send(s, "real", 1, 256, count)),
        (Case("pull, batches of 32", "rocketmq", "300,000/s"), lambda s: pull(s, 32, count * 3)),
        *[(Case(name, "rabbitmq", reach), run) for name, reach, run in amqp_rows(count, amqp)],
    ]  # fmt: skip


def show(console: Console, rows: list[Case], peers: list[str]) -> None:
    """The table."""
    table = Table(title="one broker process; CPU of the server's process per message, microseconds")
    table.add_column("case", no_wrap=True)
    table.add_column("per second", justify="right")
    table.add_column("CPU us", justify="right")
    if peers:
        table.add_column("peer CPU us", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right")
    table.add_column("to reach")
    table.add_column("note")
    for case in rows:
        ours = case.rows.get("gantry", {})
        cells = [case.name, _number(ours.get("rate"), 0), _number(ours.get("cpu_us"), 2)]
        cost = case.rows.get(case.peer, {}).get("cpu_us")
        of = next((other.rows["gantry"].get("cpu_us") for other in rows if other.name == case.beside), cost)
        if peers:
            cells.append(f"{case.peer} {cost:.1f}" if cost else "")
        cells.append(f"{ours['cpu_us'] / of:.2f}" if of and ours.get("cpu_us") else "")
        note = str(ours.get("note", ""))
        if theirs := case.rows.get(case.peer, {}).get("note"):
            note += f" ({case.peer} {theirs})"
        table.add_row(*cells, case.target, note)
    console.print(table)


def _number(value: Any, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else "-"


def measure_idle(console: Console, directory: Path) -> dict[str, float]:
    """Start to ready, memory and CPU of a `gantry up` that nobody uses."""
    begin = time.monotonic()
    with gantry(directory) as server:
        ready_s = time.monotonic() - begin
        time.sleep(2)
        ticks = _cpu_ticks(server.pid)
        time.sleep(5)
        percent = (_cpu_ticks(server.pid) - ticks) / 5
        status = Path(f"/proc/{server.pid}/status").read_text()
        rss = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    console.print(
        f"idle gantry up: ready after {ready_s:.2f} s (target 1.5), VmRSS {rss:.1f} MiB (target 80), CPU {percent:.1f} % (target 1)"
    )
    return {"ready_s": ready_s, "rss_mib": rss, "cpu_percent": percent}


def _cpu_ticks(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float(int(words[11]) + int(words[12]))


def choose(args: argparse.Namespace) -> list[tuple[Case, Any]]:
    """The cases asked for, and those of ours that their ratios are to."""
    every = [(case, run) for case, run in cases(20_000 if args.quick else 200_000)
             if case.name.lower().startswith(f"{args.door} " if args.door else "")]  # fmt: skip
    named = [case for case, _ in every if not args.only or any(word.lower() in case.name.lower() for word in args.only)]
    besides = {case.beside for case in named}
    return [(case, run) for case, run in every if case in named or case.name in besides]


def main() -> int:
    if sys.argv[1:2] == ["store"]:
        from interop_tests.bench import store

        return store.main(sys.argv[2:])
    if sys.argv[1:2] == ["native"]:
        from interop_tests.bench import native

        return native.main(sys.argv[2:])
    if sys.argv[1:2] == ["admin"]:
        from interop_tests.bench import admin

        return admin.main(sys.argv[2:])
    if sys.argv[1:2] == ["auth"]:
        from interop_tests.bench import auth

        return auth.main(sys.argv[2:])
    if sys.argv[1:2] == ["fair"]:
        from interop_tests.bench import fair

        return fair.main(sys.argv[2:])
    if sys.argv[1:2] == ["forward"]:
        from interop_tests.bench import forward

        return forward.main(sys.argv[2:])
    if sys.argv[1:2] == ["split"]:
        from interop_tests.bench import split

        return split.main(sys.argv[2:])
    if sys.argv[1:2] == ["light"]:
        from interop_tests.bench import light

        return light.main(sys.argv[2:])
    if sys.argv[1:3] == ["mqtt", "--scale"]:
        from interop_tests.bench import mqtt_scale

        return mqtt_scale.main(sys.argv[3:])
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("door", nargs="?", choices=["amqp", "mqtt"], help="only its cases")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name contains one of these words")
    parser.add_argument("--peers", nargs="*", default=[], choices=["rocketmq", "mosquitto", "rabbitmq", KAFKA])
    parser.add_argument(
        "--spark", action=argparse.BooleanOptionalAction, default=None,
        help="Spark rows/s, too (default: where pyspark is installed and --only was not given)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write every raw figure here")
    spark_peers.add_options(parser)
    args = parser.parse_args()
    only_kafka = args.peers == [KAFKA]
    beside_kafka = KAFKA in args.peers
    args.peers = [name for name in args.peers if name != KAFKA]
    console = wide_console()
    chosen = [] if only_kafka else choose(args)
    directory = Path(tempfile.mkdtemp(prefix="gantry-bench-"))
    raw: dict[str, Any] = {}
    columns = (TextColumn("{task.description:<45}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        if beside_kafka:
            raw["spark beside kafka"] = beside(console, args, directory)
        if only_kafka:
            return write_raw(args.json, raw)
        (directory / "idle").mkdir()
        raw["idle"] = measure_idle(console, directory / "idle")
        total = len(chosen) + sum(case.peer in args.peers for case, _ in chosen)
        with ExitStack() as stack, Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=total)
            (directory / "gantry").mkdir()
            certificates = certify(directory)
            servers = [stack.enter_context(gantry(directory / "gantry", settings=with_tls(certificates)))]
            servers += [stack.enter_context(peer(name, directory, certificates=certificates)) for name in args.peers]
            for case, run in chosen:
                for server in servers:
                    if server.name in {"gantry", case.peer}:
                        progress.update(task, description=f"{server.name}: {case.name}")
                        case.rows[server.name] = run(server)
                        progress.advance(task)
        show(console, [case for case, _ in chosen], args.peers)
        if args.spark or (args.spark is None and not args.only and not args.door and find_spec("pyspark") is not None):
            raw["spark"] = spark_rows(console, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    raw["cases"] = {case.name: case.rows for case, _ in chosen}
    write_raw(args.json, raw)
    failed = [case.name for case, _ in chosen if case.rows["gantry"].get("rate") is None]
    if failed:
        console.print(f"[red]no figure for: {', '.join(failed)}")
    return 1 if failed else 0


def write_raw(path: Path | None, raw: dict[str, Any]) -> int:
    if path is not None:
        path.write_text(json.dumps(raw, indent=1))
    return 0


def beside(console: Console, args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Spark on gantry beside Spark on Kafka; a line that says why where that cannot be."""
    if find_spec("pyspark") is None:
        console.print("Spark beside Kafka is left out: there is no pyspark here; --spark makes its environment")
        return {}
    try:
        return spark_peers.compare(console, args, directory, gantry)
    except spark_peers.UnavailableError as error:
        console.print(f"Spark beside Kafka is left out: {error}", markup=False)
        return {}


def spark_rows(console: Console, directory: Path) -> dict[str, Any]:
    """Rows/s of a batch read on two cores."""
    (directory / "spark").mkdir()
    with gantry(directory / "spark") as server:
        generator(
            "remoting_load.py",
            server.doors["broker"],
            "--window",
            "256",
            "--messages",
            "1000000",
            "--topic",
            "BenchSpark",
            "--body",
            "256",
        )
        got = generator("spark_rows.py", server.doors["nameserver"], "BenchSpark", timeout_s=600)
    console.print(f"Spark batch read: {got}")
    return got


if __name__ == "__main__":
    sys.exit(main())
