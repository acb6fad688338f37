"""The `gantry` command line as typer sees it: every command, option and help text.

Server commands that are well-formed never come here (see `cli.main`). A group's commands are imported when the command line is
about that group: what all of them need takes half a second, and every <TAB> is a start.
"""

from __future__ import annotations

import inspect
from collections.abc import MutableMapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main
from typer.models import TyperInfo

from gantrymq import __version__
from gantrymq.cli import alone, completion
from gantrymq.cli.options import SERVER_OPTIONS
from gantrymq.launch.exit_codes import EXIT_FAILED

app = typer.Typer(
    name="gantry",
    help="GantryMQ: one message log, many protocols.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

GROUPS: Final = {
    "topic": ("Topics.", ["gantrymq.cli.commands.topics"]),
    "group": ("Consumer groups.", ["gantrymq.cli.commands.groups"]),
    "offset": ("Where consumer groups are.", ["gantrymq.cli.commands.groups"]),
    "message": ("Messages.", ["gantrymq.cli.message"]),
    "queue": ("Queues: what waits in them, who consumes.", ["gantrymq.cli.owned.queues"]),
    "session": ("Sessions that are kept.", ["gantrymq.cli.owned.sessions"]),
    "subscription": ("Subscriptions of sessions and webhooks.", ["gantrymq.cli.owned.subscriptions"]),
    "connection": ("Clients that are connected.", ["gantrymq.cli.owned.connections"]),
    "transactions": (
        "Transactional messages that wait for their producer's decision.",
        ["gantrymq.cli.commands.transactions"],
    ),
    "mqtt": (
        "MQTT: clients, sessions, subscriptions, shared groups, retained messages; kick and ban.",
        ["gantrymq.cli.mqtt.commands"],
    ),
    "bridge": ("Links to other MQTT and AMQP brokers.", ["gantrymq.cli.bridges.commands"]),
    "store": (
        "Look at a store directory, make its derived files again, copy it.",
        [
            "gantrymq.cli.store.check",
            "gantrymq.cli.store.repair",
            "gantrymq.cli.store.rows",
            "gantrymq.cli.store.damage",
        ],
    ),
    "user": ("Users, who sign in where authentication is on.", ["gantrymq.cli.security.users"]),
    "policy": ("What users and groups may do.", ["gantrymq.cli.security.users"]),
    "token": ("Tokens, which programs come with instead of a password.", ["gantrymq.cli.security.tokens"]),
    "auth": ("Why something is allowed or refused; keys.", ["gantrymq.cli.security.users"]),
    "amqp": ("The AMQP door: exchanges, queues, connections, definitions.", ["gantrymq.cli.owned.amqp"]),
    "pipeline": ("Spark projects to begin with.", ["gantrymq.cli.pipeline"]),
    "cert": ("Certificates for trying TLS out.", ["gantrymq.cli.security.certificates"]),
    "config": ("Settings: what is in force, what is wrong, and a sample.", ["gantrymq.cli.commands.configuration"]),
}
"""Of each group of commands its help, and the modules that define it: `NAME_app` stands in the first."""


def group_of(name: str, modules: list[str]) -> type[typer.core.TyperGroup]:
    """A class of groups whose commands are those of `modules`, imported when somebody asks for them."""

    @cache
    def commands() -> MutableMapping[str, Any]:
        first, *_ = [import_module(module) for module in modules]
        info = TyperInfo(getattr(first, f"{name}_app"), name=name)
        group = typer.main.get_group_from_info(
            info, pretty_exceptions_short=True, suggest_commands=True, rich_markup_mode=None
        )
        return group.commands

    class Group(typer.core.TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            del self.commands  # typer found none: they are asked for below

        def __getattr__(self, attribute: str) -> Any:
            if attribute != "commands":
                raise AttributeError(attribute)
            return commands()

    return Group


for name, (text, modules) in GROUPS.items():
    app.add_typer(typer.Typer(help=text, no_args_is_help=True, cls=group_of(name, modules)), name=name)

Services = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SERVICE]...", help="Default: all.", autocompletion=completion.gateways),
]


def start(command: str, services: list[str] | None = None, **given: Any) -> None:
    """Run a server command."""
    from gantrymq.launch.plan import Launch
    from gantrymq.server import run

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
broker_app = typer.Typer(cls=group_of("broker", ["gantrymq.cli.commands.brokers"]))
broker_app.callback(
    invoke_without_command=True,
    help="A broker alone, which registers with the nameservers; with a COMMAND: look at brokers that run.",
)(run_broker)
app.add_typer(broker_app, name="broker")

cluster_app = typer.Typer(cls=group_of("cluster", ["gantrymq.cli.commands.slots"]))
cluster_app.callback(invoke_without_command=True)(alone.cluster)
app.add_typer(cluster_app, name="cluster")

for command in (alone.trace, alone.top, alone.send, alone.pull, alone.query):
    app.command()(command)


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
