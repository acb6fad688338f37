"""`gantry queue`: queues of AMQP and of shared MQTT subscriptions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from gantrymq.broker.port import SHARED_GROUP
from gantrymq.cli import options
from gantrymq.cli.options import Interval, Json, Max, Nameserver, Watch
from gantrymq.cli.owned.places import COLUMNS, Places, Row, cells, check_protocol, facts_of, reached, show_one
from gantrymq.cli.owned.sessions import SHARED
from gantrymq.model.queue_policy import TABLE as POLICIES

queue_app = typer.Typer()

AMQP, MQTT = "amqp", "mqtt"
QUEUES: Final = "amqp_queue"
BINDINGS: Final = "amqp_binding"
FILTERS: Final = "mqtt_filter"

Protocol = Annotated[str, typer.Option("--protocol", help="Only of amqp, or of mqtt (shared subscriptions).")]


@queue_app.callback()
def about() -> None:
    """Queues."""


@queue_app.command("list")
def list_(
    protocol: Protocol = "",
    count: Max = 1_000,
    json_: Json = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    nameserver: Nameserver = None,
) -> None:
    """Queues with what waits, who consumes, and the log that they hold back; rates with --watch."""
    options.run(show_queues, nameserver, protocol=protocol, count=count, as_json=json_, again=watch, interval=interval)


@queue_app.command()
def show(
    name: Annotated[str, typer.Argument(help="As its door calls it.")],
    protocol: Protocol = "",
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """One queue: numbers, rates, limits and bindings."""
    options.run(show_queue, nameserver, name=name, protocol=protocol, as_json=json_)


def called(name: str) -> str:
    """The name in a row of the AMQP door as it is shown: `VHOST/NAME` in another vhost than `/`."""
    vhost, end, own = name.rpartition("\n")
    return f"{vhost}/{own}" if end else name


async def queues(reach: Any, protocol: str) -> list[Row]:
    """Name, protocol, light queue and group of all, by name."""
    found: list[Row] = []
    if protocol in ("", AMQP):
        for name, value in (await reach.rows(QUEUES)).items():
            row = json.loads(value)
            kept = {key: row[key] for key in ("durable", "exclusive", "auto_delete")}
            found.append(
                {"queue": called(name), "row": name, "protocol": AMQP, "light": row["light"], "group": AMQP, **kept}
            )
    if protocol in ("", MQTT):
        for light, value in (await reach.rows(FILTERS)).items():
            text = value.partition(b"\0")[0].decode("utf-8", "replace")
            if text.startswith(SHARED):
                found.append({"queue": text, "protocol": MQTT, "light": int(light), "group": SHARED_GROUP})
    return sorted(found, key=lambda row: (row["queue"], row["protocol"]))


def place_of(row: Row) -> tuple[str, str]:
    """Queue and group."""
    return f"~{row['light']}", row["group"]


def _shown(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("light", "group", "row")}


async def show_queues(admin: Any, protocol: str, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row each."""
    from gantrymq.cli.screen import listing, plain, watch

    check_protocol(protocol, AMQP, MQTT)
    async with reached(admin) as reach:
        places = Places(reach)

        async def fetch() -> tuple[list[Row], Any]:
            found = (await queues(reach, protocol))[:count]
            numbers = await places.measure([(place_of(row), [place_of(row)]) for row in found])
            rows = [_shown(row) | numbers[place_of(row)] for row in found]
            lines = [[plain(row["queue"]), row["protocol"], *cells(row)] for row in rows]
            return rows, listing(["queue", "protocol", *COLUMNS], lines) if rows else "there are no queues"

        await watch(fetch, again, interval, as_json)


async def show_queue(admin: Any, name: str, protocol: str, as_json: bool) -> None:
    """All there is to say of one."""
    from gantrymq.model.errors import ErrorCode, GantryError

    check_protocol(protocol, AMQP, MQTT)
    async with reached(admin) as reach:
        found = [row for row in await queues(reach, protocol) if row["queue"] == name]
        if not found:
            raise GantryError(ErrorCode.NOT_FOUND, f"there is no queue {name} (see `gantry queue list`)")
        (row, *_), places = found, Places(reach)
        more = await _limits(reach, row["row"]) if row["protocol"] == AMQP else {}

        async def measure() -> Row:
            numbers = await places.measure([(name, [place_of(row)])])
            return _shown(row) | numbers[name] | more

        await show_one(measure, facts_of, as_json)


async def _limits(reach: Any, name: str) -> Row:
    """What its policy and its bindings say of an AMQP queue, by its name in the row."""
    found: Row = {}
    for value in (await reach.rows(POLICIES)).values():
        policy = json.loads(value)
        if policy.get("row") == [QUEUES, name]:
            found = {key: value for key, value in policy.items() if key not in ("row", "name", "dead_kind")}
    bindings = [json.loads(value) for value in (await reach.rows(BINDINGS)).values()]
    mine = [row for row in bindings if row["to_queue"] and row["destination"] == name]
    return found | {"bindings": sorted(f"{called(row['source'])} {row['key']}".strip() for row in mine)}
