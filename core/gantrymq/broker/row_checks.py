"""Rows of tables: whether they can be read, asked of the code that reads them.

Core's own: own_rows.py and remoting/server/table_rows.py. Gateways': entry-point group `gantrymq.tables`, name = table, value = a function
`(key, value)` that raises for a row it cannot read. A row comes in over the gateway wire only if it can be read; one that is in the log
nevertheless (written by another version, say) is put aside when the broker or a door opens, and everything else works: `gantry store rows`
lists such rows and removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.packed import RowMap

log = logging.getLogger(__name__)

RowCheck = Callable[[str, bytes], object]
GROUP = "gantrymq.tables"
NO_CHECKS: Final[Mapping[str, RowCheck]] = {}


@cache
def check_of(table: str) -> RowCheck | None:
    """Reads rows of `table`; None: no gateway that is installed knows it."""
    for point in entry_points(group=GROUP, name=table):
        found: RowCheck = point.load()
        return found
    return None


def check_text(key: str, value: bytes) -> None:
    """For tables whose values are text (`long_topic`): raise UnicodeDecodeError for others."""
    value.decode()


def known_tables() -> list[str]:
    """Tables whose rows can be checked."""
    return sorted(entry_points(group=GROUP).names)


def why_unreadable(check: RowCheck, key: str, value: bytes) -> str:
    """What is wrong with a row; empty if it can be read."""
    try:
        check(key, value)
    except Exception as error:  # whatever a reader does with bytes that it does not know
        return f"{type(error).__name__}: {error}"
    return ""


def report(table: str, key: str, why: str) -> None:
    """The line about a row that is put aside."""
    log.error(
        "row %r of table %s cannot be read and is put aside: %s (gantry store rows DIR lists such rows, --remove removes them)",
        key[:80],
        table,
        why[:200],
    )


def refuse_unreadable(
    table: str, rows: Iterable[tuple[str, bytes | None]], known: Mapping[str, RowCheck] = NO_CHECKS
) -> None:
    """Raise ILLEGAL_ARGUMENT for a row that the table's readers (`known`, else the doors') could not read."""
    check = known.get(table) or check_of(table)
    if check is None:
        return
    for key, value in rows:
        if value is not None and (why := why_unreadable(check, key, value)):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"row {key[:80]!r} of table {table} cannot be read: {why}")


def is_quarantined(table: str, key: str, rows: Mapping[str, bytes]) -> bool:
    """Whether there is a row that nobody sees because it cannot be read: whoever expects none replaces it."""
    check, value = check_of(table), rows.get(key)
    return check is not None and value is not None and bool(why_unreadable(check, key, value))


def readable(table: str, rows: RowMap) -> RowMap:
    """A copy of the rows that can be read; a line in the log for each of the others."""
    found = rows.copy()
    check = check_of(table)
    if check is not None:
        for key, value in rows.items():
            if why := why_unreadable(check, key, value):
                report(table, key, why)
                del found[key]
    return found
