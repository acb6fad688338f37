"""`gantry transactions`: transactions without a decision, and decisions by hand."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer

from gantrymq.cli import options
from gantrymq.cli.options import Broker, Json, Nameserver

transactions_app = typer.Typer()

COMMIT: Final = 8
ROLLBACK: Final = 12
"""END_TRANSACTION's commitOrRollback: sysFlag's transaction bits."""
PAGE: Final = 256
"""As many as a broker gives at once."""


@transactions_app.command("list")
def list_(
    group: Annotated[str, typer.Option(help="Only of this producer group.")] = "",
    broker: Broker = "",
    count: Annotated[int, typer.Option("--max", min=1, help="Stop after so many.")] = 1_000,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Transactions without a decision, oldest first."""
    options.run(show, nameserver, group=group, broker=broker, count=count, as_json=json_)


@transactions_app.command()
def commit(
    transaction_id: Annotated[str, typer.Argument(help="As `gantry transactions list` shows it.")],
    broker: Broker = "",
    nameserver: Nameserver = None,
) -> None:
    """Deliver the message of a transaction. Nobody can take that back."""
    options.run(decide, nameserver, transaction_id=transaction_id, broker=broker, decision=COMMIT)


@transactions_app.command()
def rollback(
    transaction_id: Annotated[str, typer.Argument(help="As `gantry transactions list` shows it.")],
    broker: Broker = "",
    nameserver: Nameserver = None,
) -> None:
    """Drop the message of a transaction. Nobody can take that back."""
    options.run(decide, nameserver, transaction_id=transaction_id, broker=broker, decision=ROLLBACK)


async def rows_of(admin: Any, broker: str, group: str, transaction_id: str, count: int) -> list[dict[str, Any]]:
    """Undecided transactions of all brokers, or of one; each row names its broker and that one's address."""
    from gantrymq.model.errors import ErrorCode, GantryError
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.overview_codes import LIST_TRANSACTIONS

    masters = (await admin.cluster()).masters()
    if broker:
        masters = {name: address for name, address in masters.items() if name == broker}
    if not masters:
        raise GantryError(ErrorCode.UNAVAILABLE, f"the nameserver knows no broker {broker}".rstrip())
    found: list[dict[str, Any]] = []
    for name, address in masters.items():
        start = 0
        while start >= 0 and len(found) < count:
            fields = {"start": str(start), "count": str(PAGE), "group": group, "transactionId": transaction_id}
            answer = await admin.client.ask(address, Command(LIST_TRANSACTIONS, fields), "list of transactions")
            page = json.loads(answer.body)
            found += [{**row, "broker": name, "address": address, "now": page["now"]} for row in page["transactions"]]
            start = page["next"]
    return found[:count]


async def show(admin: Any, group: str, broker: str, count: int, as_json: bool) -> None:
    """A table, or an object per line."""
    from rich.markup import escape
    from rich.table import Table

    from gantrymq.cli.commands.people import moment
    from gantrymq.cli.screen import CONSOLE, span

    rows = await rows_of(admin, broker, group, "", count)
    if as_json:
        for row in rows:
            shown = {
                "transaction_id": row["transactionId"], "group": row["group"], "topic": row["topic"], "broker": row["broker"],
                "offset": row["offset"], "position": row["position"], "born": moment(row["born"]),
                "stored": moment(row["stored"]), "checks": row["checks"], "producers": row["producers"],
            }  # fmt: skip
            sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
        return
    table = Table()
    table.add_column("transaction", no_wrap=True, min_width=max([len(row["transactionId"]) for row in rows], default=0))
    for name in ("group", "topic"):
        table.add_column(name, overflow="fold")
    for name in ("age", "checks", "producers"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row["transactionId"]),
            escape(row["group"]),
            escape(row["topic"]),
            span(row["now"] - row["stored"]),
            str(row["checks"]),
            str(row["producers"]) if row["producers"] else "[red]none[/red]",
        )
    CONSOLE.print(table if rows else "every transaction is decided")


async def decide(admin: Any, transaction_id: str, broker: str, decision: int) -> None:
    """END_TRANSACTION as the answer to a check."""
    from rich.markup import escape

    from gantrymq.cli.screen import CONSOLE
    from gantrymq.model.errors import ErrorCode, GantryError
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.constants import RequestCode

    rows = await rows_of(admin, broker, "", transaction_id, 2)
    if not rows:
        raise GantryError(
            ErrorCode.NOT_FOUND,
            f"there is no undecided transaction {transaction_id} (see `gantry transactions list`)",
        )
    if len(rows) > 1:
        # A producer that sent its half message twice: each must be decided on, one after the other.
        where = ", ".join(sorted({row["broker"] for row in rows}))
        CONSOLE.print(f"several half messages have this id (on {escape(where)}): the oldest is decided now")
    row = rows[0]
    fields = {
        "producerGroup": row["group"], "tranStateTableOffset": str(row["offset"]), "commitLogOffset": str(row["position"]),
        "commitOrRollback": str(decision), "fromTransactionCheck": "true", "msgId": transaction_id,
        "transactionId": transaction_id, "topic": row["topic"],
    }  # fmt: skip
    await admin.client.ask(
        row["address"], Command(RequestCode.END_TRANSACTION, fields), f"decision on {transaction_id}"
    )
    word = "committed" if decision == COMMIT else "rolled back"
    CONSOLE.print(f"transaction [bold]{escape(transaction_id)}[/bold] {word}: topic {escape(row['topic'])}")
