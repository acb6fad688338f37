"""Transactional messages: half messages wait until their producer has decided; each has one fate (docs/formats/transactions.md).

A half message is an entry of cursor `~half` over the half topic. A decision is one stretch of an append batch, in this order: the
committed message, an op record for real brokers, an acknowledgement record for us. A log that was cut inside it holds at most the
committed message without its note, and `recovery` finds that: what reached its topic is committed. Nothing else ends a half
message, so its fate is what the log says, and a second decision changes nothing.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.config import TransactionsConfig
from gantrymq.broker.consuming.acks import ACK_TOPIC, RECORD_BYTES_MAX, AckKind, encode_offsets, encode_range
from gantrymq.broker.due.waiting import keep_readable
from gantrymq.broker.topics import TopicConfig
from gantrymq.broker.transactions.checks import Checks
from gantrymq.broker.transactions.half_messages import (
    CHECK_GROUP,
    COMMIT,
    FATES,
    GIVEN_UP,
    GIVEN_UP_TOPIC,
    HALF_TAG,
    HALF_TOPIC,
    OP_PROPERTIES,
    OP_TOPIC,
    ROLLBACK,
    Half,
    committed,
    committed_rows,
    given_up,
    op_bodies,
    to_half,
)
from gantrymq.broker.transactions.recovery import Start
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DECIDED, Message
from gantrymq.store.log import record
from gantrymq.store.log.moved import MOVED_TOPIC, inner
from gantrymq.store.log.run import Run, messages_of

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Done
    from gantrymq.metrics import Metrics

log = logging.getLogger(__name__)

GROUP: Final = "~half"
"""Of the cursors over the half topic (undecided) and the op topic (op records not yet taken in)."""

PENDING_MAX: Final = 65_536
"""Undecided half messages in memory, at some 500 bytes each; those behind them are read from the queue when there is room again."""
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Young half messages kept whole, so that a decision that follows at once reads nothing."""
RECENT_MAX: Final = 10_000
"""Fates remembered, so that a repeated decision gets the same answer."""
DONE_PER_READ: Final = 32
"""Decided ones that are passed over in the time that reading one takes."""
OFFSETS_MS: Final = 1_000
"""From a decision to the offsets that tell a real broker of it."""


