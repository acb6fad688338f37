"""Where a record goes: the result of routing, shared by all records of one (topic, exchange, tag)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from gantrymq.model.message import Message

TAP_SLICE_S: Final = 0.000_5
"""How long a tap should take for the records that it is handed at once."""
TAP_STEP, TAP_STEP_MAX = 16, 256
"""Records that it is handed at first, and at most."""
TAP_ENTRIES: Final = 400
"""Queue entries as which the records of one such slice count, when a turn takes them: to write so many takes as long."""


class RouteMatch:
    """Where records of one (topic, exchange, tag) go. Shared by all of them: never changed."""

    __slots__ = ("kinds", "lights", "mark", "taps")

    def __init__(
        self,
        lights: tuple[int, ...],
        taps: tuple[tuple[Tap, tuple[int, ...]], ...],
        kinds: frozenset[str],
        mark: bytes = b"",
    ) -> None:
        self.lights = lights
        self.taps = taps
        self.kinds = kinds
        self.mark = mark
        """Property that says which queues of other groups want them (broker/forward/marks.py); empty: none does."""

    def without(self, lights: Collection[int]) -> RouteMatch:
        """The same but for these light queues."""
        return RouteMatch(
            tuple([light for light in self.lights if light not in lights]), self.taps, self.kinds, self.mark
        )

    def entries(self) -> int:
        """As how many queue entries such a record counts."""
        count = len(self.lights)
        for tap, _ in self.taps:
            count += TAP_ENTRIES // tap.step
        return count


class Tap:
    """A gateway's own channel for volatile routes; filled by the append, emptied behind it. How many receivers stand behind it only the
    gateway knows: so it is the time it takes that decides how many records it is handed at once. What is left waits for later turns, and
    until it is gone no more for this tap is appended: the senders wait."""

    __slots__ = ("batch", "handle", "numbers", "on_records", "step")

    def __init__(self, handle: int, on_records: Callable[[list[tuple[Message, tuple[int, ...]]]], None]) -> None:
        self.handle = handle
        self.on_records = on_records
        self.batch: list[tuple[Message, tuple[int, ...]]] = []
        self.numbers: dict[int, int] = {}
        """The caller's route number to the router's."""
        self.step = TAP_STEP
        """Records handed over at once."""

    def serve(self, clock_s: Callable[[], float], until_s: float) -> None:
        """Hand over what waits, at least one slice, until it is so late. Raises what the gateway raises: those records are gone."""
        batch, at, step = self.batch, 0, self.step
        now_s = clock_s()
        try:
            while at < len(batch):
                part = batch[at : at + step]
                at += len(part)
                self.on_records(part)
                before_s, now_s = now_s, clock_s()
                if now_s - before_s > TAP_SLICE_S:
                    step = max(int(len(part) * TAP_SLICE_S / (now_s - before_s)), 1)
                elif len(part) == step:
                    step = min(step * 2, TAP_STEP_MAX)
                if now_s >= until_s:
                    break
        finally:
            self.step = step
            self.batch = batch[at:]


def is_behind(hit: RouteMatch, message: Message) -> bool:
    """The message has to wait: a tap of its has not handed over what came before. A decision of a transaction does not wait, it is half done."""
    return not message.kind and any(tap.batch for tap, _ in hit.taps)


NO_MATCH = RouteMatch((), (), frozenset())
