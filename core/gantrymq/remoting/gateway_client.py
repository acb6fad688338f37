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

from gantrymq.broker.port import CursorInfo, Delivery, Done, Outcome, Route, Start, TopicInfo
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameError, FrameReader
from gantrymq.remoting.constants import FLAG_ONEWAY
from gantrymq.remoting.gateway_wire import (
    PROTOCOL_VERSION,
    GatewayCode,
    decode_body,
    encode_body,
    pack_sent,
    unpack_error,
    unpack_result,
    unpack_stored,
)

log = logging.getLogger(__name__)

CALLS_MAX: Final = 100_000
"""Calls without an answer; beyond it a submit is answered BUSY, so that a stuck broker costs bounded
memory."""

SUBMIT_BODY_BYTES: Final = 8 << 20
"""Bodies and properties in one request; a larger batch is sent in parts."""

_Convert = Callable[[Any], Any]


def _cursor_info(row: list[int] | None) -> CursorInfo | None:
    return None if row is None else CursorInfo(*row)


def _deliveries(rows: list[list[Any]]) -> list[Delivery]:
    return [Delivery(unpack_stored(row[2]), row[0], row[1]) for row in rows]


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


class RemoteBrokerPort:
    """`send(frame)` hands a frame to the connection; `received(data)` takes what came."""

    def __init__(self, send: Callable[[bytes], None], on_mark: Callable[[], None]) -> None:
        self._send = send
        self._mark = on_mark
        self._reader = FrameReader()
        self._opaque = 0
        self._calls: dict[int, tuple[Any, Done, _Convert | None]] = {}
        self._settled: list[tuple[int, int, int]] = []
        self._watchers: dict[int, Callable[[int], None]] = {}
        self._taps: dict[int, Callable[[list[tuple[Message, tuple[int, ...]]]], None]] = {}
        self._tables: dict[str, list[Callable[[str, bytes | None], None]]] = {}
        self._leases: dict[str, Callable[[str], None]] = {}
        self._tuples: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._states: list[Callable[[bool], None]] = []
        self.up = False
        self.on_close: Callable[[], None] = lambda: None
        """Ends the connection for good."""

    # The connection.

    def connected(self, token: Any, on_done: Done) -> None:
        """The socket is open: say hello; `on_done` gets the version or an error, then `ready` may be
        called."""
        self._reader = FrameReader()
        self.up = True
        self.hello(token, on_done)

    def hello(self, token: Any, on_done: Done) -> None:
        """Also a sign of life."""
        self._call(GatewayCode.HELLO, [PROTOCOL_VERSION], token, on_done)

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
        for table in (self._watchers, self._taps, self._tables, self._leases, self._tuples):
            table.clear()
        self._settled.clear()
        for token, on_done, _ in calls.values():
            on_done(token, error)
        for on_state in list(self._states):
            on_state(False)

    def close(self) -> None:
        """Nobody uses it any more; what is open at the broker ends with the connection. May be called twice."""
        self.on_close()

    def received(self, data: bytes) -> None:
        """Answers and notices; raises FrameError if the stream is broken."""
        for command in self._reader.feed(data):
            if command.is_response:
                self._answered(command)
            else:
                self._noticed(command)

    def flush(self) -> None:
        """End of the turn: everything settled in it goes out as one request."""
        if self._settled and self.up:
            items, self._settled = self._settled, []
            self._one_way(GatewayCode.SETTLE, [items])

    def _answered(self, command: Command) -> None:
        call = self._calls.pop(command.opaque, None)
        if call is None:
            return
        token, on_done, convert = call
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
        elif command.code == GatewayCode.NOTICE_RECORDS:
            on_records = self._taps.get(arguments[0])
            if on_records is not None:
                on_records([(unpack_stored(row), self._same(tuple(numbers))) for row, numbers in arguments[1]])
        elif command.code == GatewayCode.NOTICE_TABLE:
            for on_change in list(self._tables.get(arguments[0], ())):
                on_change(arguments[1], arguments[2])
        elif command.code == GatewayCode.NOTICE_LEASE_LOST:
            on_lost = self._leases.pop(arguments[0], None)
            if on_lost is not None:
                on_lost(arguments[0])

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
        if len(self._calls) >= CALLS_MAX:
            on_done(token, GantryError(ErrorCode.BUSY, f"{CALLS_MAX} calls wait for the broker"))
            return
        self.flush()
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        self._calls[self._opaque] = (token, on_done, convert)
        self._send(codec.encode(Command(code, None, encode_body(arguments), self._opaque)))

    def _one_way(self, code: GatewayCode, arguments: list[Any]) -> None:
        if self.up:
            self._opaque = self._opaque + 1 & 0x7FFFFFFF
            self._send(codec.encode(Command(code, None, encode_body(arguments), self._opaque, FLAG_ONEWAY)))

    # BrokerPort; see broker/port.py.

    def submit(self, batch: Sequence[Message], token: Any, on_done: Done) -> None:
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

    def _submit(self, batch: Sequence[Message], token: Any, on_done: Done) -> None:
        def convert(values: list[int | str]) -> list[int | ErrorCode]:
            return [unpack_result(value) for value in values]

        def done(token: Any, result: Any) -> None:
            on_done(token, [result.code] * len(batch) if isinstance(result, GantryError) else result)

        self._call(GatewayCode.SUBMIT, [[pack_sent(message) for message in batch]], token, done, convert)

    def ensure_topic(self, name: str, create: bool, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.ENSURE_TOPIC, [name, create], token, on_done, _topic)

    def topics(self, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.TOPICS, [], token, on_done, lambda rows: [_topic(row) for row in rows])

    def read(self, refs: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        def convert(rows: list[Any]) -> list[Message | None]:
            return [None if row is None else unpack_stored(row) for row in rows]

        self._call(GatewayCode.READ, [refs], token, on_done, convert)

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

    def create_light(self, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.CREATE_LIGHT, [], token, on_done)

    def delete_light(self, light: int, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.DELETE_LIGHT, [light], token, on_done)

    def open_cursor(self, queue: str, group: str, start: Start, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.OPEN_CURSOR, [queue, group, start.kind, start.at_ms], token, on_done, _cursor_info)

    def delete_cursor(self, cursor: int, token: Any, on_done: Done) -> None:
        self._watchers.pop(cursor, None)
        self._call(GatewayCode.DELETE_CURSOR, [cursor], token, on_done)

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.ACQUIRE, [cursor, holder, count_max, bytes_max], token, on_done, _deliveries)

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

    def stats(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        self._call(GatewayCode.STATS, [list(cursors)], token, on_done, lambda rows: [_cursor_info(row) for row in rows])

    def purge(self, cursor: int, token: Any, on_done: Done) -> None:
        self._call(GatewayCode.PURGE, [cursor], token, on_done)

    def put(self, table: str, items: Sequence[tuple[str, bytes | None]], token: Any, on_done: Done) -> None:
        self._call(GatewayCode.PUT, [table, list(items)], token, on_done)

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: Any, on_done: Done
    ) -> None:
        first = on_change is not None and table not in self._tables
        if on_change is not None:
            self._tables.setdefault(table, []).append(on_change)
        self._call(GatewayCode.WATCH_TABLE, [table, first], token, on_done)

    def take_lease(self, name: str, force: bool, on_lost: Callable[[str], None], token: Any, on_done: Done) -> None:
        def taken(epoch: int) -> int:
            # A holder of this very gateway was told by a notice that came before this answer.
            self._leases[name] = on_lost
            return epoch

        self._call(GatewayCode.TAKE_LEASE, [name, force], token, on_done, taken)

    def drop_lease(self, name: str, epoch: int) -> None:
        self._leases.pop(name, None)
        self._one_way(GatewayCode.DROP_LEASE, [name, epoch])

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        self._states.append(on_state)
        on_state(self.up)
