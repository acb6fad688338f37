"""What is left of queues that have moved, between this broker group and one other: whether that has deleted its part of those that came from it, and
that queues have ended here which it once had (`broker/forward/traces.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.tables.forward_table import LEAVING, TABLE
from gantrymq.broker.tables.group_tables import MOVED_TABLE, moved_from
from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.forward.arriving import Arriving
    from gantrymq.broker.forward.traces import Traces
    from gantrymq.broker.port import Done
    from gantrymq.net.api import Wheel

log = logging.getLogger(__name__)

AGAIN_MS: Final = 1_000
"""Between two looks at what is left."""
AT_ONCE: Final = 1_000
"""Queues of whose end a group is told in one go."""


class EndPort(Protocol):
    """What is asked of the other group: see `GroupPort`."""

    def watch_state(self, on_state: Callable[[bool], None]) -> None: ...

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: object, on_done: Done
    ) -> None: ...

    def put_if(
        self, table: str, items: Sequence[tuple[str, bytes | None, bytes | None]], token: object, on_done: Done
    ) -> None: ...

    def end_freeze(self, lights: Sequence[int], move: str, gone: bool, token: object, on_done: Done) -> None: ...


class Ender(Protocol):
    """This broker."""

    arriving: Arriving
    traces: Traces
    wheel: Wheel


class Ending:
    """See the module. `name`: the other group."""

    def __init__(self, broker: Ender, name: str, port: EndPort) -> None:
        self._broker = broker
        self._name = name
        self._port = port
        self._attempt = 0
        """Connections so far; negative: there are to be no more."""

    def start(self) -> None:
        """Take part from now on."""
        self._port.watch_state(self._state)

    def stop(self) -> None:
        """The cluster has forgotten that group."""
        self._attempt = -1

    def _state(self, up: bool) -> None:
        if self._attempt < 0:
            return
        self._attempt += 1
        if up:
            run(self._work(self._attempt), partial(self._ended, self._attempt))

    def _ended(self, attempt: int, result: Any) -> None:
        if attempt == self._attempt:
            if isinstance(result, GantryError):
                log.debug("broker group %s: what is left of moved queues: %s", self._name, result.text)
            self._broker.wheel.call_at(self._broker.wheel.now_ms() + AGAIN_MS, lambda now_ms: self._again(attempt))

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            run(self._work(attempt), partial(self._ended, attempt))

    def _work(self, attempt: int) -> Steps:
        came, ended = self._broker.arriving.unsettled(self._name), self._broker.traces.untold(self._name)
        if came or ended:
            yield self._broker.traces.when_flushed
        if attempt == self._attempt and ended:
            yield from self._tell(attempt, ended[:AT_ONCE])
        for name, left in came:
            if attempt == self._attempt:
                yield partial(self._port.end_freeze, [left.light], left.move, True)
                self._broker.traces.settled(self._name, [name])

    def _tell(self, attempt: int, names: Sequence[int]) -> Steps:
        """It notes that a queue has gone on when it hears so: until then there is nothing to take away."""
        forward: Mapping[str, bytes] = yield partial(self._port.watch_table, TABLE, None)
        leaving = {value.partition(b",")[0] for key, value in forward.items() if key.startswith(LEAVING)}
        names = [name for name in names if b"[%d" % name not in leaving]
        if not names:
            return
        moved: Mapping[str, bytes] = yield partial(self._port.watch_table, MOVED_TABLE, None)
        left = [(str(name), row, None) for name in names if (row := moved.get(str(name))) is not None and _is_gone(row)]
        if left:
            yield partial(self._port.put_if, MOVED_TABLE, left)
        if attempt == self._attempt:
            self._broker.traces.told(self._name, names)


def _is_gone(row: bytes) -> bool:
    try:
        return not moved_from(row).light
    except ValueError:
        return False
