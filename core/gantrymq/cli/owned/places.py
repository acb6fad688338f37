"""Queues as their owners see them: depth, what is unacknowledged, consumers, bytes that they pin, rates between two looks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio

from gantrymq.broker.port import DETAILS_MAX, FIND, CursorDetails
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.cli.mqtt.reach import Tables

BETWEEN_S: Final = 1.0
"""Between the two looks of a command that shows one thing."""
COLUMNS: Final = (">ready", ">unacked", ">consumers", ">pinned", ">in/s", ">out/s")

Row = dict[str, Any]


@contextlib.asynccontextmanager
async def reached(admin: Any) -> AsyncIterator[Tables]:
    """The port of this command."""
    from gantrymq.cli.mqtt.reach import tables

    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        yield reach


class Places:
    """Looks at places again and again. What was found once is not looked for again."""

    def __init__(self, reach: Tables) -> None:
        self._reach = reach
        self._cursors: dict[tuple[str, str], int] = {}
        self._before: dict[Any, tuple[float, int, int]] = {}

    async def measure(self, wanted: Sequence[tuple[Any, Sequence[tuple[str, str]]]]) -> dict[Any, Row]:
        """By key of `wanted`, whose places are pairs of queue and group: the numbers of all of them together. Rates from the second look on."""
        places = {place for _, each in wanted for place in each}
        for place in places - self._cursors.keys():
            self._cursors[place] = await self._find(*place)
        handles = [handle for place in places if (handle := self._cursors[place])]
        found: dict[int, CursorDetails] = {}
        for first in range(0, len(handles), DETAILS_MAX):
            part = handles[first : first + DETAILS_MAX]
            rows = await self._reach.ask(self._reach.port.details, part)
            found.update({handle: row for handle, row in zip(part, rows, strict=True) if row is not None})
        now_s = time.monotonic()
        return {
            key: self._sum(key, [found[at] for place in each if (at := self._cursors[place]) in found], now_s)
            for key, each in wanted
        }

    async def _find(self, queue: str, group: str) -> int:
        """0: there is no such place."""
        try:
            info = await self._reach.ask(self._reach.port.open_cursor, queue, group, FIND)
        except GantryError as error:
            if error.code not in (ErrorCode.NOT_FOUND, ErrorCode.QUEUE_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND):
                raise
            return 0
        return int(info.cursor)

    def _sum(self, key: Any, rows: Iterable[CursorDetails], now_s: float) -> Row:
        row: Row = {"ready": 0, "unacked": 0, "consumers": 0, "pinned_bytes": 0, "in_rate": None, "out_rate": None}
        end = 0
        for each in rows:
            row["ready"] += each.ready
            row["unacked"] += each.unacked
            row["consumers"] += each.consumers
            row["pinned_bytes"] += each.pinned
            end += each.end
        left = row["ready"] + row["unacked"]
        if key in self._before:
            at_s, last_end, last_left = self._before[key]
            spent_s = max(now_s - at_s, 0.001)
            row["in_rate"] = round(max(end - last_end, 0) / spent_s, 1)
            row["out_rate"] = round(max(end - last_end + last_left - left, 0) / spent_s, 1)
        self._before[key] = (now_s, end, left)
        return row


def cells(row: Row) -> list[str]:
    """As COLUMNS."""
    from gantrymq.cli.screen import lag_text, number, size

    rates = [number(row[name]) if row[name] is not None else "-" for name in ("in_rate", "out_rate")]
    waiting = lag_text(row["ready"], bool(row["consumers"]))
    return [waiting, number(row["unacked"]), number(row["consumers"]), size(row["pinned_bytes"]), *rates]


async def show_one(measure: Callable[[], Awaitable[Row]], facts_of: Callable[[Row], Any], as_json: bool) -> None:
    """One thing with its rates: looked at twice."""
    from gantrymq.cli.screen import CONSOLE, show_rows

    await measure()
    await anyio.sleep(BETWEEN_S)
    row = await measure()
    if as_json:
        show_rows([row], True, lambda: "", "")
    else:
        CONSOLE.print(facts_of(row))


def facts_of(row: Row) -> Any:
    """Names and values, those without a value left out."""
    from gantrymq.cli.screen import facts

    return facts([(name.replace("_", " "), _text(value)) for name, value in row.items() if value not in (None, "", [])])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def check_protocol(protocol: str, *known: str) -> None:
    """Raises ConfigError."""
    from gantrymq.model.errors import ConfigError

    if protocol and protocol not in known:
        raise ConfigError(f"--protocol {protocol}: there are {', '.join(known)}")
