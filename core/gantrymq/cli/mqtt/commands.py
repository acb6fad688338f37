"""`gantry mqtt`: sessions that are kept, their filters, shared groups, retained messages."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gantrymq.cli import options
from gantrymq.cli.options import Interval, Json, Max, Nameserver, Watch

mqtt_app = typer.Typer()

SESSIONS: Final = "mqtt_session"
FILTERS: Final = "mqtt_filter"
RETAINED: Final = "mqtt_retained"
CLIENT_GROUP: Final = "mqtt:"
SHARED_GROUP: Final = "mqtt-share"
SHARED: Final = ("$share/", "$queue/")

Of = Annotated[str, typer.Option("--client", help="Only of this client id.")]


@mqtt_app.command()
def sessions(
    count: Max = 1_000,
    json_: Json = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    nameserver: Nameserver = None,
) -> None:
    """Sessions that are kept, and what waits in them."""
    options.run(show_sessions, nameserver, count=count, as_json=json_, again=watch, interval=interval)


@mqtt_app.command()
def subscriptions(
    client: Of = "", count: Max = 1_000, json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None
) -> None:  # fmt: skip
    """Filters of kept sessions."""
    options.run(
        show_subscriptions, nameserver, client=client, count=count, as_json=json_, again=watch, interval=interval
    )


@mqtt_app.command()
def groups(json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None) -> None:
    """Shared subscriptions and how far each is behind."""
    options.run(show_groups, nameserver, as_json=json_, again=watch, interval=interval)


@mqtt_app.command()
def retained(
    text: Annotated[str, typer.Argument(metavar="[FILTER]", help="Only topics that it matches.")] = "",
    count: Max = 1_000, json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Retained messages."""
    options.run(show_retained, nameserver, text=text, count=count, as_json=json_, again=watch, interval=interval)


@mqtt_app.command("import-config")
def import_config(
    file: Annotated[Path, typer.Argument(metavar="MOSQUITTO.CONF", exists=True, dir_okay=False, readable=True)],
    out: Annotated[Path | None, typer.Option("--out", help="Write the settings here; default: show them.")] = None,
    bridges: Annotated[Path, typer.Option("--bridges", help="Where its bridges are written, if it has some.")] = Path(
        "bridges.conf"
    ),
) -> None:
    """Settings for this server from a Mosquitto's, and what could not be mapped (on stderr)."""
    from gantrymq.cli.mqtt.mosquitto import read_mosquitto

    found = read_mosquitto(file.read_text(encoding="utf-8", errors="replace"))
    if found.bridges:
        bridges.write_text(found.bridges, encoding="utf-8")
        found.settings["mqtt.bridges"] = str(bridges.absolute())
    if out is not None:
        out.write_text(found.toml(), encoding="utf-8")
    else:
        typer.echo(found.toml(), nl=False)
    for title, lines in (("needs nothing here", found.kept), ("NOT mapped", found.left)):
        for line in lines:
            typer.echo(f"{title}: {line}", err=True)


async def _watched(admin: Any, fetch: Any, again: bool, interval: float, as_json: bool) -> None:
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import watch

    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        await watch(lambda: fetch(reach), again, interval, as_json)


def _picture(columns: list[str], rows: list[list[str]], nothing: str) -> Any:
    from gantrymq.cli.screen import listing

    return listing(columns, rows) if rows else nothing


async def _backlog(reach: Any, light: int, group: str) -> int | None:
    """Entries that wait or are in flight; None: there is no such place."""
    from gantrymq.broker.port import FIND
    from gantrymq.model.errors import GantryError

    try:
        info = await reach.ask(reach.port.open_cursor, f"~{light}", group, FIND)
    except GantryError:
        return None
    return int(info.ready + info.unacked)


