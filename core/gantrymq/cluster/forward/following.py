"""One other broker group, over a connection to it: its routes, which are followed, and its forward queues for this group, which are read.

What the group is asked tells it at the same time how far this one is; what it tells comes in order. So with an answer there is all that it has told
before, and the lease counts from the question.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.forward.receiving import NEWS_TABLE
from gantrymq.broker.forward.sending import CURSOR_GROUP, LEASE_MS
from gantrymq.broker.port import EARLIEST
from gantrymq.broker.tables.forward_table import QUEUES_TABLE, TABLE, TO
from gantrymq.cluster.forward.moving import MovePort, Taking
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps, pause, run

if TYPE_CHECKING:
    from gantrymq.broker.forward.leaving import Leaving
    from gantrymq.broker.port import CursorInfo, Done, Scanned, Start
    from gantrymq.cluster.forward.pulls import Pulls
    from gantrymq.net.api import Wheel

log = logging.getLogger(__name__)

ASK_MS: Final = 1_000
"""A lease is asked for again so often: two answers may fail to come."""
AGAIN_MS: Final = 1_000
"""Before the next attempt, where one failed."""
BUSY_MS: Final = 50
"""...and where this broker could not store what was taken."""
UNFLUSHED_MAX: Final = 50_000
"""Records that are stored here, not yet on the disk, and so kept by their source; more are not taken before."""
_DIGITS_MAX: Final = 19
"""Of a number below 2^63."""


class PeerPort(MovePort, Protocol):
    """What is asked of another broker group: see `GroupPort`."""

    def watch_state(self, on_state: Callable[[bool], None]) -> None: ...

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: object, on_done: Done
    ) -> None: ...

    def follow(self, name: str, life: str, seen: int, token: object, on_done: Done) -> None: ...

    def open_cursor(self, queue: str, group: str, start: Start, token: object, on_done: Done) -> None: ...

    def read_forward(self, cursor: int, offset: int, token: object, on_done: Done) -> None: ...

    def settle_forward(self, cursor: int, end: int) -> None: ...

    def delete_light(self, light: int, token: object, on_done: Done) -> None: ...


class Owner(Taking, Protocol):
    """This broker."""

    leaving: Leaving
    wheel: Wheel


class Following:
    """See the module. `own`: this group's name."""

    def __init__(self, broker: Owner, own: str, name: str, port: PeerPort, pulls: Pulls) -> None:
        self._broker = broker
        self._own = own
        self._pulls = pulls
        self._name = name
        self.port = self._port = port
        self._attempt = 0
        """Connections so far; what belongs to an earlier one ends."""
        self._complaint = ""
        self._seen = 0
        """Version of its routes that is known here."""
        self._queues: dict[str, int] = {}
        """Its forward queues for this group: light queue by start."""
        self._unflushed = 0
        self._pulled_s = 0.0
        """When it was asked for records last, as `Pulls` has it."""
        self._polls = False
        """It is asked anyway before long."""
        self._on_news: Callable[[], None] = _nothing
        self._on_records: Callable[[], None] = _nothing

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
        self._queues, self._unflushed = {}, 0
        if up:
            self._begin(self._follow, self._attempt)
            self._begin(self._read, self._attempt)
            self._begin(self._settle_leaving, self._attempt)

    def _begin(self, steps: Callable[[int], Steps], attempt: int) -> None:
        if attempt == self._attempt:
            run(steps(attempt), partial(self._ended, steps, attempt))

    def _ended(self, steps: Callable[[int], Steps], attempt: int, result: Any) -> None:
        if attempt != self._attempt:
            return
        if isinstance(result, GantryError):
            if result.text != self._complaint:
                # A group that comes is known to the others a moment later.
                level = logging.INFO if result.code is ErrorCode.NOT_OWNER else logging.WARNING
                log.log(level, "broker group %s: %s; trying again", self._name, result.text)
            self._complaint = result.text
        self._later(AGAIN_MS, partial(self._begin, steps, attempt))

    def _later(self, ms: int, call: Callable[[], None]) -> None:
        self._broker.wheel.call_at(self._broker.wheel.now_ms() + ms, lambda now_ms: call())

    def _number(self, table: str, key: str, value: bytes) -> int | None:
        """Of a row that it sent; None: it is none, and such a row is left out."""
        if value.isdigit() and len(value) <= _DIGITS_MAX:
            return int(value)
        log.error(
            "broker group %s: row %.80r of table %s is left out: %.80r is no number", self._name, key, table, value
        )
        return None

    # Queues on their way there.

    def _settle_leaving(self, attempt: int) -> Steps:
        """Whoever takes them says what became of them, or is asked."""
        leaving = self._broker.leaving
        while attempt == self._attempt:
            before = leaving.going_to(self._name)
            yield pause(partial(self._later, ASK_MS))
            if attempt != self._attempt:
                return
            still = [queue for queue in leaving.going_to(self._name) if queue in before]
            if not still:
                continue
            asked = [(leave.name, leaving.moves_of(leave.name)) for _, leave in still]
            came: list[bool] = yield partial(self._port.queues_came, asked)
            if attempt != self._attempt:
                return
            for (light, leave), is_there in zip(still, came, strict=True):
                if is_there:
                    leaving.gone([light], leave.move, None, lambda token, result: None)
                else:
                    leaving.give_back([(light, leave)])

    # Its routes.

    def _follow(self, attempt: int) -> Steps:
        sending, port = self._broker.sending, self._port

        def heard(key: str, value: bytes | None) -> None:
            if attempt == self._attempt:
                sending.learn(self._name, key, value)

        def news(key: str, value: bytes | None) -> None:
            if attempt == self._attempt and value is not None:
                self._seen = max(self._seen, self._number(NEWS_TABLE, key, value) or 0)
                self._on_news()

        self._seen = 0
        yield partial(sending.when_ready, self._name)
        life, _ = yield partial(port.follow, self._own, sending.life, 0)
        if attempt != self._attempt:
            return
        sending.begun(self._name, life)
        rows: dict[str, bytes] = yield partial(port.watch_table, "route", heard)
        sending.learn_all(self._name, rows)
        yield partial(port.watch_table, NEWS_TABLE, news)
        while attempt == self._attempt:
            asked_ms, seen = self._broker.clock.boot_ms(), self._seen
            life, version = yield partial(port.follow, self._own, sending.life, seen)
            if attempt != self._attempt:
                return
            self._complaint = ""
            sending.leased(self._name, life, asked_ms + LEASE_MS)
            self._seen = max(self._seen, version)
            if self._seen == seen:
                yield pause(self._until_news)

    def _until_news(self, go_on: Callable[[], None]) -> None:
        """...or it is time to ask again."""
        wake = self._on_news = _Once(go_on)
        self._later(ASK_MS, wake)

    # Its records.

    def _read(self, attempt: int) -> Steps:
        begin = f"{TO}{self._own}/"

        def changed(key: str, value: bytes | None) -> None:
            if attempt != self._attempt or not key.startswith(begin):
                return
            light = self._number(TABLE, key, value) if value is not None else None
            if light is None:
                self._queues.pop(key[len(begin) :], None)
            else:
                self._queues[key[len(begin) :]] = light
                self._on_records()

        yield partial(self._port.watch_table, QUEUES_TABLE, changed)
        rows: dict[str, bytes] = yield partial(self._port.watch_table, TABLE, None)
        for key, value in rows.items():
            changed(key, value)
        while attempt == self._attempt:
            if not self._queues:
                yield pause(self._until_records)
                continue
            life, light = min(self._queues.items(), key=lambda item: item[1])
            yield from self._drain(attempt, life, light)

    def _until_records(self, go_on: Callable[[], None]) -> None:
        """...or a later start has another forward queue."""
        self._on_records = _Once(go_on)
        if not self._polls:
            self._polls = True
            self._later(ASK_MS, self._poll)

    def _poll(self) -> None:
        self._polls = False
        self._on_records()

    def _until_pull(self, go_on: Callable[[], None]) -> None:
        self._pulled_s = self._pulls.wait(self._pulled_s, go_on)

    def _drain(self, attempt: int, life: str, light: int) -> Steps:
        """Read a forward queue, the one of the present start for ever. One of an earlier start is deleted at its end."""
        port = self._port
        info: CursorInfo = yield partial(port.open_cursor, f"~{light}", CURSOR_GROUP, EARLIEST)
        at = self._broker.receiving.progress(self._name, life)
        if at:  # it was taken over an earlier connection, and may not have been settled before that ended
            self._broker.receiving.when_flushed(partial(self._flushed, attempt, info.cursor, at, 0))
        while attempt == self._attempt:
            if self._unflushed >= UNFLUSHED_MAX:
                yield pause(self._until_records)
                continue
            yield pause(self._until_pull)
            if attempt != self._attempt:
                return
            found: Scanned = yield partial(port.read_forward, info.cursor, at)
            if attempt != self._attempt:
                return
            if found.following > at:
                yield from self._take(attempt, life, info.cursor, at, found)
                at = found.following
            elif light != max(self._queues.values(), default=light) and not self._unflushed:
                yield partial(port.delete_light, light)
                self._queues.pop(life, None)
                return
            else:
                yield pause(self._until_records)

    def _take(self, attempt: int, life: str, cursor: int, begin: int, found: Scanned) -> Steps:
        receiving = self._broker.receiving

        def take(token: Any, on_done: Done) -> None:
            receiving.take(self._name, life, found.deliveries, found.following, partial(_answer, token, on_done))

        while (error := (yield take)) is not None:
            if error != self._complaint:
                log.warning("records of broker group %s wait: %s", self._name, error)
            self._complaint = error
            yield pause(partial(self._later, BUSY_MS))
            if attempt != self._attempt:
                return
        if attempt != self._attempt:  # they come again over the next connection, and are settled there
            return
        count = found.following - begin
        self._unflushed += count
        receiving.when_flushed(partial(self._flushed, attempt, cursor, found.following, count))

    def _flushed(self, attempt: int, cursor: int, end: int, count: int) -> None:
        if attempt == self._attempt:
            self._unflushed -= count
            self._port.settle_forward(cursor, end)
            self._on_records()


class _Once:
    """Calls once, whoever wakes it first."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


def _nothing() -> None:
    """Nobody waits."""


def _answer(token: Any, on_done: Done, error: GantryError | None) -> None:
    """An error is an answer here: a procedure would raise it."""
    text = None if error is None else error.text or ErrorCode(error.code).name
    on_done(token, text)
