"""A line whose requests and answers are on their way for a while, in order; each way may be held up, and a cut may be noticed at one end first."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import Delivery
from tests.broker.node import Node
from tests.cluster.site import Line, _cut


class LongLine(Line):
    """From group `source` to group `target`. What is under way moves in `carry` alone, notices of watchers included."""

    def __init__(self, source: str, target: str, node: Node) -> None:
        self.source, self.target = source, target
        self.there: deque[Callable[[], None]] = deque()
        self.here: deque[Callable[[], None]] = deque()
        self.half_open: list[tuple[int, LocalBrokerPort, deque[Callable[[], None]]]] = []
        """Connections that the target still takes for alive, until when, with requests that it has not read yet."""
        self.closed = False
        super().__init__(node)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> None:
            answers = len(args) >= 2 and callable(args[-1]) and name != "watch"
            port = self.port
            if port is None:
                if answers:
                    args[-1](args[-2], _cut(name, args))
                return
            sent = list(args)
            if answers:
                number = next(self.numbers)
                self.open[number] = (*args[-2:], _cut(name, args))
                sent[-2:] = [number, partial(self._reply, port)]
            for place, argument in enumerate(sent[:-1] if answers else sent):
                if callable(argument):
                    sent[place] = partial(self._notice, port, argument)
            self.there.append(partial(getattr(port, name), *sent, **options))

        return call

    def _reply(self, port: LocalBrokerPort, number: int, result: Any) -> None:
        if port is self.port:
            if isinstance(result, list) and result and isinstance(result[0], Delivery):
                result = [Delivery(copy.copy(each.message), each.offset, each.count) for each in result]
            self.here.append(partial(self._answered, number, result))

    def _notice(self, port: LocalBrokerPort, call: Callable[..., None], *args: Any) -> None:
        if port is self.port:
            self.here.append(partial(call, *args))

    def carry_there(self, some: Callable[[int], int]) -> None:
        """The target reads `some(N)` of N requests that were sent up to now."""
        for _ in range(some(len(self.there))):
            if self.there:
                self.there.popleft()()

    def carry_here(self, some: Callable[[int], int]) -> None:
        """The source reads as many of the answers that came."""
        for _ in range(some(len(self.here))):
            if self.here:
                self.here.popleft()()

    def break_off(self, until_ms: int = 0) -> None:
        """The source sees that the connection is lost; the target reads what was sent, and sees it, when `end_half_open` says so."""
        port, self.port = self.port, None
        assert port is not None
        self.half_open.append((until_ms, port, self.there))
        self.there, self.here = deque(), deque()
        calls, self.open = self.open, {}
        for token, on_done, error in calls.values():
            on_done(token, error)
        for on_state in self.states:
            on_state(False)

    def lose_source(self, until_ms: int = 0) -> None:
        """The source's process is gone: nobody hears of anything there any more."""
        self.states.clear()
        self.open.clear()
        self.closed = True
        if self.port is not None:
            self.break_off(until_ms)

    def lose_target(self) -> None:
        """The target's process is gone."""
        self.half_open.clear()
        if self.port is not None:
            self.there.clear()
            self.break_off()
            self.half_open.clear()

    def end_half_open(self, now_ms: int, read: Callable[[int], int]) -> None:
        """The target reads `read(N)` of N requests of connections that are due, and closes them."""
        due = [each for each in self.half_open if each[0] <= now_ms]
        self.half_open = [each for each in self.half_open if each[0] > now_ms]
        for _, port, requests in due:
            for _ in range(read(len(requests))):
                requests.popleft()()
            port.close()

    def close(self) -> None:
        self.closed = True
        if self.port is not None:
            self.states.clear()
            self.break_off()
