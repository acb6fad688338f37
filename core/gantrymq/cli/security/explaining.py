"""`gantry auth explain`: what a door would decide, and by which rule, asked in the door's own words."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gantrymq.auth.resources import Kind
from gantrymq.cli import completion
from gantrymq.cli.options import Json, Nameserver, run_accounts
from gantrymq.launch.exit_codes import EXIT_FAILED
from gantrymq.model import names

if TYPE_CHECKING:
    from gantrymq.client.accounts import Accounts

SHARE: Final = "$share/"


class Door(StrEnum):
    """Whose words the question is in."""

    REMOTING = "remoting"
    MQTT = "mqtt"
    AMQP = "amqp"
    CLOUDEVENTS = "cloudevents"


def question(door: Door | None, action: str, resource: str, vhost: str, topic: str) -> dict[str, str]:
    """Fields of the request (`overview_codes.EXPLAIN`). `topic`: the native one of an MQTT topic; empty: its first level."""
    kind, colon, name = resource.partition(":")
    if door is Door.AMQP:
        return {"action": action, "resource": resource, "vhost": vhost}
    if door is Door.MQTT or (door is None and kind == Kind.MQTT):
        name = name if colon and kind == Kind.MQTT else resource
        if name.startswith(SHARE):
            name = name.split("/", 2)[-1]
        first = name.partition("/")[0]
        if not topic and first not in ("+", "#"):
            topic = names.encode_topic(first)
        return {"action": action, "resource": f"{Kind.MQTT}:{name}", "topic": topic}
    if door is not None and kind not in list(Kind):
        resource = f"{Kind.TOPIC}:{resource}"
    return {"action": action, "resource": resource}


def explain(
    user: Annotated[str, typer.Argument(metavar="NAME", help="The user.", autocompletion=completion.users)],
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION", help="pub, sub, create, update, delete, get, list; of --door amqp configure, write, read."
        ),
    ],
    resource: Annotated[
        str,
        typer.Argument(
            metavar="RESOURCE",
            help="topic:orders, mqtt:plant/7/temp, ...; of --door mqtt a topic or filter, of amqp exchange:NAME or queue:NAME, of the others a topic.",
        ),
    ],
    door: Annotated[Door | None, typer.Option(help="Ask in this door's words.")] = None,
    vhost: Annotated[str, typer.Option(help="Of --door amqp.")] = "/",
    topic: Annotated[
        str,
        typer.Option(
            help="Native topic of an MQTT topic, where mqtt.topic_rules or mqtt.topic_levels say another than its first level."
        ),
    ] = "",
    client_id: Annotated[str, typer.Option(help="What %c stands for.")] = "",
    address: Annotated[str, typer.Option(help="Where the client is, for rules with networks.")] = "127.0.0.1",
    nameserver: Nameserver = None,
    json_: Json = False,
) -> None:
    """Whether a user may do something, and which rule says so. Exit code 1: it may not."""
    allowed: list[bool] = []

    async def work(accounts: Accounts) -> None:
        host = f"[{address}]" if ":" in address else address
        asked = question(door, action, resource, vhost, topic)
        found = await accounts.explain(user=user, clientId=client_id, address=f"{host}:0", **asked)
        allowed.append(found["allowed"])
        text = f"{'allowed' if found['allowed'] else 'refused'}: {found['rule']}"
        sys.stdout.write((json.dumps(found, ensure_ascii=False) if json_ else text) + "\n")

    run_accounts(work, nameserver)
    if not allowed[0]:
        raise typer.Exit(EXIT_FAILED)
