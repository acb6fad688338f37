"""What a metadata group without a table of slots founds it on: the copies that other brokers have of the one that it kept before its disk was lost.

Nothing is founded while a broker that the nameservers know has not said what it has: it may answer for slots of that table right now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gantrymq.broker.tables.slot_table import HEAD, Items, RandomBits, SlotTable, founded, head_row, slot_row
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.port import Done

Said = Mapping[str, Mapping[str, bytes] | str]
"""By broker group: the rows of its copy, which may be none; or why it has not said."""
Survey = Callable[[Any, "Done"], None]
"""A call: asks every other broker that the nameservers know. Answers with what they `Said`."""


def nobody(token: Any, on_done: Done) -> None:
    """A `Survey` where there is no other broker."""
    on_done(token, {})


def foundation(keeper: str, life: str, said: Said, random_bits: RandomBits) -> tuple[Items, str]:
    """The rows of the table of `keeper` in its start `life`: the latest of its copies with a later head, and whose that is. Where nobody has one a new
    table, and the empty string. Raises UNAVAILABLE while somebody has not said."""
    copies: list[tuple[int, str, SlotTable, Mapping[str, bytes]]] = []
    silent: dict[str, str] = {}
    for name, rows in sorted(said.items()):
        if isinstance(rows, str):
            silent[name] = rows
            continue
        try:
            copy = SlotTable(rows)
        except (ValueError, KeyError, TypeError) as error:
            silent[name] = f"its copy cannot be read: {error}"
            continue
        if copy.head is not None and copy.head.keeper == keeper:
            copies.append((copy.head.version, name, copy, rows))
    if silent:
        raise GantryError(ErrorCode.UNAVAILABLE, _waits(keeper, silent))
    if not copies:
        return founded(keeper, life, random_bits), ""
    _, source, table, rows = max(copies, key=lambda each: each[0])
    items: dict[str, bytes] = {key: value for key, value in rows.items() if key != HEAD}
    # A copy may have the head of a change, and not yet its slots.
    for _, _, copy, _ in copies:
        newer = copy.newer_than(table)
        items.update([slot_row(number, slot) for number, slot in newer.items()])
        table.slots.update(newer)
    return [head_row(table.next_head(life)), *items.items()], source


def _waits(keeper: str, silent: Mapping[str, str]) -> str:
    names = ", ".join([f"{name} ({why})" for name, why in silent.items()])
    return (
        f"the metadata group {keeper} has no table of slots, and waits until these have said whether they have a copy: {names}. "
        f"Start them, or let them be reached from here; one that is gone, or none of this cluster, counts no more when the nameservers have dropped it "
        f"(at once when it is stopped, 120 s after it hung)"
    )
