"""RemoteBrokerPort: the BrokerPort of a gateway process, over one pipelined Remoting connection to a broker.

The core is sans-IO; `connect` at the end finds the broker through the nameservers and keeps the connection.
When it is lost every open call ends with UNAVAILABLE and `on_state(False)` follows; what was open at the
broker must be opened again when it is back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gantrymq.broker.forward.holding import Ends
from gantrymq.broker.port import (
    DETAILS_MAX,
    CursorDetails,
    CursorInfo,
    Delivery,
    Done,
    Outcome,
    Route,
    Scanned,
    Start,
    Terms,
    TopicInfo,
    refused_for_now,
)
from gantrymq.broker.tables.slots import Under
from gantrymq.cluster.wire.codec import (
    PROTOCOL_VERSION,
    ForeignBrokerError,
    GatewayCode,
    decode_body,
    encode_body,
    frame_of,
    pack_sent,
    unpack_error,
    unpack_results,
    unpack_stored,
)
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy, policy_to
from gantrymq.remoting.codec import Command, FrameError, FrameReader
from gantrymq.remoting.constants import FLAG_ONEWAY, ResponseCode

log = logging.getLogger(__name__)

CALLS_MAX: Final = 100_000
"""Calls without an answer; beyond it a submit is answered BUSY, so that a stuck broker costs bounded
memory."""

SUBMIT_BODY_BYTES: Final = 8 << 20
"""Bodies and properties in one request; a larger batch is sent in parts."""

REFS_AT_ONCE: Final = 4096
"""Records asked for in one READ."""

SETTLE_AT_ONCE: Final = 100_000
"""Entries in one SETTLE: at most 20 bytes each."""

STATS_AT_ONCE: Final = 65_536
"""Cursors in one STATS; the broker takes no more."""

_Convert = Callable[[Any], Any]


def _cursor_info(row: list[int] | None) -> CursorInfo | None:
    return None if row is None else CursorInfo(*row)


def _deliveries(rows: list[list[Any]]) -> list[Delivery]:
    return [Delivery(unpack_stored(row[2]), row[0], row[1]) for row in rows]


def _details(row: list[Any]) -> list[CursorDetails | None]:
    return [None if each is None else CursorDetails(*each) for each in row[0]]


def _scanned(row: list[Any]) -> Scanned:
    return Scanned(_deliveries(row[0]), row[1], row[2])


def _topic(row: list[Any]) -> TopicInfo:
    return TopicInfo(row[0], row[1], row[2])


class _Parts:
    """A submit that was sent in parts: one `on_done` with all results."""

    def __init__(self, parts: int, token: Any, on_done: Done) -> None:
        self.left = parts
        self.results: list[list[Any]] = [[] for _ in range(parts)]
        self.token = token
        self.on_done = on_done
        self.error: GantryError | None = None

    def done(self, index: int, result: Any) -> None:
        """A part was answered."""
        if isinstance(result, GantryError):
            self.error = result
        else:
            self.results[index] = result
        self.left -= 1
        if not self.left:
            whole: Any = self.error or [value for part in self.results for value in part]
            self.on_done(self.token, whole)


class _Reading:
    """A table on its way in parts. `changes`: what changed since its first part, by key."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.changes: dict[str, bytes | None] = {}

    def result(self) -> dict[str, bytes]:
        """The table as it is now."""
        for key, value in self.changes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        return self.rows


