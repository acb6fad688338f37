"""What `gantry store rebuild` and `backup` do."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gantrymq.broker.config import TimerConfig
from gantrymq.broker.rocketmq.config_export import DELETE_NAME
from gantrymq.cli.store.check import CONSOLE, explained, progress, store_app
from gantrymq.clock import SystemClock
from gantrymq.config import load
from gantrymq.launch.exit_codes import EXIT_FAILED
from gantrymq.logs import complain
from gantrymq.model.errors import ErrorCode, GantryError, StoreCorruptError
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from gantrymq.store.tools.backup import Backup
from gantrymq.store.tools.inspect import lock_holder


def data_of(directory: Path) -> Path:
    """The directory given by --data, from itself or from its `store`. Raises StoreCorruptError for one that is not ours."""
    root = directory.resolve()
    if root.name == "store" and not (root / "store").exists():
        root = root.parent
    if not (root / "gantry" / "positions").exists():
        raise StoreCorruptError(
            f"{root} is no data directory of gantry: it has no gantry/positions (a RocketMQ directory becomes one at its first `gantry up`)"
        )
    return root


def settings_of(config: str | None) -> StoreConfig:
    """What the server would use: `timer.delay_levels` decides about units of delayed messages."""
    settings = load(config, os.environ, ())
    store: StoreConfig = settings.build("store", StoreConfig)
    timer: TimerConfig = settings.build("timer", TimerConfig)
    return replace(store, delay_levels=timer.delay_levels)


@store_app.command()
def rebuild(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The server's --data; it must be stopped.")],
    queues: Annotated[bool, typer.Option("--queues", help="store/consumequeue; the index with it.")] = False,
    index: Annotated[bool, typer.Option("--index", help="store/index; the queues with it.")] = False,
    lights: Annotated[bool, typer.Option("--lights", help="The table of light queues.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of it; so it is without any option.")] = False,
    config: Annotated[str | None, typer.Option(help="The server's TOML file.")] = None,
) -> None:
    """Make queues, index and light queues again from the log, which is checked on the way."""
    chosen = {name for name, given in (("queues", queues), ("index", index), ("lights", lights)) if given}
    what = frozenset(chosen if chosen and not everything else {"queues", "index", "lights"})
    with explained(directory):
        store = MessageStore(OsFileSystem(), data_of(directory), settings_of(config), SystemClock())
        with progress() as tell:
            report = store.load(lambda done, total: tell("log", done, total), anew=what)
            store.close()
    CONSOLE.print(f"{', '.join(sorted(what))} made again from {report.records} records of the log", soft_wrap=True)
    for position, size in report.quarantined:
        CONSOLE.print(f"damaged and set aside: {size} bytes at {position}", soft_wrap=True)


@store_app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Where the copy goes; must not exist.")],
    data: Annotated[Path, typer.Option(help="The server's --data; it may run.")] = Path("gantry-data"),
) -> None:
    """Copy a store, also of a running server, so that `gantry up --data DIR` starts with what it had."""
    with explained(target), progress() as tell:
        copying = Backup(data_of(data), target, tell)
        copied = copying.run()
    CONSOLE.print(f"{target}: {copied:,} bytes copied", soft_wrap=True)
    if copying.missing:
        complain(
            f"{data} has not all of its log, so neither has the copy: {copying.missing}; a server starts there with --accept-loss only"
        )
        raise typer.Exit(EXIT_FAILED)


@store_app.command()
def import_config(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The server's --data; it must be stopped.")],
    delete: Annotated[
        bool, typer.Option("--delete", help="Topics, groups and offsets that the files name no more are deleted, too.")
    ] = False,
) -> None:
    """Have the next start take over what store/config/*.json say. What they add or change it takes over anyhow."""
    with explained(directory):
        root = data_of(directory)
        holder = lock_holder(root / "store" / "lock")
        if holder:
            raise GantryError(ErrorCode.STORE_FAILED, f"process {holder} is at work in {root}: stop it first")
        if delete:
            (root / "gantry" / DELETE_NAME).touch()
    CONSOLE.print(
        "the next start deletes what store/config/*.json name no more"
        if delete
        else "nothing to do: without --delete a start takes over what is new or changed in store/config/*.json by itself",
        soft_wrap=True,
    )
