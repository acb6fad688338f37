"""Broker's side of a gateway process: one `GatewaySession` per connection, over a LocalBrokerPort of its own.

What a gateway holds (leases, leased entries, taps, watches) ends with its connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from gantrymq.broker.broker import Broker
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import (
    CursorDetails,
    CursorInfo,
    Delivery,
    Outcome,
    Route,
    Scanned,
    Start,
    Terms,
    TopicInfo,
    refused_for_now,
)
from gantrymq.broker.row_checks import refuse_unreadable
from gantrymq.cluster.wire.calls import Checked, RouteRow, Sent, decode_call
from gantrymq.cluster.wire.codec import (
    PROTOCOL_VERSION,
    GatewayCode,
    encode_body,
    frame_of,
    pack_error,
    pack_results,
    pack_stored,
)
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import policy_from
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from gantrymq.remoting.server.table_rows import CHECKS

log = logging.getLogger(__name__)

OUTCOMES: Final = tuple(Outcome)
"""By number."""

ONE_WAY: Final = frozenset(
    {
        GatewayCode.SETTLE,
        GatewayCode.RELEASE,
        GatewayCode.WATCH,
        GatewayCode.CLOSE_TAP,
        GatewayCode.REMOVE_VOLATILE,
        GatewayCode.DROP_LEASE,
        GatewayCode.RANK,
        GatewayCode.SETTLE_FORWARD,
    }
)
"""Calls without `on_done`: no answer."""

CHECK_EVERY_MS: Final = 1_000
SILENT_CHECKS: Final = 8
"""A gateway says hello every second; one from which nothing came from one check to the next so many times is gone (its host is, or it was stopped):
what it holds is free for others. Checks are counted, not time: a broker that was stopped itself first reads what came meanwhile."""

RECORDS_PER_FRAME: Final = 512
"""Records of a tap in one notice, so that a frame stays far below the frame limit with ordinary bodies."""

FRAME_BODY_BYTES: Final = 8 << 20
"""Bodies and properties in one frame; a single larger one travels alone (the message limit is below the frame limit)."""

ANSWER_BYTES: Final = 4 << 20
"""Records or rows in one answer, counted without what msgpack adds; a single larger one travels alone. What a record's row says twice
(its tag) and the rest of it (some 200 bytes) still leave the frame below its limit."""

REFS_MAX: Final = 4096
"""Records of one answer to READ, and as many as `acquire` leases at most."""

ROW_BYTES: Final = 32
"""Counted for each row of a long answer besides its text and bytes."""

CONTINUATIONS_MAX: Final = 64
"""Long answers of one gateway that are not read to their end. Each keeps a table's rows alive; a door reads one at a time, and asks for
the next part as soon as it has one."""

STATS_MAX: Final = 65_536
"""Cursors in one STATS: at most 40 bytes each."""


class _Long:
    """An answer in parts: rows as they were when it was asked for. `sized`: (bytes, row)."""

    def __init__(self, sized: Iterator[tuple[int, Any]]) -> None:
        self._sized = sized
        self._ahead = next(sized, None)

    def part(self) -> list[Any]:
        """The next rows."""
        rows: list[Any] = []
        size = 0
        while self._ahead is not None:
            size += self._ahead[0] + ROW_BYTES
            if rows and size > ANSWER_BYTES:
                break
            rows.append(self._ahead[1])
            self._ahead = next(self._sized, None)
        return rows

    def is_over(self) -> bool:
        """Nothing is left."""
        return self._ahead is None


def _info(info: CursorInfo | None) -> list[int] | None:
    return None if info is None else [info.cursor, info.ready, info.unacked, info.next_offset, info.consumers]


def _row(row: CursorDetails | None) -> list[int] | None:
    return None if row is None else [row.ready, row.unacked, row.consumers, row.end, row.pinned]


def _plain(result: Any) -> Any:
    """A result as msgpack can carry it."""
    if isinstance(result, CursorInfo):
        return _info(result)
    if isinstance(result, TopicInfo):
        return [result.name, result.read_queues, result.write_queues]
    if isinstance(result, Scanned):
        return [_plain(result.deliveries), result.following, result.at_end]
    if isinstance(result, list) and result:
        first = result[0]
        if isinstance(first, Delivery):
            return [[delivery.offset, delivery.count, pack_stored(delivery.message)] for delivery in result]
        if isinstance(first, TopicInfo):
            return [_plain(info) for info in result]
        if isinstance(first, (bool, bytes)):
            return result
        if isinstance(first, (int, ErrorCode)):
            return pack_results(result)
        if any(isinstance(value, Message) for value in result):
            return [None if message is None else pack_stored(message) for message in result]
        return [_info(info) for info in result]
    return result


def _fitting(records: list[Message | None]) -> int:
    """How many of the first records one answer takes, at least one; `READ`'s sizes are the gateway's word."""
    size = 0
    for index, message in enumerate(records):
        size += 0 if message is None else len(message.body) + len(message.properties)
        if size > FRAME_BODY_BYTES and index:
            return index
    return len(records)


class GatewaySession:
    """`send(frame)` puts a frame into the connection's outbox and marks it; `end()` closes the connection at once; `begun()`: bytes of a frame that
    is on its way."""

    def __init__(
        self,
        broker: Broker,
        peer: str,
        send: Callable[[bytes], None],
        end: Callable[[], None] = lambda: None,
        begun: Callable[[], int] = lambda: 0,
    ) -> None:
        self._broker = broker
        self._port = LocalBrokerPort(broker)
        self._peer = peer
        self._send = send
        self._end = end
        self._begun = begun
        self._open = True
        self._greeted = False
        self._handled = 0
        self._heard = (0, 0)
        self._silent = 0
        """Checks since something came."""
        self._notices = 0
        self._round = 0
        """Submits of an earlier round were sent before the gateway knew that something before them was refused for now."""
        self._watched: set[str] = set()
        self._long: dict[int, _Long] = {}
        self._next_long = 1
        self._checked = Checked()
        self._calls = self._by_code()

    def _by_code(self) -> dict[int, Callable[..., None]]:
        port = self._port
        return {
            GatewayCode.HELLO: self._hello,
            GatewayCode.SUBMIT: self._submit,
            GatewayCode.SUBMIT_WITH: self._submit,
            GatewayCode.ENSURE_TOPIC: port.ensure_topic,
            GatewayCode.TOPICS: self._topics,
            GatewayCode.READ: self._read,
            GatewayCode.NEXT: self._next,
            GatewayCode.ADD_ROUTE: self._add_route,
            GatewayCode.REMOVE_ROUTES: port.remove_routes,
            GatewayCode.OPEN_TAP: self._open_tap,
            GatewayCode.CLOSE_TAP: port.close_tap,
            GatewayCode.ADD_VOLATILE: port.add_volatile,
            GatewayCode.REMOVE_VOLATILE: port.remove_volatile,
            GatewayCode.CREATE_LIGHT: lambda slot, token, done: port.create_light(token, done, slot=slot),
            GatewayCode.DELETE_LIGHT: port.delete_light,
            GatewayCode.OPEN_CURSOR: lambda queue, group, kind, at_ms, token, done: port.open_cursor(
                queue, group, Start(kind, at_ms), token, done
            ),
            GatewayCode.DELETE_CURSOR: port.delete_cursor,
            GatewayCode.SET_POLICY: lambda cursor, policy, token, done: port.set_policy(
                cursor, policy_from(policy), token, done
            ),
            GatewayCode.ACQUIRE: lambda cursor, holder, count, size, token, done: port.acquire(
                cursor, holder, count, min(size, ANSWER_BYTES), token, done
            ),
            GatewayCode.SCAN: lambda cursor, offset, count, size, token, done: port.scan(
                cursor, offset, count, min(size, ANSWER_BYTES), token, done
            ),
            GatewayCode.SEEK: lambda cursor, kind, at_ms, token, done: port.seek(
                cursor, Start(kind, at_ms), token, done
            ),
            GatewayCode.SETTLE: lambda items: port.settle([(item[0], item[1], OUTCOMES[item[2]]) for item in items]),
            GatewayCode.RELEASE: port.release,
            GatewayCode.WATCH: lambda cursor, on: port.watch(cursor, self._ready if on else None),
            GatewayCode.TAKE_SEAT: lambda cursor, exclusive, single, rank, token, done: port.take_seat(
                cursor, Terms(exclusive, single, rank), partial(self._turn, cursor), token, done
            ),
            GatewayCode.LEAVE_SEAT: port.leave_seat,
            GatewayCode.RANK: port.rank,
            GatewayCode.STATS: self._stats,
            GatewayCode.DETAILS: self._details,
            GatewayCode.PURGE: port.purge,
            GatewayCode.PUT: self._put,
            GatewayCode.PUT_IF: self._put_if,
            GatewayCode.PUT_TOGETHER: self._put_together,
            GatewayCode.WATCH_TABLE: self._watch_table,
            GatewayCode.TAKE_LEASE: lambda name, force, under, token, done: port.take_lease(
                name, force, self._lease_lost, token, done, under=under
            ),
            GatewayCode.DROP_LEASE: port.drop_lease,
            GatewayCode.IS_FREE: lambda name, under, token, done: port.is_free(name, token, done, under=under),
            GatewayCode.STOP_SLOTS: port.stop_slots,
            GatewayCode.FOLLOW: port.follow,
            GatewayCode.FORWARD_END: port.forward_end,
            GatewayCode.AWAIT_FORWARD: port.await_forward,
            GatewayCode.READ_FORWARD: port.read_forward,
            GatewayCode.SETTLE_FORWARD: port.settle_forward,
            GatewayCode.READ_LIGHT: lambda light, offset, size, token, done: port.read_light(
                light, offset, min(size, ANSWER_BYTES), token, done
            ),
            GatewayCode.FREEZE_LIGHTS: port.freeze_lights,
            GatewayCode.END_FREEZE: port.end_freeze,
            GatewayCode.HOLD_RECORDS: port.hold_records,
            GatewayCode.RELEASE_RECORDS: port.release_records,
            GatewayCode.QUEUES_CAME: port.queues_came,
            GatewayCode.TAKE_QUEUES: port.take_queues,
        }

    def handle(self, command: Command) -> None:
        """One request of the gateway; never raises for what the peer sent."""
        self._handled += 1
        try:
            arguments = decode_call(command.code, command.body)
            call = self._calls[command.code]
            if command.code in ONE_WAY:
                call(*arguments)
            else:
                call(*arguments, command, self._done)
        except GantryError as error:
            self._done(command, error)

    def close(self) -> None:
        """The connection is gone."""
        self._open = False
        self._long.clear()
        self._port.close()

    def _done(self, command: Command, result: Any) -> None:
        if not self._open or command.flag & FLAG_ONEWAY:
            return
        if isinstance(result, GantryError):
            self._answer(command, ResponseCode.SYSTEM_ERROR, pack_error(result), result.text)
        else:
            self._answer(command, ResponseCode.SUCCESS, encode_body(_plain(result)), None)

    def _answer(self, command: Command, code: int, body: bytes, remark: str | None) -> None:
        try:
            if remark is None:
                frame = frame_of(code, body, command.opaque, FLAG_RESPONSE)
            else:
                frame = codec.encode(Command(code, None, body, command.opaque, FLAG_RESPONSE, remark))
        except ValueError as error:
            log.error("%s: answer to gateway request %d: %s", self._peer, command.code, error)
            remark = f"the answer to gateway request {command.code} is too large"
            body = pack_error(GantryError(ErrorCode.LIMIT_REACHED, remark))
            frame = codec.encode(Command(ResponseCode.SYSTEM_ERROR, None, body, command.opaque, FLAG_RESPONSE, remark))
        self._send(frame)

    def _notice(self, code: GatewayCode, arguments: list[Any]) -> None:
        if self._open:
            self._notices += 1
            self._send(frame_of(code, encode_body(arguments), self._notices & 0x7FFFFFFF, FLAG_ONEWAY))

    def _hello(self, version: int, token: Command, done: Callable[[Any, Any], None]) -> None:
        if version != PROTOCOL_VERSION:
            done(
                token,
                GantryError(
                    ErrorCode.NOT_SUPPORTED, f"gateway protocol {version}; this broker speaks {PROTOCOL_VERSION}"
                ),
            )
            return
        if not self._greeted:
            self._greeted = True
            self._arm()
        done(token, [PROTOCOL_VERSION, self._port.body_bytes_max()])

    def _arm(self) -> None:
        wheel = self._broker.wheel
        wheel.call_at(wheel.now_ms() + CHECK_EVERY_MS, self._check)

    def _check(self, now_ms: int) -> None:
        """Whether it still says something."""
        if not self._open:
            return
        heard = (self._handled, self._begun())
        self._silent = self._silent + 1 if heard == self._heard else 0
        self._heard = heard
        if self._silent < SILENT_CHECKS:
            self._arm()
            return
        log.warning("%s: this gateway said nothing for %d s; its connection ends", self._peer, SILENT_CHECKS)
        self._end()

    def _add_route(self, row: RouteRow, token: Command, done: Callable[[Any, Any], None]) -> None:
        self._port.add_route(Route(row.route_id, row.kind, row.topic, row.expression, row.light), token, done)

    def _put(
        self,
        table: str,
        items: list[tuple[str, bytes | None]],
        deputy: bool,
        token: Command,
        done: Callable[[Any, Any], None],
    ) -> None:
        refuse_unreadable(table, items, CHECKS)
        self._port.put(table, items, token, done, deputy=deputy)

    def _put_if(
        self,
        table: str,
        items: list[tuple[str, bytes | None, bytes | None]],
        token: Command,
        done: Callable[[Any, Any], None],
    ) -> None:
        refuse_unreadable(table, [(key, value) for key, _, value in items], CHECKS)
        self._port.put_if(table, items, token, done)

    def _put_together(
        self,
        table: str,
        key: str,
        expected: bytes | None,
        items: list[tuple[str, bytes | None]],
        token: Command,
        done: Callable[[Any, Any], None],
    ) -> None:
        refuse_unreadable(table, items, CHECKS)
        self._port.put_together(table, key, expected, items, token, done)

    def _submit(self, sent: list[Sent], sent_in: int, *rest: Any) -> None:
        """SUBMIT, and SUBMIT_WITH, which has settlements and rows before token and callback."""
        token, done = rest[-2:]
        batch = self._checked.messages_of(sent)
        for message in [message for message in batch if message.queue_id >= 0 or message.lmq]:
            if message.queue_id >= 0 and message.queue_id >= self._queues_of(message.topic):
                text = f"topic {message.topic[:255]} has no queue {message.queue_id}"
                raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
            if message.lmq:
                refuse_unreadable(*self._port.row_in(message), CHECKS)
        if sent_in < self._round:
            # Sent behind something that was refused, and must not be stored before it.
            done(token, [ErrorCode.BUSY] * len(batch) or GantryError(ErrorCode.BUSY))
            return

        def submitted(token: Command, result: Any) -> None:
            if refused_for_now(result):
                self._round = max(self._round, sent_in + 1)
            done(token, result)

        if len(rest) == 2:
            self._port.submit(batch, token, submitted)
            return
        settle, rows = rest[:2]
        for table, key, value in rows:
            refuse_unreadable(table, [(key, value)], CHECKS)
        outcomes = [(cursor, offset, OUTCOMES[outcome]) for cursor, offset, outcome in settle]
        self._port.submit(batch, token, submitted, settle=outcomes, rows=rows)

    def _queues_of(self, name: str) -> int:
        """Queues that a message may name; of a topic that is not there, those that it is going to have."""
        topic = self._broker.topics.get(name)
        return topic.config.write_queues if topic is not None else self._broker.gateway_config.queues

    def _topics(self, token: Command, done: Callable[[Any, Any], None]) -> None:
        def found(token: Command, result: Any) -> None:
            if isinstance(result, GantryError):
                done(token, result)
                return
            self._answer_long(((len(info.name), _plain(info)) for info in result), token, done)

        self._port.topics(token, found)

    def _read(self, refs: list[tuple[int, int]], token: Command, done: Callable[[Any, Any], None]) -> None:
        """Answers the first of them, as many as fit; the gateway asks for the others."""
        wanted: list[tuple[int, int]] = []
        size = 0
        for position, record_bytes in refs[:REFS_MAX]:
            size += record_bytes
            if wanted and size > ANSWER_BYTES:
                break
            wanted.append((position, record_bytes))

        def found(token: Command, result: Any) -> None:
            done(token, result if isinstance(result, GantryError) else result[: _fitting(result)])

        self._port.read(wanted, token, found)

    def _stats(self, cursors: list[int], token: Command, done: Callable[[Any, Any], None]) -> None:
        if len(cursors) > STATS_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"stats of {len(cursors)} cursors, at most {STATS_MAX}")
        self._port.stats(cursors, token, done)

    def _details(self, cursors: list[int], token: Command, done: Callable[[Any, Any], None]) -> None:
        def told(token: Command, result: Any) -> None:
            done(token, result if isinstance(result, GantryError) else ([_row(row) for row in result],))

        self._port.details(cursors, token, told)

    def _answer_long(self, sized: Iterator[tuple[int, Any]], token: Command, done: Callable[[Any, Any], None]) -> None:
        long = _Long(sized)
        rows = long.part()
        if long.is_over():
            done(token, (rows, None))
        elif len(self._long) >= CONTINUATIONS_MAX:
            done(token, GantryError(ErrorCode.BUSY, f"{CONTINUATIONS_MAX} long answers are not read to their end"))
        else:
            self._long[self._next_long] = long
            self._next_long += 1
            done(token, (rows, self._next_long - 1))

    def _next(self, continuation: int, token: Command, done: Callable[[Any, Any], None]) -> None:
        long = self._long.get(continuation)
        if long is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"there is no long answer {continuation}")
        rows = long.part()
        if long.is_over():
            del self._long[continuation]
        done(token, (rows, None if long.is_over() else continuation))

    def _open_tap(self, token: Command, done: Callable[[Any, Any], None]) -> None:
        handle: list[int] = []

        def opened(token: Command, result: int) -> None:
            handle.append(result)
            done(token, result)

        self._port.open_tap(partial(self._records, handle), token, opened)

    def _records(self, handle: list[int], records: list[tuple[Message, tuple[int, ...]]]) -> None:
        part: list[Any] = []
        size = 0
        for message, numbers in records:
            record_bytes = len(message.body) + len(message.properties)
            if part and (len(part) >= RECORDS_PER_FRAME or size + record_bytes > FRAME_BODY_BYTES):
                self._notice(GatewayCode.NOTICE_RECORDS, [handle[0], part])
                part, size = [], 0
            part.append([pack_stored(message), numbers])
            size += record_bytes
        self._notice(GatewayCode.NOTICE_RECORDS, [handle[0], part])

    def _watch_table(self, table: str, on: bool, token: Command, done: Callable[[Any, Any], None]) -> None:
        def read(token: Command, result: Any) -> None:
            if isinstance(result, GantryError):
                done(token, result)
                return
            self._answer_long(((len(key) * 3 + len(value), (key, value)) for key, value in result.items()), token, done)

        # Once per table, however often the gateway asks: it hands changes on to all who watch there.
        watcher = partial(self._changed, table) if on and table not in self._watched else None
        if watcher is not None:
            self._watched.add(table)
        self._port.watch_table(table, watcher, token, read)

    def _changed(self, table: str, key: str, value: bytes | None) -> None:
        self._notice(GatewayCode.NOTICE_TABLE, [table, key, value])

    def _ready(self, cursor: int) -> None:
        self._notice(GatewayCode.NOTICE_READY, [cursor])

    def _turn(self, cursor: int, seat: int, active: bool) -> None:
        self._notice(GatewayCode.NOTICE_TURN, [cursor, seat, active])

    def _lease_lost(self, name: str) -> None:
        self._notice(GatewayCode.NOTICE_LEASE_LOST, [name])
