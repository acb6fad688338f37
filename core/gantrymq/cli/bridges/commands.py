"""`gantry bridge`: links to other MQTT and AMQP brokers, and what waits for them."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Final

import typer

from gantrymq.cli import options
from gantrymq.cli.bridges import amqp
from gantrymq.cli.options import Interval, Json, Nameserver, Watch, Yes

bridge_app = typer.Typer()
bridge_app.add_typer(amqp.add_app, name="add")

TABLE: Final = "mqtt_bridge"
LEASE_PREFIX: Final = "mqtt-bridge:"


@bridge_app.command("list")
def list_(json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None) -> None:
    """MQTT bridges that ran once and AMQP bridges that were added, their state, and what waits."""
    options.run(show, nameserver, as_json=json_, again=watch, interval=interval)


@bridge_app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `gantry bridge list` shows it.")],
    yes: Yes = False,
    nameserver: Nameserver = None,
) -> None:
    """End an AMQP bridge; or forget an MQTT bridge that no gateway runs any more, and what waits for it."""
    options.confirm(f"Remove bridge {name} and all that waits for its other side?", yes)
    options.run(do_remove, nameserver, name=name)


async def show(admin: Any, as_json: bool, again: bool, interval: float) -> None:
    """A row each."""
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import ago, lag_text, listing, plain, watch

    async with tables(";".join(admin.client.routes.nameservers)) as reach:

        async def fetch() -> tuple[list[Any], Any]:
            rows = [*await _mqtt(reach), *await amqp.listed(reach)]
            now_ms = time.time_ns() // 1_000_000
            cells = [
                [
                    plain(row["bridge"]), row["protocol"], plain(", ".join(row["addresses"])), row["state"],
                    ago(row["since_ms"], now_ms), lag_text(row["waiting"], row["state"] == "connected"),
                    str(row.get("moved", "")), plain(row["why"]),
                ]
                for row in rows
            ]  # fmt: skip
            head = ["bridge", "protocol", "other side", "state", "since", ">waiting", ">moved", "why"]
            return rows, listing(head, cells) if cells else "there are no bridges"

        await watch(fetch, again, interval, as_json)


async def _mqtt(reach: Any) -> list[dict[str, Any]]:
    from gantrymq.broker.port import FIND
    from gantrymq.model.errors import GantryError

    rows = []
    for name, value in sorted((await reach.rows(TABLE)).items()):
        row = json.loads(value)
        waiting = 0
        try:
            info = await reach.ask(reach.port.open_cursor, f"~{row['light']}", f"bridge:{name}", FIND)
            waiting = info.ready + info.unacked
        except GantryError:
            waiting = 0
        rows.append(
            {
                "bridge": name, "protocol": "mqtt", "state": row.get("state", "-"), "why": row.get("why", ""),
                "since_ms": row.get("since", 0), "waiting": waiting, "addresses": row.get("addresses", []),
                "gateway": row.get("gateway", ""),
            }
        )  # fmt: skip
    return rows


async def do_remove(admin: Any, name: str) -> None:
    """Its queue with its routes, then its row; not while a gateway runs it. Of an AMQP bridge the rows: its gateway sees to the rest."""
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import CONSOLE, plain
    from gantrymq.model.errors import ErrorCode, GantryError

    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        rows = await reach.rows(TABLE)
        if name not in rows:
            if not await amqp.removed(reach, name):
                raise GantryError(ErrorCode.NOT_FOUND, f"there is no bridge {name} (see `gantry bridge list`)")
            CONSOLE.print(f"removed bridge {plain(name)}")
            return
        try:
            epoch = await reach.ask(reach.port.take_lease, LEASE_PREFIX + name, False, lambda lost: None)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:
                raise GantryError(
                    ErrorCode.LEASE_HELD, f"a gateway runs bridge {name}: take it out of its file first"
                ) from None
            raise
        row = json.loads(rows[name])
        routes = [f"bridge/{name}/{number}" for number in range(row.get("routes", 0))]
        await reach.ask(reach.port.remove_routes, routes)
        if row["light"]:
            await reach.ask(reach.port.delete_light, row["light"])
        await reach.put(TABLE, [(name, None)])
        reach.port.drop_lease(LEASE_PREFIX + name, epoch)
    CONSOLE.print(f"removed bridge {plain(name)}")
