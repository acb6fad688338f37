"""A log in memory with the part of MessageStore that the broker uses; `restart` keeps what was appended."""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message


class FakeStore:
    """Physical offset = index in `log` * 100; every record is 100 bytes long, those with bodies over 1000 bytes as much longer."""

    def __init__(self) -> None:
        self.log: list[Message] = []
        self.queues: dict[tuple[str, int], list[int]] = {}
        self.lights: dict[int, list[int]] = {}
        self.fail: GantryError | None = None
        self.appends = 0
        self.body_bytes_max = 1000
        self.record_bytes_max = 4 << 20
        self.units_behind = False
        """Light queues are written at once here."""

    @property
    def written_position(self) -> int:
        return len(self.log) * 100

    def check(self, message: Message) -> ErrorCode | None:
        return (
            ErrorCode.MESSAGE_TOO_LARGE
            if len(message.body) > self.body_bytes_max and not message.topic.startswith("rmq_sys")
            else None
        )

    def append(self, batch: Sequence[Message], lights: Sequence[tuple[int, ...]]) -> int:
        assert len(batch) == len(lights)
        if self.fail is not None:
            raise self.fail
        self.appends += 1
        for message, ids in zip(batch, lights, strict=True):
            queue = self.queues.setdefault((message.topic, message.queue_id), [])
            message.queue_offset, message.physical_offset = len(queue), len(self.log) * 100
            message.size = 100 + (len(message.body) if len(message.body) > 1000 else 0)
            queue.append(message.physical_offset)
            for light in ids:
                self.lights.setdefault(light, []).append(message.physical_offset)
            self.log.append(message)
        return self.written_position

    def is_fresh(self, position: int) -> bool:
        return True

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.queues})

    def queues_of(self, topic: str) -> list[int]:
        return sorted(queue for name, queue in self.queues if name == topic)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.queues.get((topic, queue_id), ()))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def offset_by_time(self, topic: str, queue_id: int, ms: int, lower: bool) -> int:
        return 0

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        return [
            (at, self.log[at // 100].size, 0) for at in self.queues.get((topic, queue_id), [])[offset : offset + count]
        ]

    def fault(self, unit: tuple[int, int, int]) -> tuple[str, bool]:
        return "", False

    def light_ids(self) -> list[int]:
        return [light for light, entries in self.lights.items() if entries]

    def visible_end(self, topic: str, queue_id: int) -> int:
        return self.max_offset(topic, queue_id)

    def light_visible_end(self, light: int) -> int:
        return len(self.lights.get(light, ()))

    def light_units(self, light: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        return [(at, self.log[at // 100].size, 0) for at in self.lights.get(light, [])[offset : offset + count]]

    def delete_light(self, light: int) -> None:
        self.lights.pop(light, None)

    def get_many(self, refs: list[tuple[int, int]], unreadable: list[int] | None = None) -> list[Message | None]:
        return [self.log[at // 100] if at // 100 < len(self.log) else None for at, _ in refs]

    def whole_records(
        self, topic: str, queue_id: int, offset: int, units: Sequence[tuple[int, int, int]]
    ) -> list[bytes | None]:
        return [None] * len(units)

    def get_entries(self, refs: list[tuple[int, int]]) -> list[Message | None]:
        return self.get_many(refs)

    def run_background(self, budget_us: int) -> bool:
        return False
