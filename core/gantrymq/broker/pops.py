"""Pop consumers: receipts with deadlines over the groups' AckWindows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker


class Pops:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def open(self) -> None:
        """See `parts.Part`."""

    def close(self) -> None:
        """See `parts.Part`."""
