"""`gantry auth import`: users and rights of a Mosquitto, RabbitMQ or RocketMQ, and the list of what has no counterpart."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gantrymq.cli.options import Json, Nameserver, run_accounts
from gantrymq.cli.screen import CONSOLE, listing, plain
from gantrymq.cli.security.imports.found import Found, ImportFileError
from gantrymq.launch.exit_codes import EXIT_FAILED
from gantrymq.logs import complain

if TYPE_CHECKING:
    from gantrymq.client.accounts import Accounts

FILE_BYTES_MAX: Final = 64 << 20


class Kind(StrEnum):
    """Whose files they are."""

    MOSQUITTO = "mosquitto"
    RABBITMQ = "rabbitmq"
    ROCKETMQ = "rocketmq"


def import_(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="mosquitto, rabbitmq or rocketmq.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Mosquitto: password file, ACL file or both. RabbitMQ: exported definitions. RocketMQ: plain_acl.yml, or JSON of ACL 2.0.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be made.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Change users that exist already; else they are left as they are.")
    ] = False,
    nameserver: Nameserver = None,
    json_: Json = False,
) -> None:
    """Users and policies from another broker's files. Exit code 1: something was left out."""
    found = read(kind, files)
    if dry_run:
        show(found, {}, json_)
        raise typer.Exit(EXIT_FAILED if found.left else 0)
    outcome: dict[str, list[str]] = {}

    async def work(accounts: Accounts) -> None:
        outcome.update(await store(accounts, found, replace))

    run_accounts(work, nameserver)
    show(found, outcome, json_)
    if found.left:
        raise typer.Exit(EXIT_FAILED)


def read(kind: Kind, files: list[Path]) -> Found:
    """What the files say; exits where one of them is not what it should be."""
    contents = []
    for path in files:
        try:
            with path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            complain(f"{path}: {error.strerror or error}")
            raise typer.Exit(EXIT_FAILED) from error
        if len(data) > FILE_BYTES_MAX:
            complain(f"{path}: more than {FILE_BYTES_MAX >> 20} MiB")
            raise typer.Exit(EXIT_FAILED)
        contents.append(data)
    names = ", ".join([str(path) for path in files])
    try:
        if kind is Kind.MOSQUITTO:
            from gantrymq.cli.security.imports.mosquitto import read_mosquitto

            return read_mosquitto(contents)
        if kind is Kind.ROCKETMQ:
            from gantrymq.cli.security.imports.rocketmq import read_rocketmq

            return read_rocketmq(contents)
        from gantrymq.cli.security.imports.rabbitmq import read_rabbitmq

        if len(contents) > 1:
            raise ImportFileError("definitions are one file")
        return read_rabbitmq(contents[0])
    except ImportFileError as error:
        complain(f"{names}: {error}; nothing was imported")
        raise typer.Exit(EXIT_FAILED) from error


async def store(accounts: Any, found: Found, replace: bool) -> dict[str, list[str]]:
    """Make them: users first. Users that were there keep what they have, and get no new rules, unless `replace`."""
    known = {user["username"] for user in await accounts.users()}
    outcome: dict[str, list[str]] = {"made": [], "changed": [], "there": []}
    for name, info in found.users.items():
        if name not in known:
            await accounts.create_user(name, **info)
            outcome["made"].append(name)
        elif replace:
            await accounts.update_user(name, **info)
            outcome["changed"].append(name)
        else:
            outcome["there"].append(name)
    kept = {f"user:{name}" for name in outcome["there"]}
    for subject, rules in found.rules.items():
        if subject not in kept:
            await accounts.add_rules(subject, rules)
    return outcome


def show(found: Found, outcome: dict[str, list[str]], json_: bool) -> None:
    """What was made, or would be; no secrets."""
    rules = [(subject, rule) for subject, listed in found.rules.items() for rule in listed]
    if json_:
        row = {
            "users": list(found.users), **outcome, "left": found.left, "notes": found.notes,
            "rules": [{"subject": subject, **rule} for subject, rule in rules],
        }  # fmt: skip
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        return
    said = {name: word for word, names in outcome.items() for name in names}
    words = {"made": "made", "changed": "changed", "there": "was there: left as it is", "": "would be made"}
    cells = [
        (
            plain(name),
            "administrator" if info.get("userType") == "Super" else "",
            "hash" if info.get("hash") else "password" if info.get("password") else "none",
            words[said.get(name, "")],
        )
        for name, info in found.users.items()
    ]
    if cells:
        CONSOLE.print(listing(("user", "kind", "password", ""), cells))
    lines = [
        (plain(subject), rule["decision"].lower(), ",".join(rule["actions"]), plain(rule["resource"]))
        for subject, rule in rules
    ]
    if lines:
        CONSOLE.print(listing(("subject", "", "actions", "resource"), lines))
    for head, texts in (("different here", found.notes), ("left out", found.left)):
        for text in texts:
            CONSOLE.print(f"{head}: {plain(text)}", soft_wrap=True)
