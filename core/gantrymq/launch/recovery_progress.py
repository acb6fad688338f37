"""How far recovery has come: a bar with rate and remaining time on a terminal that can draw one, a log line every few seconds elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

log = logging.getLogger(__name__)

LINE_MS: Final = 5_000
"""Between two log lines."""
QUIET_BYTES: Final = 8 * 1024 * 1024
"""Less than this is done before anybody could read of it."""
DUMB: Final = ("dumb", "unknown")
"""Values of TERM for a terminal on which nothing can be drawn again in place."""
_MIB: Final = 1024 * 1024


class RecoveryProgress:
    """`progress(bytes done, bytes in all)` for `MessageStore.load`, from its thread; `close` at the end."""

    def __init__(self, monotonic_ms: Callable[[], int], out: TextIO | None = None) -> None:
        self._now = monotonic_ms
        self._out = out or sys.stderr
        self._begun_ms = self._told_ms = monotonic_ms()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if total < QUIET_BYTES:
            return
        if self._out.isatty() and os.environ.get("TERM") not in DUMB:
            self._draw(done, total)
            return
        now = self._now()
        if now - self._told_ms >= LINE_MS:
            self._told_ms = now
            rate = done * 1000 / max(now - self._begun_ms, 1)
            log.info("recovery: %d of %d MiB, %d MiB/s, about %d s left",
                     done // _MIB, total // _MIB, rate / _MIB, (total - done) / max(rate, 1))  # fmt: skip

    def _draw(self, done: int, total: int) -> None:
        if self._bar is None or self._task is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            columns = (
                TextColumn("recovering the log"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(file=self._out), transient=True)
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
