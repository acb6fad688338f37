"""Options that several commands have, each written once, and how commands for people end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final

import typer

from gantrymq.client.errors import BrokerError
from gantrymq.client.producer import PartialSendError
from gantrymq.logs import complain
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.server import EXIT_FAILED, EXIT_USAGE, parse_nameservers

Nameserver = Annotated[
    str | None, typer.Option(metavar="HOST:PORT[;...]", help="Default: NAMESRV_ADDR, else 127.0.0.1:9876.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs: one object per line.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again until Ctrl-C.")]
Interval = Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks of --watch.")]
Cluster = Annotated[str, typer.Option(help="Only brokers of this cluster.")]
Broker = Annotated[str, typer.Option(help="Only this broker.")]
System = Annotated[bool, typer.Option("--system", help="System topics and groups too.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
Max = Annotated[int, typer.Option("--max", min=1, help="Stop after so many.")]

SERVER_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "data": (Annotated[str | None, typer.Option(help="Data directory (default ./gantry-data).")], None),
    "host": (Annotated[str | None, typer.Option(help="Address to bind (default 127.0.0.1).")], None),
    "config": (Annotated[str | None, typer.Option(help="TOML file with a table per section.")], None),
    "sets": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="SECTION.KEY=VALUE",
                help="One setting, for example mqtt.port=1884 or amqp.enabled=false; may be repeated.",
            ),
        ],
        None,
    ),
    "free_ports": (
        Annotated[bool, typer.Option("--free-ports", help="Every port not set by --set is a free one.")], False
    ),
    "ready_file": (
        Annotated[str | None, typer.Option(help="Write {service: host:port} as JSON here when all doors are open.")], None
    ),
    "nameserver": (Nameserver, None),
    "log_level": (
        Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info (default), warning or error.")], None
    ),
    "log_format": (
        Annotated[
            str | None, typer.Option(metavar="FORMAT", help="text (default), or json: one object per line on stderr.")
        ],
        None,
    ),
}  # fmt: skip
"""Of every server command; `cli.main` knows the same."""

EXIT_NOT_FOUND: Final = 3
"""What was named does not exist."""
EXIT_UNREACHABLE: Final = 4
"""No nameserver or broker answers."""

EXIT_CODES: Final = {
    ErrorCode.NOT_FOUND: EXIT_NOT_FOUND,
    ErrorCode.TOPIC_NOT_FOUND: EXIT_NOT_FOUND,
    ErrorCode.QUEUE_NOT_FOUND: EXIT_NOT_FOUND,
    ErrorCode.UNAVAILABLE: EXIT_UNREACHABLE,
}

Work = Callable[..., Coroutine[Any, Any, None]]


def run(work: Work, nameserver: str | None, /, **arguments: Any) -> None:
    """Run `work(admin, **arguments)` on an event loop; failures become one line and an exit code."""
    import anyio

    from gantrymq.client.admin import Admin

    async def main() -> None:
        async with Admin(nameserver or "") as admin:
            await work(admin, **arguments)

    with_exit_code(lambda: anyio.run(main), nameserver)


def with_exit_code(call: Callable[[], object], nameserver: str | None) -> None:
    """Call it; raise `typer.Exit` for what failed."""
    try:
        if nameserver:
            parse_nameservers(nameserver, "--nameserver")
        call()
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except GantryError as error:
        complain(explain(error, nameserver or ""))
        raise typer.Exit(exit_code_of(error)) from None
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, GantryError):
            raise
        complain(explain(first, nameserver or ""))
        raise typer.Exit(exit_code_of(first)) from None


def unreachable(error: GantryError) -> bool:
    """Nobody answered. A server that says that it cannot (its disk is full, it stops) did answer."""
    if isinstance(error, PartialSendError):
        error = next(result for result in error.results if isinstance(result, GantryError))
    return error.code is ErrorCode.UNAVAILABLE and not isinstance(error, BrokerError)


def exit_code_of(error: GantryError) -> int:
    """As docs/operations/cli.md lists them."""
    if error.code is ErrorCode.UNAVAILABLE and not unreachable(error):
        return EXIT_FAILED
    return EXIT_CODES.get(error.code, EXIT_FAILED)


def explain(error: GantryError, nameserver: str) -> str:
    """A failure with what to do about it."""
    if unreachable(error):
        hint = "" if nameserver else " --nameserver or NAMESRV_ADDR name another nameserver"
        return f"{error.text} (is `gantry up` running?{hint})"
    if error.code is ErrorCode.TOPIC_NOT_FOUND:
        return f"{error.text} (see `gantry topic list`)"
    return error.text


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be taken back; without a terminal only --yes goes on."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        complain(f"{question} There is nobody to ask: repeat the command with --yes")
        raise typer.Exit(EXIT_USAGE)
    if not typer.confirm(question):
        raise typer.Exit(EXIT_FAILED)
