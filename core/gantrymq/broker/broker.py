"""The broker: one append batch per loop turn, and everything that follows from it.

A turn: doors submit; at the append phase everything submitted becomes one batch of the log, acknowledgements are parked at
the `AckGate`; at the deliver phase taps, long polls and cursor watchers are served, each at most once. No clock, no socket, no
asyncio: `turn`, `wheel` and `clock` are arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gantrymq.broker.config import DEFAULTS, BrokerConfig, BrokerOptions, GatewayConfig, TopicsConfig
from gantrymq.broker.consuming.acks import ACK_TOPIC
from gantrymq.broker.consuming.commits import OffsetCommits
from gantrymq.broker.consuming.cursors import Cursors
from gantrymq.broker.consuming.entries.shared_bodies import SharedBodies
from gantrymq.broker.consuming.held import Held
from gantrymq.broker.consuming.leases import NO_SLOT, Leases
from gantrymq.broker.consuming.offsets import OFFSET_TABLES, UNREAD_TABLE, ConsumerOffsets
from gantrymq.broker.consuming.seats import Seats
from gantrymq.broker.delay.delays import Delays
from gantrymq.broker.deletion import deletions
from gantrymq.broker.deletion.deleting import Deleting
from gantrymq.broker.deletion.refused import Refused, append_fit, as_refusal, leave_out
from gantrymq.broker.forward.arriving import Arriving
from gantrymq.broker.forward.deserted import Deserted
from gantrymq.broker.forward.holding import Holding
from gantrymq.broker.forward.leaving import Leaving
from gantrymq.broker.forward.marks import marked
from gantrymq.broker.forward.receiving import Receiving
from gantrymq.broker.forward.sending import Sending
from gantrymq.broker.forward.traces import Traces
from gantrymq.broker.matches import NO_MATCH, RouteMatch, Tap, is_behind
from gantrymq.broker.own_rows import CHECKS, NEXT
from gantrymq.broker.parts import Part
from gantrymq.broker.pop.pops import Pops
from gantrymq.broker.port import FOR_EXCHANGE, FOR_QUEUE, Done, Route
from gantrymq.broker.queues.companions import Companions, Decided, Whole
from gantrymq.broker.queues.engine import QueueEngine
from gantrymq.broker.rocketmq.settings import Settings
from gantrymq.broker.rocketmq.stats import BrokerStats
from gantrymq.broker.routing.api import RouteSet
from gantrymq.broker.routing.router import Router, route_from_bytes, route_to_bytes
from gantrymq.broker.row_checks import RowCheck
from gantrymq.broker.tables import found_topics
from gantrymq.broker.tables.forward_table import TABLE as FORWARD_TABLE
from gantrymq.broker.tables.slots import Slots
from gantrymq.broker.tables.snapshots import NOTHING, Snapshots
from gantrymq.broker.tables.tables import Rows, Tables, check_item, item_message, replay_topic
from gantrymq.broker.topic_budget import EXCHANGES, NATIVE, Maker, TopicBudget
from gantrymq.broker.topics import Topic, TopicConfig, TopicTable
from gantrymq.broker.transactions.transactions import Transactions
from gantrymq.broker.turn.ackgate import AckGate, answer
from gantrymq.broker.turn.pending import Pending
from gantrymq.broker.turn.submitted import MESSAGE_ENTRIES, Sent, Submitted, beyond_one
from gantrymq.broker.turn.wakes import Wakes
from gantrymq.broker.turn.wide import WRITTEN_ENTRIES, Lights, Matches, WideRecords
from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DECIDED, DELAYED, FORWARDED, HALF, RUN, Message
from gantrymq.net.api import Wheel
from gantrymq.net.turn import log_failed, run_all
from gantrymq.services import Clock, Turn
from gantrymq.store.log.groups import group_head
from gantrymq.store.log.moved import MOVED_TOPIC
from gantrymq.store.log.record import SENDER_PROPERTIES_MAX
from gantrymq.store.log.run import Run

if TYPE_CHECKING:
    from gantrymq.store.checkpoints.snapshot_file import SnapshotFiles
    from gantrymq.store.cold import Cold
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

OWN_TABLES = {
    "topic",
    "route",
    "light",
    "cursor",
    "group",
    "setting",
    "request_mode",
    "pop_lease",
    "queue",
    FORWARD_TABLE,
    UNREAD_TABLE,
    *OFFSET_TABLES,
}
"""Tables that only the broker writes."""

COLD_RETRY_MS = 50
"""When too many reads wait for the disk, the next attempt."""
ROWS_AT_ONCE = 1_000
"""Rows of another broker's configuration in one batch."""
BACKGROUND_BUDGET_US = 1_000
"""Derived files are written in slices of at most this long on the loop."""
BACKGROUND_EVERY_MS = 50

