"""`gantry amqp`: exchanges, queues and connections of the AMQP door, and definitions in and out, over RabbitMQ's management API."""

from __future__ import annotations

import http.client
import json
import sys
from base64 import b64encode
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from gantrymq.cli.options import EXIT_NOT_FOUND, EXIT_UNREACHABLE, Json
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.logs import complain

amqp_app = typer.Typer()

TIMEOUT_S: Final = 60
"""Of one answer: thousands of queues are listed, or declared, meanwhile."""

SHOVEL_SAYS_S: Final = 5.0
"""How far it is, as often as this."""

Api = Annotated[str, typer.Option(help="Where the management API is.", envvar="GANTRY_AMQP_API")]
User = Annotated[str, typer.Option(help="NAME:PASSWORD, or @FILE with that in it.", envvar="GANTRY_AMQP_USER")]
API: Final = "http://localhost:15672"
USER: Final = "guest:guest"

COLUMNS: Final = {
    "vhosts": ("name", "default_queue_type", "description", "tags", "tracing"),
    "exchanges": ("name", "type", "durable", "internal", "arguments"),
    "queues": ("name", "messages_ready", "messages_unacknowledged", "consumers", "durable", "arguments"),
    "bindings": ("source", "destination_type", "destination", "routing_key", "arguments"),
    "connections": ("name", "user", "vhost", "state", "channels", "user_provided_name"),
    "channels": ("name", "user", "consumer_count", "messages_unacknowledged", "prefetch_count", "transactional"),
    "policies": ("name", "pattern", "apply-to", "priority", "definition"),
    "operator-policies": ("name", "pattern", "apply-to", "priority", "definition"),
    "consumers": ("consumer_tag", "queue.name", "ack_required", "prefetch_count", "channel_details.name"),
}
"""What is shown of each kind; --json shows all."""


def said_in(text: str) -> str:
    """An argument with a password in it, or `@FILE`: the first line of that file, which other users of the machine do not see."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        complain(f"{text}: {getattr(error, 'strerror', None) or error}")
        raise typer.Exit(EXIT_FAILED) from error


@amqp_app.callback()
def about() -> None:
    """The AMQP door."""


Vhost = Annotated[str, typer.Option(help="The vhost that is meant.")]


def _in(kind: str, vhost: str, name: str = "") -> str:
    """Path of a thing, or of all of a kind, in a vhost."""
    return f"{kind}/{quote(vhost, safe='')}" + (f"/{quote(name, safe='')}" if name else "")


@amqp_app.command()
def exchanges(vhost: Vhost = "/", api: Api = API, user: User = USER, json_: Json = False) -> None:
    """Exchanges of a vhost."""
    show("exchanges", api, user, json_, vhost)


@amqp_app.command()
def queues(vhost: Vhost = "/", api: Api = API, user: User = USER, json_: Json = False) -> None:
    """Queues of a vhost with what is in them."""
    show("queues", api, user, json_, vhost)


@amqp_app.command()
def bindings(vhost: Vhost = "/", api: Api = API, user: User = USER, json_: Json = False) -> None:
    """Bindings of a vhost, the default exchange's too."""
    show("bindings", api, user, json_, vhost)


@amqp_app.command()
def connections(api: Api = API, user: User = USER, json_: Json = False) -> None:
    """Connections of the process that answers."""
    show("connections", api, user, json_)


@amqp_app.command()
def channels(api: Api = API, user: User = USER, json_: Json = False) -> None:
    """Channels of those connections."""
    show("channels", api, user, json_)


@amqp_app.command()
def consumers(api: Api = API, user: User = USER, json_: Json = False) -> None:
    """Consumers of those channels."""
    show("consumers", api, user, json_)


Operator = Annotated[
    bool, typer.Option("--operator", help="An operator policy: it lowers limits, whatever others say.")
]


@amqp_app.command()
def policies(
    operator: Operator = False, vhost: Vhost = "/", api: Api = API, user: User = USER, json_: Json = False
) -> None:
    """Policies of a vhost."""
    show(_sort(operator), api, user, json_, vhost)


