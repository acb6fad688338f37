"""Queues follow the slots of their names to other brokers, with what is in them (`gantry cluster rebalance`, `gantry broker drain`)."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import anyio
from rich.status import Status

from gantrymq.cli.screen import CONSOLE, Screen, number, plain
from gantrymq.cluster.slots.placing import Go, goes
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.tables.slot_table import SlotTable
    from gantrymq.cli.owned.groups import Reached

TRIES: Final = 20
"""A move is given up, and nothing is changed, where a broker does not answer in time or another one is under way."""
BETWEEN_S: Final = 0.25
AGAIN: Final = frozenset({ErrorCode.BUSY, ErrorCode.UNAVAILABLE, ErrorCode.NOT_OWNER})
GONE: Final = ErrorCode.QUEUE_NOT_FOUND


async def move_queues(found: Reached, table: SlotTable, staying: Collection[str], leaving: str = "") -> int:
    """Returns how many moved. Raises BUSY, with names, if some stay that should have gone."""
    plan: list[Go] = []
    for name in sorted({*staying, *([leaving] if leaving else [])}):
        group = found.at(name)
        plan += await found.do(goes(group, table, staying, name == leaving))
    total, moved, left = sum([len(go.queues) for go in plan]), 0, list[str]()
    errors = Screen(stderr=True)
    status = Status("", console=errors) if errors.draws else None
    with status if status is not None else nullcontext():
        for go in plan:
            went, why = await _go(found, go)
            moved += went
            left += why
            if status is not None:
                status.update(f"{moved} of {total} queues moved, {100 * moved // total} %")
    if total:
        CONSOLE.print(f"{number(moved)} of {number(total)} queues moved")
    for line in left[:10]:
        CONSOLE.print(f"[yellow]{plain(line)}[/yellow]")
    if left:
        raise GantryError(ErrorCode.BUSY, f"{len(left)} queues stay where they are; repeat the command to try again")
    return moved


async def _go(found: Reached, go: Go) -> tuple[int, list[str]]:
    """How many went, and why others stay."""
    error = await _take(found, go)
    if error is None:
        return len(go.queues), []
    if len(go.queues) == 1:
        if error.code is GONE:  # deleted meanwhile
            return 0, []
        return 0, [f"queue ~{go.queues[0][1]} stays at {go.source}: {error.text or error.code.name}"]
    went, left = 0, list[str]()
    for queue in go.queues:  # one that cannot go keeps no other
        more, why = await _go(found, go._replace(queues=[queue]))
        went, left = went + more, left + why
    return went, left


async def _take(found: Reached, go: Go) -> GantryError | None:
    error = GantryError(ErrorCode.BUSY)
    for _ in range(TRIES):
        try:
            await found.reach.ask(found.at(go.target).port.take_queues, go.source, go.queues)
            return None
        except GantryError as failed:
            error = failed
            if failed.code not in AGAIN:
                break
        await anyio.sleep(BETWEEN_S)
    return error