class RemoteBrokerPort:
    """`send(frame)` hands a frame to the connection; `received(data)` takes what came."""

    keeps_order = False

    def __init__(
        self,
        send: Callable[[bytes], None],
        on_mark: Callable[[], None],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._send = send
        self._mark = on_mark
        self._reader = FrameReader()
        self._opaque = 0
        self._calls: dict[int, tuple[Any, Done, _Convert | None]] = {}
        self._settled: list[tuple[int, int, int]] = []
        self._settled_forward: dict[int, int] = {}
        """By cursor, below which offset."""
        self._watchers: dict[int, Callable[[int], None]] = {}
        self._seats: dict[tuple[int, int], Callable[[int, bool], None]] = {}
        """By cursor and seat."""
        self._taps: dict[int, Callable[[list[tuple[Message, tuple[int, ...]]]], None]] = {}
        self._tables: dict[str, list[Callable[[str, bytes | None], None]]] = {}
        self._readings: dict[str, list[_Reading]] = {}
        self._leases: dict[str, tuple[int, Callable[[str], None]]] = {}
        self._tuples: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._states: list[Callable[[bool], None]] = []
        self._round = 0
        """Sent with every submit: the broker refuses what was sent behind a refused one before its answer came."""
        self._body_bytes_max = BODY_BYTES_CEILING
        """What the broker announced last; it says so again with each hello."""
        self.up = False
        self.heard = 0
        self._on_close = on_close

    # The connection.

    def connected(self, token: Any, on_done: Done) -> None:
        """The socket is open: say hello; `on_done` gets the version or an error, then `ready` may be
        called."""
        self._reader = FrameReader()
        self._round = 0
        self.up = True
        self.hello(token, on_done)

    def hello(self, token: Any, on_done: Done) -> None:
        """Also a sign of life."""
        self._call(GatewayCode.HELLO, [PROTOCOL_VERSION], token, on_done, self._greeted)

    def _greeted(self, answer: list[int]) -> int:
        version, self._body_bytes_max = answer
        return version

    def ready(self) -> None:
        """The broker answered: tell who waits for it."""
        for on_state in list(self._states):
            on_state(True)

    def lost(self, text: str) -> None:
        """The connection is gone."""
        if not self.up:
            return
        self.up = False
        error = GantryError(ErrorCode.UNAVAILABLE, text)
        calls, self._calls = self._calls, {}
        for table in (
            self._watchers,
            self._seats,
            self._taps,
            self._tables,
            self._readings,
            self._leases,
            self._tuples,
        ):
            table.clear()
        self._settled.clear()
        self._settled_forward.clear()
        for token, on_done, _ in calls.values():
            on_done(token, error)
        for on_state in list(self._states):
            on_state(False)

    def close(self) -> None:
        """Nobody uses it any more; what is open at the broker ends with the connection. May be called twice."""
        self._on_close()

    def received(self, data: bytes) -> None:
        """Answers and notices; raises FrameError if the stream is broken."""
        self.heard += 1
        for command in self._reader.feed(data):
            if command.is_response:
                self._answered(command)
            else:
                self._noticed(command)

    def flush(self) -> None:
        """End of the turn: everything settled in it goes out together."""
        if self._settled and self.up:
            items, self._settled = self._settled, []
            for first in range(0, len(items), SETTLE_AT_ONCE):
                self._one_way(GatewayCode.SETTLE, [items[first : first + SETTLE_AT_ONCE]])
        if self._settled_forward and self.up:
            ends, self._settled_forward = self._settled_forward, {}
            for cursor, end in ends.items():
                self._one_way(GatewayCode.SETTLE_FORWARD, [cursor, end])

    def _answered(self, command: Command) -> None:
        call = self._calls.pop(command.opaque, None)
        if call is None:
            return
        token, on_done, convert = call
        if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            on_done(token, ForeignBrokerError(ErrorCode.UNAVAILABLE, command.remark or "it knows no gateways"))
            return
        if command.code != 0:
            on_done(token, unpack_error(command.body, command.remark or ""))
            return
        try:
            result = decode_body(command.body)
            if convert is not None:
                result = convert(result)
        except (msgspec.DecodeError, TypeError, ValueError, IndexError, KeyError) as error:
            on_done(token, GantryError(ErrorCode.UNAVAILABLE, f"the broker's answer cannot be read: {error}"))
            return
        on_done(token, result)

    def _noticed(self, command: Command) -> None:
        try:
            arguments = decode_body(command.body)
        except msgspec.DecodeError as error:
            raise FrameError(f"notice {command.code} cannot be read: {error}") from error
        if command.code == GatewayCode.NOTICE_READY:
            watcher = self._watchers.get(arguments[0])
            if watcher is not None:
                watcher(arguments[0])
        elif command.code == GatewayCode.NOTICE_TURN:
            on_turn = self._seats.get((arguments[0], arguments[1]))
            if on_turn is not None:
                on_turn(arguments[1], arguments[2])
        elif command.code == GatewayCode.NOTICE_RECORDS:
            on_records = self._taps.get(arguments[0])
            if on_records is not None:
                on_records([(unpack_stored(row), self._same(tuple(numbers))) for row, numbers in arguments[1]])
        elif command.code == GatewayCode.NOTICE_TABLE:
            for reading in self._readings.get(arguments[0], ()):
                reading.changes.pop(arguments[1], None)
                reading.changes[arguments[1]] = arguments[2]
            for on_change in list(self._tables.get(arguments[0], ())):
                on_change(arguments[1], arguments[2])
        elif command.code == GatewayCode.NOTICE_LEASE_LOST:
            lease = self._leases.pop(arguments[0], None)
            if lease is not None:
                lease[1](arguments[0])

    def _same(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._tuples) > 10_000:
            self._tuples.clear()
        return self._tuples.setdefault(numbers, numbers)

    def _call(
        self, code: GatewayCode, arguments: list[Any], token: Any, on_done: Done, convert: _Convert | None = None
    ) -> None:
        if not self.up:
            on_done(token, GantryError(ErrorCode.UNAVAILABLE, "the broker is not connected"))
            return
        # A long answer is read to its end: the broker keeps the rest of it.
        if len(self._calls) >= CALLS_MAX and code != GatewayCode.NEXT:
            on_done(token, GantryError(ErrorCode.BUSY, f"{CALLS_MAX} calls wait for the broker"))
            return
        self.flush()
        opaque = self._opaque + 1 & 0x7FFFFFFF
        try:
            frame = frame_of(code, encode_body(arguments), opaque)
        except ValueError as error:
            on_done(token, GantryError(ErrorCode.MESSAGE_TOO_LARGE, f"{code.name}: {error}"))
            return
        self._opaque = opaque
        self._calls[opaque] = (token, on_done, convert)
        self._send(frame)

    def _one_way(self, code: GatewayCode, arguments: list[Any]) -> None:
        if self.up:
            self._opaque = self._opaque + 1 & 0x7FFFFFFF
            self._send(frame_of(code, encode_body(arguments), self._opaque, FLAG_ONEWAY))

    # BrokerPort; see broker/port.py.

    def body_bytes_max(self) -> int:
        return self._body_bytes_max

    def submit(
        self,
        batch: Sequence[Message],
        token: Any,
        on_done: Done,
        sender: object = None,
        *,
        settle: Sequence[tuple[int, int, Outcome]] = (),
        rows: Sequence[tuple[str, str, bytes | None]] = (),
    ) -> None:
        if settle or rows:  # one frame, whatever its size
            self._submit(batch, token, on_done, ([(*item[:2], int(item[2])) for item in settle], list(rows)))
            return
        if sum([len(message.body) + len(message.properties) for message in batch]) <= SUBMIT_BODY_BYTES:
            self._submit(batch, token, on_done)
            return
        parts: list[list[Message]] = [[]]
        size = 0
        for message in batch:
            message_bytes = len(message.body) + len(message.properties)
            if parts[-1] and size + message_bytes > SUBMIT_BODY_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(message)
            size += message_bytes
        whole = _Parts(len(parts), token, on_done)
        for index, part in enumerate(parts):
            self._submit(part, index, whole.done)

    def _submit(self, batch: Sequence[Message], token: Any, on_done: Done, companions: tuple[Any, ...] = ()) -> None:
        sent_in = self._round

        def done(token: Any, result: Any) -> None:
            if refused_for_now(result):
                self._round = max(self._round, sent_in + 1)
            each = isinstance(result, GantryError) and not companions
            on_done(token, [result.code] * len(batch) if each else result)

        code = GatewayCode.SUBMIT_WITH if companions else GatewayCode.SUBMIT
        self._call(code, [pack_sent(batch), sent_in, *companions], token, done, unpack_results)

    def ensure_topic(self, name: str, create: int, token: Any, on_done: Done, *, near: str = "") -> None:
        self._call(GatewayCode.ENSURE_TOPIC, [name, create], token, on_done, _topic)

    def topics(self, token: Any, on_done: Done) -> None:
        found: list[TopicInfo] = []
        self._long(GatewayCode.TOPICS, [], lambda row: found.append(_topic(row)), lambda: found, token, on_done)

    def read(self, refs: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        found: list[Message | None] = []

        def convert(rows: list[Any]) -> list[Message | None]:
            return [None if row is None else unpack_stored(row) for row in rows]

        def part(token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                on_done(token, result)
                return
            found.extend(result)
            if len(found) < len(refs) and result:
                self._call(GatewayCode.READ, [refs[len(found) : len(found) + REFS_AT_ONCE]], token, part, convert)
            else:
                on_done(token, found)

        self._call(GatewayCode.READ, [refs[:REFS_AT_ONCE]], token, part, convert)

    def add_route(self, route: Route, token: Any, on_done: Done) -> None:
        row = [route.route_id, route.kind, route.topic, route.expression, route.light]
        self._call(GatewayCode.ADD_ROUTE, [row], token, on_done)

    def remove_routes(self, route_ids: Sequence[str], token: Any, on_done: Done) -> None:
        self._call(GatewayCode.REMOVE_ROUTES, [list(route_ids)], token, on_done)

    def open_tap(
        self, on_records: Callable[[list[tuple[Message, tuple[int, ...]]]], None], token: Any, on_done: Done
    ) -> None:
        def opened(handle: int) -> int:
            self._taps[handle] = on_records
            return handle

        self._call(GatewayCode.OPEN_TAP, [], token, on_done, opened)

    def close_tap(self, tap: int) -> None:
        self._taps.pop(tap, None)
        self._one_way(GatewayCode.CLOSE_TAP, [tap])

    def add_volatile(
        self, tap: int, number: int, kind: str, topic: str | None, expression: str, token: Any, on_done: Done
    ) -> None:
        self._call(GatewayCode.ADD_VOLATILE, [tap, number, kind, topic, expression], token, on_done)

    def remove_volatile(self, tap: int, numbers: Sequence[int]) -> None:
        self._one_way(GatewayCode.REMOVE_VOLATILE, [tap, list(numbers)])

    def create_light(self, token: Any, on_done: Done, *, name: str = "", slot: int = -1) -> None:
        self._call(GatewayCode.CREATE_LIGHT, [slot], token, on_done)

    def delete_light(self, light: int, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.DELETE_LIGHT, [light], token, on_done)

    def open_cursor(self, queue: str, group: str, start: Start, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.OPEN_CURSOR, [queue, group, start.kind, start.at_ms], token, on_done, _cursor_info)

    def set_policy(self, cursor: int, policy: Policy, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.SET_POLICY, [cursor, policy_to(policy)], token, on_done)

    def delete_cursor(self, cursor: int, token: Any, on_done: Done) -> None:
        self._watchers.pop(cursor, None)
        self._call(GatewayCode.DELETE_CURSOR, [cursor], token, on_done)

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.ACQUIRE, [cursor, holder, count_max, bytes_max], token, on_done, _deliveries)

    def scan(self, cursor: int, offset: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.SCAN, [cursor, offset, count_max, bytes_max], token, on_done, _scanned)

    def seek(self, cursor: int, start: Start, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.SEEK, [cursor, start.kind, start.at_ms], token, on_done)

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        if self.up:
            self._settled.extend([(cursor, offset, int(outcome)) for cursor, offset, outcome in items])
            self._mark()

    def release(self, holder: int) -> None:
        self.flush()
        self._one_way(GatewayCode.RELEASE, [holder])

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None:
        if on_ready is None:
            self._watchers.pop(cursor, None)
        else:
            self._watchers[cursor] = on_ready
        self._one_way(GatewayCode.WATCH, [cursor, on_ready is not None])

    def take_seat(
        self, cursor: int, terms: Terms, on_turn: Callable[[int, bool], None], token: Any, on_done: Done
    ) -> None:
        def taken(row: list[Any]) -> tuple[int, bool]:
            self._seats[cursor, row[0]] = on_turn
            return row[0], row[1]

        arguments = [cursor, terms.exclusive, terms.single, terms.rank]
        self._call(GatewayCode.TAKE_SEAT, arguments, token, on_done, taken)

    def leave_seat(self, cursor: int, seat: int, token: Any, on_done: Done) -> None:
        self._seats.pop((cursor, seat), None)
        self._call(GatewayCode.LEAVE_SEAT, [cursor, seat], token, on_done)

    def rank(self, cursor: int, rank: int) -> None:
        self._one_way(GatewayCode.RANK, [cursor, rank])

    def stats(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        found: list[CursorInfo | None] = []

        def convert(rows: list[Any]) -> list[CursorInfo | None]:
            return [_cursor_info(row) for row in rows]

        def part(token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                on_done(token, result)
                return
            found.extend(result)
            if len(found) < len(cursors):
                following = list(cursors[len(found) : len(found) + STATS_AT_ONCE])
                self._call(GatewayCode.STATS, [following], token, part, convert)
            else:
                on_done(token, found)

        self._call(GatewayCode.STATS, [list(cursors[:STATS_AT_ONCE])], token, part, convert)

    def details(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        self._call(GatewayCode.DETAILS, [list(cursors[:DETAILS_MAX])], token, on_done, _details)

    def catch_up(self, cursor: int, token: Any, on_done: Done) -> None:
        on_done(token, False)

    def purge(self, cursor: int, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.PURGE, [cursor], token, on_done)

    def put(
        self, table: str, items: Sequence[tuple[str, bytes | None]], token: Any, on_done: Done, *, deputy: bool = False
    ) -> None:
        self._call(GatewayCode.PUT, [table, list(items), deputy], token, on_done)

    def put_if(
        self, table: str, items: Sequence[tuple[str, bytes | None, bytes | None]], token: Any, on_done: Done
    ) -> None:
        self._call(GatewayCode.PUT_IF, [table, list(items)], token, on_done)

    def put_together(
        self,
        table: str,
        key: str,
        expected: bytes | None,
        items: Sequence[tuple[str, bytes | None]],
        token: Any,
        on_done: Done,
    ) -> None:
        self._call(GatewayCode.PUT_TOGETHER, [table, key, expected, list(items)], token, on_done)

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: Any, on_done: Done
    ) -> None:
        reading = _Reading()

        def add(row: list[Any]) -> None:
            if not reading.rows:
                self._readings.setdefault(table, []).append(reading)
            reading.rows[row[0]] = row[1]

        def done(token: Any, result: Any) -> None:
            readings = self._readings.get(table, [])
            if reading in readings:
                readings.remove(reading)
                if not readings:
                    del self._readings[table]
            if on_change is not None and not isinstance(result, GantryError):
                watchers = self._tables.setdefault(table, [])
                if on_change not in watchers:
                    watchers.append(on_change)
            on_done(token, result)

        self._long(GatewayCode.WATCH_TABLE, [table, on_change is not None], add, reading.result, token, done)

    def _long(
        self,
        code: GatewayCode,
        arguments: list[Any],
        add: Callable[[list[Any]], None],
        whole: Callable[[], Any],
        token: Any,
        on_done: Done,
    ) -> None:
        """A call whose answer comes in parts: `add` gets each row, and `whole()` is the result."""

        def convert(answer: list[Any]) -> int | None:
            rows: list[list[Any]] = answer[0]
            continuation: int | None = answer[1]
            for row in rows:
                add(row)
            return continuation

        def part(token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                on_done(token, result)
            elif result is None:
                on_done(token, whole())
            else:
                self._call(GatewayCode.NEXT, [result], token, part, convert)

        self._call(code, arguments, token, part, convert)

    def take_lease(
        self, name: str, force: bool, on_lost: Callable[[str], None], token: Any, on_done: Done,
        *, deputy: bool = False, under: Under | None = None,
    ) -> None:  # fmt: skip
        def taken(epoch: int) -> int:
            # A holder of this very gateway was told by a notice that came before this answer.
            self._leases[name] = (epoch, on_lost)
            return epoch

        self._call(GatewayCode.TAKE_LEASE, [name, force, under], token, on_done, taken)

    def is_free(self, name: str, token: Any, on_done: Done, *, under: Under | None = None) -> None:
        self._call(GatewayCode.IS_FREE, [name, under], token, on_done)

    def stop_slots(self, wanted: Sequence[Under], only_free: bool, token: Any, on_done: Done) -> None:
        """Result: the group's start, and which of the slots it answers for no more."""
        self._call(GatewayCode.STOP_SLOTS, [list(wanted), only_free], token, on_done, lambda row: (row[0], row[1]))

    def follow(self, name: str, life: str, seen: int, token: Any, on_done: Done) -> None:
        """Result: see `Receiving.heard`."""
        self._call(GatewayCode.FOLLOW, [name, life, seen], token, on_done, lambda row: (str(row[0]), int(row[1])))

    def forward_end(self, peer: str, token: Any, on_done: Done) -> None:
        """Result: see `Sending.end_for`."""
        self._call(GatewayCode.FORWARD_END, [peer], token, on_done, lambda row: (str(row[0]), int(row[1])))

    def await_forward(self, source: str, life: str, offset: int, token: Any, on_done: Done) -> None:
        """Result: see `Receiving.await_progress`."""
        self._call(GatewayCode.AWAIT_FORWARD, [source, life, offset], token, on_done)

    def read_forward(self, cursor: int, offset: int, token: Any, on_done: Done) -> None:
        """Result: see `Feeding.ask`."""
        self._call(GatewayCode.READ_FORWARD, [cursor, offset], token, on_done, _scanned)

    def settle_forward(self, cursor: int, end: int) -> None:
        """See `Feeding.settle`."""
        if self.up:
            self._settled_forward[cursor] = end
            self._mark()

    def read_light(self, light: int, offset: int, bytes_max: int, token: Any, on_done: Done) -> None:
        """Result: see `Leaving.read`."""
        self._call(GatewayCode.READ_LIGHT, [light, offset, bytes_max], token, on_done, _scanned)

    def freeze_lights(
        self, queues: Sequence[tuple[int, int]], target: str, move: str, token: Any, on_done: Done
    ) -> None:
        """Result: see `Leaving.freeze`."""
        self._call(GatewayCode.FREEZE_LIGHTS, [list(queues), target, move], token, on_done)

    def end_freeze(self, lights: Sequence[int], move: str, gone: bool, token: Any, on_done: Done) -> None:
        """See `Leaving.gone` and `Leaving.thaw`."""
        self._call(GatewayCode.END_FREEZE, [list(lights), move, gone], token, on_done)

    def hold_records(self, source: str, target: str, token: Any, on_done: Done) -> None:
        """Result: see `Holding.hold`."""
        self._call(GatewayCode.HOLD_RECORDS, [source, target], token, on_done, lambda row: Ends(*row))

    def release_records(self, target: str, number: int, token: Any, on_done: Done) -> None:
        """See `Holding.release`."""
        self._call(GatewayCode.RELEASE_RECORDS, [target, number], token, on_done)

    def queues_came(self, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        """Result: see `Arriving.came`."""
        self._call(GatewayCode.QUEUES_CAME, [list(queues)], token, on_done)

    def take_queues(self, source: str, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        """See `Mover.take`."""
        self._call(GatewayCode.TAKE_QUEUES, [source, list(queues)], token, on_done)

    def drop_lease(self, name: str, epoch: int) -> None:
        lease = self._leases.get(name)
        if lease is not None and lease[0] == epoch:
            del self._leases[name]
        self._one_way(GatewayCode.DROP_LEASE, [name, epoch])

    def answers_for(self, name: str) -> bool:
        return self.up

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        self._states.append(on_state)
        on_state(self.up)
