"""What `gantry store rows` does: rows of tables that nobody here can read, in a stopped directory."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gantrymq.broker.consuming.offsets import UNREAD_TABLE
from gantrymq.broker.routing.router import Router, load_route_sets, route_from_bytes
from gantrymq.broker.row_checks import RowCheck, check_of, known_tables, why_unreadable
from gantrymq.broker.tables.tables import item_message, replay_table
from gantrymq.cli.store.check import CONSOLE, explained, store_app
from gantrymq.cli.store.repair import data_of, settings_of
from gantrymq.clock import SystemClock
from gantrymq.model.names import table_of
from gantrymq.remoting.server.table_rows import CHECKS
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why. `key` empty: a damaged record, of which nobody knows what row it changed."""

    table: str
    key: str
    size_bytes: int
    why: str


def _checks() -> dict[str, RowCheck]:
    """Of every table that has a reader here."""
    checks = {**CHECKS, **{table: check for table in known_tables() if (check := check_of(table)) is not None}}
    router, read = Router(load_route_sets(), {}, lambda route_id: None), checks["route"]

    def check_route(key: str, value: bytes) -> None:
        read(key, value)
        router.add(route_from_bytes(key, value))  # its kind may not be installed

    def check_unread(key: str, value: bytes) -> None:
        raise ValueError("it could not be read, and the group has committed since: kept as it was")

    return {**checks, "route": check_route, UNREAD_TABLE: check_unread}


def bad_rows(store: MessageStore) -> list[BadRow]:
    """Rows that cannot be read, and damaged records, of all tables."""
    found = []
    checks = _checks()
    for table in sorted({*checks, *filter(None, map(table_of, store.topics()))}):
        check = checks.get(table)
        rows: dict[str, bytes] = {}

        def damaged(_topic: str, offset: int, unit: tuple[int, int, int], table: str = table) -> None:
            found.append(BadRow(table, "", 0, f"record {offset}, at {unit[0]} of the log, is damaged"))

        for key, value in replay_table(store, table, {}, damaged):
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        for key, value in rows.items():
            why = why_unreadable(check, key, value) if check is not None else ""
            if why:
                found.append(BadRow(table, key, len(value), why))
    return found


@store_app.command()
def rows(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The server's --data; it must be stopped.")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove them, each by a record in the log.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    config: Annotated[str | None, typer.Option(help="The server's TOML file.")] = None,
) -> None:
    """List rows of tables that the broker or a door cannot read, and damaged ones; both work without them."""
    with explained(directory):
        store = MessageStore(OsFileSystem(), data_of(directory), settings_of(config), SystemClock())
        store.load()
        try:
            found = bad_rows(store)
            if remove and found:
                gone = [item_message(row.table, row.key, None) for row in found if row.key]
                store.append(gone, [()] * len(gone))
        finally:
            store.close()
    _show(found, remove, as_json)


def _show(found: list[BadRow], removed: bool, as_json: bool) -> None:
    if as_json:
        for row in found:
            line = {"table": row.table, "key": row.key, "bytes": row.size_bytes, "why": row.why}
            line["removed"] = removed and bool(row.key)
            sys.stdout.write(json.dumps(line) + "\n")
        return
    if not found:
        CONSOLE.print("[green]every row can be read[/green]")
        return
    table = Table("table", "key", "bytes", "why", title="removed, but for damaged records" if removed else "put aside")
    for row in found:
        table.add_row(row.table, escape(row.key[:80]), str(row.size_bytes), escape(row.why[:200]))
    CONSOLE.print(table)
    if not removed:
        CONSOLE.print("--remove removes them; a newer version that wrote them may be able to read them")
