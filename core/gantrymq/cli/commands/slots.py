"""`gantry cluster slots`, `forwards`, `rebalance` and `forget`: which broker group decides about which names, and how that changes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.status import Status

from gantrymq.broker.tables.slot_table import SlotTable, balanced, given_away, version_of
from gantrymq.cli import completion, options
from gantrymq.cli.options import Json, Nameserver, Yes
from gantrymq.cli.owned.groups import WITHOUT, Reached
from gantrymq.cli.owned.places import reached
from gantrymq.cli.owned.queue_moves import move_queues
from gantrymq.cli.screen import CONSOLE, Screen, number, plain, show_rows, table
from gantrymq.client import tools
from gantrymq.client.admin import Admin
from gantrymq.cluster.slots import changes
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    pass

cluster_app = typer.Typer()


def spans(numbers: list[int]) -> Iterator[str]:
    """`0-3`, `7` and so on, of numbers in order."""
    first = last = -2
    for each in [*numbers, -2]:
        if each != last + 1:
            if first >= 0:
                yield f"{first}-{last}" if first != last else str(first)
            first = each
        last = each


@cluster_app.command()
def slots(json_: Json = False, nameserver: Nameserver = None) -> None:
    """Which broker decides about which of the 1,024 slots: a name's slot is where its leases and consumers are."""
    options.run(do_slots, nameserver, as_lines=json_)


async def do_slots(admin: Admin, as_lines: bool) -> None:
    """A row per group."""
    said: dict[str, Any] = {}
    for name, address in (await tools.masters(admin)).items():
        try:
            said[name] = (await tools.overview(admin, address)).get("slots", {})
        except GantryError:
            continue
    async with reached(admin) as reach:
        found = Reached(reach)
        keeper = found.keeper
        known: SlotTable = reach.port.slots.table  # type: ignore[attr-defined]
    rows: list[dict[str, Any]] = []
    for name in sorted({keeper, *known.groups, *said, *[slot.owner for slot in known.slots.values()]}):
        owned = known.owned_by(name)
        state = said[name].get("silent", "") if name in said else "does not answer"
        rows.append({
            "broker": name, "slots": owned, "keeper": name == keeper, "silent": state,
            "version": max([version_of(known.slots[slot].epoch) for slot in owned], default=0),
        })  # fmt: skip

    def make() -> Any:
        made = table("broker", ">slots", ">since version", "which", "state")
        for row in rows:
            state = "[green]ok[/green]" if not row["silent"] else f"[red]{plain(row['silent'])}[/red]"
            which = [*spans(row["slots"])]
            shown = ", ".join(which[:4]) + (f" and {number(len(which) - 4)} more" if len(which) > 4 else "")
            name = plain(row["broker"]) + (" (metadata group)" if row["keeper"] else "")
            made.add_row(name, number(len(row["slots"])), number(row["version"]), shown or "-", state)
        return made

    show_rows(rows, as_lines, make, WITHOUT)


@cluster_app.command()
def forwards(json_: Json = False, nameserver: Nameserver = None) -> None:
    """What waits at each broker for each other one: records that are published here, and wanted by queues there."""
    options.run(do_forwards, nameserver, as_lines=json_)


async def do_forwards(admin: Admin, as_lines: bool) -> None:
    """A row per pair of groups."""
    rows: list[dict[str, Any]] = []
    for name, address in (await tools.masters(admin)).items():
        try:
            pairs: dict[str, Any] = (await tools.overview(admin, address)).get("forward", {})
        except GantryError as error:
            rows.append(
                {
                    "broker": name,
                    "for": "",
                    "behind": 0,
                    "lease_ms": 0,
                    "refused": 0,
                    "full": False,
                    "state": error.text,
                }
            )
            continue
        rows += [
            {"broker": name, "for": peer, **shown, "state": _state(shown)} for peer, shown in sorted(pairs.items())
        ]

    def make() -> Any:
        made = table("broker", "for", ">waiting", ">routes known for", ">refused", "state")
        for row in rows:
            state = "[green]ok[/green]" if row["state"] == "ok" else f"[red]{plain(row['state'])}[/red]"
            lease = f"{row['lease_ms'] / 1000:.1f} s" if row["lease_ms"] else "-"
            made.add_row(
                plain(row["broker"]), plain(row["for"]), number(row["behind"]), lease, number(row["refused"]), state
            )
        return made

    show_rows(rows, as_lines, make, WITHOUT)


