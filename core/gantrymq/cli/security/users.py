"""`gantry user`, `gantry policy` and `gantry auth`: who may come in, what he may do, and why.

The command signs as `GANTRY_USER` with `GANTRY_PASSWORD`, who is an administrator. Passwords are asked for at the terminal, or read from a
file or standard input; they stand in no argument, where `ps` would show them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantrymq.cli import completion
from gantrymq.cli.options import EXIT_NOT_FOUND, Json, Nameserver, Yes, confirm, run_accounts
from gantrymq.cli.screen import CONSOLE, listing, plain
from gantrymq.cli.security.audit import audit, status
from gantrymq.cli.security.explaining import explain
from gantrymq.cli.security.importing import import_
from gantrymq.cli.security.policies import only, show_policies
from gantrymq.cli.security.user_groups import group_app
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.logs import complain

if TYPE_CHECKING:
    from gantrymq.client.accounts import Accounts

user_app = typer.Typer()
policy_app = typer.Typer()
auth_app = typer.Typer()
auth_app.command()(audit)
auth_app.command()(status)
auth_app.command()(explain)
auth_app.add_typer(group_app, name="group")
for each in (auth_app, user_app, policy_app):
    each.command("import")(import_)

NewName = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.", autocompletion=completion.users)]
Subject = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="user:NAME or group:NAME.", autocompletion=completion.subjects)
]
PasswordFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File with the password; - reads standard input. Else it is asked for."),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group", help="Groups whose policies hold for it; may be repeated.", autocompletion=completion.user_groups
    ),
]
Certificates = Annotated[
    list[str] | None,
    typer.Option("--certificate", help="Subject, or sha256:FINGERPRINT, of a client certificate that is this user."),
]
Amqp = Annotated[
    list[str] | None,
    typer.Option(metavar="VHOST CONFIGURE WRITE READ", help="RabbitMQ's expressions for a vhost, in one argument."),
]


def password_of(file: str | None, name: str) -> str:
    """From a file, standard input or the terminal."""
    try:
        if file == "-":
            return sys.stdin.readline().rstrip("\r\n")
        if file is not None:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        complain(f"--password-file {file}: {getattr(error, 'strerror', None) or error}")
        raise typer.Exit(EXIT_FAILED) from error
    if not sys.stdin.isatty():
        complain(
            "there is nobody to ask for the password; give --password-file FILE, or --password-file - and the password on standard input"
        )
        raise typer.Exit(EXIT_USAGE)
    found: str = typer.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True)
    return found


def amqp_of(given: list[str] | None) -> dict[str, list[str]] | None:
    """By vhost."""
    found = {}
    for text in given or ():
        parts = text.split(" ")
        if len(parts) != 4:
            complain(f"--amqp {text!r}: must be VHOST CONFIGURE WRITE READ, such as --amqp '/ ^jobs ^jobs .*'")
            raise typer.Exit(EXIT_USAGE)
        found[parts[0]] = parts[1:]
    return found or None


def info_of(
    groups: list[str] | None, certificates: list[str] | None, amqp: list[str] | None, admin: bool | None
) -> dict[str, Any]:
    """What is given, as the server takes it."""
    info: dict[str, Any] = {"groups": groups, "certificates": certificates, "amqp": amqp_of(amqp)}
    if admin is not None:
        info["userType"] = "Super" if admin else "Normal"
    return {key: value for key, value in info.items() if value is not None}


@user_app.command()
def add(
    name: NewName,
    admin: Annotated[bool, typer.Option("--admin", help="May do everything.")] = False,
    password_file: PasswordFile = None,
    groups: Groups = None,
    certificates: Certificates = None,
    amqp: Amqp = None,
    no_password: Annotated[bool, typer.Option("--no-password", help="For a client certificate alone.")] = False,
    nameserver: Nameserver = None,
) -> None:
    """Make a user."""
    info = info_of(groups, certificates, amqp, admin)
    if not no_password:
        info["password"] = password_of(password_file, name)

    async def work(accounts: Accounts) -> None:
        await accounts.create_user(name, **info)
        typer.echo(f"user {name} was made")

    run_accounts(work, nameserver)


@user_app.command("set")
def set_(
    name: Name,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="May do everything, or not.")] = None,
    password: Annotated[bool, typer.Option("--password", help="A new password; it is asked for.")] = False,
    password_file: PasswordFile = None,
    enable: Annotated[
        bool | None, typer.Option("--enable/--disable", help="A disabled user is shown out at once.")
    ] = None,
    groups: Groups = None,
    certificates: Certificates = None,
    amqp: Amqp = None,
    nameserver: Nameserver = None,
) -> None:
    """Change what is named; lists are replaced."""
    info = info_of(groups, certificates, amqp, admin)
    if enable is not None:
        info["userStatus"] = "enable" if enable else "disable"
    if password or password_file is not None:
        info["password"] = password_of(password_file, name)

    async def work(accounts: Accounts) -> None:
        await accounts.update_user(name, **info)
        typer.echo(f"user {name} was changed")

    run_accounts(work, nameserver)


@user_app.command("list")
def list_(
    part: Annotated[str, typer.Argument(metavar="[PART]", help="Only names with this in them.")] = "",
    nameserver: Nameserver = None,
    json_: Json = False,
) -> None:
    """All users."""

    async def work(accounts: Accounts) -> None:
        show_users(await accounts.users(part), json_)

    run_accounts(work, nameserver)


@user_app.command()
def show(name: Name, nameserver: Nameserver = None, json_: Json = False) -> None:
    """One user, its policy and those of its groups."""

    async def work(accounts: Accounts) -> None:
        user = await accounts.user(name)
        show_users([user], json_)
        subjects = [f"user:{name}", *[f"group:{group}" for group in user.get("groups") or ()]]
        found = [each for subject in subjects for each in only(subject, await accounts.policies(subject))]
        show_policies(found, json_, "no policy says what it may do")

    run_accounts(work, nameserver)


@user_app.command()
def delete(name: Name, yes: Yes = False, nameserver: Nameserver = None) -> None:
    """Take a user and its policy away; its connections end at once."""
    confirm(f"Delete user {name}?", yes)

    async def work(accounts: Accounts) -> None:
        await accounts.delete_user(name)
        typer.echo(f"user {name} was deleted")

    run_accounts(work, nameserver)


def show_users(users: list[dict[str, Any]], json_: bool) -> None:
    """A table, or an object per line."""
    for user in users:
        user.pop("password", None)
        if json_:
            sys.stdout.write(json.dumps(user, ensure_ascii=False) + "\n")
    if json_:
        return
    cells = [
        (
            plain(user["username"]),
            "administrator" if user["userType"] == "Super" else "",
            "" if user["userStatus"] == "enable" else "disabled",
            plain(", ".join(user.get("groups") or ())),
            plain(", ".join(user.get("amqp") or ())),
        )
        for user in users
    ]
    CONSOLE.print(
        listing(("user", "kind", "state", "groups", "AMQP vhosts"), cells) if cells else "there is no such user"
    )


@policy_app.command("add")
def add_policy(
    subject: Subject,
    resource: Annotated[
        str,
        typer.Argument(
            metavar="RESOURCE", help="topic:orders, topic:log*, group:*, queue:jobs, cluster:*, mqtt:plant/%u/#."
        ),
    ],
    actions: Annotated[
        str, typer.Argument(metavar="ACTIONS", help="pub, sub, create, update, delete, get, list, all; with commas.")
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Wins over every allow.")] = False,
    source: Annotated[list[str] | None, typer.Option(help="Only from this network; may be repeated.")] = None,
    nameserver: Nameserver = None,
) -> None:
    """Allow something; it replaces what was said of the same resource."""
    rule = {
        "resource": resource,
        "actions": actions.split(","),
        "decision": "Deny" if deny else "Allow",
        "sourceIps": source or [],
    }

    async def work(accounts: Accounts) -> None:
        await accounts.add_rules(subject, [rule])
        typer.echo(f"{subject}: {'deny' if deny else 'allow'} {actions} on {resource}")

    run_accounts(work, nameserver)


@policy_app.command("list")
def list_policies(
    part: Annotated[str, typer.Argument(metavar="[PART]", help="Only subjects with this in them.")] = "",
    resource: Annotated[str, typer.Option(help="Only with a resource that has this in it.")] = "",
    nameserver: Nameserver = None,
    json_: Json = False,
) -> None:
    """All policies."""

    async def work(accounts: Accounts) -> None:
        show_policies(await accounts.policies(part, resource), json_)

    run_accounts(work, nameserver)


@policy_app.command("show")
def show_policy(subject: Subject, nameserver: Nameserver = None, json_: Json = False) -> None:
    """The rules of one subject, and who has them. Exit code 3: there are none."""
    found: list[dict[str, Any]] = []

    async def work(accounts: Accounts) -> None:
        found.extend(only(subject, await accounts.policies(subject)))
        show_policies(found, json_)
        word, _, name = subject.partition(":")
        if found and not json_ and word.lower() == "group":
            members = [user["username"] for user in await accounts.users() if name in (user.get("groups") or ())]
            CONSOLE.print(f"users in it: {plain(', '.join(members)) or 'none'}", soft_wrap=True)

    run_accounts(work, nameserver)
    if not found:
        raise typer.Exit(EXIT_NOT_FOUND)


@policy_app.command("delete")
def delete_policy(
    subject: Subject,
    resource: Annotated[str, typer.Argument(metavar="[RESOURCE]", help="Only what is said of it.")] = "",
    yes: Yes = False,
    nameserver: Nameserver = None,
) -> None:
    """Take rules away."""
    confirm(f"Delete the rules of {subject}{' on ' + resource if resource else ''}?", yes)

    async def work(accounts: Accounts) -> None:
        await accounts.delete_rules(subject, resource)
        typer.echo(f"{subject}: deleted")

    run_accounts(work, nameserver)


@auth_app.command()
def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of auth.key_file, or D/gantry/auth.key.")],
    drop_old: Annotated[
        bool, typer.Option("--drop-old", help="Leave the key in front alone, once its broker was started with it.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Put a new key in front of the file: from its broker's next start on all secrets are encrypted under it."""
    from gantrymq.auth.keys import add_key, drop_old_keys

    if drop_old:
        confirm(
            f"Drop all keys of {file} but the one in front? Secrets that its broker has not written anew are lost.", yes
        )
    try:
        if drop_old:
            gone = drop_old_keys(file)
            typer.echo(f"{file}: {', '.join(gone) if gone else 'there was no other key'}{' dropped' if gone else ''}")
            return
        name = add_key(file)
    except (OSError, UnicodeDecodeError) as error:
        complain(f"{file}: {getattr(error, 'strerror', None) or error}")
        raise typer.Exit(EXIT_FAILED) from error
    typer.echo(f"{file}: key {name} was added; keep a copy apart from the data directory")
