"""Where a record goes: the result of routing, shared by all records of one (topic, exchange, tag)."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.model.message import Message


class Hit:
    """Where records of one (topic, exchange, tag) go. Shared by all of them: never changed."""

    __slots__ = ("kinds", "lights", "taps")

    def __init__(
        self, lights: tuple[int, ...], taps: tuple[tuple[Tap, tuple[int, ...]], ...], kinds: frozenset[str]
    ) -> None:
        self.lights = lights
        self.taps = taps
        self.kinds = kinds


class Tap:
    """A gateway's own channel for volatile routes; filled by the append, emptied at the end of the turn."""

    __slots__ = ("batch", "handle", "numbers", "on_records")

    def __init__(self, handle: int, on_records: Callable[[list[tuple[Message, tuple[int, ...]]]], None]) -> None:
        self.handle = handle
        self.on_records = on_records
        self.batch: list[tuple[Message, tuple[int, ...]]] = []
        self.numbers: dict[int, int] = {}
        """The caller's route number to the router's."""


NO_HIT = Hit((), (), frozenset())
