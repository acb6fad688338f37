"""Who the broker is, for those who ask: known once its ports are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Identity:
    """Address, nameservers and open ports of one broker."""

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self.address = ""
        """`host:port`, as clients know it."""
        self.nameservers: list[str] = []
        """Addresses that the broker registers with."""
        self.listeners: dict[str, list[Any]] = {}
        """Open ports of this process by service: how many connections each has."""
        self.when_known: Callable[[Callable[[], None]], None] = lambda done: done()
        """Calls back when the nameservers have the topics as they are now (Registrar)."""

    def registers(
        self, when_known: Callable[[Callable[[], None]], None], nameservers: list[str], listeners: dict[str, list[Any]]
    ) -> None:
        """The broker makes itself known to nameservers."""
        self.when_known = when_known
        self.nameservers = nameservers
        self.listeners = listeners
