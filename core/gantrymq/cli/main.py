"""Entry point of `gantry`: the server commands at once, everything else through `cli.app`.

The server commands are read by a small parser first: typer and what it brings cost 100 ms of the start and 15 MiB for as long
as the server runs. It knows only well-formed command lines; anything else (also `--help`) goes to typer, which knows the same
options and says what is wrong.
"""

from __future__ import annotations

import codecs
import io
import sys
from typing import Final

from gantrymq import __version__

SERVER_COMMANDS: Final = ("up", "nameserver", "broker", "gateway")

OPTIONS: Final = {
    "--data": "data",
    "--host": "host",
    "--config": "config",
    "--nameserver": "nameserver",
    "--ready-file": "ready_file",
    "--log-level": "log_level",
    "--log-format": "log_format",
}
"""Options with one value, by their field of `Launch`."""

FLAGS: Final = {"--free-ports": "free_ports", "--accept-loss": "accept_loss"}
"""Options without a value, likewise."""


def parse_server_command(arguments: list[str]) -> dict[str, object] | None:
    """Fields of `Launch` for a well-formed server command; None for anything else."""
    if not arguments or arguments[0] not in SERVER_COMMANDS:
        return None
    command = arguments[0]
    values: dict[str, object] = {"command": command}
    services: list[str] = []
    sets: list[str] = []
    rest = iter(arguments[1:])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in FLAGS:
            values[FLAGS[argument]] = True
        elif name == "--set" or name in OPTIONS:
            if not equals:
                following = next(rest, None)
                if following is None or following.startswith("--"):
                    return None
                value = following
            if name == "--set":
                sets.append(value)
            elif name == "--nameserver" and "nameserver" in values:
                values["nameserver"] = f"{values['nameserver']};{value}"
            else:
                values[OPTIONS[name]] = value
        elif command == "gateway" and not argument.startswith("-"):
            services.append(argument)
        else:
            return None
    values["services"] = tuple(services)
    values["sets"] = tuple(sets)
    return values


def escaped(error: UnicodeError) -> tuple[str, int]:
    """What the encoding of the output does not have, as JSON writes it: readable, and JSON lines stay what they are."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json

    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def encode_everything() -> None:
    """In a locale without UTF-8 a message of somebody else must not end a command."""
    codecs.register_error("gantry.escaped", escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gantry.escaped")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given in (["--version"], ["-V"]):
        sys.stdout.write(f"gantry {__version__}\n")
        return 0
    encode_everything()
    try:
        values = parse_server_command(given)
        if values is not None:
            from gantrymq.launch.plan import Launch
            from gantrymq.server import run

            return run(Launch(**values))  # type: ignore[arg-type]  # the table OPTIONS names its fields
        from gantrymq.cli.app import run_app

        return run_app(given)
    except KeyboardInterrupt:
        return 130
