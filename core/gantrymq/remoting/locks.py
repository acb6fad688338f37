"""Locks of orderly consumers: one client of a group consumes a queue at a time (RocketMQ's
RebalanceLockManager)."""

from __future__ import annotations

from typing import Final

from gantrymq.remoting.json_bodies import QueueName

LOCK_MS: Final = 60_000
"""RocketMQ's REBALANCE_LOCK_MAX_LIVE_TIME; clients lock again every 20 s."""

LOCKS_MAX: Final = 200_000
"""Queues locked by all groups; beyond it expired locks are dropped, and then further ones refused."""


class QueueLocks:
    """Holder and time by group and queue. Times: milliseconds of the monotonic clock."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, QueueName], tuple[str, int]] = {}

    def lock(self, group: str, client_id: str, queues: list[QueueName], now_ms: int) -> list[QueueName]:
        """Take or renew; returns the queues that the client holds now."""
        held = []
        for queue in queues:
            key = (group, queue)
            entry = self._locks.get(key)
            if entry is None or entry[0] == client_id or now_ms - entry[1] > LOCK_MS:
                if entry is None and len(self._locks) >= LOCKS_MAX:
                    self._drop_expired(now_ms)
                    if len(self._locks) >= LOCKS_MAX:
                        continue
                self._locks[key] = (client_id, now_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: list[QueueName]) -> None:
        """Give back; what another client holds stays."""
        for queue in queues:
            entry = self._locks.get((group, queue))
            if entry is not None and entry[0] == client_id:
                del self._locks[group, queue]

    def _drop_expired(self, now_ms: int) -> None:
        self._locks = {key: entry for key, entry in self._locks.items() if now_ms - entry[1] <= LOCK_MS}
