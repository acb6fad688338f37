"""`gantry auth audit` and `gantry auth status`: what happened at the doors, and what is open to whom."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

from gantrymq.cli.options import Json, Nameserver, run_accounts
from gantrymq.cli.screen import CONSOLE, listing, plain

if TYPE_CHECKING:
    from gantrymq.client.accounts import Accounts

FOLLOW_S: Final = 1.0
"""Between two looks at the brokers."""

Events = list[tuple[str, int, dict[str, Any]]]
"""Broker, offset, event."""


def audit(
    last: Annotated[int, typer.Option("--last", min=1, max=500, help="Events of each broker.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    user: Annotated[str, typer.Option(help="Only of this user.")] = "",
    kind: Annotated[str, typer.Option(help="Only these: login, denied, change, left out.")] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only logins that failed and what was denied.")] = False,
    nameserver: Nameserver = None,
    json_: Json = False,
) -> None:
    """Logins, refused actions and administrative changes, oldest first."""

    def wanted(event: dict[str, Any]) -> bool:
        bad = event["kind"] == "denied" or (event["kind"] == "login" and not event.get("good"))
        return (not user or event.get("user") == user) and (not kind or event["kind"] == kind) and (bad or not failed)

    async def work(accounts: Accounts) -> None:
        after: dict[str, int] = {}
        while True:
            found = await accounts.audit(after, last)
            after |= {broker: answer["next"] for broker, answer in found.items()}
            events = [(broker, *event) for broker, answer in found.items() for event in answer["events"]]
            show_events([each for each in events if wanted(each[2])], json_, several=len(found) > 1)
            if all(answer["next"] >= answer["end"] for answer in found.values()):
                if not follow:
                    return
                await anyio.sleep(FOLLOW_S)

    run_accounts(work, nameserver)


def show_events(events: Events, json_: bool, several: bool) -> None:
    """A line each. `several`: there is more than one broker."""
    for broker, offset, event in sorted(events, key=lambda each: each[2]["atMs"]):
        if json_:
            sys.stdout.write(json.dumps({"broker": broker, "offset": offset, **event}, ensure_ascii=False) + "\n")
            continue
        at = datetime.fromtimestamp(event["atMs"] / 1000).astimezone().isoformat(" ", "milliseconds")
        kind = event["kind"]
        if kind == "left out":
            what = f"{event['count']} events of {event['address']} were over its rate"
        elif kind == "login":
            what = f"{event.get('user') or 'somebody'} from {event.get('address')} at {event['door']}: "
            what += "came in" if event.get("good") else f"refused: {event.get('why')}"
        else:
            what = f"{event.get('user') or 'somebody'} from {event.get('address')} at {event['door']}: "
            what += " ".join(text for text in (event.get("action"), event.get("resource")) if text)
            what += f": {event['why']}" if event.get("why") else ""
        sys.stdout.write(f"{at} {kind:7} {plain(what)}{' (' + broker + ')' if several else ''}\n")
    sys.stdout.flush()


def status(nameserver: Nameserver = None, json_: Json = False) -> None:
    """What is open to whom at each broker, and what is weak."""

    async def work(accounts: Accounts) -> None:
        for broker, found in (await accounts.status()).items():
            if json_:
                sys.stdout.write(json.dumps({"broker": broker, **found}, ensure_ascii=False) + "\n")
            else:
                show_status(broker, found)

    run_accounts(work, nameserver)


def show_status(broker: str, found: dict[str, Any]) -> None:
    """A table, and a line for every weak point."""
    cells = [
        (
            door["door"], plain(door["place"]), door["reach"], door["tls"], door["clientCert"],
            "yes" if door["asks"] else "no", str(door["connections"]),
        )
        for door in found["doors"]
    ]  # fmt: skip
    heads = ("door", "listens at", "reached from", "TLS", "client certificate", "asks who", "open")
    CONSOLE.print(f"broker {broker}: ", "users are asked for" if found["enabled"] else "nobody is asked", sep="")
    CONSOLE.print(listing(heads, cells))
    if found["enabled"]:
        trail = found["audit"]
        CONSOLE.print(
            f"{found['users']} users, {found['administrators']} administrators; {found['failed']} failed logins, {found['waiting']} wait; "
            f"audit: {trail['written']} written, {trail['waiting']} wait, {trail['leftOut']} left out",
            soft_wrap=True,
        )
    for text in found["weak"]:
        CONSOLE.print(f"weak: {plain(text)}", soft_wrap=True)
