"""`gantry store damage`: damaged records that a running broker has met, or a stopped one had."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gantrymq.cli import options
from gantrymq.cli.options import Broker, Json, Nameserver
from gantrymq.cli.store.check import explained, store_app

damage_app = typer.Typer(
    help="Damaged records that somebody has met: what, where, and who waits for them.", no_args_is_help=True
)
store_app.add_typer(damage_app, name="damage")


@damage_app.command("list")
def list_(
    data: Annotated[
        Path | None, typer.Option(help="Of a stopped server: its --data. Who waits is known to a running one only.")
    ] = None,
    broker: Broker = "",
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Damaged records by position. What has been restored meanwhile is delivered to those who wait, and left out."""
    if data is not None:
        with explained(data):
            show_rows(stopped_rows(data), json_)
        return
    options.run(show, nameserver, broker=broker, as_json=json_)


@damage_app.command()
def skip(
    position: Annotated[int, typer.Argument(min=-1, help="As `gantry store damage list` shows it.")],
    queue: Annotated[
        str, typer.Option(help="Where several entries have that position: the queue of the one (`-`: none).")
    ] = "",
    offset: Annotated[int, typer.Option(min=-1, help="...and its offset.")] = -1,
    broker: Broker = "",
    nameserver: Nameserver = None,
) -> None:
    """Nobody waits for that record any more: it counts as acknowledged, unread. Nobody can take that back."""
    options.run(skip_at, nameserver, position=position, broker=broker, queue=queue, offset=offset)


def stopped_rows(data: Path) -> list[dict[str, Any]]:
    """What `D/gantry/damage` says."""
    from gantrymq.cli.store.repair import data_of
    from gantrymq.clock import SystemClock
    from gantrymq.store.damage import DamageList
    from gantrymq.store.files import OsFileSystem

    found = DamageList(OsFileSystem(), data_of(data) / "gantry" / "damage", SystemClock().now_ms)
    found.load()
    return [
        {
            "broker": "", "position": entry.position, "bytes": entry.size, "queue": entry.queue, "offset": entry.offset, "unit": entry.is_unit,
            "what": entry.what, "found": entry.found_ms, "skipped": entry.skipped, "waits": None, "waiting": [],
        }
        for entry in sorted(found.entries.values(), key=lambda entry: entry.position)
    ]  # fmt: skip


async def show(admin: Any, broker: str, as_json: bool) -> None:
    """Of all brokers, or of one."""
    from gantrymq.client import tools

    rows = []
    for name, address in (await tools.masters(admin, broker=broker)).items():
        rows += [{"broker": name, **row} for row in await tools.damaged_records(admin, address)]
    show_rows(rows, as_json)


def show_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table, or an object per line."""
    from rich.markup import escape
    from rich.table import Table

    from gantrymq.cli.commands.people import moment
    from gantrymq.cli.screen import CONSOLE

    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps({**row, "found": moment(row["found"])}, ensure_ascii=False) + "\n")
        return
    table = Table("broker", "position", "bytes", "queue", "offset", "what", "waits")
    for row in rows:
        waiting = ", ".join([f"{one['group']} ({one['queue']}, offset {one['offset']})" for one in row["waiting"]])
        table.add_row(
            escape(row["broker"]), str(row["position"]), str(row["bytes"]), escape(row["queue"]) or "-",
            str(row["offset"]) if row["offset"] >= 0 else "-", ("queue unit: " if row["unit"] else "") + escape(row["what"]),
            "skipped" if row["skipped"] else escape(waiting) or ("?" if row["waits"] is None else "nobody"),
        )  # fmt: skip
    CONSOLE.print(table if rows else "no damaged record is known (`gantry store check` looks at all of them)")


async def skip_at(admin: Any, position: int, broker: str, queue: str = "", offset: int = -1) -> None:
    """At the broker that lists it."""
    from gantrymq.cli.screen import CONSOLE
    from gantrymq.client import tools
    from gantrymq.model.errors import ErrorCode, GantryError

    found = []
    for name, address in (await tools.masters(admin, broker=broker)).items():
        rows = await tools.damaged_records(admin, address)
        if any(
            row["position"] == position and queue in ("", row["queue"] or "-") and offset in (-1, row["offset"])
            for row in rows
        ):
            found.append((name, address))
    if len(found) != 1:
        names = ", ".join([name for name, _ in found])
        text = (
            f"several brokers list position {position}: {names}; name one with --broker"
            if found
            else f"no damaged record at position {position} is listed"
        )
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT if found else ErrorCode.NOT_FOUND, text)
    entries = await tools.skip_damaged(admin, found[0][1], position, queue, offset)
    CONSOLE.print(f"position {position} of {found[0][0]}: {entries} entries wait for it no more", soft_wrap=True)
