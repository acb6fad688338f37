"""What `gantry store rows` does: rows of gateways' tables that no door can read, in a stopped directory."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gantrymq.broker.row_checks import check_of, known_tables, why_unreadable
from gantrymq.broker.tables import item_message, replay_topic, row_of, topic_of
from gantrymq.cli.store import CONSOLE, explained, store_app
from gantrymq.cli.store_repair import data_of, settings_of
from gantrymq.clock import SystemClock
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why."""

    table: str
    key: str
    size_bytes: int
    why: str


def bad_rows(store: MessageStore) -> list[BadRow]:
    """Rows of all tables that have a reader here."""
    found = []
    for table in known_tables():
        check = check_of(table)
        rows: dict[str, bytes] = {}
        for message in replay_topic(store, topic_of(table), 0):
            _, key, value = row_of(message)
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
    """List rows of MQTT's, AMQP's and CloudEvents' tables that no door can read; the doors work without them."""
    with explained(directory):
        store = MessageStore(OsFileSystem(), data_of(directory), settings_of(config), SystemClock())
        store.load()
        try:
            found = bad_rows(store)
            if remove and found:
                gone = [item_message(row.table, row.key, None) for row in found]
                store.append(gone, [()] * len(gone))
        finally:
            store.close()
    _show(found, remove, as_json)


def _show(found: list[BadRow], removed: bool, as_json: bool) -> None:
    if as_json:
        for row in found:
            line = {"table": row.table, "key": row.key, "bytes": row.size_bytes, "why": row.why, "removed": removed}
            sys.stdout.write(json.dumps(line) + "\n")
        return
    if not found:
        CONSOLE.print("[green]every row can be read[/green]")
        return
    table = Table("table", "key", "bytes", "why", title="removed" if removed else "put aside by the doors")
    for row in found:
        table.add_row(row.table, escape(row.key[:80]), str(row.size_bytes), escape(row.why[:200]))
    CONSOLE.print(table)
    if not removed:
        CONSOLE.print("--remove removes them; a newer version that wrote them may be able to read them")
