"""`gantry session`: MQTT sessions that are kept, and what waits in them."""

from __future__ import annotations

import time
from typing import Any, Final

import typer

from gantrymq.cli.owned.kind import Kind, add_commands
from gantrymq.cli.owned.places import Row

session_app = typer.Typer()

SHARED: Final = ("$share/", "$queue/")


@session_app.callback()
def about() -> None:
    """Sessions."""


def places_of(client: str, row: Row) -> list[tuple[str, str]]:
    """Its own, without those of shared subscriptions."""
    lights = {each[1] for text, each in row["s"].items() if not text.startswith(SHARED)}
    return [(f"~{light}", f"mqtt:{client}") for light in sorted(lights)]


async def sessions(reach: Any, _protocol: str) -> list[Row]:
    """By client id."""
    from gantrymq.cli.mqtt.console import session_rows

    found = sorted((await session_rows(reach)).items())
    return [{**row, "session": client, "protocol": "mqtt", "places": places_of(client, row)} for client, row in found]


def _shown(row: Row, numbers: Row) -> Row:
    left_ms = row.get("l", 0)
    return {
        "client": row["session"], "protocol": "mqtt", "state": "away" if left_ms else "connected", "left_ms": left_ms,
        "expiry_s": row.get("x"), "gateway": row.get("g", ""), "filters": len(row["s"]), "waiting": numbers["ready"],
        "unacked": numbers["unacked"], "pinned_bytes": numbers["pinned_bytes"], "in_rate": numbers["in_rate"],
        "out_rate": numbers["out_rate"],
    }  # fmt: skip


def _cells(row: Row) -> list[str]:
    from gantrymq.cli.screen import ago, lag_text, number, plain, size

    state = f"left {ago(row['left_ms'], time.time_ns() // 1_000_000)}" if row["left_ms"] else "connected"
    waiting = lag_text(row["waiting"], not row["left_ms"])
    rates = [_rate(row["in_rate"]), _rate(row["out_rate"])]
    numbers = [number(row["unacked"]), size(row["pinned_bytes"]), *rates]
    return [plain(row["client"]), state, str(row["filters"]), waiting, *numbers]


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


async def _filters(_reach: Any, row: Row) -> Row:
    return {"filters": sorted(row["s"])}


KIND: Final = Kind(
    "session", ("mqtt",), sessions, _shown,
    ["client", "state", ">filters", ">waiting", ">unacked", ">pinned", ">in/s", ">out/s"],
    _cells, "no session is kept", "no session of {} is kept", _filters
)  # fmt: skip
add_commands(
    session_app, KIND,
    "Sessions that are kept, with what waits and the log that they hold back; rates with --watch.",
    "One session: numbers, rates and filters."
)  # fmt: skip
