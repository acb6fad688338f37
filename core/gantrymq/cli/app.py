"""The `gantry` command line as typer sees it: every command, option and help text.

Server commands that are well-formed never come here (see `cli.main`).
"""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any

import typer

from gantrymq import __version__
from gantrymq.cli import completion, options, people
from gantrymq.cli.brokers import broker_app, cluster
from gantrymq.cli.configuration import config_app
from gantrymq.cli.groups import group_app, offset_app
from gantrymq.cli.messages import message_app, trace
from gantrymq.cli.options import SERVER_OPTIONS, Json, Nameserver
from gantrymq.cli.store import store_app
from gantrymq.cli.store_repair import backup, import_config, rebuild
from gantrymq.cli.store_rows import rows
from gantrymq.cli.top import top
from gantrymq.cli.topics import topic_app
from gantrymq.cli.transactions import transactions_app
from gantrymq.client.checks import check_tag
from gantrymq.model.errors import GantryError
from gantrymq.server import EXIT_FAILED, Launch, run

app = typer.Typer(
    name="gantry",
    help="GantryMQ: one message log, many protocols.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for name, part in (
    ("topic", topic_app), ("group", group_app), ("offset", offset_app), ("message", message_app),
    ("transactions", transactions_app), ("store", store_app), ("config", config_app),
):  # fmt: skip
    app.add_typer(part, name=name)

store_app.command()(rebuild)
store_app.command()(backup)
store_app.command()(rows)
store_app.command("import-config")(import_config)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)]
Services = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SERVICE]...", help="Default: all.", autocompletion=completion.gateways),
]


def start(command: str, services: list[str] | None = None, **given: Any) -> None:
    """Run a server command."""
    sets = tuple(given.pop("sets") or ())
    raise typer.Exit(run(Launch(command=command, services=tuple(services or ()), sets=sets, **given)))


def server_command(place: typer.Typer, name: str, text: str, services: bool = False) -> None:
    """A command with the options of all server commands."""

    def command(**given: Any) -> None:
        start(name, **given)

    kinds = {"services": (Services, None), **SERVER_OPTIONS} if services else SERVER_OPTIONS
    parameters = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for key, (kind, default) in kinds.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer looks at
    command.__annotations__ = {key: kind for key, (kind, _) in kinds.items()}
    command.__doc__ = text
    place.command(name)(command)


server_command(
    app, "up",
    """Nameserver, broker and every gateway in one process.

    Ports: --set mqtt.port=1884, and so for nameserver, broker, amqp, cloudevents and metrics. With --nameserver none is started here:
    the broker registers with the one that is named.
    """,
)  # fmt: skip
server_command(app, "nameserver", "The nameserver alone.")
server_command(
    app, "gateway", "Gateways alone, for example: gantry gateway mqtt amqp; they find brokers through the nameservers.", True
)  # fmt: skip


def run_broker(context: typer.Context, **given: Any) -> None:
    """`gantry broker` alone starts one; with a command it looks at those that run."""
    if context.invoked_subcommand is None:
        start("broker", **given)


run_broker.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what typer looks at
    [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *[
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in SERVER_OPTIONS.items()
        ],
    ]
)
run_broker.__annotations__ = {"context": typer.Context, **{key: kind for key, (kind, _) in SERVER_OPTIONS.items()}}
broker_app.info.no_args_is_help = False
broker_app.callback(
    invoke_without_command=True,
    help="A broker alone, which registers with the nameservers; with a COMMAND: look at brokers that run.",
)(run_broker)
app.add_typer(broker_app, name="broker")
app.command()(cluster)
app.command()(trace)
app.command()(top)


@message_app.command("send")
@app.command()
def send(
    topic: Topic,
    body: Annotated[str | None, typer.Argument(help="Text; left out or -: standard input.")] = None,
    tag: Annotated[str, typer.Option(help="Tag.")] = "",
    key: Annotated[list[str] | None, typer.Option(help="Key to query by; may be repeated.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="User property; may be repeated.")
    ] = None,
    sharding_key: Annotated[str, typer.Option(help="Messages of one sharding key stay in order.")] = "",
    nameserver: Nameserver = None,
) -> None:
    """Send one message."""
    properties: dict[str, str] = {}
    for text in property_ or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--property")
        properties[name] = value
    try:
        check_tag(tag)
    except GantryError as error:
        raise typer.BadParameter(error.text, param_hint="--tag") from None
    content = sys.stdin.buffer.read() if body in (None, "-") else (body or "").encode()
    options.run(
        people.send, nameserver,
        topic=topic, body=content, tag=tag, keys=key or [], properties=properties, sharding_key=sharding_key,
    )  # fmt: skip


@app.command()
def pull(
    topic: Topic,
    tags: Annotated[str, typer.Option("--tag", help="Only these: 'a || b', or * for all.")] = "*",
    start_at: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="earliest, latest, or a time: 2026-01-31T12:00 or milliseconds."),
    ] = "earliest",
    group: Annotated[
        str,
        typer.Option(
            help="Go on where this consumer group is, and commit what was shown.", autocompletion=completion.groups
        ),
    ] = "",
    count: Annotated[int, typer.Option("--max", min=1, help="Stop after so many messages.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages instead of stopping at the end.")
    ] = False,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Show messages of a topic."""
    options.run(
        people.pull, nameserver,
        topic=topic, tags=tags, start_at=start_at, group=group, count=count, follow=follow, as_json=json_,
    )  # fmt: skip


@message_app.command("query")
@app.command()
def query(
    topic: Annotated[
        str,
        typer.Option(help="Topic; needed for --key and for a client's message id.", autocompletion=completion.topics),
    ] = "",
    key: Annotated[str, typer.Option(help="Messages with this key.")] = "",
    id_: Annotated[str, typer.Option("--id", help="The message with this id.")] = "",
    count: Annotated[int, typer.Option("--max", min=1, max=64, help="Newest messages of the key.")] = 32,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Find messages by key or by message id."""
    if bool(key) == bool(id_):
        raise typer.BadParameter("give either --key (with --topic) or --id")
    if key and not topic:
        raise typer.BadParameter("--key needs --topic")
    options.run(people.query, nameserver, topic=topic, key=key, message_id=id_, count=count, as_json=json_)


def show_version(value: bool) -> None:
    """--version among other options."""
    if value:
        typer.echo(f"gantry {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """GantryMQ: one message log, many protocols."""


def run_app(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    try:
        app(args=arguments, prog_name="gantry")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else EXIT_FAILED
    return 0
