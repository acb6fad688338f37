"""Options that several commands have, each written once, and how commands for people end.

Every start reads this file, <TAB> too: it imports nothing of the client before something is asked of a server.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from gantrymq.cli import completion
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.logs import complain
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.client.accounts import Accounts

Nameserver = Annotated[
    str | None, typer.Option(metavar="HOST:PORT[;...]", help="Default: NAMESRV_ADDR, else 127.0.0.1:9876.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs: one object per line.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again until Ctrl-C.")]
Interval = Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks of --watch.")]
Cluster = Annotated[str, typer.Option(help="Only brokers of this cluster.", autocompletion=completion.clusters)]
Broker = Annotated[str, typer.Option(help="Only this broker.", autocompletion=completion.brokers)]
All = Annotated[
    bool, typer.Option("--all", "--system", help="Retry and dead letter topics, and what is the system's own, too.")
]
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
                autocompletion=completion.settings,
            ),
        ],
        None,
    ),
    "free_ports": (
        Annotated[bool, typer.Option("--free-ports", help="Every port not set by --set is a free one.")], False
    ),
    "accept_loss": (
        Annotated[
            bool,
            typer.Option("--accept-loss", help="Start though parts of the log are missing: what they held is lost."),
        ],
        False,
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

EXIT_PIPE: Final = 141
"""Nobody reads the output any more: as the shell counts SIGPIPE."""

OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What writing to a standard output can fail with that is a file on a full disk, or a terminal that is gone."""

EXIT_CODES: Final = {
    ErrorCode.NAME_INVALID: EXIT_USAGE,
    ErrorCode.NOT_FOUND: EXIT_NOT_FOUND,
    ErrorCode.TOPIC_NOT_FOUND: EXIT_NOT_FOUND,
    ErrorCode.QUEUE_NOT_FOUND: EXIT_NOT_FOUND,
    ErrorCode.GROUP_NOT_FOUND: EXIT_NOT_FOUND,
    ErrorCode.UNAVAILABLE: EXIT_UNREACHABLE,
}

Work = Callable[..., Coroutine[Any, Any, None]]


def run(work: Work, nameserver: str | None, /, **arguments: Any) -> None:
    """Run `work(admin, **arguments)` on an event loop; failures become one line and an exit code."""
    import anyio

    from gantrymq.cli.names import in_words
    from gantrymq.client.admin import Admin

    async def main() -> None:
        async with Admin(nameserver or "") as admin:
            try:
                await work(admin, **arguments)
            except GantryError as error:
                raise await in_words(admin, error, arguments) from None

    with_exit_code(lambda: anyio.run(main), nameserver)


def run_accounts(work: Callable[[Accounts], Coroutine[Any, Any, None]], nameserver: str | None) -> None:
    """As `run`, for commands about users, their groups, tokens and policies."""

    async def of_admin(admin: Any) -> None:
        from gantrymq.client.accounts import Accounts

        await work(Accounts(admin))

    run(of_admin, nameserver)


def with_exit_code(call: Callable[[], object], nameserver: str | None) -> None:
    """Call it; raise `typer.Exit` for what failed."""
    try:
        if nameserver:
            from gantrymq.config import parse_nameservers

            parse_nameservers(nameserver, "--nameserver")
        call()
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except (GantryError, OSError, ExceptionGroup) as error:
        first: BaseException = error
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, BrokenPipeError):
            leave_pipe()
        if isinstance(first, OSError) and first.errno in OUTPUT_ERRORS and first.filename is None:
            complain(f"what it prints cannot be written: {first.strerror}")
            print_nowhere()
            raise typer.Exit(EXIT_FAILED) from None
        if not isinstance(first, GantryError):
            raise
        complain(explain(first))
        raise typer.Exit(exit_code_of(first)) from None


def leave_pipe() -> NoReturn:
    """Whoever read our output has seen enough (`| head`): no reason for a traceback, nor for an error when the interpreter flushes it."""
    print_nowhere()
    raise typer.Exit(EXIT_PIPE)


def print_nowhere() -> None:
    """What is still to be printed, the interpreter's last flush included, is lost without a word."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def unreachable(error: GantryError) -> bool:
    """Nobody answered. A server that says that it cannot (its disk is full, it stops) did answer."""
    from gantrymq.client.errors import BrokerError
    from gantrymq.client.producing.producer import PartialSendError

    if isinstance(error, PartialSendError):
        error = next(result for result in error.results if isinstance(result, GantryError))
    return error.code is ErrorCode.UNAVAILABLE and not isinstance(error, BrokerError)


def exit_code_of(error: GantryError) -> int:
    """As docs/operations/cli.md lists them."""
    if error.code is ErrorCode.UNAVAILABLE and not unreachable(error):
        return EXIT_FAILED
    return EXIT_CODES.get(error.code, EXIT_FAILED)


def explain(error: GantryError) -> str:
    """A failure with what to do about it."""
    from gantrymq.client.connecting.routes import NO_NAMESERVER

    if unreachable(error):
        if error.text.endswith(NO_NAMESERVER):
            text = error.text.removesuffix(NO_NAMESERVER)
            return f"{text}; start one there (`gantry up`), or name another: --nameserver, or NAMESRV_ADDR"
        return f"{error.text} (is `gantry up` running there?)"
    if error.code is ErrorCode.TOPIC_NOT_FOUND:
        return f"{error.text} (see `gantry topic list`)"
    if error.code is ErrorCode.GROUP_NOT_FOUND:
        return f"{error.text} (see `gantry group list`)"
    return error.text


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be taken back; without a terminal only --yes goes on."""
    if yes:
        return
    if not sys.stdin.isatty():
        complain(f"{question} There is nobody to ask: repeat the command with --yes")
        raise typer.Exit(EXIT_USAGE)
    if not typer.confirm(question):
        raise typer.Exit(EXIT_FAILED)
