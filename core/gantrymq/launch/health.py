"""Whether the process is well, and whether it is ready for clients: what /healthz and /readyz answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STARTING: Final = "starting"
STOPPING: Final = "stopping"

Check = Callable[[], str]
"""What is wrong, in one line; empty: nothing."""


class Health:
    """`context.shared["health"]` of a process."""

    def __init__(self) -> None:
        self.phase = STARTING
        """Empty while everything that was asked for is started."""
        self._alive: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def alive_if(self, name: str, check: Check) -> None:
        """The process is of no use any more as soon as `check` says why; replaces an earlier check of the name."""
        self._alive[name] = check

    def ready_if(self, name: str, check: Check) -> None:
        """Clients should not come while `check` says why; replaces an earlier check of the name."""
        self._ready[name] = check

    def problems(self) -> list[str]:
        """Why the process should be started again."""
        return _said(self._alive)

    def waits(self) -> list[str]:
        """Why clients should not come now."""
        phase = [self.phase] if self.phase else []
        return phase + self.problems() + _said(self._ready)


def _said(checks: dict[str, Check]) -> list[str]:
    return [f"{name}: {text}" for name, check in checks.items() if (text := check())]
