"""What `gantry store check`, `dump` and `stats` do: they read a store directory and never write into it."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.logs import complain
from gantrymq.model.errors import ConfigError, GantryError
from gantrymq.store.tools.check import Checker
from gantrymq.store.tools.dump import dump, figures
from gantrymq.store.tools.inspect import StoreImage
from gantrymq.store.tools.report import Report

CONSOLE: Final = Console(highlight=False)
ERRORS: Final = Console(stderr=True, highlight=False)
BODY_SHOWN_MAX: Final = 60
"""Characters of a body in the table; --json shows all of it."""

store_app = typer.Typer()

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="RocketMQ's storePathRootDir: the directory of commitlog/.")
]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What fails inside becomes one line and an exit code; a failure of the system names its file, else `path`."""
    try:
        yield
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except GantryError as error:
        complain(error.text)
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as error:
        complain(f"{error.filename or path}: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from None


@contextmanager
def opened(directory: Path) -> Iterator[StoreImage]:
    """The directory, or one line on what is wrong with it."""
    with explained(directory), closing(StoreImage(directory)) as image:
        yield image


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """`tell(what, done, in all)`: bars on a terminal's error output, nothing elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=ERRORS, transient=True, disable=not ERRORS.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell


@store_app.command()
def check(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    index_slots: Annotated[int, typer.Option(min=0, help="Slots of the index files; default: found from them.")] = 0,
) -> None:
    """Verify CRCs, queues against the log both ways, index and checkpoint. Exit code 1: damage. Repairs nothing."""
    with opened(directory) as image, progress() as tell:
        report = Checker(image, index_slots, tell).run()
    if as_json:
        sys.stdout.write(json.dumps(report.as_dict()) + "\n")
    else:
        _show_report(report)
    if report.damage_count:
        raise typer.Exit(EXIT_FAILED)


def _last_stop(clean: bool, running: int) -> str:
    if running:
        return f"none: process {running} is at work here, and what it writes meanwhile may look damaged"
    return "clean" if clean else "not clean: recovery was applied in memory"


def _show_report(report: Report) -> None:
    table = Table("", "", show_header=False, box=None)
    for name, value in (
        ("store", report.directory),
        ("last stop", _last_stop(report.clean, report.running)),
        ("log", f"{report.log_begin} to {report.log_end}"),
        ("records", report.records),
        ("queue units", report.units),
        ("light queue units", report.light_units),
        ("index entries", report.index_entries),
    ):
        table.add_row(name, escape(str(value)))
    CONSOLE.print(table)
    for note in report.notes:
        CONSOLE.print(f"note: {escape(note)}")
    if not report.damage_count:
        CONSOLE.print("[green]no damage[/green]")
        return
    found = Table("kind", "where", "what", title=f"damage: {report.damage_count}")
    for row in report.damage:
        found.add_row(escape(row["kind"]), escape(row["where"]), escape(row["text"]))
    CONSOLE.print(found)


@store_app.command("dump")
def dump_(
    directory: Directory,
    topic: Annotated[str, typer.Option(help="Topic.")],
    queue: Annotated[int, typer.Option(min=0, help="Queue id.")] = 0,
    start: Annotated[int, typer.Option("--from", min=0, help="First queue offset.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the records of a queue."""
    with opened(directory) as image, progress() as tell:
        lines = dump(image, topic, queue, start, tell)
        if as_json:
            for line in lines:
                sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        elif not _show_records(lines):
            CONSOLE.print(
                f"no records of {escape(topic)}/{queue} from offset {start} on (`gantry store stats` lists the queues)"
            )


def _show_records(lines: Iterator[dict[str, Any]]) -> int:
    """A table, if there are any; returns how many."""
    table = Table("offset", "position", "bytes", "stored", "properties", "body")
    for line in lines:
        body = base64.b64decode(line["body"]).decode("utf-8", "replace")
        table.add_row(
            str(line["queueOffset"]), str(line["commitLogOffset"]), str(line["storeSize"]), str(line["storeTimestamp"]),
            escape(", ".join([f"{name}={value}" for name, value in line["properties"].items()])),
            escape(body if len(body) <= BODY_SHOWN_MAX else body[:BODY_SHOWN_MAX] + "..."),
        )  # fmt: skip
    if table.row_count:
        CONSOLE.print(table)
    return table.row_count


@store_app.command()
def stats(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Files, queues, index and positions."""
    with opened(directory) as image:
        found = figures(image)
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    _show_figures(found)


def _show_figures(found: dict[str, Any]) -> None:
    table = Table("", "", show_header=False, box=None)
    for name, value in (
        ("store", found["directory"]),
        ("last stop", _last_stop(found["cleanStop"], found["running"])),
        (
            "segments",
            f"{found['segments']} of {found['segmentBytes']:,} bytes, from {found['logBegin']} to {found['logLimit']}",
        ),
        ("on disk", ", ".join([f"{part} {size:,}" for part, size in sorted(found["diskBytes"].items())])),
        ("configuration", ", ".join([f"{name}: {count}" for name, count in found["config"].items()])),
        ("checkpoint", ", ".join(map(str, found["checkpoint"]))),
        (
            "flushed, derived",
            f"{found['flushedPosition']}, {found['derivedPosition']}" if found["ours"] else "not ours yet",
        ),
    ):
        table.add_row(name, escape(str(value)))
    CONSOLE.print(table)
    queues = Table("topic", "queue", title="queues")
    for name in ("first offset", "next offset", "records"):
        queues.add_column(name, justify="right")
    for row in found["queues"]:
        first, following = row["minOffset"], row["maxOffset"]
        queues.add_row(escape(row["topic"]), str(row["queueId"]), str(first), str(following), str(following - first))
    CONSOLE.print(queues)
    index = Table("index file", title="index")
    for name in ("entries", "room", "slots"):
        index.add_column(name, justify="right")
    for row in found["index"]:
        index.add_row(
            row["name"], str(row["entries"]), str(row["room"] or "?"), str(row["slots"] or "geometry unknown")
        )
    CONSOLE.print(index)
