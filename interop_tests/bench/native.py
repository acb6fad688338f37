"""`./run bench native`: what a native message costs, beside a real RocketMQ broker and beside our own compiled build, in one run.

usage: bench native [--quick] [--only WORD ...] [--peers rocketmq] [--[no-]compiled] [--realtime] [--json FILE] [--markdown FILE]

Figures are CPU of the broker's process (all threads) per message, in microseconds; the servers are measured in turns, case by case, because a
machine's speed drifts. "Compiled" is `./run exec compiled`, measured where that environment exists (`--compiled` makes it). Latency is of the native
Python client on both sides; on a machine that has other work, `--realtime` tells what remains without it. The targets are those of the project's own plan: ratios to RocketMQ's figure of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from interop_tests.bench import latency
from interop_tests.bench.loads import generator
from interop_tests.bench.proc_cpu import tree_cpu
from interop_tests.bench.remoting_wire import call, connect
from interop_tests.bench.servers import WIDTH_WITHOUT_TERMINAL, Server, gantry, peer, wide_console

PLAIN, COMPILED, ROCKETMQ = "gantry", "compiled", "rocketmq"
SYNC = "sync"
"""Suffix of a server whose acknowledgements wait for the disk."""
WARM_UP = 200_000
"""Messages that a JVM gets before anything is measured: its compilers are done then."""
REPEATS = 3
COLD_RATE = 50_000
"""Messages/s of the group that reads cold data. As fast as it can it would take a processor of its own, and most of the broker's."""
REST_STEP_S, REST_SHARE, REST_S_MAX = 0.5, 0.1, 20.0
"""A server that takes less than this share of a processor rests; a JVM never takes none."""
PULL_MESSAGE, GET_MAX_OFFSET = 11, 30
PHYSICAL_OFFSET = slice(28, 36)
"""In a record."""