def _state(shown: dict[str, Any]) -> str:
    if shown["full"]:
        return "full: what it wants is refused here"
    return "ok" if shown["lease_ms"] else "silent: it gets every record, and is to match it"


@cluster_app.command()
def rebalance(nameserver: Nameserver = None) -> None:
    """Give every broker as many slots as the others, and with them the queues of their names. May be stopped at any time, and repeated.

    Leases, queues and consumers move with their slots, and gateways move sessions, exchanges and bindings behind them; requests for them wait some milliseconds, and what consumers had not acknowledged comes again.
    A broker that is draining gets none, one that does not answer keeps what it has.
    """
    options.run(do_rebalance, nameserver)


async def do_rebalance(admin: Admin, leaving: str = "") -> None:
    """`leaving`: that group keeps none, and only its slots and queues move."""
    async with reached(admin) as reach:
        found = Reached(reach)
        known = await found.table()
        members = {found.keeper, *known.groups}
        away = sorted([name for name in members if not found.is_there(name)])
        staying = [name for name in members.difference(away) if name != leaving and not found.groups[name].draining]
        if not staying:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, "no other broker is there to take the slots; nothing is changed"
            )
        if leaving:
            plan = given_away(known, leaving, staying)
        else:
            for slot in [slot for slot, row in known.slots.items() if row.owner in away]:
                del known.slots[slot]
            plan = balanced(known, staying)
        for name in away:
            CONSOLE.print(f"[yellow]broker {plain(name)} does not answer: its slots stay where they are[/yellow]")
        moved = await _move(found, known, plan)
        CONSOLE.print(
            f"{number(moved)} of {number(len(plan))} slots moved" if plan else "every broker has its share already"
        )
        if moved < len(plan):
            raise GantryError(
                ErrorCode.BUSY,
                "some slots stayed: a broker was started meanwhile, or its table changed; repeat the command",
            )
        await move_queues(found, await found.table(), staying, leaving)
        if plan and not leaving:
            CONSOLE.print("sessions, exchanges and bindings follow within seconds: the gateways move them")


async def _move(found: Reached, known: SlotTable, plan: dict[int, str]) -> int:
    errors = Screen(stderr=True)
    status = Status("", console=errors) if errors.draws else None
    say: Callable[[str], object] = status.update if status is not None else lambda text: None
    sources: dict[str, list[int]] = {}
    for slot in sorted(plan):
        sources.setdefault(known.slots[slot].owner, []).append(slot)
    moved = 0
    with status if status is not None else nullcontext():
        for source, numbers in sorted(sources.items()):
            for first in range(0, len(numbers), changes.AT_ONCE):
                targets = {slot: plan[slot] for slot in numbers[first : first + changes.AT_ONCE]}
                keeper, port = found.at(found.keeper).port, found.at(source).port
                moved += len(await found.do(changes.move(keeper, port, known, targets, secrets.randbits, False)))
                say(f"{moved} of {len(plan)} slots moved, {100 * moved // len(plan)} %")
    return moved


@cluster_app.command()
def forget(
    broker: Annotated[str, typer.Argument(metavar="BROKER", autocompletion=completion.brokers)],
    yes: Yes = False,
    nameserver: Nameserver = None,
) -> None:
    """A broker is gone for good: others decide about its slots. Queues that lay there are gone."""
    options.confirm(f"Is broker {broker} gone for good? What only it had is lost.", yes)
    options.run(do_forget, nameserver, broker=broker)


async def do_forget(admin: Admin, broker: str) -> None:
    """Its slots, empty, to the others."""
    await _refuse_who_is_there(admin, broker)
    async with reached(admin) as reach:
        found = Reached(reach)
        if broker == found.keeper:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"{broker!r} keeps the table of slots: it cannot be forgotten"
            )
        known = await found.table()
        if broker not in known.groups and not known.owned_by(broker):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"no broker {broker!r} has or had slots; nothing is changed")

        def plan(table: SlotTable) -> dict[int, str]:
            names = [name for name in {found.keeper, *table.groups} if name != broker and found.is_there(name)]
            return given_away(table, broker, [name for name in names if not found.groups[name].draining] or names)

        went = await found.do(changes.forget(found.at(found.keeper).port, broker, plan, secrets.randbits))
    CONSOLE.print(f"the {number(len(went))} slots of broker [bold]{plain(broker)}[/bold] are other brokers' now")


async def _refuse_who_is_there(admin: Admin, broker: str) -> None:
    if broker in (await admin.cluster()).brokers:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"broker {broker!r} is registered, so it is there: take it out with `gantry broker drain {broker}`, or stop it first",
        )
