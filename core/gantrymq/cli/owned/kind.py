"""`list` and `show` of what somebody owns: written once, for queues, sessions and subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantrymq.cli import options
from gantrymq.cli.options import Interval, Json, Max, Nameserver, Watch
from gantrymq.cli.owned.places import Places, Row, check_protocol, facts_of, reached, show_one
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.cli.mqtt.reach import Tables

Protocol = Annotated[str, typer.Option("--protocol", help="Only of this protocol.")]
Name = Annotated[str, typer.Argument(help="As the list shows it.")]


async def nothing_more(_reach: Tables, _row: Row) -> Row:
    """Of most kinds a row says all."""
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing. Its rows have the name under `column`, the protocol, and `places`: pairs of queue and group that are measured."""

    column: str
    protocols: tuple[str, ...]
    find: Callable[[Tables, str], Awaitable[list[Row]]]
    """All of a protocol (empty: of each), in order."""
    shown: Callable[[Row, Row], Row]
    """A row as it is shown, from it and its numbers."""
    head: list[str]
    cells: Callable[[Row], list[str]]
    """What stands below `head`."""
    nothing: str
    missing: str
    """What is said of a name that is not there, which stands for {}."""
    more: Callable[[Tables, Row], Awaitable[Row]] = nothing_more
    """What `show` says beside the row."""

    async def measure(self, places: Places, found: list[Row]) -> list[Row]:
        """Them as they are shown; rates from the second time on."""
        keyed = [((row[self.column], row["protocol"]), row) for row in found]
        numbers = await places.measure([(key, row["places"]) for key, row in keyed])
        return [self.shown(row, numbers[key]) for key, row in keyed]


def add_commands(app: typer.Typer, kind: Kind, list_text: str, show_text: str) -> None:
    """`list` and `show` of a kind."""

    @app.command("list", help=list_text)
    def list_(
        protocol: Protocol = "",
        count: Max = 1_000,
        json_: Json = False,
        watch: Watch = False,
        interval: Interval = 2.0,
        nameserver: Nameserver = None,
    ) -> None:
        words = {"protocol": protocol, "count": count, "as_json": json_, "again": watch, "interval": interval}
        options.run(show_all, nameserver, kind=kind, **words)

    @app.command("show", help=show_text)
    def show(name: Name, protocol: Protocol = "", json_: Json = False, nameserver: Nameserver = None) -> None:
        options.run(show_named, nameserver, kind=kind, name=name, protocol=protocol, as_json=json_)


async def show_all(
    admin: Any, kind: Kind, protocol: str, count: int, as_json: bool, again: bool, interval: float
) -> None:
    """A row each."""
    from gantrymq.cli.screen import listing, watch

    check_protocol(protocol, *kind.protocols)
    async with reached(admin) as reach:
        places = Places(reach)

        async def fetch() -> tuple[list[Row], Any]:
            rows = await kind.measure(places, (await kind.find(reach, protocol))[:count])
            return rows, listing(kind.head, [kind.cells(row) for row in rows]) if rows else kind.nothing

        await watch(fetch, again, interval, as_json)


async def show_named(admin: Any, kind: Kind, name: str, protocol: str, as_json: bool) -> None:
    """All there is to say of one."""
    check_protocol(protocol, *kind.protocols)
    async with reached(admin) as reach:
        found = [row for row in await kind.find(reach, protocol) if row[kind.column] == name][:1]
        if not found:
            raise GantryError(ErrorCode.NOT_FOUND, f"{kind.missing.format(name)} (see `gantry {kind.column} list`)")
        places, more = Places(reach), await kind.more(reach, found[0])

        async def measure() -> Row:
            (row,) = await kind.measure(places, found)
            return row | more

        await show_one(measure, facts_of, as_json)
