"""`gantry auth group`: groups of users, which policies are for (`group:NAME`). A group is there while a user is in it or a policy names it.

`gantry group` is about consumer groups.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli import completion
from gantrymq.cli.options import EXIT_NOT_FOUND, Json, Nameserver, Yes, confirm, run_accounts
from gantrymq.cli.screen import CONSOLE, listing, plain
from gantrymq.cli.security.policies import only, show_policies

if TYPE_CHECKING:
    from gantrymq.client.accounts import Accounts

group_app = typer.Typer(help="Groups of users.", no_args_is_help=True)

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group of users.", autocompletion=completion.user_groups)
]
Members = Annotated[
    list[str], typer.Argument(metavar="USER...", help="Users that are there.", autocompletion=completion.users)
]
Leaving = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[USER]...",
        help="Only these leave it; else all do, and its policy goes.",
        autocompletion=completion.users,
    ),
]


@group_app.command()
def add(group: Group, users: Members, nameserver: Nameserver = None) -> None:
    """Let users be in a group, too: its policy holds for them at once."""

    async def work(accounts: Accounts) -> None:
        known = [(name, (await accounts.user(name)).get("groups") or []) for name in users]
        for name, groups in known:
            if group not in groups:
                await accounts.update_user(name, groups=[*groups, group])
        typer.echo(f"in group {group}: {', '.join(users)}")

    run_accounts(work, nameserver)


@group_app.command("list")
def list_(
    part: Annotated[str, typer.Argument(metavar="[PART]", help="Only names with this in them.")] = "",
    nameserver: Nameserver = None,
    json_: Json = False,
) -> None:
    """All groups of users."""

    async def work(accounts: Accounts) -> None:
        groups = await accounts.groups()
        show_groups({name: users for name, users in groups.items() if part in name}, json_)

    run_accounts(work, nameserver)


@group_app.command()
def show(group: Group, nameserver: Nameserver = None, json_: Json = False) -> None:
    """One group: its users, and its policy. Exit code 3: there is none."""
    found: dict[str, list[str]] = {}

    async def work(accounts: Accounts) -> None:
        found.update({name: users for name, users in (await accounts.groups()).items() if name == group})
        show_groups(found, json_)
        if found:
            show_policies(only(f"group:{group}", await accounts.policies(f"group:{group}")), json_)

    run_accounts(work, nameserver)
    if not found:
        raise typer.Exit(EXIT_NOT_FOUND)


@group_app.command()
def delete(group: Group, users: Leaving = None, yes: Yes = False, nameserver: Nameserver = None) -> None:
    """Take users out of a group, or the group away with its policy; who loses a right loses it at once."""
    confirm(f"Take {', '.join(users)} out of group {group}?" if users else f"Delete group {group} and its policy?", yes)

    async def work(accounts: Accounts) -> None:
        from gantrymq.model.errors import ErrorCode, GantryError

        members = (await accounts.groups()).get(group)
        if members is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"there is no group {group!r}")
        for name in users or members:
            groups = (await accounts.user(name)).get("groups") or []
            await accounts.update_user(name, groups=[each for each in groups if each != group])
        if not users and only(f"group:{group}", await accounts.policies(f"group:{group}")):
            await accounts.delete_rules(f"group:{group}")
        typer.echo(f"group {group}: {'without ' + ', '.join(users) if users else 'deleted'}")

    run_accounts(work, nameserver)


def show_groups(groups: dict[str, list[str]], json_: bool) -> None:
    """A table, or an object per line."""
    if json_:
        for name, users in groups.items():
            sys.stdout.write(json.dumps({"group": name, "users": users}, ensure_ascii=False) + "\n")
        return
    cells = [(plain(name), plain(", ".join(users))) for name, users in groups.items()]
    CONSOLE.print(listing(("group", "users"), cells) if cells else "there is no such group")
