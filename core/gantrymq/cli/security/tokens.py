"""`gantry token`: what programs come with instead of their user's password, each with an end of its own."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantrymq.cli import completion
from gantrymq.cli.options import Json, Nameserver, Yes, confirm, run_accounts
from gantrymq.cli.screen import CONSOLE, listing, plain
from gantrymq.launch.exit_codes import EXIT_FAILED

if TYPE_CHECKING:
    from gantrymq.client.accounts import Accounts

token_app = typer.Typer()

User = Annotated[
    str,
    typer.Argument(metavar="USER", help="Whoever comes with the token is this user.", autocompletion=completion.users),
]
Users = Annotated[str, typer.Argument(metavar="[USER]", help="Only this user's.", autocompletion=completion.users)]
Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="As `gantry token list` shows it: 16 hexadecimal digits.",
        autocompletion=completion.tokens,
    ),
]


@token_app.command()
def add(
    user: User,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long it is good: 12h, 90d.")] = "90d",
    note: Annotated[str, typer.Option(help="What it is for; `gantry token list` shows it.")] = "",
    nameserver: Nameserver = None,
    json_: Json = False,
) -> None:
    """Make a token and show it: this once, nobody can ask for it later. It stands alone on standard output."""
    from gantrymq.cli.mqtt.commands import seconds_of

    async def work(accounts: Accounts) -> None:
        expires_ms = int((time.time() + seconds_of(for_)) * 1000)
        name, text = await accounts.add_token(user, expires_ms, note)
        if json_:
            made = {"id": name, "username": user, "token": text, "expiresMs": expires_ms, "note": note}
            sys.stdout.write(json.dumps(made, ensure_ascii=False) + "\n")
            return
        sys.stdout.write(text + "\n")
        said = f"token {name} of user {user} is good until {shown(expires_ms)}; it is shown this once"
        typer.echo(said, err=True)

    run_accounts(work, nameserver)


@token_app.command("list")
def list_(user: Users = "", nameserver: Nameserver = None, json_: Json = False) -> None:
    """All tokens, without what they are."""

    async def work(accounts: Accounts) -> None:
        show_tokens(await accounts.tokens(user), json_)

    run_accounts(work, nameserver)


@token_app.command()
def show(name: Id, nameserver: Nameserver = None, json_: Json = False) -> None:
    """One token. Exit code 1: there is none."""
    found: list[dict[str, Any]] = []

    async def work(accounts: Accounts) -> None:
        found.extend([token for token in await accounts.tokens() if token["id"] == name])
        show_tokens(found, json_)

    run_accounts(work, nameserver)
    if not found:
        raise typer.Exit(EXIT_FAILED)


@token_app.command()
def delete(name: Id, yes: Yes = False, nameserver: Nameserver = None) -> None:
    """Take a token away; connections that came with it end at once."""
    confirm(f"Delete token {name}?", yes)

    async def work(accounts: Accounts) -> None:
        await accounts.delete_token(name)
        typer.echo(f"token {name} was deleted")

    run_accounts(work, nameserver)


def show_tokens(tokens: list[dict[str, Any]], json_: bool) -> None:
    """A table, or an object per line."""
    if json_:
        for token in tokens:
            sys.stdout.write(json.dumps(token, ensure_ascii=False) + "\n")
        return
    cells = [
        (
            plain(token["id"]),
            plain(token["username"]),
            plain(token["state"]),
            shown(token["expiresMs"]),
            plain(token.get("note", "")),
        )
        for token in tokens
    ]
    CONSOLE.print(listing(("id", "user", "state", "good until", "note"), cells) if cells else "there is no such token")


def shown(at_ms: int) -> str:
    """A time of the wall clock, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_ms / 1000))
