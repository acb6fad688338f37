"""Shared MQTT subscriptions as consumer groups: `$share/<group>` or `$queue`, whose topics are their filters."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gantrymq.cli.owned.places import Places, Row, reached
from gantrymq.cli.owned.queues import MQTT, place_of, queues
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import share_parts

if TYPE_CHECKING:
    from gantrymq.cli.mqtt.reach import Tables


class Shares:
    """Looks at them again and again, over a port that is opened when they are first asked for."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self._stack = AsyncExitStack()
        self._open: tuple[Tables, Places] | None = None

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def each(self) -> list[Row]:
        """A row per subscription."""
        from gantrymq.cli.mqtt.console import session_rows

        if self._open is None:
            reach = await self._stack.enter_async_context(reached(self._admin))
            self._open = reach, Places(reach)
        reach, places = self._open
        found = await queues(reach, MQTT)
        if not found:
            return []
        numbers = await places.measure([(row["queue"], [place_of(row)]) for row in found])
        members: dict[str, int] = {}
        for row in (await session_rows(reach)).values():
            for text in row["s"] if not row.get("l") else ():
                members[text] = members.get(text, 0) + 1
        rows: list[Row] = []
        for row in found:
            group, topic = share_parts(row["queue"])
            number = numbers[row["queue"]]
            rows.append({
                "group": group, "topic": topic, "lag": number["ready"] + number["unacked"], "unacked": number["unacked"],
                "members": members.get(row["queue"], 0), "rate": number["out_rate"] or 0.0, "pinned_bytes": number["pinned_bytes"],
            })  # fmt: skip
        return rows

    async def rows(self) -> list[Row]:
        """A row per group, as those of other groups."""
        groups: dict[str, Row] = {}
        for each in await self.each():
            group = groups.setdefault(
                each["group"], {"group": each["group"], "lag": 0, "rate": 0.0, "members": 0, "topics": []}
            )
            for name in ("lag", "rate", "members"):
                group[name] += each[name]
            group["topics"].append(each["topic"])
        return list(groups.values())


async def show_shared(admin: Any, group: str, again: bool, interval_s: float, as_lines: bool) -> None:
    """One group: its subscriptions, and how far each is behind. Raises GROUP_NOT_FOUND."""
    from gantrymq.cli.screen import lag_text, listing, number, plain, size, watch

    async with Shares(admin) as shares:

        async def fetch() -> tuple[list[Row], Any]:
            rows = [row for row in await shares.each() if row["group"] == group]
            if not rows:
                raise GantryError(ErrorCode.GROUP_NOT_FOUND, f"there is no shared subscription of group {group!r}")
            lines = [
                [
                    plain(row["topic"]), lag_text(row["lag"], bool(row["members"])), number(row["unacked"]), number(row["rate"]),
                    number(row["members"]), size(row["pinned_bytes"]),
                ]
                for row in rows
            ]  # fmt: skip
            return rows, listing(["filter", ">lag", ">unacked", ">rate/s", ">members", ">pinned"], lines)

        await watch(fetch, again, interval_s, as_lines)
