"""Parts of the broker with a life of their own: messages that wait (delays, transactions) and consumers with receipts (pops)."""

from __future__ import annotations

from typing import Protocol


class Part(Protocol):
    """What `Broker` calls; everything else a part does from `Broker.wait`, `Broker.wheel` and the doors' requests."""

    def open(self) -> None:
        """Tables and cursors are there; what the part owed before the start goes on. It may append (`Broker.submit`)."""

    def close(self) -> None:
        """The broker stops cleanly: last chance to append; nothing may be submitted later."""