_Internal = tuple[list[Message], Callable[[], None] | None, Done | None, Any]


class Broker:
    """See the module. `open()` first."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        turn: Turn,
        wheel: Wheel,
        route_sets: dict[str, RouteSet],
        config: BrokerConfig,
        topics_config: TopicsConfig,
        gateway_config: GatewayConfig,
        sync_flush: bool,
        options: BrokerOptions = DEFAULTS,
    ) -> None:
        self.store = store
        self.clock = clock
        self.turn = turn
        self.wheel = wheel
        self.config = config
        self.gateway_config = gateway_config
        self.tables = Tables()
        self.tables.watch("light", partial(deletions.light_row, store))
        topics: dict[str, Topic] = {}
        self.router = Router(route_sets, topics, lambda route_id: self.tables.rows("route").get(route_id))
        self.topics = TopicTable(topics, self._put_topic, self.router.new_topic, topics_config, sync_flush)
        self.topic_budget = TopicBudget(topics_config.auto_create_max, clock.monotonic_ms)
        self.topics.give(config.cluster, config.name)
        self.row_checks: Mapping[str, RowCheck] = CHECKS if options.row_checks is None else options.row_checks
        self.deleting: Deleting = Deleting(self)
        self.offsets: ConsumerOffsets = ConsumerOffsets(self.deleting.going, self.deleting.before_offset)
        self.commits, self.leases = OffsetCommits(self.offsets, wheel, self.put_rows), Leases()
        self.stats: BrokerStats = BrokerStats(clock, config.cluster)
        self.settings: Settings = Settings(self, topics_config)
        self.gate = AckGate(always_open=not sync_flush)
        self.pending = Pending(wheel.now_ms, options.now_s)
        self.wakes = Wakes(self.topics, self.tables.take_row, turn, self.pending.times)
        self.cursors: Cursors = Cursors(
            store, self.append_ack, self.wakes.wait, self.wakes.wake, self.arm_append, SharedBodies(wheel).shared
        )
        self.cursors.on_rest.append(self.wakes.forget)
        self.queues: QueueEngine = QueueEngine(self, route_sets, self.drop_light)
        self.seats = Seats(self.cursors, turn, wheel, self.queues.deserted)
        self.delays = Delays(self, options.timer, options.on_delays_settled)
        self.transactions, self.pops = Transactions(self, options.transactions), Pops(self)
        self.slots = Slots(config, self.tables, turn, self.leases)
        self.sending = Sending(self, self.slots, config.forward_records_max, options.random_bits)
        self.receiving, self.traces = Receiving(self, self.slots, self.sending), Traces(self, self.sending)
        self.arriving = Arriving(self, self.queues, self.sending, self.receiving, self.traces)
        deserted = Deserted(self, self.queues)
        self.leaving = Leaving(self, self.queues, self.sending, deserted)
        self.parts: list[Part] = [
            self.delays, self.transactions, self.pops, self.traces, self.arriving, self.queues, self.leaving, deserted, self.slots, self.receiving, self.sending
        ]  # fmt: skip
        self.redirects = self._by_kind()
        self.request_flush: Callable[[], None] = options.request_flush
        self._submitted, self._wide = Submitted(), WideRecords(store)
        self.holding = Holding(config.name, self.sending, self._submitted, wheel, self.arm_append)
        self._whole = Whole(self, self.queues)
        self._internal: list[_Internal] = []
        self._refused = Refused(wheel, self.arm_append, self.cursors)
        self._append_armed = False
        self._background_armed = False
        self._next_light = self._next_tap = 1
        self._next_port = 0
        self.closed = False
        self.snapshots: Snapshots | None = None
        """Set before `open` (`keep_snapshots`)."""
        self.full = ""
        """Why messages are refused although the store would take them (disk watermark); empty: they are not."""
        self.kept_from: dict[tuple[str, int], int] = {}
        """First offset that readers see of a topic's queue, where its attribute `reserve.time` shortens what is kept."""

    def _by_kind(self) -> dict[int, Callable[[Message], ErrorCode | None]]:
        """By `Message.kind`: rewrite the message for the system topic where it waits, or say why it is refused."""
        half, decided = self.transactions.redirect, self.transactions.enter
        return {DELAYED: self.delays.redirect, HALF: half, DECIDED: decided, RUN: self._run, FORWARDED: _here}

    def _put_topic(self, name: str, row: bytes) -> None:
        self.put_rows([("topic", name, row)])

    # Start and stop.

    def keep_snapshots(self, files: SnapshotFiles) -> Snapshots:
        """Start from the newest snapshot there; they are made by `SnapshotWork` and `Snapshots.write_now`."""
        self.snapshots = Snapshots(files, self.store, self.tables, self.cursors, self.write_acks)
        return self.snapshots

    def open(self, cut_offsets: bool = True, take_over: Callable[[], Rows] = list) -> None:
        """Replay the tables and cursors; the store is loaded already. `cut_offsets`: it may have lost its tail. `take_over()`, called
        when the tables are there: rows to change, because another broker has."""
        tables = list(dict.fromkeys(filter(None, map(names.table_of, self.store.topics()))))
        loaded = self.snapshots.load() if self.snapshots is not None else NOTHING
        self.tables.load(loaded.tables)
        damaged = self.tables.replay(self.store, tables, loaded.offsets)
        self.tables.quarantine(self.row_checks)
        self._take_over(deletions.unfinished(self.tables, self.store.queues_of, self.store.max_offset))
        self._take_over(take_over())
        self.settings.load(self.tables.rows("setting"))
        self._take_over(found_topics.lost_rows(self.tables, self.store, "topic" in damaged))
        self.topics.load(self.tables.rows("topic"))
        for config in found_topics.quarantined(self.tables, self.store):
            self.topics.load_found(config)
        self.topics.load_light(self.store.topics())
        bad_routes: dict[str, str] = {}
        for route_id, data in self.tables.rows("route").items():
            try:
                self._known_route(route_from_bytes(route_id, data))
            except GantryError as error:  # of a gateway that is not installed (any more)
                bad_routes[route_id] = error.text
        self.tables.quarantine_rows("route", bad_routes)
        self._next_light = self._first_light()
        self.offsets.load(*map(self.tables.rows, OFFSET_TABLES))
        self.offsets.load_readable(self.tables.quarantined("offset"))
        for key, queue_id, offset, end in self.offsets.cut(self.store.max_offset) if cut_offsets else ():
            log.warning("offset of %s, queue %d: %d is beyond the queue's end, cut to %d", key, queue_id, offset, end)
            self.commits.arm()
        self.cursors.load(self.tables.rows("cursor"), self.tables.quarantined("cursor"))
        begin = loaded.offsets.get(ACK_TOPIC, 0)
        known = self.cursors.load_states(loaded.cursors, begin)
        for message in replay_topic(self.store, ACK_TOPIC, begin):
            self.cursors.replay(message.body, message.queue_offset, known)
        self.cursors.recovered()
        self.write_acks()
        deletions.forget_lights(self)
        if MOVED_TOPIC in self.store.topics():
            self.cursors.moved.load(loaded.moved, self.store.log_min_position, self.cursors.is_live)
            self.cursors.moved.replay(self.store, self.cursors.is_live, loaded.offsets.get(MOVED_TOPIC, 0))
        for part in self.parts:
            part.open()

    def _known_route(self, route: Route) -> None:
        self.router.add(route)
        if route.moves:
            self.sending.moved_here(route)

    def _first_light(self) -> int:
        """The next id of a light queue that was never used; its row may be one that cannot be read."""
        rows = self.tables.rows("light")
        if NEXT in rows:
            return int(rows[NEXT])
        known = [*map(int, rows), *self.store.light_ids(), *self.router.lights()]
        return max(known, default=0) + 1

    def _take_over(self, rows: Rows) -> None:
        for first in range(0, len(rows), ROWS_AT_ONCE):
            step = rows[first : first + ROWS_AT_ONCE]
            self.store.append([item_message(*row) for row in step], [()] * len(step))
            for row in step:
                self.tables.apply(*row)

    def close(self) -> None:
        """Write what a clean stop writes: offsets, settled entries; the caller closes the store."""
        self.closed = True
        self._wide.abandon([])
        self.deleting.finish_all()
        for sent in self.holding.take_all():
            self._submitted.add(sent)
        for sent in self._submitted.give_up(
            senders=True
        ):  # its connections are gone, or got the time that a stop gives them
            sent.refuse_rest(ErrorCode.SHUTTING_DOWN)
            sent.on_done(sent.token, sent.outcome())
        self._append_all()  # what parts have sent on its way is stored before they note what is done
        for part in self.parts:
            part.close()
        self.commits.write()
        self._append_all()
        self._refused.drain(self.write_acks)

    # Writing.

    def submit(
        self, batch: Sequence[Message], token: Any, on_done: Done, sender: object = None, whole: bool = False
    ) -> None:
        """As LogPort.submit; `whole`: see `Sent`."""
        self.arm_append()
        sent = Sent(batch, token, on_done, sender, self.pending.times.begun)
        sent.whole = whole
        if not self.holding.targets or not self.holding.keeps(sent):
            self._submitted.add(sent)

    def submit_with(
        self,
        batch: Sequence[Message],
        token: Any,
        on_done: Done,
        sender: object,
        held: Decided | tuple[()],
        rows: Rows,
        barred: Mapping[int, frozenset[int]] = MappingProxyType({}),
    ) -> None:
        """As LogPort.submit with settlements or rows; `barred`: see `Companions`. Raises LIMIT_REACHED."""
        companions = Companions(batch, held or Held(self.cursors, ()), rows, on_done, barred)
        self.tables.expect(rows)
        self.arm_append()
        sent = Sent(batch, token, companions.done, sender, self.pending.times.begun)
        sent.whole, sent.companions, companions.sent = True, companions, sent
        if not self.holding.targets or not self.holding.keeps(sent):
            self._submitted.add(sent)

    def put(self, table: str, items: Sequence[tuple[str, bytes | None]], token: Any, on_done: Done | None) -> None:
        """Rows of a table in one batch; in memory once stored. Without `on_done`, what a full disk refuses is written when it can be."""
        self.put_rows([(table, key, value) for key, value in items], token, on_done)

    def put_rows(self, rows: Rows, token: Any = None, on_done: Done | None = None, together: bool = False) -> None:
        """As `put`: rows (table, key, value) of several tables in one batch, in this order. `together`: also a crash leaves all or none."""
        if self.deleting.jobs:
            self.deleting.before_rows(rows)
        self.tables.expect(rows)
        self._internal.append((*self._of_rows(rows, together), on_done, token))
        self.arm_append()

    def drop_rows(self, rows: Rows, token: Any, on_done: Done | None) -> None:
        """As `put_rows`, of what is gone from memory already: a full disk that refuses it gets it again, whatever the caller does then."""
        self.put_rows(rows)
        if on_done is not None:
            self.when_stored(token, on_done)

    def _of_rows(self, rows: Rows, together: bool = False) -> tuple[list[Message], Callable[[], None]]:
        def apply() -> None:
            for row in rows:
                self.tables.apply(*row)

        records = [item_message(*row) for row in rows]
        return ([group_head(len(records)), *records] if together else records), apply

    def when_stored(self, token: Any, on_done: Done) -> None:
        """Call `on_done(token, None or GantryError)` when all that was handed over so far is as safe as an acknowledgement promises."""
        self._internal.append(([], None, on_done, token))
        self.arm_append()

    def fetch(self, cold: Cold, call: Any, again: Callable[..., None], *arguments: Any) -> None:
        """Read what was cold, then `again(call, *arguments)`; `call` is the operation. Too much waits already: try a little later."""

        def go_on(call: Any) -> None:
            again(call, *arguments)

        try:
            self.store.fetch(cold, call, go_on)
        except GantryError:
            self.wheel.call_at(self.wheel.now_ms() + COLD_RETRY_MS, lambda now_ms: go_on(call))

    def store_failed(self, error: GantryError) -> None:
        """The disk failed: nothing more is acknowledged (DESIGN section 4, fact 5)."""
        log.error("the store stopped: %s; nothing more is accepted, restart after the disk is repaired", error.text)
        self.gate.fail(error)

    # Topics.

    def ensure_topic(self, name: str, create: int, queues: int, maker: Maker | None = None) -> Topic:
        """The topic; created on use if allowed (`FOR_QUEUE`, `FOR_EXCHANGE`: see there). `maker`: who publishes to it (door, connection); None: somebody declares it. Raises
        TOPIC_NOT_FOUND, TOPIC_LIMIT, NAME_INVALID, NO_PERMISSION."""
        topic = self.topics.get(name)
        if topic is not None:
            if create and maker is None:
                topic.wanted_ms = self.clock.now_ms()
            return topic
        for_exchange = create in (FOR_QUEUE, FOR_EXCHANGE) or (maker is not None and maker[0] == EXCHANGES)
        if create and names.is_system_topic(name):  # a door's own, whatever users may create
            return self.topics.create(TopicConfig(name, queues, queues, for_exchange=for_exchange))
        if not create or not self.settings.topics_config.auto_create:
            raise GantryError(
                ErrorCode.TOPIC_NOT_FOUND, f"topic {name} does not exist; create it first (gantry topic create {name})"
            )
        if maker is None:
            return self.topics.create_on_use(name, queues, self.clock.now_ms(), create == FOR_QUEUE, for_exchange)
        self.topic_budget.check(name, self.topics.auto_created, *maker)
        topic = self.topics.create_on_use(name, queues, self.clock.now_ms(), for_exchange=for_exchange)
        self.topic_budget.made(*maker)
        return topic

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with all that goes with it; its records stay in the log. False if unknown."""
        return deletions.delete_topic(self, name)

    def delete_group(self, name: str, known: bool, clean_offsets: bool) -> None:
        """Delete the row of a group and, if asked, its offsets and pop cursors. `known`: it has a row."""
        deletions.delete_group(self, name, known, clean_offsets)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset that can be read."""
        first = max(self.store.min_offset(topic, queue_id), self.topics.first_offset(topic, queue_id))
        return max(first, self.kept_from.get((topic, queue_id), 0)) if self.kept_from else first

    # Routes, light queues, taps.

    def add_route(self, route: Route, token: Any, on_done: Done) -> None:
        """As RoutePort.add_route. Raises ILLEGAL_ARGUMENT."""
        check_item("route", route.route_id, None)
        if route.topic is not None and names.is_own_system_topic(route.topic):
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {route.topic} belongs to the broker itself")
        if moves := self.sending.moves_of(route.route_id):
            route = replace(route, moves=moves)
        self.receiving.changing(route.route_id, True)
        stored = self.router.add_unstored(route, self.receiving.when_known(on_done, True))
        self.put("route", [(route.route_id, route_to_bytes(route))], token, stored)

    def remove_routes(self, route_ids: Sequence[str], token: Any, on_done: Done | None) -> None:
        """As RoutePort.remove_routes."""
        known: list[str] = []
        for route_id in route_ids:
            self.receiving.changing(route_id, False)
            if self.router.remove(route_id):
                known.append(route_id)
        rows: Rows = [("route", route_id, None) for route_id in known]
        if on_done is None:
            self.drop_rows(rows, token, None)
            return
        is_over = not known and self.receiving.is_followed
        removed = on_done if is_over else self.receiving.when_known(on_done, False)
        self.drop_rows(rows, token, lambda token, result: removed(token, len(known) if result is None else result))

    def create_light(self, token: Any, on_done: Done, slot: int = NO_SLOT) -> None:
        """As QueuePort.create_light. `slot`: of the name that it is made for."""
        light, rows = self.new_light(slot)
        self.put_rows(rows, token, lambda token, result: on_done(token, light if result is None else result))

    def new_light(self, slot: int = NO_SLOT) -> tuple[int, Rows]:
        """A light queue, and the rows that make it last."""
        light = self._next_light
        self._next_light += 1
        row = b"{}" if slot == NO_SLOT else b'{"slot":%d}' % slot
        return light, [("light", str(light), row), ("light", "next", str(self._next_light).encode())]

    def delete_light(self, light: int, token: Any, on_done: Done | None) -> None:
        """As QueuePort.delete_light."""
        self.wakes.forget_light(light)
        self.drop_rows(deletions.delete_light(self, light), token, on_done)

    def drop_light(self, light: int, rows: Rows) -> None:
        """A queue ends by itself: delete its light queue and these rows."""
        self.wakes.forget_light(light)
        self.drop_rows(deletions.delete_light(self, light) + rows, None, None)

    def next_port(self) -> int:
        """A number for a new BrokerPort."""
        self._next_port += 1
        return self._next_port

    def new_tap(self, on_records: Callable[[list[tuple[Message, tuple[int, ...]]]], None]) -> Tap:
        """A channel for volatile routes; closed by `router.close_tap`."""
        tap = Tap(self._next_tap, on_records)
        self._next_tap += 1
        return tap

    # The turn.

    def _append_all(self) -> None:
        self._append_turn()
        while self._submitted or self.queues.dying:
            self._append_turn()

    def _append_turn(self) -> None:
        self._append_armed = False
        self.sending.check_leases()
        internal, self._internal = self._internal, []
        messages: list[Message] = []
        lights: list[tuple[int, ...]] = []
        matches: list[tuple[Message, RouteMatch]] = []
        if self.queues.counted or self.queues.dying:
            self.queues.begin_turn()
        taken = self._submitted.take(partial(self._prepare, messages, lights, matches))
        bodies: list[bytes] = []
        try:
            if (bodies := self.cursors.settled.take_bodies()) or self._internal:
                messages.extend([Message(ACK_TOPIC, body, queue_id=0) for body in bodies])
                internal, self._internal = internal + self._internal, []
            self.tables.writing()
            if self.transactions.dirty:  # behind the states of cursors, which do not have these decisions yet
                messages.extend(self.transactions.records())
                internal.insert(0, ([], self.transactions.stored, None, None))
            stored = len(lights)
            if first := [message for entry in internal for message in entry[0]] if internal else []:
                messages, lights = first + messages, [()] * len(first) + lights
            lights.extend([()] * (len(messages) - len(lights)))
            end = self.store.written_position
            if messages:
                end = append_fit(self.store, messages, lights, matches, taken, internal)
            self._wide.stored(matches)
        except Exception as error:
            whole = [sent for sent in taken if sent.is_done()]
            entered = self._wide.abandon(matches)
            self._refuse(whole + self._submitted.give_up(), internal, as_refusal(error), bodies)
            self._follow([], entered)
            return
        self.stats.put_total += stored - self._whole.records
        self._answer(taken, internal, end)
        self._follow(messages, matches)
        times = self.pending.times
        if messages:
            times.batch_messages.observe(len(messages))
        if self._submitted:
            self.arm_append()
        if self.holding.targets:
            self.holding.check()

    def _prepare(
        self, messages: list[Message], lights: Lights, matches: Matches, sent: Sent, entries: int, size: int
    ) -> tuple[int, int]:
        """Check, choose queues and routes; see `submitted.Prepare`."""
        if sent.companions is not None:
            return self._whole.prepare(sent, messages, lights, matches)
        if sent is self._wide.sent:
            return self._wide.go_on(entries, matches)
        batch, begin = sent.batch, sent.end
        if (passing := self.refuses(0 if begin else len(batch))) is not None:
            sent.refuse_rest(passing)
            return 1, 0
        topics = self.topics.topics
        check, index = self.store.check, begin - 1
        room, more, strict, wide = entries, size, sent.strict, self._wide
        try:
            for index, message in enumerate(batch[begin:] if begin else batch, begin):
                topic = topics.get(message.topic)
                code: ErrorCode | None = None
                if topic is None or topic.system:
                    topic, code = self.topic_for(message, sent.sender)
                if code is None:
                    code = check(message)
                    if topic is not None and topic.compacted and code is None and is_keyless(message):
                        code = ErrorCode.MESSAGE_ILLEGAL  # RocketMQ: "Required message key is missing"
                hit = NO_MATCH
                if code is None and message.kind and topic is not None:
                    strict, room = strict or topic.strict, room - beyond_one(message)
                    topic, code = self.redirect(message, topic)
                if code is None and topic is not None:
                    if topic.routed:
                        found = topic.cache.get((message.exchange, message.tag))
                        hit = found if found is not None else self.router.route(topic, message)
                        kept = (hit.taps and is_behind(hit, message)) or (wide.sent and wide.keeps(hit))
                        if kept and not (message.kind or self.closed or (sent.whole and index)):
                            index, room = index - 1, min(room, entries - MESSAGE_ENTRIES)
                            break
                    if message.demand_route and message.demand_route not in hit.kinds:
                        code = ErrorCode.NO_ROUTE
                    elif self.queues.rejecting or self.queues.unique:
                        hit, code = self.queues.admitted(sent, index, hit)
                    code = self.mark(message, hit, sent.sender) if hit.mark and code is None else code
                if code is not None:
                    sent.refuse(index, code)
                    continue
                if topic is not None:
                    strict = strict or (topic.strict and (topic.special or message.property(props.WAIT) != "false"))
                    if message.queue_id < 0:
                        message.queue_id = topic.queue_for(message)
                messages.append(message)
                lights.append(hit.lights)
                more -= len(message.body)
                if hit is not NO_MATCH:
                    if len(hit.lights) > wide.above and wide.takes(sent, message) and not self.closed:
                        matches.append((message, wide.begin(sent, index, message, hit)))
                        index, room = index - 1, room - max(entries, len(hit.lights) // WRITTEN_ENTRIES)
                        break
                    matches.append((message, hit))
                    # A batch is whole however many listen to it live.
                    room -= len(hit.lights) if sent.whole else hit.entries()
                if more <= 0 or (index - begin + 1) * MESSAGE_ENTRIES >= room:
                    break
        except Exception as error:  # this batch alone is refused
            leave_out(error, sent, messages, lights, matches)
            return 1, 0
        sent.strict = strict
        sent.end = end = index + 1
        used = (end - begin) * MESSAGE_ENTRIES + entries - room
        sent.entries += used
        return used, size - more

    def refuses(self, count: int) -> ErrorCode | None:
        """Why so many more messages are not accepted for now."""
        if count and not self.slots.knows_groups:
            return ErrorCode.UNAVAILABLE
        if count and self.pending.bytes and self.pending.refuses(count, self.config, self.wheel.now_ms()):
            return ErrorCode.BUSY
        return ErrorCode.STORE_FULL if self.full else None

    def mark(self, message: Message, match: RouteMatch, sender: object) -> ErrorCode | None:
        """Write into a message who wants it elsewhere; QUEUE_FULL where so much waits for one of them already. What is the broker's own to send, as it
        was taken before (delayed, a dead letter), goes on waiting then: BUSY. A message that was decided on enters: its decision is in this batch."""
        if message.kind != DECIDED and self.sending.is_full(match.lights):
            return ErrorCode.BUSY if sender is None else ErrorCode.QUEUE_FULL
        message.properties = marked(message.properties, match.mark, SENDER_PROPERTIES_MAX)
        return None

    def redirect(self, message: Message, topic: Topic) -> tuple[Topic | None, ErrorCode | None]:
        """A message that is not for its topic yet: its part rewrites it for the system topic where it waits."""
        if message.queue_id < 0:
            message.queue_id = topic.queue_for(message)
        try:
            code = self.redirects[message.kind](message)
        except GantryError as error:  # no room for its topic or cursor: the turn goes on without it
            return topic, error.code
        return self.topics.topics.get(message.topic), code

    def _run(self, message: Message) -> ErrorCode | None:
        """A run has been looked at when nobody wanted its messages one by one. Where that has changed meanwhile it is to be sent again."""
        topic = self.topics.topics.get(message.topic)
        if topic is None or not topic.takes_runs():
            return ErrorCode.BUSY
        assert isinstance(message, Run)
        self.stats.put_total += len(message.bodies) - 1
        return self.transactions.enter(message) if message.queue_offset >= 0 else None

    def topic_for(self, message: Message, sender: object) -> tuple[Topic | None, ErrorCode | None]:
        """The topic of a message that has none yet: made, or why not."""
        own = message.topic == names.AUDIT_TOPIC or message.kind == FORWARDED
        if own and isinstance(sender, int):  # a port's own, no door's
            return self.topics.get(message.topic), None
        if names.is_own_system_topic(message.topic):
            return None, ErrorCode.NO_PERMISSION
        connection = None if isinstance(sender, int) else sender  # a number stands for a port, with any number of them
        maker = (message.property(props.ORIGIN) or NATIVE, connection)
        try:
            return self.ensure_topic(message.topic, True, self.gateway_config.queues, maker), None
        except GantryError as error:
            return None, error.code

    def _answer(self, taken: list[Sent], internal: list[_Internal], end: int) -> None:
        gate = self.gate
        parked = False
        for _, apply, on_done, token in internal:
            if apply is not None:
                run_all([apply])
            if on_done is not None:
                parked |= not gate.park(end, on_done, token, None)
        if self._whole.taken:
            self._whole.stored()
        self.tables.written()
        times, at_once = self.pending.times, 0
        begun_s = times.begun
        for sent in taken:
            if sent.end < len(sent.batch):
                sent.at = sent.end
                continue
            results = sent.outcome()
            if gate.passes(end, sent.strict):
                try:
                    sent.on_done(sent.token, results)
                except Exception as error:  # one door's failure costs no other batch its answer
                    log_failed(sent.on_done, error)
                if sent.begun_s == begun_s:
                    at_once += 1
                else:
                    times.send_seconds.observe(times.now() - sent.begun_s)
            else:
                waiter = (sent.on_done, sent.token, sent.begun_s)
                self.pending.park(gate, end, waiter, results, sent, self.wheel.now_ms())
                parked = True
        if at_once:
            times.send_seconds.observe(times.now() - begun_s, at_once)
        if parked:
            self.request_flush()

    def _refuse(self, waiting: list[Sent], internal: list[_Internal], error: GantryError, acks: list[bytes]) -> None:
        alone = [messages for messages, _, on_done, _ in internal if on_done is None and messages]
        self.tables.written()
        self._whole.refused()
        if error.code is ErrorCode.STORE_FAILED:
            self.request_flush()  # its thread finds the store stopped, and says so
        else:
            self._refused.acknowledgements(acks)
            if alone:
                self._internal.insert(0, (*self._of_rows(self._refused.keep(alone)), None, None))
        for _, _, on_done, token in internal:
            if on_done is not None:
                answer(on_done, token, error)
        for sent in waiting:
            sent.refuse_rest(error.code)
            answer(sent.on_done, sent.token, sent.outcome())

    def _follow(self, messages: list[Message], matches: list[tuple[Message, RouteMatch]]) -> None:
        """Wake who waits for what was appended; arm the background work."""
        self.wakes.appended(messages, matches)
        if matches and self.queues.by_light:
            self.queues.entered(matches)
        if messages:
            self.arm_background()
            if self.store.units_behind:
                self._write_derived()

    def arm_background(self) -> None:
        """Derived files and the checkpoint are due soon."""
        if not self._background_armed:
            self._background_armed = True
            self.wheel.call_at(self.wheel.now_ms() + BACKGROUND_EVERY_MS, self._background)

    def _background(self, now_ms: int) -> None:
        self._background_armed = False
        more = self._write_derived()
        if more or (self.store.units_waiting and not self.closed):
            self._background_armed = True
            self.wheel.call_at(now_ms + (1 if more else BACKGROUND_EVERY_MS), self._background)

    def _write_derived(self) -> bool:
        """A slice of it. True: there is more."""
        try:
            return not self.closed and self.store.run_background(BACKGROUND_BUDGET_US)
        except GantryError:
            self.request_flush()  # as above
            return False

    def arm_append(self) -> None:
        """There is something to append in this turn."""
        if not self._append_armed:
            self._append_armed = True
            self.pending.times.begin()
            self.turn.at_append(self._append_turn)

    def append_ack(self, body: bytes) -> None:
        """Write an acknowledgement record at once, or, where the disk is full, when it has room."""
        try:
            self.store.append([Message(ACK_TOPIC, body, queue_id=0)], [()])
        except GantryError as error:
            log.error("an acknowledgement record was not stored (%s): entries may be delivered again", error.text)
            self._refused.acknowledgements([body])

    def write_acks(self) -> None:
        """Make records of everything that cursors settled."""
        for body in self.cursors.settled.take_bodies():
            self.append_ack(body)


def _here(_message: Message) -> ErrorCode | None:
    """A record of another group enters its queues at once."""
    return None


def is_keyless(message: Message) -> bool:
    """A compacted topic keeps the last record of a key: one without is refused."""
    return not message.property(props.KEYS).strip()