@amqp_app.command("set-policy")
def set_policy(
    name: Annotated[str, typer.Argument(help="Name of the policy.")],
    pattern: Annotated[str, typer.Argument(help="Regular expression for names of queues and exchanges.")],
    definition: Annotated[str, typer.Argument(help='Its settings as JSON, like {"max-length": 1000}.')],
    priority: Annotated[int, typer.Option(help="Of all that match the highest counts.")] = 0,
    apply_to: Annotated[
        str, typer.Option(help="all, queues, exchanges, classic_queues, quorum_queues or streams.")
    ] = "",
    operator: Operator = False,
    vhost: Vhost = "/",
    api: Api = API,
    user: User = USER,
) -> None:
    """Make or change a policy; queues and exchanges have it at once."""
    try:
        settings = json.loads(definition)
    except ValueError as error:
        complain(f"{definition}: it is no JSON: {error}")
        raise typer.Exit(EXIT_USAGE) from error
    body = {"pattern": pattern, "definition": settings, "priority": priority, "apply-to": apply_to}
    ask("PUT", _in(_sort(operator), vhost, name), api, user, body)


@amqp_app.command("clear-policy")
def clear_policy(
    name: Annotated[str, typer.Argument(help="Name of the policy.")],
    operator: Operator = False,
    vhost: Vhost = "/",
    api: Api = API,
    user: User = USER,
) -> None:
    """Delete a policy; what it said is over at once."""
    ask("DELETE", _in(_sort(operator), vhost, name), api, user)


def _sort(operator: bool) -> str:
    return "operator-policies" if operator else "policies"


@amqp_app.command()
def peek(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    count: Annotated[int, typer.Option("--max", min=1, max=1000, help="So many messages.")] = 1,
    vhost: Vhost = "/",
    api: Api = API,
    user: User = USER,
) -> None:
    """Messages at the head of a queue as JSON lines. They go back to their places, marked as redelivered."""
    wanted = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for message in ask("POST", _in("queues", vhost, queue) + "/get", api, user, wanted):
        typer.echo(json.dumps(message, ensure_ascii=False))


@amqp_app.command()
def shovel(
    queue: Annotated[str, typer.Argument(help="Where the messages are.")],
    source: Annotated[
        str,
        typer.Option("--from", help="amqp://USER:PASSWORD@HOST:PORT/VHOST of its broker, or @FILE with that in it."),
    ],
    destination: Annotated[str, typer.Option("--to", help="The same of the broker that gets them.")],
    to_queue: Annotated[str, typer.Option(help="A queue there; without it the one of the same name.")] = "",
    to_exchange: Annotated[str, typer.Option(help="An exchange there instead.")] = "",
    key: Annotated[str, typer.Option(help="Routing key for that exchange; without it each message's own.")] = "",
    rate: Annotated[float, typer.Option(min=0, help="Messages a second; 0: all there are.")] = 0,
    prefetch: Annotated[int, typer.Option(min=1, max=10_000, help="So many on their way.")] = 200,
    until_empty: Annotated[bool, typer.Option(help="Leave when the queue is empty.")] = False,
) -> None:
    """Move a queue's messages from one AMQP broker to another, RabbitMQ or this one; none is lost when either end is killed."""
    if to_queue and to_exchange:
        complain("--to-queue and --to-exchange: one of them")
        raise typer.Exit(EXIT_USAGE)
    (point,) = entry_points(group="gantrymq.tools", name="amqp_shovel")
    try:
        run = point.load()
    except ImportError as error:
        complain("aiormq is needed: pip install 'gantrymq[bridges]'")
        raise typer.Exit(EXIT_FAILED) from error
    source, destination = said_in(source), said_in(destination)
    own_key = None if to_exchange and not key else key or to_queue
    words = (source, queue, destination, to_exchange, own_key, rate, prefetch, until_empty)
    if not run(*words, lambda line: typer.echo(line, err=True), SHOVEL_SAYS_S):
        raise typer.Exit(EXIT_FAILED)


vhost_app = typer.Typer()
amqp_app.add_typer(vhost_app, name="vhost")

LIMITS: Final = ("max-connections", "max-queues")
"""Of a vhost; below 0: none."""


@vhost_app.callback()
def about_vhosts() -> None:
    """Virtual hosts: each has names, policies and permissions of its own."""


