"""Back-pressure of the Remoting door: what one connection may have under way, what is answered SYSTEM_BUSY and what never is.

Three limits, each with its own reason in the answer: sends of one connection that wait for the disk (`UNACKED_BYTES_MAX`), everything
that waits for the disk (`broker.pending_bytes_max`, `broker.pending_ms_max`), pulls of a peer that does not read their answers
(`broker_door.DEFERRED_MAX`). A peer that does not read at all is not read either, and closed (`server.stalled_reader_ms`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.remoting.constants import RequestCode

if TYPE_CHECKING:
    from gantrymq.metrics import Metrics

UNACKED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Frames of one connection's sends that wait for the disk: eight connections fill `broker.pending_bytes_max`, one does not."""

SEND_BYTES: Final = 1_000
"""What a send that waits takes beside its frame: empty messages cost their sender, too."""

NEVER_SHED: Final = frozenset(
    {
        RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.END_TRANSACTION,
        RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
    }
)  # fmt: skip
"""Refusing these makes overload worse: a client that seems dead is rebalanced, what is not acknowledged is delivered again."""


class Pressure:
    """Counts what one broker's door refused."""

    __slots__ = ("connection_sends", "pulls")

    def __init__(self) -> None:
        self.connection_sends = 0
        """Sends refused because their connection had too much under way."""
        self.pulls = 0
        """Requests refused because the peer does not read the answers to its pulls."""

    def show(self, metrics: Metrics, whole_broker: Callable[[], int]) -> None:
        """Register the counters; `whole_broker()`: messages refused because the broker had too much under way."""
        name, text = "gantry_busy_total", "Requests answered SYSTEM_BUSY, by the limit that was reached"
        metrics.read(name, text, lambda: self.connection_sends, "counter", limit="connection")
        metrics.read(name, text, lambda: self.pulls, "counter", limit="reader")
        metrics.read(name, text, whole_broker, "counter", limit="disk")
