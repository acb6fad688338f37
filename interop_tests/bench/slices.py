"""`gantry ARGS` on asyncio's own loop with every callback timed: what one of them takes is what all clients wait for.

Figures are processor time, so that other programs on the machine do not count. SIGUSR1 writes the longest ones since the last time to the
file that GANTRY_SLICES names, as JSON, and begins anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from gantrymq.net.wheel import TimerWheel

KEPT: Final = 5
"""Longest callbacks that are told; a deadline's is among them twice, alone and with what else the wheel fired."""


class Longest:
    """The callbacks that took longest, with what they were."""

    def __init__(self) -> None:
        self.found: list[tuple[float, str]] = []

    def add(self, seconds: float, what: str) -> None:
        """Keep it if it is one of the longest."""
        self.found = sorted([*self.found, (seconds, what)], reverse=True)[:KEPT]

    def write(self, path: Path) -> None:
        """Replace the file and begin anew."""
        found, self.found = self.found, []
        made = path.with_suffix(".tmp")
        made.write_text(json.dumps([[round(seconds * 1000, 2), what] for seconds, what in found]))
        made.rename(path)


def watch(longest: Longest) -> None:
    """Time every handle of the loop."""
    run = asyncio.events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        begun = time.thread_time()
        run(handle)
        spent = time.thread_time() - begun
        if len(longest.found) < KEPT or spent > longest.found[-1][0]:
            longest.add(spent, repr(handle)[:200])

    asyncio.events.Handle._run = timed  # type: ignore[attr-defined]
    call_at = TimerWheel.call_at

    def named(wheel: TimerWheel, at_ms: int, callback: Callable[[int], None]) -> int:
        def call(now_ms: int) -> None:
            begun = time.thread_time()
            callback(now_ms)
            spent = time.thread_time() - begun
            if len(longest.found) < KEPT or spent > longest.found[-1][0]:
                longest.add(spent, f"deadline {getattr(callback, '__qualname__', callback)}")

        return call_at(wheel, at_ms, call)

    TimerWheel.call_at = named  # type: ignore[method-assign]


def main() -> None:
    """The server itself."""
    longest = Longest()
    watch(longest)
    signal.signal(signal.SIGUSR1, lambda *_: longest.write(Path(os.environ["GANTRY_SLICES"])))
    anyio.run = partial(_plain, anyio.run)  # type: ignore[assignment]
    from gantrymq.cli.main import main as gantry

    sys.exit(gantry())


def _plain(run: Any, *arguments: Any, **options: Any) -> Any:
    return run(*arguments, **{**options, "backend_options": {}})


if __name__ == "__main__":
    main()