async def show_sessions(admin: Any, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row each; what waits is asked of the brokers."""
    from gantrymq.cli.screen import ago, number, plain

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        found = await reach.rows(SESSIONS)
        now_ms = time.time_ns() // 1_000_000
        rows = []
        for client in sorted(found)[:count]:
            row = json.loads(found[client])
            lights = {each[1] for text, each in row["s"].items() if not text.startswith(SHARED)}
            waiting = [await _backlog(reach, light, CLIENT_GROUP + client) for light in lights]
            left_ms = row.get("l", 0)
            rows.append(
                {
                    "client": client, "filters": len(row["s"]), "waiting": sum(each or 0 for each in waiting),
                    "left_ms": left_ms, "expiry_s": row.get("x"), "gateway": row.get("g", ""),
                }
            )  # fmt: skip
        cells = [
            [
                plain(row["client"]), str(row["filters"]), number(row["waiting"]),
                f"left {ago(row['left_ms'], now_ms)}" if row["left_ms"] else "connected", row["gateway"],
            ]
            for row in rows
        ]  # fmt: skip
        return rows, _picture(["client", ">filters", ">waiting", "state", "gateway"], cells, "no session is kept")

    await _watched(admin, fetch, again, interval, as_json)


async def show_subscriptions(admin: Any, client: str, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row per client and filter."""
    from gantrymq.cli.screen import plain

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for name, value in (await reach.rows(SESSIONS)).items():
            for text, each in json.loads(value)["s"].items():
                found[name, text] = {"client": name, "filter": text, "qos": each[0] & 3}
        rows = [found[key] for key in sorted(found) if not client or key[0] == client][:count]
        cells = [[plain(row["client"]), plain(row["filter"]), str(row["qos"])] for row in rows]
        return rows, _picture(["client", "filter", ">QoS"], cells, "there are no subscriptions")

    await _watched(admin, fetch, again, interval, as_json)


async def show_groups(admin: Any, as_json: bool, again: bool, interval: float) -> None:
    """A row per shared subscription."""
    from gantrymq.cli.screen import lag_text, plain

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        rows = []
        for light, value in (await reach.rows(FILTERS)).items():
            text = value.partition(b"\0")[0].decode()
            if text.startswith(SHARED):
                shared, _, rest = text.removeprefix("$queue/").removeprefix("$share/").partition("/")
                group, wanted = (shared, rest) if text.startswith("$share/") else ("", text.removeprefix("$queue/"))
                lag = await _backlog(reach, int(light), SHARED_GROUP)
                rows.append({"group": group, "filter": wanted, "lag": lag, "light": int(light)})
        rows.sort(key=lambda row: (row["group"], row["filter"]))
        cells = [[plain(row["group"] or "-"), plain(row["filter"]), lag_text(row["lag"])] for row in rows]
        return rows, _picture(["group", "filter", ">lag"], cells, "there are no shared subscriptions")

    await _watched(admin, fetch, again, interval, as_json)


def parse_retained(value: bytes) -> dict[str, Any]:
    """Topic, QoS, size and expiry of a row of `mqtt_retained` (docs/mapping/mqtt.md)."""
    end = 3 + int.from_bytes(value[1:3], "big")
    found = {"topic": value[3:end].decode(), "qos": value[0] & 3, "expires_ms": 0}
    if value[0] & 0x80:
        found["expires_ms"] = int.from_bytes(value[end : end + 8], "big")
        end += 12 + int.from_bytes(value[end + 8 : end + 12], "big")
    return found | {"bytes": len(value) - end}


async def show_retained(admin: Any, text: str, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row per topic."""
    from gantrymq.cli.screen import plain, size, span

    fits = re.compile(_pattern(text)) if text else None

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        rows = [parse_retained(value) for value in (await reach.rows(RETAINED)).values()]
        rows = [row for row in rows if fits is None or fits.fullmatch(row["topic"])]
        rows = sorted(rows, key=lambda row: str(row["topic"]))[:count]
        now_ms = time.time_ns() // 1_000_000
        cells = [
            [plain(row["topic"]), str(row["qos"]), size(row["bytes"]),
             f"in {span(row['expires_ms'] - now_ms)}" if row["expires_ms"] else "-"] for row in rows
        ]  # fmt: skip
        return rows, _picture(["topic", ">QoS", ">size", "expires"], cells, "nothing is retained")

    await _watched(admin, fetch, again, interval, as_json)


def _pattern(text: str) -> str:
    """A filter as a regular expression of topics (MQTT 4.7); no nested repetition, whatever the filter."""
    levels = [{"+": "[^/]*", "#": ".*"}.get(level, re.escape(level)) for level in text.split("/")]
    pattern = "/".join(levels)
    if text.endswith("/#"):
        pattern = pattern.removesuffix("/.*") + "(/.*)?"
    return pattern if text[:1] not in ("+", "#") else f"(?![$]){pattern}"