@vhost_app.command("add")
def add_vhost(
    name: Annotated[str, typer.Argument(help="Name of the vhost.")],
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    queue_type: Annotated[
        str, typer.Option(help="Of durable queues that name no type: classic, quorum or stream.")
    ] = "",
    max_connections: Annotated[int | None, typer.Option(help="Connections of each process at most; -1: any.")] = None,
    max_queues: Annotated[int | None, typer.Option(help="Queues at most; -1: any.")] = None,
    api: Api = API,
    user: User = USER,
) -> None:
    """Make a vhost, or change what is said; the rest stays."""
    said = {"description": description, "default_queue_type": queue_type}
    ask("PUT", _in("vhosts", name), api, user, {key: value for key, value in said.items() if value})
    for limit, value in zip(LIMITS, (max_connections, max_queues), strict=True):
        if value is not None:
            ask("PUT", _in("vhost-limits", name, limit), api, user, {"value": value})


@vhost_app.command("list")
def list_vhosts(api: Api = API, user: User = USER, json_: Json = False) -> None:
    """Those that there are."""
    show("vhosts", api, user, json_)


@vhost_app.command("delete")
def delete_vhost(
    name: Annotated[str, typer.Argument(help="Name of the vhost.")], api: Api = API, user: User = USER
) -> None:
    """Delete a vhost with its queues and their messages, exchanges and policies; its connections end."""
    ask("DELETE", _in("vhosts", name), api, user)


@amqp_app.command()
def trace(
    state: Annotated[str, typer.Argument(help="on or off.", metavar="on|off")],
    vhost: Vhost = "/",
    api: Api = API,
    user: User = USER,
) -> None:
    """Copy what is published and delivered in a vhost to its exchange amq.rabbitmq.trace, or end that."""
    if state not in ("on", "off"):
        complain(f"{state}: on or off")
        raise typer.Exit(EXIT_USAGE)
    ask("PUT", _in("vhosts", vhost), api, user, {"tracing": state == "on"})


@amqp_app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(help="As `rabbitmqctl export_definitions` writes it; - reads standard input.")
    ],
    api: Api = API,
    user: User = USER,
) -> None:
    """Declare the vhosts, policies, exchanges, queues and bindings that a RabbitMQ has exported. What is there already stays."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        body = json.loads(text)
    except OSError as error:
        complain(f"{file}: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from error
    except ValueError as error:
        complain(f"{file}: it is no JSON: {error}")
        raise typer.Exit(EXIT_FAILED) from error
    ask("POST", "definitions", api, user, body)


@amqp_app.command()
def export(api: Api = API, user: User = USER) -> None:
    """Vhosts, policies, durable exchanges, queues and bindings, as RabbitMQ imports them."""
    typer.echo(json.dumps(ask("GET", "definitions", api, user), indent=2, ensure_ascii=False))


def show(kind: str, api: str, user: str, as_json: bool, vhost: str | None = None) -> None:
    """A table of what there is of a kind."""
    from gantrymq.cli.screen import listing, plain, show_rows

    rows = ask("GET", kind if vhost is None else _in(kind, vhost), api, user)
    columns = COLUMNS[kind]
    titles = [column.replace("_", " ").replace(".", " ") for column in columns]

    def make() -> Any:
        return listing(titles, [[plain(cell(row, column)) for column in columns] for row in rows])

    show_rows(rows, as_json, make, f"there are no {kind}")


def cell(row: dict[str, Any], column: str) -> str:
    """One value as people read it."""
    value: Any = row
    for part in column.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join([f"{name}={item}" for name, item in value.items()])
    return str(value)


def ask(method: str, path: str, api: str, user: str, body: Any = None) -> Any:
    """One request; leaves with a line and an exit code if it fails."""
    place = urlsplit(api)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if place.scheme not in kinds or not place.hostname:
        complain(f"--api {api}: it begins with http:// or https:// and a host")
        raise typer.Exit(EXIT_USAGE)
    headers = {"Authorization": "Basic " + b64encode(said_in(user).encode()).decode()}
    data = json.dumps(body).encode() if body is not None else None
    try:
        connection = kinds[place.scheme](place.hostname, place.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, f"/api/{path}", data, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        complain(f"{api}: {error} (amqp.management_port says where the API is)")
        raise typer.Exit(EXIT_UNREACHABLE) from error
    try:
        found = json.loads(text) if text else None
    except ValueError:
        found = None
    if answer.status >= 400:
        reason = found.get("reason", "") if isinstance(found, dict) else ""
        complain(f"{api}: {answer.status} {answer.reason}{': ' if reason else ''}{reason}")
        raise typer.Exit(EXIT_NOT_FOUND if answer.status == 404 else EXIT_FAILED)
    return found