COLUMNS = (TextColumn("{task.description:<45}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

Figure = float | None


@dataclass
class Row:
    """One case. `run(server)` gives the figures by their names; the first one is what ratios are of."""

    name: str
    run: Callable[[Server], dict[str, Any]]
    target: str = ""
    limit: float = 0.0
    """Ratio to RocketMQ that is to be reached; 0: `limit_us` counts."""
    limit_compiled: float = 0.0
    """The same of the compiled build; 0: `limit` counts for both."""
    limit_us: float = 0.0
    """Figure that is to be reached whatever RocketMQ's is."""
    sync: bool = False
    only_ours: bool = False
    unit: str = "us"
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def figure(self, name: str) -> Figure:
        """Median figure of a server."""
        value = self.found.get(name, {}).get("figure")
        return float(value) if isinstance(value, (int, float)) else None

    def verdict(self, name: str) -> str:
        """Reached or missed, or empty where it cannot be told."""
        ours, theirs = self.figure(name), self.figure(ROCKETMQ)
        if ours is None:
            return ""
        if self.limit_us:
            return "yes" if ours <= self.limit_us else "NO"
        limit = (self.limit_compiled if name == COMPILED else 0.0) or self.limit
        if not limit or not theirs:
            return ""
        return "yes" if ours / theirs <= limit else "NO"


def sends(mix: str, window: int, connections: int, messages: int, *more: str) -> Callable[[Server], dict[str, Any]]:
    """Acknowledged sends with a UNIQ_KEY; `mix`: see remoting_load.py."""

    def run(server: Server) -> dict[str, Any]:
        got = generator(
            "remoting_load.py", server.doors["broker"], "--window", str(window), "--connections", str(connections),
            "--messages", str(messages), "--warmup", str(messages // 10), "--topic", f"Native{mix}{window}x{connections}",
            "--mix", mix, "--server-pid", str(server.pid), *more,
        )  # fmt: skip
        return {"figure": got.get("server_cpu_us_per_msg"), "rate": got.get("sends_per_s"), "raw": got}

    return run


def fill(server: Server, topic: str, messages: int) -> None:
    """Messages to read."""
    key = (server.name, topic)
    if key not in _filled:
        _filled.add(key)
        generator(
            "remoting_load.py", server.doors["broker"], "--window", "256", "--messages", str(messages), "--topic", topic
        )
        rest(server)


def rest(server: Server) -> None:
    """Wait until a server is done with what it put off while it was busy (index, queue files): it would count as the next case's."""
    end = time.monotonic() + REST_S_MAX
    before, spent = 0.0, tree_cpu([server.pid])
    while time.monotonic() < end and spent - before > REST_SHARE * REST_STEP_S:
        time.sleep(REST_STEP_S)
        before, spent = spent, tree_cpu([server.pid])


_filled: set[tuple[str, str]] = set()


def pulls(batch: int, messages: int, *more: str) -> Callable[[Server], dict[str, Any]]:
    """Batch pull, every record looked at."""

    def run(server: Server) -> dict[str, Any]:
        fill(server, "NativePull", messages)
        got = generator(
            "remoting_pull.py", server.doors["broker"], "--topic", "NativePull", "--batch", str(batch), "--messages", str(messages),
            "--runs", "3", "--server-pid", str(server.pid), *more,
        )  # fmt: skip
        return {"figure": got.get("server_cpu_us_per_msg"), "rate": got.get("msgs_per_s"), "raw": got}

    return run


def pops(messages: int, ack: str) -> Callable[[Server], dict[str, Any]]:
    """Pop in batches of 32 and acknowledge them; `ack`: batch, single or shuffled."""

    def run(server: Server) -> dict[str, Any]:
        fill(server, "NativePop", messages)
        got = generator(
            "remoting_pop.py", server.doors["broker"], "--topic", "NativePop", "--batch", "32", "--runs", "1",
            "--ack", ack, "--group", f"Pop{ack}{time.time_ns()}", "--server-pid", str(server.pid),
        )  # fmt: skip
        return {"figure": got.get("server_cpu_us_per_msg"), "rate": got.get("msgs_per_s"), "raw": got}

    return run


def against_plain(script: str, name: str, *more: str) -> Callable[[Server], dict[str, Any]]:
    """A generator that compares a kind of message with plain ones; `name`: of its figure."""

    def run(server: Server) -> dict[str, Any]:
        got = generator(script, server.doors["broker"], "--server-pid", str(server.pid), *more)
        plain = got.get("plain_us")
        cost = got.get(f"{name}_us")
        ratio = round(cost / plain, 2) if cost and plain else None
        return {"figure": ratio, "note": f"{cost} us beside {plain}", "raw": got}

    return run


def filters(expression: str, kind: str, messages: int, dropped: bool) -> Callable[[Server], dict[str, Any]]:
    """What a filter costs for each message that it looks at, above a pull of the same topic without one."""

    def run(server: Server) -> dict[str, Any]:
        got = generator(
            "filter_load.py", server.doors["broker"], "--server-pid", str(server.pid), "--messages", str(messages),
            "--type", kind, "--expression", expression, *(["--per-dropped"] if dropped else []),
        )  # fmt: skip
        return {
            "figure": got.get("us"),
            "note": f"{got.get('delivered')} of {got.get('looked_at')} delivered",
            "raw": got,
        }

    return run


def latencies(seconds: int, cold: bool, which: str) -> Callable[[Server], dict[str, Any]]:
    """Send to push consumer at 10,000 messages/s; `which`: p50_ms or p99_ms."""

    def run(server: Server) -> dict[str, Any]:
        key = (server.name, f"latency{cold}")
        if key not in _latencies:
            arguments = ["--nameserver", server.doors["nameserver"], "--rate", "10000", "--seconds", str(seconds)]
            if _realtime:
                arguments.append("--realtime")
            with ExitStack() as stack:
                if cold:
                    stack.enter_context(cold_reader(server))
                before = from_disk(server.pid)
                if _realtime:
                    stack.enter_context(hurried(server.pid))
                done = subprocess.run(
                    [sys.executable, "-m", "interop_tests.bench.latency", *arguments],
                    capture_output=True, text=True, timeout=seconds * 3 + 60, check=False,
                )  # fmt: skip
            got = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
            _latencies[key] = got | {"mib_from_disk": round((from_disk(server.pid) - before) / (1 << 20), 1)}
        got = _latencies[key]
        note = f"{got.get('producer_rate')}/s sent, {got.get('received')} received, {got['mib_from_disk']} MiB read from the disk"
        return {"figure": got.get(which), "note": note, "raw": got}

    return run


def from_disk(pid: int) -> int:
    """Bytes that a process has had read from the disk so far."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


_latencies: dict[tuple[str, str], dict[str, Any]] = {}
_realtime: list[bool] = []
"""Not empty: latency rows run before all other programs of the machine."""


@contextmanager
def hurried(pid: int) -> Iterator[None]:
    """A server whose threads run before all other programs."""
    latency.hurry(pid)
    try:
        yield
    finally:
        latency.hurry(pid, False)


@contextmanager
def cold_reader(server: Server) -> Iterator[None]:
    """A group that pulls a topic from its first message on, again and again, five times as fast as messages are sent; the topic's files and the
    log up to its last message are put out of memory twice a second."""
    fill(server, "NativePull", WARM_UP)
    here = Path(__file__).parent
    reader = [
        sys.executable, str(here / "remoting_pull.py"), server.doors["broker"], "--topic", "NativePull", "--batch", "32", "--runs", "1000",
        "--rate", str(COLD_RATE), "--group", "COLD",
    ]  # fmt: skip
    place = str(_last_position(server.doors["broker"], "NativePull"))
    store = Path(server.data) if (Path(server.data) / "commitlog").is_dir() else Path(server.data) / "store"
    with ExitStack() as stack:
        for command in ([sys.executable, str(here / "evict.py"), str(store), "NativePull", place], reader):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            if _realtime:
                latency.hurry(process.pid)
        yield
        if process.poll() is not None:
            raise OSError(f"the cold reader ended with status {process.returncode}")


def _last_position(address: str, topic: str) -> int:
    """Where the log's last message of a topic begins."""
    found = 0
    with connect(address) as sock:
        for queue in range(4):
            where = {"topic": topic, "queueId": str(queue)}
            last = int(call(sock, GET_MAX_OFFSET, where)[2]["offset"]) - 1
            fields = {
                "consumerGroup": "COLD", "queueOffset": str(last), "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0",
                "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            body = call(sock, PULL_MESSAGE, where | fields)[4]
            found = max(found, int.from_bytes(body[PHYSICAL_OFFSET], "big"))
    return found


def rows(count: int, seconds: int) -> list[Row]:
    """The table, top to bottom. `count`: messages per measured run."""
    return [
        *[
            Row(f"send {mix}, window {window}", sends(mix, window, 1, count), target, limit, limit_compiled=limit_compiled)
            for mix, target, limit, limit_compiled in (
                ("same", "0.5 x", 0.5, 0.0), ("tags", "0.5 x", 0.5, 0.0), ("keys", "0.5 x", 0.5, 0.0),
                ("real", "0.45 x; compiled 0.35 x", 0.45, 0.35),
            )
            for window in (32, 256)
        ],
        Row("send real, window 256, binary header", sends("real", 256, 1, count, "--binary"), "0.5 x", 0.5),
        Row("send real, window 1", sends("real", 1, 1, count // 5), "0.4 x", 0.4),
        Row("send real, 256 connections, window 1", sends("real", 1, 256, count), "0.45 x", 0.45),
        Row("send real, SYNC_FLUSH, window 64", sends("real", 64, 1, count // 4), "0.5 x", 0.5, sync=True),
        Row("pull, batch 32", pulls(32, count * 2), "0.5 x", 0.5),
        Row("pull, batch 1024", pulls(1024, count * 2), "1 x", 1.0),
        Row("pop + ack, batch 32", pops(count, "batch"), "0.5 x", 0.5),
        Row("pop + ack each, batch 32", pops(count, "single"), "0.5 x", 0.5),
        Row("pop + ack each, out of order", pops(count, "shuffled"), "0.5 x", 0.5),
        Row("transactional / plain", against_plain("transaction_load.py", "transaction", "--messages", str(count // 10)),
            "4 x plain", limit_us=4.0, unit="x"),
        Row("delay level / plain", against_plain("delay_load.py", "level", "--messages", str(count // 10), "--rounds", "2"), unit="x"),
        Row("timer / plain", against_plain("delay_load.py", "timer", "--messages", str(count // 10), "--rounds", "2"), unit="x"),
        Row("tag filter, per dropped", filters("TagKeep", "TAG", count, True), "0.3 us", limit_us=0.3),
        Row("SQL92 filter, per message", filters("a BETWEEN 1 AND 5 AND region IN ('north', 'south')", "SQL92", count, False),
            "5 us", limit_us=5.0),
        Row("latency p50, 10,000/s", latencies(seconds, False, "p50_ms"), "1 ms", limit_us=1.0, unit="ms"),
        Row("latency p99, 10,000/s", latencies(seconds, False, "p99_ms"), "5 ms", limit_us=5.0, unit="ms"),
        Row("latency p50, beside a cold reader", latencies(seconds, True, "p50_ms"), "1 ms", limit_us=1.0, unit="ms"),
        Row("latency p99, beside a cold reader", latencies(seconds, True, "p99_ms"), "5 ms", limit_us=5.0, unit="ms"),
    ]  # fmt: skip


def times(row: Row, repeats: int) -> int:
    """Rounds of a row: those that compare within a run, or take long, have one."""
    return 1 if row.unit in ("ms", "x") else repeats


def measure(row: Row, servers: dict[str, Server], repeats: int, step: Callable[[str], None]) -> None:
    """Each server in turn, `repeats` times; the median counts. `step(what)` is called before each run."""
    results: dict[str, list[dict[str, Any]]] = {}
    for _ in range(times(row, repeats)):
        for name, server in servers.items():
            step(f"{row.name}: {name}")
            try:
                got = row.run(server)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                got = {"figure": None, "note": f"{type(error).__name__}: {error}"[:80]}
            raw = got.get("raw", {})
            if "error" in raw:
                got["note"] = str(raw["error"])[:80]
            results.setdefault(name, []).append(got)
    for name, each in results.items():
        good = sorted((one for one in each if one.get("figure") is not None), key=lambda one: float(one["figure"]))
        row.found[name] = good[len(good) // 2] if good else each[-1]


def table_of(found: list[Row], names: list[str]) -> list[list[str]]:
    """Cells, the head first."""
    ours = [name for name in names if name != ROCKETMQ]
    titles = {PLAIN: "plain", COMPILED: "compiled", ROCKETMQ: "RocketMQ"}
    head = [
        "case",
        *[titles[name] for name in names],
        *[f"{titles[name]} / RocketMQ" for name in ours if ROCKETMQ in names],
    ]
    cells = [[*head, "to reach", *[f"{titles[name]}: reached" for name in ours], "messages/s"]]
    for row in found:
        line = [row.name]
        line += [_text(row.figure(name), row.unit) for name in names]
        theirs = row.figure(ROCKETMQ)
        if ROCKETMQ in names:
            line += [f"{figure / theirs:.2f}" if theirs and (figure := row.figure(name)) else "-" for name in ours]
        line.append(row.target)
        line += [row.verdict(name) for name in ours]
        rates = [row.found.get(name, {}).get("rate") for name in names]
        line.append(
            " / ".join(f"{rate:,.0f}" if isinstance(rate, (int, float)) else "-" for rate in rates)
            if any(rates)
            else ""
        )
        cells.append(line)
    return cells


def _text(value: Figure, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} {unit}" if unit != "us" else f"{value:.2f}"


def markdown(cells: list[list[str]]) -> str:
    """The same table for a page."""
    lines = [cells[0], ["---"] + ["---:"] * (len(cells[0]) - 1), *cells[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def compiled_python() -> str:
    """The compiled environment's interpreter, named by ./run, or empty."""
    return os.environ.get("GANTRY_COMPILED_PYTHON", "")


def start(stack: ExitStack, name: str, directory: Path, sync: bool) -> Server:
    """A server of its own directory."""
    where = directory / (name + SYNC * sync)
    where.mkdir()
    if name == ROCKETMQ:
        return stack.enter_context(peer(name, where, sync=sync))
    python = compiled_python() if name == COMPILED else sys.executable
    return stack.enter_context(gantry(where, python, name, ("store.flush=sync",) if sync else ()))


def measure_all(
    chosen: list[Row], names: list[str], directory: Path, sync: bool, repeats: int, console: Console
) -> None:
    """Start the servers, warm them up, and measure every row."""
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(*COLUMNS, console=console, transient=True))
        task = progress.add_task("", total=len(names) * (2 + sum([times(row, repeats) for row in chosen])))

        def step(what: str) -> None:
            if not console.is_terminal:
                console.print(f"{what} ...", style="dim")
            progress.update(task, description=what, advance=int(bool(progress.tasks[0].description)))

        servers = {}
        for name in names:
            step(f"{name}: start")
            servers[name] = start(stack, name, directory, sync)
        for name, server in servers.items():
            step(f"{name}: warm up")
            fill(server, "Warm", WARM_UP // (1 if name == ROCKETMQ else 10))
        for row in chosen:
            measure(row, servers, repeats, step)


def main(arguments: list[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="bench native", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer messages, one round")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name contains one of these words")
    parser.add_argument("--peers", nargs="*", default=[], choices=[ROCKETMQ])
    parser.add_argument(
        "--compiled", action=argparse.BooleanOptionalAction, default=None, help="measure the compiled build, too"
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="latency: server and clients before all other programs of the machine (Linux, root)",
    )
    parser.add_argument("--json", type=Path, help="write every raw figure here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    args = parser.parse_args(arguments)
    if args.realtime:
        _realtime.append(True)
    console = wide_console(WIDTH_WITHOUT_TERMINAL + 40)
    names = [PLAIN]
    if args.compiled is not False and compiled_python():
        names.append(COMPILED)
    names += args.peers
    found = [row for row in rows(40_000 if args.quick else 100_000, 4 if args.quick else 10)
             if not args.only or any(word.lower() in row.name.lower() for word in args.only)]  # fmt: skip
    directory = Path(tempfile.mkdtemp(prefix="gantry-native-"))
    try:
        for sync in (False, True):
            chosen = [row for row in found if row.sync is sync]
            if chosen:
                measure_all(chosen, names, directory, sync, 1 if args.quick else REPEATS, console)
                _filled.clear()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    cells = table_of(found, names)
    table = Table(title="CPU of the broker's process per message, microseconds (unless a unit is given)")
    for column, title in enumerate(cells[0]):
        table.add_column(title, justify="right" if column else "left", no_wrap=column == 0)
    for line in cells[1:]:
        table.add_row(*line)
    console.print(table)
    for row in found:
        notes = {name: one["note"] for name, one in row.found.items() if one.get("note")}
        if notes:
            console.print(f"{row.name}: {notes}", style="dim")
    if args.markdown:
        args.markdown.write_text(markdown(cells))
    if args.json:
        args.json.write_text(json.dumps({row.name: row.found for row in found}, indent=1))
    failed = [row.name for row in found if row.figure(PLAIN) is None]
    if failed:
        console.print(f"[red]no figure for: {', '.join(failed)}")
    return 1 if failed else 0
