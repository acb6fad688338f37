"""A node for tests of messages that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import DELAYED, Message
from tests.broker.keeping import KeepingNode

TICK_MS = 50


class WaitingNode(KeepingNode):
    """`fired` tells what arrived in topic `t`, and when."""

    config = (BrokerConfig, TopicsConfig, GatewayConfig)

    def later(self, body: bytes, topic: str = "t", queue_id: int = 0, **pairs: Any) -> int | ErrorCode:
        """Send a message with these properties; its queue offset where it waits, or why it was refused."""
        return self.send_later(body, topic, queue_id, **pairs)[0]

    def send_later(
        self, body: bytes, topic: str = "t", queue_id: int = 0, **pairs: Any
    ) -> tuple[int | ErrorCode, Message]:
        pairs.setdefault("UNIQ_KEY", f"U{body.decode()}")
        text = props.encode({name: str(value) for name, value in pairs.items()})
        message = Message(topic, body, text, pairs.get("TAGS", ""), (pairs["UNIQ_KEY"],), queue_id)
        message.kind = DELAYED
        return self.call("submit", [message])[0], message

    def records(self, topic: str = "t") -> list[Message]:
        """Everything in a topic, in log order."""
        found = []
        for queue in self.store.queues_of(topic):
            offset, end = self.store.min_offset(topic, queue), self.store.max_offset(topic, queue)
            while offset < end:
                units = self.store.units(topic, queue, offset, 500)
                found += [
                    message for message in self.store.get_many([unit[:2] for unit in units]) if message is not None
                ]
                offset += len(units)
        return sorted(found, key=lambda message: message.physical_offset)

    def bodies(self, topic: str = "t") -> list[bytes]:
        return [message.body for message in self.records(topic)]

    def wait(self, ms: int) -> None:
        """Time passes, both clocks alike."""
        step = min(TICK_MS, ms) or 1
        while ms > 0:
            self.wheel.advance(min(step, ms))
            self.turn.run_until_quiet()
            ms -= step

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock."""
        self.clock.wall_ms += ms

    def wait_for(self, holds: Callable[[], bool], ms_max: int) -> int:
        """How long it took."""
        passed = 0
        while not holds():
            assert passed < ms_max, f"not within {ms_max} ms: {self.bodies()}"
            self.wait(TICK_MS)
            passed += TICK_MS
        return passed

    def reborn(self, clean: bool = True) -> WaitingNode:
        """The next life: after a clean stop, or a kill."""
        if clean:
            self.stop()
            return WaitingNode(self.files, self.clock)
        return WaitingNode(self.files.after_process_crash(), self.clock)
