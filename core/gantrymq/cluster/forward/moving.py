"""Queues that come from another broker group, with what is in them: copied while they are in use, frozen there for the rest, then here.

    copy      entries of the queue, in passes until few are left, behind each other into a queue here that nobody knows
    freeze    at the source: nobody gets anything, what was given out is back, on the disk
    hold      at every group: nothing new is stored that may be the queue's; how far their forward queues reach
    read      the source has all of that; this group has the rest of the copy, and has caught up with the others itself
    decide    one piece of this group's log, flushed; only then the others hear of the routes, and go on
    gone      the source deletes what it has

Nothing is decided half a second after the first group held: they go on after one, and take nothing for known of this group then, so it matches what
they store by itself (`broker/forward/holding.py`). Whatever fails before the decision leaves the queues where they were; the source asks this group when it
does not hear of it (`Following`). docs/decisions/0013 has the argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.forward.described import Described, described_from
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Gathering, Steps, first_error, run

if TYPE_CHECKING:
    from gantrymq.broker.forward.arriving import Arrival, Arriving
    from gantrymq.broker.forward.holding import Ends, Holding
    from gantrymq.broker.forward.receiving import Receiving
    from gantrymq.broker.forward.sending import Sending
    from gantrymq.broker.forward.traces import Traces
    from gantrymq.broker.port import Done, Scanned
    from gantrymq.services import Clock

log = logging.getLogger(__name__)

DECIDE_MS: Final = 500
"""From the first question to hold; half of what a group holds."""
READ_BYTES: Final = 1 << 20
NEVER: Final = 1 << 62
FEW: Final = 1_000
"""Entries that may be left for the freeze: one read takes them."""
STALLED_MAX: Final = 3
"""Passes one behind the other after which no fewer entries are left (a quarter less at least): the queues fill as fast as they are copied."""


class MovePort(Protocol):
    """What is asked of another group: see `LocalBrokerPort`."""

    def read_light(self, light: int, offset: int, bytes_max: int, token: object, on_done: Done) -> None: ...

    def freeze_lights(
        self, queues: Sequence[tuple[int, int]], target: str, move: str, token: object, on_done: Done
    ) -> None: ...

    def end_freeze(self, lights: Sequence[int], move: str, gone: bool, token: object, on_done: Done) -> None: ...

    def hold_records(self, source: str, target: str, token: object, on_done: Done) -> None: ...

    def release_records(self, target: str, number: int, token: object, on_done: Done) -> None: ...

    def await_forward(self, source: str, life: str, offset: int, token: object, on_done: Done) -> None: ...

    def queues_came(self, queues: Sequence[tuple[int, int]], token: object, on_done: Done) -> None: ...


class Taking(Protocol):
    """This broker."""

    arriving: Arriving
    traces: Traces
    holding: Holding
    receiving: Receiving
    sending: Sending
    clock: Clock


class Mover:
    """See the module. `own`: this group's name; `ports()`: of all others by name."""

    def __init__(self, broker: Taking, own: str, ports: Callable[[], dict[str, MovePort]]) -> None:
        self._broker = broker
        self._own = own
        self._ports = ports
        self._moves = 0
        self._busy = False
        self._holds: dict[str, int] = {}
        """Groups that hold for the present attempt, with the number of their hold."""

    def take(self, source: str, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        """Light queues of another group (number there, id in the cluster). Answers None when all of them are here, or an error: none is."""
        ports = self._ports()
        if source not in ports:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"broker group {source} is none of this cluster"))
            return
        if self._busy:
            on_done(token, GantryError(ErrorCode.BUSY, f"broker {self._own} takes other queues"))
            return
        self._busy = True
        self._moves += 1

        def ended(result: Any) -> None:
            self._busy = False
            on_done(token, result)

        run(self._take(ports, source, queues), ended)

    def _take(self, ports: dict[str, MovePort], source: str, queues: Sequence[tuple[int, int]]) -> Steps:
        port = ports[source]
        arrivals: list[Arrival] = []
        lights = [light for light, _ in queues]
        move = f"{self._broker.sending.life}/{self._moves}"
        try:
            for light, name in queues:
                arrivals.append((yield partial(self._broker.arriving.begin, name, source, light, move)))
            yield from self._copy_ahead(port, arrivals)
            frozen: list[bytes] = yield partial(port.freeze_lights, queues, self._own, move)
        except GantryError as error:
            self._broker.arriving.give_up(arrivals)
            yield partial(_quietly, partial(port.end_freeze, lights, move, False))
            raise GantryError(error.code, f"from broker group {source}: {error.text or error.code.name}") from None
        asked_ms = self._broker.clock.boot_ms()
        try:
            described = [described_from(each) for each in frozen]
            yield from self._read_all(ports, source, arrivals)
            for arrival, each in zip(arrivals, described, strict=True):
                # To the end of now: behind the freeze it got what others had for it.
                yield from self._copy(port, arrival, NEVER, asked_ms + DECIDE_MS)
                if arrival.following < each.end:
                    raise GantryError(ErrorCode.BUSY, f"queue ~{arrival.name} was not read to its end")
            self._check_time(asked_ms + DECIDE_MS)
            yield from self._decide(arrivals, described)
        except GantryError as error:
            if self._broker.arriving.is_unsure([name for _, name in queues]):
                self._holds = {}  # the others go on by themselves, and take nothing for known of this group
                raise
            self._broker.arriving.give_up(arrivals)
            yield partial(_quietly, partial(port.end_freeze, lights, move, False))
            raise GantryError(error.code, f"from broker group {source}: {error.text or error.code.name}") from None
        finally:
            self._go_on(ports)
        (result,) = yield partial(_as_answer, partial(port.end_freeze, lights, move, True))
        if not isinstance(result, GantryError):
            self._broker.traces.settled(source, [name for _, name in queues])

    def _decide(self, arrivals: Sequence[Arrival], described: Sequence[Described]) -> Steps:
        (result,) = yield partial(_as_answer, partial(self._broker.arriving.decide, arrivals, described))
        if isinstance(result, GantryError):
            names = [arrival.name for arrival in arrivals]
            if self._broker.arriving.is_unsure(names) or not self._broker.arriving.has_all(names):
                raise result
            log.warning("queues have come here; not every broker group knows it yet: %s", result.text)

    def _copy_ahead(self, port: MovePort, arrivals: Sequence[Arrival]) -> Steps:
        """Until little is left for the freeze, in passes that each copy what there is when they begin. Raises LIMIT_REACHED."""
        least, stalled = NEVER, 0
        while True:
            ends: list[int] = []
            for arrival in arrivals:
                found: Scanned = yield partial(port.read_light, arrival.source_light, arrival.following, 0)
                ends.append(found.following)
            rest = sum([max(end - max(arrival.following, 0), 0) for arrival, end in zip(arrivals, ends, strict=True)])
            stalled = stalled + 1 if rest > least - least // 4 else 0
            if stalled >= STALLED_MAX and rest > FEW:
                names = ", ".join([f"~{arrival.name}" for arrival in arrivals])
                raise GantryError(
                    ErrorCode.LIMIT_REACHED,
                    f"queue {names} fills as fast as it is copied ({rest} entries are left after {STALLED_MAX} passes that did not make it less); "
                    f"move it when less is published",
                )
            least = min(least, rest)
            for arrival, end in zip(arrivals, ends, strict=True):
                yield from self._copy(port, arrival, end)
            if rest <= FEW:
                return

    def _check_time(self, until_ms: int) -> None:
        if self._broker.clock.boot_ms() > until_ms:
            raise GantryError(ErrorCode.BUSY, f"it took more than {DECIDE_MS} ms since the queues were frozen")

    def _copy(self, port: MovePort, arrival: Arrival, end: int, until_ms: int = NEVER) -> Steps:
        """Entries below that offset, as far as there are any. Raises BUSY when it is too late, on the boot clock."""
        while arrival.following < end:
            self._check_time(until_ms)
            found: Scanned = yield partial(port.read_light, arrival.source_light, arrival.following, READ_BYTES)
            yield partial(self._broker.arriving.copy, arrival, found.deliveries)
            arrival.following = found.following
            if found.at_end:
                return

    def _read_all(self, ports: dict[str, MovePort], source: str, arrivals: Sequence[Arrival]) -> Steps:
        """Every group holds; the source has read what they have for it, this one what they have for this one."""
        names = list(ports)
        calls: list[Call] = [partial(self._hold, name, partial(ports[name].hold_records, source)) for name in names]
        calls.append(partial(self._hold, self._own, partial(self._hold_here, source)))
        ends: list[Ends] = yield partial(_all, calls)
        waits: list[Call] = []
        for name, end in zip([*names, self._own], ends, strict=True):
            if name != source:
                waits.append(partial(ports[source].await_forward, name, end.life, end.source_end))
            if name != self._own:
                waits.append(partial(self._await_here, name, end.life, end.target_end))
        read: list[bool] = yield partial(_all, waits)
        if not all(read):
            raise GantryError(ErrorCode.BUSY, "not every record of the other broker groups has come yet")

    def _hold(self, name: str, ask: Callable[..., None], token: Any, on_done: Done) -> None:
        def held(token: Any, result: Any) -> None:
            if not isinstance(result, GantryError):
                self._holds[name] = result.number
            on_done(token, result)

        ask(self._own, token, held)

    def _hold_here(self, source: str, target: str, token: Any, on_done: Done) -> None:
        try:
            self._broker.holding.hold(source, target, token, on_done)
        except GantryError as error:
            on_done(token, error)

    def _await_here(self, name: str, life: str, offset: int, token: Any, on_done: Done) -> None:
        self._broker.receiving.await_progress(name, life, offset, partial(on_done, token))

    def _go_on(self, ports: dict[str, MovePort]) -> None:
        holds, self._holds = self._holds, {}
        for name, number in holds.items():
            if name == self._own:
                self._broker.holding.release(name, number)
            else:
                ports[name].release_records(self._own, number, None, _nobody)


def _all(calls: Sequence[Call], token: Any, on_done: Done) -> None:
    """Their results, or the first failure."""
    Gathering(calls, lambda results: on_done(token, first_error(results) or results))


def _quietly(call: Call, token: Any, on_done: Done) -> None:
    """Whether it is answered or not: the source asks by itself what became of it."""
    call(None, lambda _token, _result: on_done(token, None))


def _as_answer(call: Call, token: Any, on_done: Done) -> None:
    """An error is a result."""
    call(None, lambda _token, result: on_done(token, (result,)))


def _nobody(_token: Any, _result: Any) -> None:
    """Nobody waits for it."""
