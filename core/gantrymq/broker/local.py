"""LocalBrokerPort: the BrokerPort of gateways in the broker's own process."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gantrymq.broker.broker import OWN_TABLES, Broker
from gantrymq.broker.consuming.held import Held
from gantrymq.broker.consuming.known.table import Cursor
from gantrymq.broker.consuming.leases import NO_SLOT
from gantrymq.broker.consuming.roles import parse_queue
from gantrymq.broker.consuming.scans import Scans
from gantrymq.broker.forward.feeding import Feeding
from gantrymq.broker.forward.sending import CURSOR_GROUP
from gantrymq.broker.matches import Tap
from gantrymq.broker.port import (
    AGAIN,
    DETAILS_MAX,
    END,
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
)
from gantrymq.broker.queues.companions import check_settled
from gantrymq.broker.row_checks import is_quarantined, readable
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.broker.tables.tables import KEY_BYTES_MAX, check_item
from gantrymq.broker.topics import Topic
from gantrymq.broker.turn.ackgate import answer
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from gantrymq.model.tables.message_rows import row_of, table_of_message
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.broker.tables.slots import Under
    from gantrymq.store.reader import StoreReader

log = logging.getLogger(__name__)

T = TypeVar("T")


def _info(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.name, topic.config.read_queues, topic.config.write_queues)


HOLDER_BITS = 64
"""A port's holders are told from another port's by the bits above these."""


ROW_OVERHEAD_BYTES = KEY_BYTES_MAX + 1024
"""Of a row's record beside its value: key, topic, the record's own fields. Values may be larger than message bodies: a retained
message's holds its topic, too."""

PARKED_MAX = 4096
"""Acquires of one cursor that wait behind one that waits for the disk: one per consumer of a queue."""


UNREADABLE_RETRY_MS = 1000
"""A cursor whose records the disk cannot read is tried again so much later: a failing disk is not asked in a loop."""

_Parts = tuple[Callable[["StoreReader"], Any], Callable[[Any], None], Callable[[GantryError], None]]
"""Of a read: what looks, who applies what it saw, who hears why it could not."""


def _told(error: OSError | GantryError) -> GantryError:
    if isinstance(error, GantryError):
        return error
    return GantryError(ErrorCode.STORE_FAILED, f"the broker's disk cannot read what was asked for: {error}")


