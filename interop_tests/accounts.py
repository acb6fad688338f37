"""Servers that authenticate, and their users, for tests over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from gantrymq.client.accounts import Accounts
from gantrymq.client.admin import Admin
from gantrymq.client.client import Client
from interop_tests.running import Gantry

ADMIN, PASSWORD = "root", "the-admin-pass"


class Guarded(Gantry):
    """`gantry up` with authentication; `ADMIN` is its first administrator."""

    def __init__(self, directory: Path, shape: str = "combined", settings: tuple[str, ...] = ()) -> None:
        file = directory / "admin"
        file.write_text(f"{ADMIN}:{PASSWORD}\n")
        own = ("auth.enabled=true", f"auth.admin_file={file}", "auth.failure_delay_ms=0")
        super().__init__(directory, shape, (*own, *settings))

    @property
    def nameserver(self) -> str:
        return self.doors["nameserver"]

    def accounts(self, work: Callable[[Accounts], Awaitable[Any]], user: str = ADMIN, password: str = PASSWORD) -> Any:
        """Let `work` do what it does as this user."""

        async def main() -> Any:
            async with Client(self.nameserver, user, password) as client:
                return await work(Accounts(Admin(client=client)))

        return asyncio.run(main())

    def add_user(self, name: str, password: str, *rules: tuple[str, str], **info: Any) -> None:
        """`rules`: resource and actions (`pub,sub`); an action with a `!` in front is denied."""

        self.accounts(lambda accounts: make_user(accounts, name, rules, password=password, **info))


async def make_user(accounts: Accounts, name: str, rules: Iterable[tuple[str, str]], **info: Any) -> None:
    """See `Guarded.add_user`."""
    await accounts.create_user(name, **info)
    entries = [
        {
            "resource": resource,
            "actions": actions.lstrip("!").split(","),
            "decision": "Deny" if actions[0] == "!" else "Allow",
        }
        for resource, actions in rules
    ]
    if entries:
        await accounts.add_rules(f"user:{name}", entries)
