"""`gantry bridge add amqp`: a shovel between this installation and another AMQP broker, kept as a row and run by the AMQP door."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from gantrymq.cli import options
from gantrymq.cli.options import Nameserver
from gantrymq.launch.exit_codes import EXIT_USAGE
from gantrymq.logs import complain

add_app = typer.Typer()

TABLE: Final = "amqp_bridge"
STATE_TABLE: Final = "amqp_bridge_state"
"""As in gantrymq_gateways/bridges/rows.py."""


@add_app.callback()
def about() -> None:
    """Links that this installation keeps up from now on."""


@add_app.command("amqp")
def add(
    name: Annotated[str, typer.Argument(help="Of the bridge; one of the same name is changed.")],
    source: Annotated[
        str, typer.Option("--from", help="amqp://USER@HOST:PORT/VHOST of the broker to take from; not given: this one.")
    ] = "",
    destination: Annotated[str, typer.Option("--to", help="The same of the broker that gets them.")] = "",
    queue: Annotated[str, typer.Option(help="Queue to take from.")] = "",
    exchange: Annotated[str, typer.Option(help="Exchange to copy from instead, into a queue of the bridge.")] = "",
    pattern: Annotated[str, typer.Option(help="Binding key of that queue.")] = "#",
    to_queue: Annotated[str, typer.Option(help="Queue that gets them; without it the one of the same name.")] = "",
    to_exchange: Annotated[str, typer.Option(help="Exchange that gets them instead.")] = "",
    key: Annotated[
        str | None, typer.Option(help="Routing key for that exchange; without it each message's own.")
    ] = None,
    from_secret: Annotated[
        str, typer.Option(help="Name of the password there: a file of amqp.bridge_secrets, or GANTRY_BRIDGE_NAME.")
    ] = "",
    to_secret: Annotated[str, typer.Option(help="The same for --to.")] = "",
    user: Annotated[str, typer.Option(help="Who the bridge is at this installation; without it guest.")] = "",
    vhost: Annotated[str, typer.Option(help="The vhost here; without it /.")] = "",
    rate: Annotated[float, typer.Option(min=0, help="Messages a second; 0: all there are.")] = 0,
    prefetch: Annotated[int, typer.Option(min=1, max=10_000, help="So many on their way.")] = 200,
    declare: Annotated[
        bool, typer.Option(help="Make queues and exchanges that are missing, at each connection.")
    ] = False,
    kind: Annotated[
        str, typer.Option("--type", help="Of exchanges that are made: direct, fanout, topic or headers.")
    ] = "topic",
    arguments: Annotated[str, typer.Option(help="Of queues that are made, as JSON.")] = "{}",
    nameserver: Nameserver = None,
) -> None:
    """Move a queue's messages, or copy an exchange's, to or from another AMQP broker, from now on; none is lost when either end is killed."""
    said = {
        "source": _end(source, user, vhost, from_secret), "destination": _end(destination, user, vhost, to_secret),
        "queue": queue, "exchange": exchange, "pattern": pattern, "to_queue": to_queue, "to_exchange": to_exchange,
        "key": key, "rate": rate, "prefetch": prefetch, "declare": declare, "kind": kind,
    }  # fmt: skip
    (point,) = entry_points(group="gantrymq.tools", name="amqp_bridge")
    try:
        row = point.load()(name, **said, arguments=json.loads(arguments))
    except ValueError as error:
        complain(f"bridge {name}: {error}")
        raise typer.Exit(EXIT_USAGE) from error
    options.run(put, nameserver, name=name, row=row)


def _end(url: str, user: str, vhost: str, secret: str) -> dict[str, str]:
    return {"url": url, "secret": secret} if url else {"user": user, "vhost": vhost, "secret": secret}


async def put(admin: Any, name: str, row: bytes) -> None:
    """The row; the gateways see it."""
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import CONSOLE, plain

    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        await reach.put(TABLE, [(name, row)])
    CONSOLE.print(f"added bridge {plain(name)}: `gantry bridge list` shows how it is")


async def listed(reach: Any) -> list[dict[str, Any]]:
    """What `gantry bridge list` shows."""
    states = await reach.rows(STATE_TABLE)
    rows = []
    for name, value in sorted((await reach.rows(TABLE)).items()):
        row, state = json.loads(value), json.loads(states.get(name, b"{}"))
        rows.append(
            {
                "bridge": name, "protocol": "amqp", "state": state.get("state", "-"), "why": state.get("why", ""),
                "since_ms": state.get("since", 0), "waiting": state.get("left", 0), "moved": state.get("moved", 0),
                "addresses": [f"{_from(row)} -> {_to(row)}"], "gateway": state.get("gateway", ""),
            }
        )  # fmt: skip
    return rows


def _from(row: dict[str, Any]) -> str:
    what = f"queue {row['queue']}" if row.get("queue") else f"exchange {row['exchange']}"
    return f"{_place(row['source'])} {what}"


def _to(row: dict[str, Any]) -> str:
    exchange = row.get("to_exchange") or (row.get("exchange") if not row.get("to_queue") else "")
    what = f"exchange {exchange}" if exchange else f"queue {row.get('to_queue') or row['queue']}"
    return f"{_place(row['destination'])} {what}"


def _place(end: dict[str, str]) -> str:
    if not end.get("url"):
        return "here"
    parts = urlsplit(end["url"])
    return parts.netloc.rpartition("@")[2] + (parts.path if parts.path != "/" else "")


async def removed(reach: Any, name: str) -> bool:
    """Whether there was such a bridge. The gateway that runs it ends it."""
    if name not in await reach.rows(TABLE):
        return False
    await reach.put(TABLE, [(name, None)])
    await reach.put(STATE_TABLE, [(name, None)])
    return True