class LocalBrokerPort:
    """See `BrokerPort` for every method. One object per gateway process or remote link: leases, taps and holders belong to it."""

    keeps_order = True
    up = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._number = broker.next_port()
        self._holder_base = self._number << HOLDER_BITS
        self._taps: dict[int, Tap] = {}
        self._watched_tables: list[tuple[str, Callable[[str, bytes | None], None]]] = []
        self._holders: set[int] = set()
        self._watched: set[int] = set()
        self._scans = Scans(broker.cursors, broker.store)
        self._feeding = Feeding(broker, self._number, self._read)

    # Log.

    def body_bytes_max(self) -> int:
        return self._broker.store.body_bytes_max

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
        sender = sender if sender is not None else self._number
        if not settle and not rows:
            self._broker.submit(batch, token, on_done, sender)
            return
        try:
            for table in dict.fromkeys(row[0] for row in rows):
                self._check_rows(table, [(key, value) for name, key, value in rows if name == table])
            check_settled(len(settle))
            held = Held(self._broker.cursors, settle)
            try:
                self._broker.submit_with(batch, token, on_done, sender, held, list(rows))
            except GantryError:
                held.take_back()
                raise
        except GantryError as error:
            on_done(token, error)

    def ensure_topic(self, name: str, create: int, token: Any, on_done: Done, *, near: str = "") -> None:
        try:
            if names.is_own_system_topic(name):
                raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
            topic = self._broker.ensure_topic(name, create, self._broker.gateway_config.queues)
        except GantryError as error:
            on_done(token, error)
            return
        on_done(token, _info(topic))

    def topics(self, token: Any, on_done: Done) -> None:
        found = [
            _info(topic)
            for topic in self._broker.topics.topics.values()
            if not topic.system and not names.is_system_topic(topic.name)
        ]
        on_done(token, found)

    def read(self, refs: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        wanted = list(refs)
        self._read(lambda store: store.get_many(wanted), partial(on_done, token), token, on_done)

    def _read(self, find: Callable[[StoreReader], T], apply: Callable[[T], None], token: Any, on_done: Done) -> None:
        """`apply(find(store))`, now or when the disk has what is read. `find` is repeated then and changes nothing; `apply` is called once, or
        `on_done` with the reason why it cannot be."""
        self._read_again((find, apply, partial(on_done, token)))

    def _read_again(self, parts: _Parts) -> None:
        find, apply, fail = parts
        try:
            found = find(self._broker.store)
        except Cold as cold:
            self._broker.fetch(cold, parts, self._read_again)
            return
        except (OSError, GantryError) as error:
            fail(_told(error))
            return
        apply(found)

    # Routes.

    def add_route(self, route: Route, token: Any, on_done: Done) -> None:
        try:
            self._broker.leaving.check(route.light)
            self._broker.arriving.check([route.route_id])
            self._broker.add_route(route, token, on_done)
        except GantryError as error:
            on_done(token, error)

    def remove_routes(self, route_ids: Sequence[str], token: Any, on_done: Done) -> None:
        try:
            self._broker.leaving.check_routes(route_ids)
            self._broker.arriving.check(route_ids)
        except GantryError as error:
            on_done(token, error)
            return
        self._broker.remove_routes(route_ids, token, on_done)

    def open_tap(
        self, on_records: Callable[[list[tuple[Message, tuple[int, ...]]]], None], token: Any, on_done: Done
    ) -> None:
        tap = self._broker.new_tap(on_records)
        self._taps[tap.handle] = tap
        on_done(token, tap.handle)

    def close_tap(self, tap: int) -> None:
        found = self._taps.pop(tap, None)
        if found is not None:
            self._broker.router.close_tap(found)

    def add_volatile(
        self, tap: int, number: int, kind: str, topic: str | None, expression: str, token: Any, on_done: Done
    ) -> None:
        found = self._taps.get(tap)
        if found is None:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"tap {tap} is not open"))
            return
        try:
            self._broker.router.add_volatile(found, number, kind, topic, expression)
        except GantryError as error:
            on_done(token, error)
            return
        on_done(token, None)

    def remove_volatile(self, tap: int, numbers: Sequence[int]) -> None:
        found = self._taps.get(tap)
        if found is not None:
            for number in numbers:
                self._broker.router.remove_volatile(found, number)

    # Queues.

    def create_light(self, token: Any, on_done: Done, *, name: str = "", slot: int = NO_SLOT) -> None:
        self._broker.create_light(token, on_done, slot_of(name) if name else slot)

    def delete_light(self, light: int, token: Any, on_done: Done) -> None:
        if self._broker.sending.is_open(light):
            on_done(token, GantryError(ErrorCode.NO_PERMISSION, f"queue ~{light} belongs to the broker itself"))
            return
        try:
            self._broker.leaving.check(light)
        except GantryError as error:
            on_done(token, error)
            return
        self._broker.delete_light(light, token, on_done)

    def open_cursor(self, queue: str, group: str, start: Start, token: Any, on_done: Done) -> None:
        def find(store: StoreReader) -> int:
            """Where a new one begins."""
            if self._broker.cursors.find(queue, group) is not None:
                return 0
            if start.kind == "find":
                raise GantryError(ErrorCode.NOT_FOUND, f"group {group} has no cursor in queue {queue}")
            return self._start_offset(store, queue, start)

        self._read(find, partial(self._open_cursor, queue, group, start, token, on_done), token, on_done)

    def _open_cursor(self, queue: str, group: str, start: Start, token: Any, on_done: Done, begin: int) -> None:
        broker = self._broker
        try:
            broker.leaving.check(parse_queue(queue)[0])
            cursor = broker.cursors.find(queue, group)
            if cursor is not None and str(cursor.id) in broker.tables.rows("cursor"):
                if start.kind != "find":
                    broker.queues.used(cursor)
                if group == CURSOR_GROUP and cursor.light in broker.sending.lights():
                    broker.sending.read_by(cursor, self._number)
                on_done(token, broker.cursors.info(cursor))
                return
            if cursor is None:
                cursor, rows = broker.cursors.create(queue, group, begin)
            else:  # a full disk may have refused its rows
                rows = broker.cursors.rows_of(cursor)
        except GantryError as error:
            on_done(token, error)
            return

        def done(token: Any, result: object) -> None:
            on_done(token, result if isinstance(result, GantryError) else broker.cursors.info(opened))

        opened = cursor
        broker.put("cursor", rows, token, done)

    def _start_offset(self, store: StoreReader, queue: str, start: Start) -> int:
        light, topic, queue_id = parse_queue(queue)
        if light:
            if str(light) not in self._broker.tables.rows("light"):
                raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"light queue {light} does not exist (any more)")
            if start.kind == "time":
                raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "a light queue has no start by time")
            return store.light_visible_end(light) if start.kind in (END.kind, AGAIN.kind) else 0
        found = self._broker.topics.get(topic)
        if found is None or found.system:
            raise GantryError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        if queue_id >= max(found.config.read_queues, found.config.write_queues):
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"topic {topic} has no queue {queue_id}")
        if start.kind in (END.kind, AGAIN.kind):
            return store.visible_end(topic, queue_id)
        first = self._broker.min_offset(topic, queue_id)
        return (
            first if start.kind == "earliest" else max(first, store.offset_by_time(topic, queue_id, start.at_ms, True))
        )

    def set_policy(self, cursor: int, policy: Policy, token: Any, on_done: Done) -> None:
        try:
            found = self._broker.cursors.get(cursor)
            self._broker.leaving.check(found.light)
            self._broker.queues.set_policy(found, policy, token, on_done)
        except GantryError as error:
            on_done(token, error)

    def delete_cursor(self, cursor: int, token: Any, on_done: Done) -> None:
        found = self._broker.cursors.awake(cursor)
        if found is None:
            self._broker.when_stored(token, on_done)  # also behind a deletion that a full disk has refused
            return
        try:
            self._broker.leaving.check(found.light)
        except GantryError as error:
            on_done(token, error)
            return
        self._broker.cursors.delete(found)
        self._broker.drop_rows([("cursor", str(cursor), None)], token, on_done)

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        cursors = self._broker.cursors
        found = cursors.awake(cursor)
        if found is None:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist (any more)"))
            return
        self._holders.add(holder)
        if found.light in self._broker.leaving.frozen:
            cursors.await_next(found, self._number)
            on_done(token, [])
            return
        if found.managed is not None:
            self._broker.queues.used(found)
            if self._broker.queues.is_held_up(found):
                cursors.await_next(found, self._number)
                on_done(token, [])
                return
        parked = found.parked
        if parked is None:
            try:
                result = self._lease(found, holder, count_max, bytes_max)
            except Cold as cold:
                found.parked = deque()
                call = partial(self._acquire, found, holder, count_max, bytes_max, token, on_done)
                self._broker.fetch(cold, call, self._go_on, found)
                return
            on_done(token, result)
        elif len(parked) < PARKED_MAX:
            parked.append(partial(self._acquire, found, holder, count_max, bytes_max, token, on_done))
        else:
            on_done(token, GantryError(ErrorCode.BUSY, f"{len(parked)} acquires of cursor {cursor} wait for the disk"))

    def _acquire(self, cursor: Cursor, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        """An acquire that had to wait. Its holder or cursor may be gone."""
        cursors = self._broker.cursors
        if cursors.by_id.get(cursor.id) is not cursor:
            answer(on_done, token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor.id} does not exist (any more)"))
        elif holder not in self._holders:
            answer(on_done, token, [])
        else:
            answer(on_done, token, self._lease(cursor, holder, count_max, bytes_max))  # Cold: all this again then

    def _lease(self, cursor: Cursor, holder: int, count_max: int, bytes_max: int) -> list[Delivery] | GantryError:
        """As `Cursors.acquire`. What the disk cannot read is an answer, too; the watcher is called a little later then. May raise `Cold`."""
        broker = self._broker
        try:
            return broker.cursors.acquire(cursor, self._holder_base + holder, count_max, bytes_max, self._number)
        except (OSError, GantryError) as error:
            log.error("cursor %d (%s, group %s): %s", cursor.id, cursor.queue, cursor.group, error)
            self._try_later(cursor)
            return _told(error)

    def _try_later(self, cursor: Cursor) -> None:
        def again(now_ms: int) -> None:
            self._broker.cursors.arm(cursor, self._number)

        self._broker.wheel.call_at(self._broker.wheel.now_ms() + UNREADABLE_RETRY_MS, again)

    def _go_on(self, call: Callable[[], None], cursor: Cursor) -> None:
        """Data is there: `call`, then what waits behind it, up to the next that is cold."""
        while True:
            try:
                call()
            except Cold as cold:
                self._broker.fetch(cold, call, self._go_on, cursor)
                return
            if not cursor.parked:
                cursor.parked = None
                return
            call = cursor.parked.popleft()

    def scan(self, cursor: int, offset: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        cursors = self._broker.cursors

        def find(_store: StoreReader) -> Scanned:
            return self._scans.scan(cursors.get(cursor), offset, count_max, bytes_max)

        def apply(found: Scanned) -> None:
            if found.at_end:
                cursors.await_next(cursors.get(cursor), self._number)
            on_done(token, found)

        def failed(token: Any, error: GantryError) -> None:
            if cursor in cursors.by_id:
                self._try_later(cursors.by_id[cursor])
            on_done(token, error)

        self._read(find, apply, token, failed)

    def seek(self, cursor: int, start: Start, token: Any, on_done: Done) -> None:
        cursors = self._broker.cursors

        def find(_store: StoreReader) -> int:
            found = cursors.get(cursor)
            if start.kind == "time":
                return self._scans.by_time(found, start.at_ms)
            return cursors.end(found) if start.kind == "end" else found.window.floor

        self._read(find, partial(on_done, token), token, on_done)

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        self._broker.cursors.settle(items)

    def release(self, holder: int) -> None:
        self._holders.discard(holder)
        self._broker.cursors.release(self._holder_base + holder)

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None:
        found = self._broker.cursors.awake(cursor)
        if found is not None:
            (self._watched.discard if on_ready is None else self._watched.add)(cursor)
            self._broker.cursors.watch(found, self._number, on_ready)
            self._broker.queues.used(found)

    def take_seat(
        self, cursor: int, terms: Terms, on_turn: Callable[[int, bool], None], token: Any, on_done: Done
    ) -> None:
        try:
            found = self._broker.cursors.get(cursor)
            self._broker.leaving.check(found.light)
            self._broker.queues.used(found)
            seat = self._broker.seats.take(found, self._number, terms, on_turn)
        except GantryError as error:
            on_done(token, error)
            return
        on_done(token, seat)

    def leave_seat(self, cursor: int, seat: int, token: Any, on_done: Done) -> None:
        found = self._broker.cursors.awake(cursor)
        on_done(token, 0 if found is None else self._broker.seats.leave(found, self._number, seat))

    def rank(self, cursor: int, rank: int) -> None:
        found = self._broker.cursors.awake(cursor)
        if found is not None:
            self._broker.seats.rank(found, self._number, rank)

    def stats(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        table = self._broker.cursors
        result: list[CursorInfo | None] = []
        for cursor in cursors:
            found = table.view(cursor)
            if found is not None and found.managed is not None:
                self._broker.queues.settle_now(found)
            result.append(None if found is None else table.info(found))
        on_done(token, result)

    def details(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        table, log_end = self._broker.cursors, self._broker.store.written_position

        def find(_store: StoreReader) -> list[CursorDetails | None]:
            return [table.details(cursor, log_end) for cursor in cursors[:DETAILS_MAX]]

        self._read(find, partial(on_done, token), token, on_done)

    def catch_up(self, cursor: int, token: Any, on_done: Done) -> None:
        on_done(token, False)

    def purge(self, cursor: int, token: Any, on_done: Done) -> None:
        found = self._broker.cursors.awake(cursor)
        if found is None:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist (any more)"))
            return
        try:
            self._broker.leaving.check(found.light)
        except GantryError as error:
            on_done(token, error)
            return
        on_done(token, self._broker.cursors.purge(found))

    # Tables and leases.

    def put(
        self, table: str, items: Sequence[tuple[str, bytes | None]], token: Any, on_done: Done, *, deputy: bool = False
    ) -> None:
        try:
            self._check_rows(table, items)
            if not deputy:
                self._broker.slots.refuse_elsewhere(table, [key for key, value in items if value is not None])
        except GantryError as error:
            on_done(token, error)
            return
        self._broker.put(table, items, token, on_done)

    def row_in(self, message: Message) -> tuple[str, list[tuple[str, bytes | None]]]:
        """Table and row that a gateway's message is, too. Raises for what may not be kept."""
        table, row = table_of_message(message), row_of(message.properties, message.body)
        if row is None:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"property GANTRY_ROW names no row of table {table[:80]!r}")
        self._check_rows(table, [row])
        return table, [row]

    def _check_rows(self, table: str, items: Sequence[tuple[str, bytes | None]]) -> None:
        if table in OWN_TABLES:
            raise GantryError(ErrorCode.NO_PERMISSION, f"table {table} belongs to the broker itself")
        for key, value in items:
            check_item(table, key, value)
            if value is not None and len(value) + ROW_OVERHEAD_BYTES > self._broker.store.record_bytes_max:
                raise GantryError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"table {table}: a row of {len(value)} bytes does not fit a log segment",
                )
        self._broker.tables.check_room(table, items)

    def put_if(
        self, table: str, items: Sequence[tuple[str, bytes | None, bytes | None]], token: Any, on_done: Done
    ) -> None:
        if self._broker.tables.awaits(table, [item[0] for item in items]):  # rows are changed once stored: look then
            self._broker.when_stored(None, lambda _token, _result: self.put_if(table, items, token, on_done))
            return
        try:
            self._broker.slots.refuse_elsewhere(table, [key for key, _, value in items if value is not None])
        except GantryError as error:
            on_done(token, error)
            return
        rows = self._broker.tables.rows(table)
        fits = [
            rows.get(key) == expected or (expected is None and is_quarantined(table, key, rows))
            for key, expected, _ in items
        ]
        changes = [(key, value) for (key, _, value), fit in zip(items, fits, strict=True) if fit]

        def done(_token: Any, result: Any) -> None:
            on_done(token, result if isinstance(result, GantryError) else fits)

        if changes:
            self.put(table, changes, None, done)
        else:
            on_done(token, fits)

    def put_together(
        self,
        table: str,
        key: str,
        expected: bytes | None,
        items: Sequence[tuple[str, bytes | None]],
        token: Any,
        on_done: Done,
    ) -> None:
        if self._broker.tables.awaits(table, [key]):
            again = partial(self.put_together, table, key, expected, items, token, on_done)
            self._broker.when_stored(None, lambda _token, _result: again())
            return
        rows = self._broker.tables.rows(table)
        fits = rows.get(key) == expected or (expected is None and is_quarantined(table, key, rows))
        try:
            self._broker.slots.refuse_elsewhere(table, [key])
            if not fits or not items:
                on_done(token, fits)
                return
            self._check_rows(table, items)
        except GantryError as error:
            on_done(token, error)
            return

        def done(_token: Any, result: Any) -> None:
            on_done(token, result if isinstance(result, GantryError) else True)

        self._broker.put_rows([(table, name, value) for name, value in items], None, done, together=True)

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: Any, on_done: Done
    ) -> None:
        if on_change is not None and (table, on_change) not in self._watched_tables:
            self._broker.tables.watch(table, on_change)
            self._watched_tables.append((table, on_change))
        on_done(token, readable(table, self._broker.tables.rows(table)))

    def take_lease(
        self, name: str, force: bool, on_lost: Callable[[str], None], token: Any, on_done: Done,
        *, deputy: bool = False, under: Under | None = None,
    ) -> None:  # fmt: skip
        """As LeasePort.take_lease. `under`: NOT_OWNER if this broker does not decide about that slot under that epoch."""
        try:
            if under is not None:
                self._broker.slots.check(under)
            epoch = self._broker.leases.take(name, force, self, on_lost, NO_SLOT if under is None else under[0])
        except GantryError as error:
            on_done(token, error)
            return
        on_done(token, epoch)

    def is_free(self, name: str, token: Any, on_done: Done, *, under: Under | None = None) -> None:
        try:
            if under is not None:
                self._broker.slots.check(under)
        except GantryError as error:
            on_done(token, error)
            return
        on_done(token, self._broker.leases.is_free(name))

    def stop_slots(self, wanted: Sequence[Under], only_free: bool, token: Any, on_done: Done) -> None:
        """See `Slots.stop`."""
        try:
            result = self._broker.slots.stop(wanted, only_free)
        except GantryError as error:
            on_done(token, error)
            return
        on_done(token, result)

    def follow(self, name: str, life: str, seen: int, token: Any, on_done: Done) -> None:
        """See `Receiving.heard`."""

        def answer_now() -> None:
            try:
                result = self._broker.receiving.heard(name, life, seen)
            except GantryError as error:
                on_done(token, error)
                return
            on_done(token, result)

        self._broker.receiving.when_decided(answer_now)

    def forward_end(self, peer: str, token: Any, on_done: Done) -> None:
        """See `Sending.end_for`."""
        on_done(token, self._broker.sending.end_for(peer))

    def await_forward(self, source: str, life: str, offset: int, token: Any, on_done: Done) -> None:
        """See `Receiving.await_progress`."""
        self._broker.receiving.await_progress(source, life, offset, partial(on_done, token))

    def read_forward(self, cursor: int, offset: int, token: Any, on_done: Done) -> None:
        """See `Feeding.ask`."""
        self._feeding.ask(cursor, offset, token, on_done)

    def settle_forward(self, cursor: int, end: int) -> None:
        """See `Feeding.settle`."""
        self._feeding.settle(cursor, end)

    # Queues on their way to another group (cluster/forward/moving.py).

    def read_light(self, light: int, offset: int, bytes_max: int, token: Any, on_done: Done) -> None:
        """See `Leaving.read`."""
        self._read(
            lambda _store: self._broker.leaving.read(light, offset, bytes_max), partial(on_done, token), token, on_done
        )

    def freeze_lights(
        self, queues: Sequence[tuple[int, int]], target: str, move: str, token: Any, on_done: Done
    ) -> None:
        """See `Leaving.freeze`; BUSY while another move is decided."""

        def freeze(token: Any, on_done: Done) -> None:
            self._broker.holding.refuse_another()
            self._broker.leaving.freeze(queues, target, move, token, on_done)

        self._or_error(freeze, token, on_done)

    def end_freeze(self, lights: Sequence[int], move: str, gone: bool, token: Any, on_done: Done) -> None:
        """See `Leaving.gone` and `Leaving.thaw`."""
        if gone:
            self._or_error(partial(self._broker.leaving.gone, lights, move), token, on_done)
        else:
            self._broker.leaving.thaw(lights, move)
            on_done(token, None)

    def hold_records(self, source: str, target: str, token: Any, on_done: Done) -> None:
        """See `Holding.hold`."""
        self._or_error(partial(self._broker.holding.hold, source, target), token, on_done)

    def release_records(self, target: str, number: int, token: Any, on_done: Done) -> None:
        """See `Holding.release`."""
        self._broker.holding.release(target, number)
        on_done(token, None)

    def queues_came(self, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        """See `Arriving.came`."""
        self._broker.arriving.came(queues, token, on_done)

    def take_queues(self, source: str, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        """See `Mover.take`."""
        self._or_error(partial(self._broker.arriving.take, source, queues), token, on_done)

    @staticmethod
    def _or_error(call: Callable[[Any, Done], None], token: Any, on_done: Done) -> None:
        try:
            call(token, on_done)
        except GantryError as error:
            on_done(token, error)

    def drop_lease(self, name: str, epoch: int) -> None:
        self._broker.leases.drop(name, epoch)

    def answers_for(self, name: str) -> bool:
        return True

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        on_state(True)

    def for_service(self) -> LocalBrokerPort:
        """A port of its own for each door: what a door holds is then never mixed with another's."""
        return LocalBrokerPort(self._broker)

    def close(self) -> None:
        """The gateway behind this port is gone: requeue what it held, drop its taps, leases and watchers."""
        self._feeding.close()
        for handle in list(self._taps):
            self.close_tap(handle)
        for cursor in list(self._watched):
            self.watch(cursor, None)
        for holder in list(self._holders):
            self.release(holder)
        self._broker.seats.drop_port(self._number)
        for table, watcher in self._watched_tables:
            self._broker.tables.unwatch(table, watcher)
        self._broker.leases.drop_owner(self)