class DecisionRefused(GantryError):
    """The half message is decided already, or the decision came too late (RocketMQ: ILLEGAL_OPERATION)."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.ILLEGAL_ARGUMENT, text)


def _refusal(result: object) -> GantryError | None:
    """What `submit` said of the message of a decision."""
    if isinstance(result, ErrorCode):
        return GantryError(result, f"{result.value}: the message waits on, decide again later")
    return result if isinstance(result, GantryError) else None


class Transactions:
    """See the module. `redirect`, `enter`, `records` and `stored` are the append turn's; `end` is the doors'."""

    def __init__(self, broker: Context, config: TransactionsConfig) -> None:
        self._broker = broker
        self.config = config
        self.table: dict[int, Half] = {}
        """Undecided ones by their offset in the half topic: all below `covered`, and none from there on."""
        self.covered = 0
        self.pending = 0
        """Undecided ones, also those that are not in the table."""
        self.kept_bytes = 0
        self.halves: Cursor | None = None
        self.ops: Cursor | None = None
        self.checks = Checks(broker, self)
        self.dirty: list[Any] = []
        """Not empty: the turn's batch holds half messages or decisions."""
        self.decided = {COMMIT: 0, ROLLBACK: 0, GIVEN_UP: 0}
        """Since the start."""
        self.resuming: set[int] = set()
        """Positions of messages that were given up and are on their way back: no two requests make two half messages of one."""
        self._rows_stored = False
        self._new: list[tuple[Message, Half]] = []
        """Half messages of this turn."""
        self._accepted: list[int] = []
        self._owed: list[int] = []
        """Decided before the last stop, found at this start; noted with the next batch."""
        self._deciding: dict[int, int] = {}
        """Offset to fate, from `end` until the batch is written or refused."""
        self._writing: tuple[list[tuple[Message, Half]], list[int], int] = ([], [], 0)
        """Half messages, decided offsets and the op topic's new end, of the batch that is being written."""
        self._recent: dict[int, int] = {}
        self._less_recent: dict[int, int] = {}
        self._op_safe = 0
        """Op records below it name no half message at or above the cursor's floor."""
        self._op_mark = 0
        self._half_mark = 0
        """The same will be true of `_op_mark` when the floor has come here."""
        self._armed = False

    # --- the append turn

    def redirect(self, message: Message) -> ErrorCode | None:
        """A half message: rewritten for the half topic; its queue in its own topic is chosen already."""
        if not self._rows_stored:
            self._prepare()
        group = props.find(message.properties, props.PRODUCER_GROUP)
        if not group:
            return ErrorCode.MESSAGE_ILLEGAL  # nobody could decide on it
        unique = message.keys[0] if message.keys else ""
        half = Half(group, unique, message.topic, message.queue_id, message.properties)
        to_half(message, unique)
        code = self._broker.store.check(message)
        if code is None:
            self._new.append((message, half))
            self.dirty = self._new
        return code

    def enter(self, message: Message) -> ErrorCode | None:
        """A message that a decision puts into its topic has passed the checks; `queue_offset` is its half message's until it is stored."""
        self._accepted.append(message.queue_offset)
        self.dirty = self._accepted
        return None

    def records(self) -> list[Message]:
        """What follows the messages of the batch: op records and the acknowledgement of all decisions. A batch that is not written
        leaves nothing; each decision in it is answered so."""
        assert self.halves is not None
        assert self.ops is not None
        offsets = sorted({*self._accepted, *self._owed}) if self._accepted or self._owed else []
        bodies = op_bodies(offsets)
        op_end = self._broker.store.max_offset(OP_TOPIC, 0) + len(bodies)
        self._writing = (self._new, offsets, op_end)
        self._new, self._accepted = [], []
        self.dirty = self._owed
        if not offsets:
            return []
        notes = [Message(OP_TOPIC, body, OP_PROPERTIES, HALF_TAG, (), 0) for body in bodies]
        entries = encode_offsets(AckKind.LIST, self.halves.id, offsets)
        entries.append(encode_range(self.ops.id, self.ops.window.floor, op_end - 1))
        if sum(map(len, entries)) <= RECORD_BYTES_MAX:
            entries = [b"".join(entries)]
        return notes + [Message(ACK_TOPIC, entry, queue_id=0) for entry in entries]

    def stored(self) -> None:
        """The batch is in the log; nobody has been answered yet."""
        assert self.ops is not None
        new, offsets, op_end = self._writing
        if offsets:
            for offset in offsets:
                self._forget(offset)
            self.ops.window.done_range(self.ops.window.floor, op_end - 1)
            self._owed = []
            if not self._new and not self._accepted:
                self.dirty = self._owed
            self._arm()
        for message, half in new:
            if message.physical_offset >= 0:
                self._take_in(message, half)
                message.queue_id = half.queue_id  # the sender is told the queue that it chose
        self.checks.arm()

    def _prepare(self) -> None:
        """Topics and cursors; their rows go into the same batch, before what needs them."""
        broker = self._broker
        for name in (HALF_TOPIC, OP_TOPIC):
            if broker.topics.get(name) is None:
                broker.topics.create(TopicConfig(name, 1, 1))
        self.make_cursors(0, 0)

    def make_cursors(self, half_start: int, op_start: int) -> None:
        """Find or make both cursors, and make them durable (again, until their rows are stored)."""
        cursors = self._broker.cursors
        rows: list[tuple[str, bytes]] = []
        known = self._broker.tables.rows("cursor")
        found = []
        for queue, start in ((f"{HALF_TOPIC}/0", half_start), (f"{OP_TOPIC}/0", op_start)):
            cursor = cursors.find(queue, GROUP)
            if cursor is None:
                cursor, more = cursors.create(queue, GROUP, start)
                rows += more
            elif str(cursor.id) not in known:
                rows.append((str(cursor.id), json.dumps([queue, GROUP, cursor.window.floor]).encode()))
            found.append(cursor)
        self.halves, self.ops = found
        self._rows_stored = not rows
        if rows:
            self._broker.put("cursor", rows, None, None)

    def take_more(self, count: int) -> bool:
        """Put up to `count` more into the table, in the order of the queue; False when it is full or has all. Raises `Cold`."""
        assert self.halves is not None
        window, end = self.halves.window, self._broker.cursors.end(self.halves)
        self.covered = max(self.covered, window.floor)
        steps = count * DONE_PER_READ
        while self.covered < end and len(self.table) < PENDING_MAX and count and steps:
            steps -= 1
            if not window.is_done(self.covered):
                found = self.read(self.covered)
                if found is not None:
                    self.table[self.covered] = Half.read(*found)
                count -= 1
            self.covered += 1
        return self.covered < end and len(self.table) < PENDING_MAX

    def _take_in(self, message: Message, half: Half) -> None:
        self.pending += 1
        if message.queue_offset != self.covered or len(self.table) >= PENDING_MAX:
            return
        self.covered += 1
        half.stored(message, message.physical_offset)
        self.table[message.queue_offset] = half
        if self.kept_bytes + message.size <= KEPT_BYTES_MAX:
            half.message = message
            self.kept_bytes += message.size

    def _forget(self, offset: int) -> None:
        """It is decided."""
        assert self.halves is not None
        fate = self._deciding.pop(offset, 0)
        if fate:
            self.decided[fate] += 1
            self._recent[offset] = fate
            if len(self._recent) > RECENT_MAX // 2:
                self._less_recent, self._recent = self._recent, {}
        if self.halves.window.is_done(offset):
            return
        self.halves.window.done(offset)
        self.pending -= 1
        half = self.table.pop(offset, None)
        if half is not None:
            self.drop_message(half)

    def drop_message(self, half: Half) -> None:
        """Keep it in memory no longer."""
        if half.message is not None:
            self.kept_bytes -= half.size
            half.message = None

    # --- decisions

    def find(self, offset: int, position: int, commit: bool) -> tuple[Half, Message | None]:
        """What `end` needs of the half message at `offset` of the half topic, stored at `position`. Changes nothing. Raises
        ILLEGAL_ARGUMENT, `Cold`."""
        half = self.table.get(offset)
        if half is None or half.position != position:
            half = self._search(offset, position)
        known = offset in self._deciding or offset in self._recent or offset in self._less_recent
        return half, self._message_of(half) if commit and not known else None

    def end(
        self, found: tuple[Half, Message | None], group: str, offset: int, commit: bool, from_check: bool, token: Any,
        on_done: Done,
    ) -> None:  # fmt: skip
        """Decide on the half message that `find` found at `offset`. `on_done(token, None or GantryError)` when that is as durable as its
        topic asks. Raises GantryError for what is refused (the checks and texts of EndTransactionProcessor)."""
        half, message = found
        if not from_check and self.is_late(half):
            raise DecisionRefused(
                f"the decision came more than {half.immunity_ms} ms after the message ({props.UNIQ_KEY} {half.unique}): wait for the check"
            )
        if half.group != group:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "The producer group wrong")
        if half.offset != offset:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "The transaction state table offset wrong")
        self.decide(half, COMMIT if commit else ROLLBACK, message, token, on_done)

    def _committed(self, message: Message, half: Half) -> Message:
        """The message that enters its topic, as `enter` takes it."""
        broker = self._broker
        entering = committed(message, half)
        entering.queue_offset = half.offset
        keep_readable(broker, entering)
        for name in entering.lmq:
            broker.topics.light(name)
        return entering

    def is_late(self, half: Half) -> bool:
        """A producer that asked for a time without checks must decide within it (EndTransactionProcessor.rejectCommitOrRollback)."""
        if half.immunity_ms < 0:
            return False
        allowed_ms = max(half.immunity_ms, self.config.timeout_ms)
        return self._broker.clock.now_ms() - half.born_ms > allowed_ms

    def _search(self, offset: int, position: int) -> Half:
        """A half message that is not in the table, or is not where its producer says."""
        message = self._broker.store.get(position)
        if message is not None and message.topic == HALF_TOPIC:
            return Half.read(message, position)
        found = self.read(offset)
        if found is not None and found[1] == position:
            return Half.read(*found)
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "Find prepared transaction message failed")

    def read(self, offset: int) -> tuple[Message, int] | None:
        """The record of the half topic at `offset` and where it was stored first (retention may have moved it)."""
        halves = self.halves
        if halves is None or not 0 <= offset < self._broker.cursors.end(halves):
            return None
        units = self._broker.cursors.units(halves, offset, 1)
        pieces, _ = self._broker.store.read_records(units, 1)
        if not pieces:
            return None
        try:
            message = record.decode(pieces[0])
            if message.topic == MOVED_TOPIC:
                message = inner(message)
        except record.RecordError:
            return None
        return message, message.physical_offset

    def message_of(self, half: Half) -> Message:
        """The whole half message. Raises NOT_FOUND, `Cold`."""
        message = self._message_of(half)
        if message is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"half message {half.offset} cannot be read any more")
        return message

    def _message_of(self, half: Half) -> Message | None:
        if half.message is not None:
            return half.message
        found = self.read(half.offset)
        return found[0] if found is not None else None

    def decide(self, half: Half, fate: int, message: Message | None, token: Any, on_done: Done) -> None:
        """Give it that fate; a repeated decision waits for the first. `message`: the whole, None for a rollback or where it cannot be
        read. Raises DecisionRefused, NOT_FOUND, BUSY."""
        broker = self._broker
        offset = half.offset
        halves = self.halves
        if offset in self._deciding:
            raise GantryError(ErrorCode.BUSY, f"half message {offset} is being decided: ask again")
        before = self._recent.get(offset) or self._less_recent.get(offset)
        if before == fate:
            broker.when_stored((half, token, on_done), self._settled)
            return
        if before or halves is None or halves.window.is_done(offset):
            raise DecisionRefused(
                f"half message {offset} ({props.UNIQ_KEY} {half.unique}) is decided already: {FATES.get(before or 0, 'earlier')}"
            )
        if fate == ROLLBACK:
            self._deciding[offset] = fate
            self._accepted.append(offset)
            self.dirty = self._accepted
            broker.when_stored((half, token, on_done), self._settled)
            return
        if message is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"half message {offset} cannot be read any more")
        run = committed_rows(message, half) if fate == COMMIT else None
        if run is not None:
            self._deciding[offset] = fate
            self._submit_rows(run, (offset, token, on_done))
            return
        if fate == COMMIT:
            entering = self._committed(message, half)
        else:
            entering = given_up(message, half)
            entering.queue_offset = offset
            if broker.topics.get(GIVEN_UP_TOPIC) is None:
                broker.topics.create(TopicConfig(GIVEN_UP_TOPIC, 1, 1))
        self._deciding[offset] = fate
        broker.submit([entering], (offset, token, on_done), self._entered)

    def _submit_rows(self, run: Run, entry: tuple[int, Any, Done]) -> None:
        """All of it in one append, and all or nothing through a crash: so one of its messages in the topic says that it is committed."""
        topic = self._broker.topics.get(run.topic)
        if topic is not None and topic.takes_runs():
            self._broker.submit([run], entry, self._entered, None, True)
            return
        self._broker.submit_with(messages_of(run, DECIDED), entry, self._entered, None, (), [])

    def _settled(self, entry: tuple[Half, Any, Done], result: object) -> None:
        """A decision that puts nothing into a topic: its answer waits for the flush if the topic's messages do."""
        half, token, on_done = entry
        broker = self._broker
        self._deciding.pop(half.offset, None)
        if isinstance(result, GantryError):
            on_done(token, result)
            return
        topic = broker.topics.get(half.topic)
        if topic is None or not topic.strict or broker.topics.strict:
            on_done(token, None)
        elif not broker.gate.park(broker.store.written_position, on_done, token, None, True):
            broker.request_flush()

    def _entered(self, entry: tuple[int, Any, Done], results: Any) -> None:
        offset, token, on_done = entry
        self._deciding.pop(offset, None)
        on_done(token, _refusal(results if isinstance(results, GantryError) else results[0]))

    # --- start, stop, what a real broker is told

    def open(self) -> None:
        """See `parts.Part`."""
        Start(self._broker, self).run()
        self.checks.arm()

    def opened(self, owed: list[int], op_safe: int) -> None:
        """`recovery` is through: cursors and table are right, `owed` are decided and not noted yet."""
        assert self.halves is not None
        self._owed = owed
        self._op_safe = op_safe
        self._op_mark = self._broker.store.max_offset(OP_TOPIC, 0)
        self._half_mark = self._broker.cursors.end(self.halves)
        for offset in owed:
            self._forget(offset)
        if owed:
            self.dirty = owed
            self._broker.when_stored(None, lambda token, result: None)
        self._arm()

    def close(self) -> None:
        """See `parts.Part`."""
        self._commit_offsets(0)

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            wheel = self._broker.wheel
            wheel.call_at(wheel.now_ms() + OFFSETS_MS, self._commit_offsets)

    def _commit_offsets(self, _now_ms: int) -> None:
        """RocketMQ's check group: its half offset is our floor; from its op offset on lie all op records that name anything above."""
        self._armed = False
        halves = self.halves
        if halves is None:
            return
        broker = self._broker
        floor, end = halves.window.floor, broker.cursors.end(halves)
        op_end = broker.store.max_offset(OP_TOPIC, 0)
        if floor >= end:
            self._op_safe = op_end
        elif floor >= self._half_mark:
            self._op_safe = max(self._op_safe, self._op_mark)
        if floor >= self._half_mark:
            self._op_mark, self._half_mark = op_end, end
        broker.commits.commit(CHECK_GROUP, HALF_TOPIC, 0, floor)
        broker.commits.commit(CHECK_GROUP, OP_TOPIC, 0, self._op_safe)

    # --- for people

    def undecided(self, start: int, count: int) -> tuple[list[tuple[Half, int]], int]:
        """Up to `count` from half topic offset `start` on with the checks made so far, and the offset to go on from, or -1."""
        offsets = list(self.table)  # ascending, as they came
        first = bisect_left(offsets, start)
        found = [self.table[offset] for offset in offsets[first : first + count]]
        following = offsets[first + count] if first + count < len(offsets) else -1
        return [(half, self.checks_of(half)) for half in found], following

    def checks_of(self, half: Half) -> int:
        """How often a producer was asked."""
        assert self.halves is not None
        return half.checks + self.halves.window.counts.get(half.offset, 0)

    def show(self, metrics: Metrics) -> None:
        """Register the metrics."""
        for name, text, source, kind in (
            ("gantry_transactions_pending", "Half messages without a decision", lambda: self.pending, "gauge"),
            ("gantry_transaction_checks_total", "Producers asked for a decision", lambda: self.checks.made, "counter"),
            (
                "gantry_transactions_committed_total",
                "Transactions committed",
                lambda: self.decided[COMMIT],
                "counter",
            ),
            (
                "gantry_transactions_rolled_back_total",
                "Transactions rolled back",
                lambda: self.decided[ROLLBACK],
                "counter",
            ),
            (
                "gantry_transactions_given_up_total",
                "Half messages put aside after too many checks",
                lambda: self.decided[GIVEN_UP],
                "counter",
            ),
        ):
            metrics.read(name, text, source, kind)
