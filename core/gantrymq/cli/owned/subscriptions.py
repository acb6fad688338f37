"""`gantry subscription`: filters of MQTT sessions, and webhook subscriptions of CloudEvents."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from gantrymq.broker.port import SHARED_GROUP
from gantrymq.cli import options
from gantrymq.cli.options import Interval, Json, Max, Nameserver, Watch
from gantrymq.cli.owned.places import COLUMNS, Places, Row, cells, check_protocol, facts_of, reached, show_one
from gantrymq.cli.owned.sessions import SHARED
from gantrymq.model import names

subscription_app = typer.Typer()

EVENTS, MQTT = "events", "mqtt"
SUBSCRIPTIONS: Final = "ce_subscription"
Protocol = Annotated[str, typer.Option("--protocol", help="Only of mqtt, or of events.")]


@subscription_app.callback()
def about() -> None:
    """Subscriptions."""


@subscription_app.command("list")
def list_(
    protocol: Protocol = "",
    count: Max = 1_000,
    json_: Json = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    nameserver: Nameserver = None,
) -> None:
    """Subscriptions of kept sessions and of webhooks, with how far each is behind; rates with --watch."""
    options.run(
        show_subscriptions, nameserver, protocol=protocol, count=count, as_json=json_, again=watch, interval=interval
    )


@subscription_app.command()
def show(
    name: Annotated[str, typer.Argument(help="Id of a webhook subscription, or CLIENT-ID/FILTER.")],
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """One subscription: numbers, rates, where it goes, and why it stopped if it did."""
    options.run(show_subscription, nameserver, name=name, as_json=json_)


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
        "status": "disabled" if disabled else "active", "last_error": disabled, "types": document.get("types", []),
        "filters": document.get("filters", []), "places": places,
    }  # fmt: skip


def _shown(row: Row, numbers: Row) -> Row:
    return {name: value for name, value in row.items() if name != "places"} | numbers


async def show_subscriptions(
    admin: Any, protocol: str, count: int, as_json: bool, again: bool, interval: float
) -> None:
    """A row each."""
    from gantrymq.cli.screen import listing, plain, watch

    check_protocol(protocol, MQTT, EVENTS)
    async with reached(admin) as reach:
        places = Places(reach)

        async def fetch() -> tuple[list[Row], Any]:
            found = (await subscriptions(reach, protocol))[:count]
            numbers = await places.measure([(row["subscription"], row["places"]) for row in found])
            rows = [_shown(row, numbers[row["subscription"]]) for row in found]
            lines = [
                [plain(row["subscription"]), row["protocol"], plain(row["to"]), row["status"], *cells(row)]
                for row in rows
            ]
            head = ["subscription", "protocol", "to", "status", *COLUMNS]
            return rows, listing(head, lines) if rows else "there are no subscriptions"

        await watch(fetch, again, interval, as_json)


async def show_subscription(admin: Any, name: str, as_json: bool) -> None:
    """All there is to say of one."""
    from gantrymq.model.errors import ErrorCode, GantryError

    async with reached(admin) as reach:
        found = [row for row in await subscriptions(reach, "") if row["subscription"] == name]
        if not found:
            raise GantryError(ErrorCode.NOT_FOUND, f"there is no subscription {name} (see `gantry subscription list`)")
        row, places = found[0], Places(reach)

        async def measure() -> Row:
            numbers = await places.measure([(name, row["places"])])
            return _shown(row, numbers[name])

        await show_one(measure, facts_of, as_json)
