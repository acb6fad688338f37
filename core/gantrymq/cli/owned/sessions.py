"""`gantry session`: MQTT sessions that are kept, and what waits in them."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from gantrymq.cli import options
from gantrymq.cli.options import Interval, Json, Max, Nameserver, Watch
from gantrymq.cli.owned.places import Places, Row, check_protocol, facts_of, reached, show_one

session_app = typer.Typer()

SHARED: Final = ("$share/", "$queue/")
Protocol = Annotated[str, typer.Option("--protocol", help="mqtt: others have no sessions.")]


@session_app.callback()
def about() -> None:
    """Sessions."""


@session_app.command("list")
def list_(
    protocol: Protocol = "",
    count: Max = 1_000,
    json_: Json = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    nameserver: Nameserver = None,
) -> None:
    """Sessions that are kept, with what waits and the log that they hold back; rates with --watch."""
    options.run(
        show_sessions, nameserver, protocol=protocol, count=count, as_json=json_, again=watch, interval=interval
    )


@session_app.command()
def show(
    client: Annotated[str, typer.Argument(metavar="CLIENT-ID")],
    protocol: Protocol = "",
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """One session: numbers, rates and filters."""
    options.run(show_session, nameserver, client=client, protocol=protocol, as_json=json_)


def places_of(client: str, row: Row) -> list[tuple[str, str]]:
    """Its own, without those of shared subscriptions."""
    lights = {each[1] for text, each in row["s"].items() if not text.startswith(SHARED)}
    return [(f"~{light}", f"mqtt:{client}") for light in sorted(lights)]


def _row(client: str, row: Row, numbers: Row) -> Row:
    left_ms = row.get("l", 0)
    return {
        "client": client, "protocol": "mqtt", "state": "away" if left_ms else "connected", "left_ms": left_ms,
        "expiry_s": row.get("x"), "gateway": row.get("g", ""), "filters": len(row["s"]), "waiting": numbers["ready"],
        "unacked": numbers["unacked"], "pinned_bytes": numbers["pinned_bytes"], "in_rate": numbers["in_rate"],
        "out_rate": numbers["out_rate"],
    }  # fmt: skip


async def show_sessions(admin: Any, protocol: str, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row each."""
    from gantrymq.cli.mqtt.console import session_rows
    from gantrymq.cli.screen import ago, lag_text, listing, number, plain, size, watch

    check_protocol(protocol, "mqtt")
    async with reached(admin) as reach:
        places = Places(reach)

        async def fetch() -> tuple[list[Row], Any]:
            rows = await session_rows(reach)
            found = {client: rows[client] for client in sorted(rows)[:count]}
            numbers = await places.measure([(client, places_of(client, row)) for client, row in found.items()])
            shown = [_row(client, row, numbers[client]) for client, row in found.items()]
            now_ms = time.time_ns() // 1_000_000
            lines = [
                [
                    plain(row["client"]), f"left {ago(row['left_ms'], now_ms)}" if row["left_ms"] else "connected",
                    str(row["filters"]), lag_text(row["waiting"], not row["left_ms"]), number(row["unacked"]),
                    size(row["pinned_bytes"]), _rate(row["in_rate"]), _rate(row["out_rate"]),
                ]
                for row in shown
            ]  # fmt: skip
            head = ["client", "state", ">filters", ">waiting", ">unacked", ">pinned", ">in/s", ">out/s"]
            return shown, listing(head, lines) if shown else "no session is kept"

        await watch(fetch, again, interval, as_json)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


async def show_session(admin: Any, client: str, protocol: str, as_json: bool) -> None:
    """All there is to say of one."""
    from gantrymq.cli.mqtt.console import session_rows
    from gantrymq.model.errors import ErrorCode, GantryError

    check_protocol(protocol, "mqtt")
    async with reached(admin) as reach:
        row = (await session_rows(reach)).get(client)
        if row is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"no session of {client} is kept (see `gantry session list`)")
        places = Places(reach)

        async def measure() -> Row:
            numbers = await places.measure([(client, places_of(client, row))])
            return _row(client, row, numbers[client]) | {"filters": sorted(row["s"])}

        await show_one(measure, facts_of, as_json)
