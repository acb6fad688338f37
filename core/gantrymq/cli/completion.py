"""Names for <TAB>: what a shell asks for while somebody types.

Whatever goes wrong here offers nothing and says nothing: it would stand in the middle of the line that is being typed.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from gantrymq.client.admin import Admin

ASK_S: Final = 0.4
"""For all questions to servers: with the start of the command a second."""

Names = tuple[list[str], list[str]]
"""The user's, and the system's."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Topics."""
    from gantrymq.cli import names

    return _fitting(_ask(context, names.topics), incomplete)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups."""
    from gantrymq.cli import names

    return _fitting(_ask(context, names.groups), incomplete)


def brokers(context: typer.Context, incomplete: str) -> list[str]:
    """Brokers."""

    async def find(admin: Admin) -> Names:
        return sorted((await admin.cluster()).brokers), []

    return _fitting(_ask(context, find), incomplete)


def clusters(context: typer.Context, incomplete: str) -> list[str]:
    """Clusters."""

    async def find(admin: Admin) -> Names:
        return sorted((await admin.cluster()).clusters), []

    return _fitting(_ask(context, find), incomplete)


def users(context: typer.Context, incomplete: str) -> list[str]:
    """Users, for an administrator (`GANTRY_USER`)."""

    async def find(admin: Admin) -> Names:
        from gantrymq.client.accounts import Accounts

        return sorted([user["username"] for user in await Accounts(admin).users()]), []

    return _fitting(_ask(context, find), incomplete)


def user_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Groups that users are in or policies are for."""

    async def find(admin: Admin) -> Names:
        from gantrymq.client.accounts import Accounts

        return sorted(await Accounts(admin).groups()), []

    return _fitting(_ask(context, find), incomplete)


def subjects(context: typer.Context, incomplete: str) -> list[str]:
    """`user:NAME` and `group:NAME`."""

    async def find(admin: Admin) -> Names:
        from gantrymq.client.accounts import Accounts

        accounts = Accounts(admin)
        names = [f"user:{user['username']}" for user in await accounts.users()]
        return sorted([*names, *[f"group:{name}" for name in await accounts.groups()]]), []

    return _fitting(_ask(context, find), incomplete)


def tokens(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of tokens."""

    async def find(admin: Admin) -> Names:
        from gantrymq.client.accounts import Accounts

        return sorted([token["id"] for token in await Accounts(admin).tokens()]), []

    return _fitting(_ask(context, find), incomplete)


def broker_settings(context: typer.Context, incomplete: str) -> list[str]:
    """Settings of the broker that the line names, as its `--set` wants them."""

    async def find(admin: Admin) -> Names:
        from gantrymq.client import tools

        # An option without its value ends the reading of the line: arguments are then what is left.
        broker = context.params["broker"] or context.args[0]
        (address,) = (await tools.masters(admin, broker=broker)).values()
        return [f"{name}=" for name in sorted(await tools.broker_config(admin, address))], []

    return _fitting(_ask(context, find), incomplete)


def settings(incomplete: str) -> list[str]:
    """Settings of what is installed, as `--set` wants them."""
    from gantrymq.cli.settings.catalog import settings_of

    found = [
        f"{setting.name}="
        for name, (section, common) in _sections().items()
        for setting in settings_of(name, section, common)
    ]
    return _fitting((found, []), incomplete)


def sections(incomplete: str) -> list[str]:
    """Sections of the settings."""
    return _fitting((list(_sections()), []), incomplete)


def gateways(incomplete: str) -> list[str]:
    """Services that `gantry gateway` starts."""
    from gantrymq.launch.plan import WITHOUT_PORT, discover

    return _fitting((sorted([name for name in discover() if name not in WITHOUT_PORT]), []), incomplete)


def _sections() -> dict[str, tuple[type, tuple[str, ...]]]:
    from gantrymq.cli.settings.catalog import sections_of
    from gantrymq.config import ServerConfig
    from gantrymq.launch.plan import LoadError, discover, load_service

    services = {}
    for name, point in discover().items():
        try:
            services[name] = load_service(point)
        except LoadError:
            continue  # `gantry config check` and `gantry up` say it
    return {"server": (ServerConfig, ()), **sections_of(services)}


def _ask(context: typer.Context, find: Callable[[Admin], Awaitable[Names]]) -> Names:
    """What `find` gets from servers within `ASK_S`; nothing where they do not answer."""
    import anyio

    from gantrymq.client.admin import Admin

    async def main() -> Names:
        async with Admin(context.params.get("nameserver") or "") as admin:
            return await find(admin)

    logging.disable()
    # The process ends, for nothing less ends a look-up of a host's name: there is nothing to write, and nothing that it leaves behind.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, ASK_S)
    try:
        return anyio.run(main)
    except Exception:
        return [], []  # a server's answer may be anything, and a traceback is no completion
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _fitting(names: Names, begun: str) -> list[str]:
    """Names that begin so. The system's are for those who ask for them: with `%`, or with a beginning that none of the user's has."""
    shown, hidden = [_typable(each, begun) for each in names]
    return [*shown, *hidden] if begun.startswith("%") or (begun and not shown) else shown


def _typable(names: Iterable[str], begun: str) -> list[str]:
    """Those that a shell takes as they stand: bash puts them into the line without quotes, and `a|b` would be two commands."""
    return [name for name in names if name.startswith(begun) and shlex.quote(name) == name]
