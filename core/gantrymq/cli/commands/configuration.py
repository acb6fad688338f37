"""`gantry config show`, `check` and `template`: settings without starting anything."""

from __future__ import annotations

import json
import os
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gantrymq.cli import completion
from gantrymq.cli.options import Json
from gantrymq.cli.screen import CONSOLE, listing, plain
from gantrymq.cli.settings.catalog import as_toml, sections_of, template
from gantrymq.cli.settings.check import Effective, effective, examine
from gantrymq.config import gather, is_secret
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.launch.plan import Launch, LoadError, discover, load_service, read_settings
from gantrymq.logs import complain
from gantrymq.model.errors import ConfigError

config_app = typer.Typer()

_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password in an address."""

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="One setting; may be repeated.", autocompletion=completion.settings
    ),
]
Text = Annotated[str | None, typer.Option(help="As of `gantry up`.")]


def masked(name: str, value: object) -> object:
    """The value for people and programs: no secrets."""
    if isinstance(value, Enum):
        value = value.value
    if is_secret(name):
        return "***" if value else value
    return _LOGIN.sub("***", value) if isinstance(value, str) else value


def as_row(row: Effective) -> dict[str, Any]:
    """A setting for JSON."""
    return {
        "setting": row.name,
        "value": masked(row.name, row.value),
        "default": masked(row.name, row.default),
        "source": row.source,
    }


@config_app.command()
def show(
    section: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SECTION]...", help="Only these, such as mqtt.", autocompletion=completion.sections),
    ] = None,
    config: Annotated[str | None, typer.Option(help="TOML file with a table per section.")] = None,
    sets: Sets = None,
    host: Text = None,
    data: Text = None,
    nameserver: Text = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what somebody has set.")] = False,
    json_: Json = False,
) -> None:
    """The settings that `gantry up` would have, with the same options and environment, and who gave each."""
    launch = Launch("up", config=config, sets=tuple(sets or ()), host=host, data=data, nameserver=nameserver)
    settings = read_settings(launch, os.environ)
    found = examine(settings, discover(), off_too=False)
    refuse(found.errors)
    rows = effective(settings, found)
    names = {row.name.partition(".")[0] for row in rows}
    for name in section or ():
        if name.endswith(".toml"):
            complain(f"{name} is a file, and here sections are named: gantry config show --config {name}")
            raise typer.Exit(EXIT_USAGE)
        if name not in names:
            complain(f"section {name}: there is none; there are {', '.join(sorted(names))}")
            raise typer.Exit(EXIT_USAGE)
    rows = [row for row in rows if not section or row.name.partition(".")[0] in section]
    if changed:
        rows = [row for row in rows if row.source != "default"]
    if json_:
        for row in rows:
            sys.stdout.write(json.dumps(as_row(row), ensure_ascii=False) + "\n")
        return
    cells = [
        (
            plain(row.name),
            plain(as_toml(masked(row.name, row.value))),
            plain(row.source if row.source != "default" else ""),
        )
        for row in rows
    ]
    CONSOLE.print(
        listing(("setting", "value", "given by"), cells) if cells else "nothing is set: every setting has its default"
    )


@config_app.command()
def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="TOML file with a table per section.")] = None,
    config: Annotated[Path | None, typer.Option(help="The same, as for `gantry up`.")] = None,
    json_: Json = False,
) -> None:
    """Everything that is wrong with a file. Exit code 2: something is. The environment is not looked at."""
    if (file is None) == (config is None):
        raise typer.BadParameter("name one file", param_hint="FILE")
    file = file or config
    settings = gather(str(file), {}, (), os.environ)
    found = examine(settings, discover(), off_too=True)
    errors = sorted(found.errors, key=place)
    if json_:
        for error in errors:
            name, line = place(error)
            sys.stdout.write(
                json.dumps({"file": name, "line": line or None, "error": str(error)}, ensure_ascii=False) + "\n"
            )
    refuse([] if json_ else errors)
    if errors:
        raise typer.Exit(EXIT_USAGE)
    if not json_:
        count = sum([len(given) for given in settings.sections.values()])
        sys.stdout.write(f"{file}: nothing is wrong; settings given: {count}\n")


@config_app.command("template")
def template_() -> None:
    """A sample file with every setting of what is installed: what it is, what is allowed, its default."""
    services, broken = {}, False
    for name, point in discover().items():
        try:
            services[name] = load_service(point)
        except LoadError as error:
            complain(str(error))
            broken = True
    for line in template(sections_of(services)):
        sys.stdout.write(line + "\n")
    if broken:
        raise typer.Exit(EXIT_FAILED)


def place(error: ConfigError) -> tuple[str, int]:
    """File and line that an error is about; line 0: none."""
    name, colon, line = error.source.rpartition(":")
    return (name, int(line)) if colon and line.isdigit() else (error.source, 0)


def refuse(errors: list[ConfigError]) -> None:
    """A line for each, and exit code 2, if there are any."""
    for error in errors:
        complain(str(error))
    if errors:
        raise typer.Exit(EXIT_USAGE)
