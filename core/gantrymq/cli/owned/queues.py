"""`gantry queue`: queues of AMQP and of shared MQTT subscriptions."""

from __future__ import annotations

import json
from typing import Any, Final

import typer

from gantrymq.broker.port import SHARED_GROUP
from gantrymq.cli.owned.kind import Kind, add_commands
from gantrymq.cli.owned.places import COLUMNS, Row, cells
from gantrymq.cli.owned.sessions import SHARED
from gantrymq.model.queue_policy import TABLE as POLICIES

queue_app = typer.Typer()

AMQP, MQTT = "amqp", "mqtt"
QUEUES: Final = "amqp_queue"
BINDINGS: Final = "amqp_binding"
FILTERS: Final = "mqtt_filter"


@queue_app.callback()
def about() -> None:
    """Queues."""


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
            kept = {key: row.get(key, False) for key in ("durable", "exclusive", "auto_delete")}
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


async def _with_places(reach: Any, protocol: str) -> list[Row]:
    return [{**row, "places": [place_of(row)]} for row in await queues(reach, protocol)]


def _shown(row: Row, numbers: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("light", "group", "row", "places")} | numbers


def _cells(row: Row) -> list[str]:
    from gantrymq.cli.screen import plain

    return [plain(row["queue"]), row["protocol"], *cells(row)]


async def _limits(reach: Any, queue: Row) -> Row:
    """What its policy and its bindings say of an AMQP queue."""
    if queue["protocol"] != AMQP:
        return {}
    name = queue["row"]
    found: Row = {}
    for value in (await reach.rows(POLICIES)).values():
        policy = json.loads(value)
        if policy.get("row") == [QUEUES, name]:
            found = {key: value for key, value in policy.items() if key not in ("row", "name", "dead_kind")}
    bindings = [json.loads(value) for value in (await reach.rows(BINDINGS)).values()]
    mine = [row for row in bindings if row["to_queue"] and row["destination"] == name]
    return found | {"bindings": sorted(f"{called(row['source'])} {row['key']}".strip() for row in mine)}


KIND: Final = Kind(
    "queue", (AMQP, MQTT), _with_places, _shown,
    ["queue", "protocol", *COLUMNS],
    _cells, "there are no queues", "there is no queue {}", _limits
)  # fmt: skip
add_commands(
    queue_app, KIND,
    "Queues with what waits, who consumes, and the log that they hold back; rates with --watch.",
    "One queue: numbers, rates, limits and bindings."
)  # fmt: skip
