"""`gantry subscription`: filters of MQTT sessions, and webhook subscriptions of CloudEvents."""

from __future__ import annotations

import json
from typing import Any, Final

import typer

from gantrymq.broker.port import SHARED_GROUP
from gantrymq.cli.owned.kind import Kind, add_commands
from gantrymq.cli.owned.places import COLUMNS, Row, cells
from gantrymq.cli.owned.sessions import SHARED
from gantrymq.model import names

subscription_app = typer.Typer()

EVENTS, MQTT = "events", "mqtt"
SUBSCRIPTIONS: Final = "ce_subscription"


@subscription_app.callback()
def about() -> None:
    """Subscriptions."""


async def subscriptions(reach: Any, protocol: str) -> list[Row]:
    """All, with `places`."""
    from gantrymq.cli.mqtt.console import session_rows

    found: list[Row] = []
    if protocol in ("", EVENTS):
        for key, value in sorted((await reach.rows(SUBSCRIPTIONS)).items()):
            row = json.loads(value)
            if "document" in row:  # else it is being deleted
                found.append(await _webhook(reach, key, row))
    if protocol in ("", MQTT):
        for client, session in sorted((await session_rows(reach)).items()):
            for text, each in sorted(session["s"].items()):
                group = SHARED_GROUP if text.startswith(SHARED) else f"mqtt:{client}"
                row = {"subscription": f"{client}/{text}", "protocol": MQTT, "to": client, "qos": each[0] & 3}
                found.append({**row, "status": "active", "places": [(f"~{each[1]}", group)]})
    return found


async def _webhook(reach: Any, key: str, row: Row) -> Row:
    from gantrymq.model.errors import GantryError

    document = row.get("document", {})
    topic = names.encode_topic(str(document.get("config", {}).get("topic", "")))
    try:
        info = await reach.ask(reach.port.ensure_topic, topic, False)
        queues = info.read_queues
    except GantryError:  # its topic is not there
        queues = 0
    disabled, light = row.get("disabled", ""), row.get("light", 0)
    places = [(f"~{light}", f"ce:{key}")] if light else []
    if not light or row.get("past"):  # no filter, or it is not yet delivered from its own queue alone
        places += [(f"{topic}/{queue}", f"ce:{key}") for queue in range(queues)]
    return {
        "subscription": key, "protocol": EVENTS, "to": document.get("sink", ""), "topic": topic,
        "status": "disabled" if disabled else "active", "last_error": disabled or row.get("error", ""),
        "types": document.get("types", []),
        "filters": document.get("filters", []), "places": places,
    }  # fmt: skip


def _shown(row: Row, numbers: Row) -> Row:
    return {name: value for name, value in row.items() if name != "places"} | numbers


def _cells(row: Row) -> list[str]:
    from gantrymq.cli.screen import plain

    return [plain(row["subscription"]), row["protocol"], plain(row["to"]), row["status"], *cells(row)]


KIND: Final = Kind(
    "subscription", (MQTT, EVENTS), subscriptions, _shown,
    ["subscription", "protocol", "to", "status", *COLUMNS],
    _cells, "there are no subscriptions", "there is no subscription {}"
)  # fmt: skip
add_commands(
    subscription_app, KIND,
    "Subscriptions of kept sessions and of webhooks, with how far each is behind; rates with --watch.",
    "One subscription (id of a webhook's, or CLIENT-ID/FILTER): numbers, rates, where it goes, and why it stopped if it did."
)  # fmt: skip
