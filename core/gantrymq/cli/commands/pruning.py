"""What `gantry topic prune --unused` does: ask every broker what nobody needs there, then each to look again and remove."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from rich.console import RenderableType

from gantrymq.cli import options
from gantrymq.cli.screen import CONSOLE, ago, listing, plain, show_rows
from gantrymq.client import tools
from gantrymq.client.admin import Admin
from gantrymq.client.errors import BrokerError
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.remoting.constants import ResponseCode

_AGE = re.compile(r"(\d{1,9})(s|m|h|d|)\Z")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_age(text: str) -> int:
    """Milliseconds. Raises ConfigError."""
    found = _AGE.match(text)
    if found is None:
        raise ConfigError(f'--older-than "{text}": must be a number with s, m, h or d')
    return int(found[1]) * _SECONDS[found[2]] * 1000


async def do_prune(admin: Admin, older_ms: int, dry_run: bool, yes: bool, as_lines: bool) -> None:
    """A topic that one broker needs, or of which a door's row is at one, stays at all."""
    brokers = await tools.masters(admin)
    unused: dict[str, dict[str, int]] = {}
    needed: set[str] = set()
    for broker, address in brokers.items():
        found = await _ask(admin, broker, address, older_ms)
        needed.update([name for name, _ in found["kept"]], found["named"])
        unused[broker] = {name: made_ms for name, made_ms in found["unused"]}  # noqa: C416 (pairs as lists)
    wanted = {
        name: made_ms for of_broker in unused.values() for name, made_ms in of_broker.items() if name not in needed
    }
    if dry_run or not wanted:
        _show(
            [{"topic": name, "made": made_ms, "removed": False} for name, made_ms in sorted(wanted.items())], as_lines
        )
        return
    if not yes and not as_lines:
        _show([{"topic": name, "made": made_ms, "removed": False} for name, made_ms in sorted(wanted.items())], False)
    options.confirm(f"Remove {len(wanted)} topics?", yes)
    kept: dict[str, str] = {}
    for broker, address in brokers.items():
        there = [name for name in unused[broker] if name in wanted]
        found = await tools.prune_topics(admin, address, older_ms, there)
        kept.update(dict(found["kept"]))
    rows: list[dict[str, Any]] = []
    for name, made_ms in sorted(wanted.items()):
        row = {"topic": name, "made": made_ms, "removed": name not in kept}
        rows.append(row | ({"why": kept[name]} if name in kept else {}))
    _show(rows, as_lines)


async def _ask(admin: Admin, broker: str, address: str, older_ms: int) -> dict[str, list[Any]]:
    try:
        return await tools.prune_topics(admin, address, older_ms)
    except BrokerError as error:
        if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"broker {broker} does not say what is unused there; nothing was removed"
            ) from None
        raise


def _show(rows: list[dict[str, Any]], as_lines: bool) -> None:
    now_ms = int(time.time() * 1000)

    def make() -> RenderableType:
        cells = [
            (plain(row["topic"]), ago(row["made"], now_ms) if row["made"] else "?", plain(_state(row))) for row in rows
        ]
        return listing(("topic", "made", ""), cells)

    show_rows(rows, as_lines, make, "no unused topics")
    if not as_lines and rows:
        removed = sum([row["removed"] for row in rows])
        CONSOLE.print(f"{removed} of {len(rows)} removed" if removed else f"{len(rows)} unused", style="dim")


def _state(row: dict[str, Any]) -> str:
    if row["removed"]:
        return "removed"
    return f"kept: {row['why']}" if "why" in row else "unused"
