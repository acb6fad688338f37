"""The `gantry` command line as typer sees it: every command, option and help text.

Server commands that are well-formed never come here (see `cli.main`); the commands for people import the client when they run.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gantrymq import __version__
from gantrymq.cli.store import store_app
from gantrymq.cli.transactions import transactions_app
from gantrymq.logs import complain
from gantrymq.model.errors import ConfigError, GantryError
from gantrymq.server import EXIT_FAILED, EXIT_USAGE, Launch, run

app = typer.Typer(
    name="gantry",
    help="GantryMQ: one message log, many protocols.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
topic_app = typer.Typer(help="Topics.", no_args_is_help=True)
app.add_typer(topic_app, name="topic")
app.add_typer(store_app, name="store")
app.add_typer(transactions_app, name="transactions")

Data = Annotated[str | None, typer.Option(help="Data directory (default ./gantry-data).")]
Host = Annotated[str | None, typer.Option(help="Address to bind (default 127.0.0.1).")]
Config = Annotated[str | None, typer.Option(help="TOML file with a table per section.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting, for example mqtt.port=1884 or amqp.enabled=false; may be repeated.",
    ),
]
FreePorts = Annotated[bool, typer.Option("--free-ports", help="Every port not set by --set is a free one.")]
ReadyFile = Annotated[str | None, typer.Option(help="Write {service: host:port} as JSON here when all doors are open.")]
Nameserver = Annotated[
    str | None, typer.Option(metavar="HOST:PORT[;...]", help="Default: NAMESRV_ADDR, else 127.0.0.1:9876.")
]


def start(command: str, services: list[str] | None = None, **options: Any) -> None:
    """Run a server command."""
    sets = tuple(options.pop("sets") or ())
    raise typer.Exit(run(Launch(command=command, services=tuple(services or ()), sets=sets, **options)))


@app.command()
def up(
    data: Data = None,
    host: Host = None,
    config: Config = None,
    sets: Sets = None,
    free_ports: FreePorts = False,
    ready_file: ReadyFile = None,
    nameserver: Nameserver = None,
) -> None:
    """Nameserver, broker and every gateway in one process.

    Ports: --set mqtt.port=1884, and so for nameserver, broker, amqp and cloudevents. With --nameserver none is started here:
    the broker registers with the one that is named.
    """
    start("up", **locals())


@app.command()
def nameserver(
    data: Data = None,
    host: Host = None,
    config: Config = None,
    sets: Sets = None,
    free_ports: FreePorts = False,
    ready_file: ReadyFile = None,
    nameserver: Nameserver = None,
) -> None:
    """The nameserver alone."""
    start("nameserver", **locals())


@app.command()
def broker(
    data: Data = None,
    host: Host = None,
    config: Config = None,
    sets: Sets = None,
    free_ports: FreePorts = False,
    ready_file: ReadyFile = None,
    nameserver: Nameserver = None,
) -> None:
    """A broker alone; it registers with the nameservers."""
    start("broker", **locals())


@app.command()
def gateway(
    services: Annotated[list[str] | None, typer.Argument(metavar="[SERVICE]...", help="Default: all.")] = None,
    data: Data = None,
    host: Host = None,
    config: Config = None,
    sets: Sets = None,
    free_ports: FreePorts = False,
    ready_file: ReadyFile = None,
    nameserver: Nameserver = None,
) -> None:
    """Gateways alone, for example: gantry gateway mqtt amqp; they find brokers through the nameservers."""
    start("gateway", **locals())


@topic_app.command("create")
def topic_create(
    name: str,
    queues: Annotated[int, typer.Option(min=1, help="Read and write queues on each broker.")] = 4,
    cluster: Annotated[str, typer.Option(help="Only brokers of this cluster.")] = "",
    broker: Annotated[str, typer.Option(help="Only this broker.")] = "",
    nameserver: Nameserver = None,
) -> None:
    """Create a topic, or change its number of queues."""
    people("topic_create", nameserver, name=name, queues=queues, cluster=cluster, broker=broker)


@topic_app.command("list")
def topic_list(
    system: Annotated[bool, typer.Option("--system", help="System topics too.")] = False, nameserver: Nameserver = None
) -> None:
    """List topics with their queues and messages."""
    people("topic_list", nameserver, system=system)


@topic_app.command("delete")
def topic_delete(name: str, nameserver: Nameserver = None) -> None:
    """Delete a topic on every broker."""
    people("topic_delete", nameserver, name=name)


@app.command()
def send(
    topic: str,
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
    content = sys.stdin.buffer.read() if body in (None, "-") else (body or "").encode()
    people(
        "send", nameserver,
        topic=topic, body=content, tag=tag, keys=key or [], properties=properties, sharding_key=sharding_key,
    )  # fmt: skip


@app.command()
def pull(
    topic: str,
    tags: Annotated[str, typer.Option("--tag", help="Only these: 'a || b', or * for all.")] = "*",
    start_at: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="earliest, latest, or a time: 2026-01-31T12:00 or milliseconds."),
    ] = "earliest",
    group: Annotated[str, typer.Option(help="Go on where this consumer group is, and commit what was shown.")] = "",
    count: Annotated[int, typer.Option("--max", min=1, help="Stop after so many messages.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages instead of stopping at the end.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    nameserver: Nameserver = None,
) -> None:
    """Show messages of a topic."""
    people(
        "pull", nameserver,
        topic=topic, tags=tags, start_at=start_at, group=group, count=count, follow=follow, as_json=json_,
    )  # fmt: skip


@app.command()
def query(
    topic: Annotated[str, typer.Option(help="Topic; needed for --key and for a client's message id.")] = "",
    key: Annotated[str, typer.Option(help="Messages with this key.")] = "",
    id_: Annotated[str, typer.Option("--id", help="The message with this id.")] = "",
    count: Annotated[int, typer.Option("--max", min=1, max=64, help="Newest messages of the key.")] = 32,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    nameserver: Nameserver = None,
) -> None:
    """Find messages by key or by message id."""
    if bool(key) == bool(id_):
        raise typer.BadParameter("give either --key (with --topic) or --id")
    if key and not topic:
        raise typer.BadParameter("--key needs --topic")
    people("query", nameserver, topic=topic, key=key, message_id=id_, count=count, as_json=json_)


def people(command: str, nameserver: str | None, /, **arguments: Any) -> None:
    """Run a command of `cli.people` and turn failures into one line."""
    from gantrymq.cli import people as commands

    try:
        commands.run(command, nameserver or "", arguments)
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except GantryError as error:
        complain(commands.explain(error, nameserver or ""))
        raise typer.Exit(EXIT_FAILED) from None


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
