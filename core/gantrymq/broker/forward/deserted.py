"""Auto-delete queues on their way to another group: their last consumer may leave while nothing about them can be decided.

One that had consumers when it was frozen is looked at when its move is over: at once where it stayed and this start knows its consumers, else when
gateways had time to take their seats again. Without a consumer then it goes. A row (table `forward`) keeps that through a start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.broker.tables.forward_table import CONSUMED, TABLE
from gantrymq.model.queue_policy import TABLE as POLICIES
from gantrymq.model.queue_policy import policy_from

if TYPE_CHECKING:
    from gantrymq.broker.parts import Context
    from gantrymq.broker.queues.engine import QueueEngine
    from gantrymq.broker.tables.tables import Rows

log = logging.getLogger(__name__)

SEATS_MS: Final = 10_000
"""Gateways take seats again some milliseconds after they hear of a move; one that was cut off has hung up by then."""


class Deserted:
    """See the module."""

    def __init__(self, broker: Context, queues: QueueEngine) -> None:
        self._broker = broker
        self._queues = queues

    def open(self) -> None:
        """As Part.open. Behind what is frozen."""
        for key, value in self._broker.tables.rows(TABLE).items():
            self._row(key, value)
        self._broker.tables.watch(TABLE, self._row)

    def close(self) -> None:
        """As Part.close."""

    def _row(self, key: str, value: bytes | None) -> None:
        if key.startswith(CONSUMED) and value is not None:
            self.watch([int(key[len(CONSUMED) :])])

    def noted(self, light: int) -> bool:
        """It had consumers when it was frozen."""
        return f"{CONSUMED}{light}" in self._broker.tables.rows(TABLE)

    def rows(self, lights: Sequence[int]) -> Rows:
        """Of these queues, which are about to be frozen, those that go with their last consumer and have one."""
        wanted = [light for light in lights if self._is_auto_delete(light) and self._consumers(light)]
        return [(TABLE, f"{CONSUMED}{light}", b"1") for light in wanted]

    def _is_auto_delete(self, light: int) -> bool:
        policies = self._broker.tables.rows(POLICIES)
        rows = [policies.get(str(cursor.id)) for cursor in self._broker.cursors.of_queue(f"~{light}")]
        return any(policy_from(row).auto_delete for row in rows if row is not None)

    def _consumers(self, light: int) -> int:
        seats = [cursor.seats for cursor in self._broker.cursors.of_queue(f"~{light}")]
        return sum([each.count() for each in seats if each is not None])

    def watch(self, lights: Sequence[int]) -> None:
        """They have come, or stay, and gateways take their seats again."""
        wheel = self._broker.wheel
        wheel.call_at(wheel.now_ms() + SEATS_MS, lambda now_ms: self.check(lights))

    def check(self, lights: Sequence[int]) -> None:
        """Those without a consumer go, and of the others nothing is noted any more; but for what is frozen again."""
        if self._broker.closed:
            return
        for light in lights:
            if not self.noted(light) or self._queues.is_suspended(light):
                continue
            queue = self._queues.by_light.get(light)
            self._broker.put_rows([(TABLE, f"{CONSUMED}{light}", None)])
            if queue is not None and queue.policy.auto_delete and not self._consumers(light):
                log.info("queue %s goes: its last consumer left while it moved", queue.policy.name)
                self._queues.drop(queue)
