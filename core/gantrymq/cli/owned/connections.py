"""`gantry connection`: clients that are connected, of MQTT gateways and of the AMQP door."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gantrymq.cli import options
from gantrymq.cli.options import Interval, Json, Max, Nameserver, Watch
from gantrymq.cli.owned.amqp import API, USER, Api, User
from gantrymq.cli.owned.amqp import ask as ask_amqp
from gantrymq.cli.owned.places import Row, check_protocol, facts_of, reached
from gantrymq.logs import complain

connection_app = typer.Typer()

AMQP, MQTT = "amqp", "mqtt"
Protocol = Annotated[str, typer.Option("--protocol", help="Only of amqp (over its management API), or of mqtt.")]


@connection_app.callback()
def about() -> None:
    """Connections."""


@connection_app.command("list")
def list_(
    protocol: Protocol = "",
    count: Max = 1_000,
    json_: Json = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    api: Api = API,
    user: User = USER,
    nameserver: Nameserver = None,
) -> None:
    """Connected clients with what each has in hand."""
    words = {"protocol": protocol, "count": count, "as_json": json_, "again": watch, "interval": interval}
    options.run(show_connections, nameserver, api=api, user=user, **words)


@connection_app.command()
def show(
    name: Annotated[str, typer.Argument(help="MQTT client id, or ADDRESS:PORT of an AMQP client.")],
    protocol: Protocol = "",
    json_: Json = False,
    api: Api = API,
    user: User = USER,
    nameserver: Nameserver = None,
) -> None:
    """One connection."""
    options.run(show_connection, nameserver, name=name, protocol=protocol, as_json=json_, api=api, user=user)


async def connections(admin: Any, protocol: str, api: str, user: str) -> list[Row]:
    """All; of a protocol that does not answer there is a line on stderr, unless it was asked for by name: then it is an error."""
    from gantrymq.model.errors import GantryError

    found: list[Row] = []
    if protocol in ("", MQTT):
        try:
            found += await _of_mqtt(admin)
        except GantryError as error:
            if protocol:
                raise
            complain(f"mqtt: {error.text}")
    if protocol in ("", AMQP):
        try:
            found += _of_amqp(api, user)
        except typer.Exit:
            if protocol:
                raise
    return sorted(found, key=lambda row: (row["connection"], row["protocol"]))


async def _of_mqtt(admin: Any) -> list[Row]:
    from gantrymq.cli.mqtt.console import ask

    async with reached(admin) as reach:
        answers = await ask(reach, {"what": "clients", "client": ""})
    return [
        {
            "connection": row["client"], "protocol": MQTT, "peer": row["peer"], "since_ms": row["since_ms"],
            "unacked": row["inflight"], "consumers": len(row["filters"]), "version": row["version"], "gateway": name,
            "consumes": sorted(row["filters"]),
        }
        for name, answer in answers.items()
        for row in answer.get("clients", ())
    ]  # fmt: skip


def _of_amqp(api: str, user: str) -> list[Row]:
    unacked: dict[str, int] = {}
    for channel in ask_amqp("GET", "channels", api, user):
        peer = channel["connection_details"]["name"]
        unacked[peer] = unacked.get(peer, 0) + channel["messages_unacknowledged"]
    consumed: dict[str, list[str]] = {}
    for consumer in ask_amqp("GET", "consumers", api, user):
        consumed.setdefault(consumer["channel_details"]["connection_name"], []).append(consumer["queue"]["name"])
    return [
        {
            "connection": row["name"], "protocol": AMQP, "peer": row["name"], "since_ms": row["connected_at"],
            "unacked": unacked.get(row["name"], 0), "consumers": len(consumed.get(row["name"], ())), "user": row["user"],
            "state": row["state"], "channels": row["channels"], "consumes": sorted(set(consumed.get(row["name"], ()))),
        }
        for row in ask_amqp("GET", "connections", api, user)
    ]  # fmt: skip


async def show_connections(
    admin: Any, protocol: str, count: int, as_json: bool, again: bool, interval: float, api: str, user: str
) -> None:
    """A row each."""
    from gantrymq.cli.screen import ago, listing, number, plain, watch

    check_protocol(protocol, AMQP, MQTT)

    async def fetch() -> tuple[list[Row], Any]:
        rows = (await connections(admin, protocol, api, user))[:count]
        now_ms = time.time_ns() // 1_000_000
        lines = [
            [
                plain(row["connection"]), row["protocol"], plain(row["peer"]), ago(row["since_ms"], now_ms),
                number(row["consumers"]), number(row["unacked"]),
            ]
            for row in rows
        ]  # fmt: skip
        head = ["connection", "protocol", "from", "since", ">consumes", ">unacked"]
        return rows, listing(head, lines) if rows else "nobody is connected"

    await watch(fetch, again, interval, as_json)


async def show_connection(admin: Any, name: str, protocol: str, as_json: bool, api: str, user: str) -> None:
    """All there is to say of one."""
    from gantrymq.cli.screen import CONSOLE, show_rows
    from gantrymq.model.errors import ErrorCode, GantryError

    check_protocol(protocol, AMQP, MQTT)
    found = [row for row in await connections(admin, protocol, api, user) if row["connection"] == name]
    if not found:
        raise GantryError(ErrorCode.NOT_FOUND, f"{name} is not connected (see `gantry connection list`)")
    if as_json:
        show_rows(found, True, lambda: "", "")
    else:
        CONSOLE.print(facts_of(found[0]))
