"""Locks of orderly consumers: one client of a group consumes a queue at a time (RocketMQ's
RebalanceLockManager).

A broker locks for its own group only: the request's `onlyThisBroker` asks RocketMQ to lock at the replicas too, which changes
nothing where there are none.
"""

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
        self._groups: dict[str, dict[QueueName, tuple[str, int]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Locks that are kept, expired ones included."""
        return self._count

    def lock(self, group: str, client_id: str, queues: list[QueueName], now_ms: int) -> list[QueueName]:
        """Take or renew; returns the queues that the client holds now, each once, in the order asked for."""
        held: dict[QueueName, None] = {}
        for queue in queues:
            locks = self._groups.get(group, {})
            entry = locks.get(queue)
            if entry is not None and entry[0] != client_id and now_ms - entry[1] <= LOCK_MS:
                continue
            if entry is None:
                if self._count >= LOCKS_MAX:
                    self._drop_expired(now_ms)
                if self._count >= LOCKS_MAX:
                    continue
                locks = self._groups.setdefault(group, {})
                self._count += 1
            locks[queue] = (client_id, now_ms)
            held[queue] = None
        return list(held)

    def unlock(self, group: str, client_id: str, queues: list[QueueName]) -> None:
        """Give back; what another client holds stays."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            entry = locks.get(queue)
            if entry is not None and entry[0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            del self._groups[group]

    def any_held(self, group: str, now_ms: int) -> bool:
        """True if some client of the group holds a queue: the group consumes in order (isLockAllExpired)."""
        return any(now_ms - since <= LOCK_MS for _, since in self._groups.get(group, {}).values())

    def _drop_expired(self, now_ms: int) -> None:
        for group, locks in list(self._groups.items()):
            kept = {queue: entry for queue, entry in locks.items() if now_ms - entry[1] <= LOCK_MS}
            self._count -= len(locks) - len(kept)
            if kept:
                self._groups[group] = kept
            else:
                del self._groups[group]
