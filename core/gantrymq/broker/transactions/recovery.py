"""Which half messages are undecided when a broker starts: after a clean stop, after a crash at any place, and after a real broker.

Three sources, each of which may know more than the others: our acknowledgement records (replayed before); op records behind those
that we have taken in; and messages in their topics whose op record was never written (a batch that was cut, or a real broker, which
writes op records up to three seconds late). What is found decided is noted again with the first batch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.acks import encode_range
from gantrymq.broker.tables.tables import replay_topic
from gantrymq.broker.transactions.half_messages import (
    CHECK_GROUP,
    CHECK_TIMES,
    GIVEN_UP_TOPIC,
    HALF_TAG,
    HALF_TOPIC,
    OP_TOPIC,
    Half,
    op_offsets,
    whole,
)
from gantrymq.model import sysflag
from gantrymq.store.appender import CLOCK_BACK_MAX_MS
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from gantrymq.broker.parts import Context
    from gantrymq.broker.transactions.half_messages import Undecided

log = logging.getLogger(__name__)

LOOKUPS_MAX: Final = 4_096
"""Undecided half messages that are looked up in the index, at 0.2 ms each; with more of them the log is read from the oldest on."""
SAME_KEY_MAX: Final = 64
"""Messages with one UNIQ_KEY that are looked at: retries of a producer, copies of a real broker."""
UNITS_STEP: Final = 512
READ_STEP: Final = 4_096
TIME_MAX_MS: Final = 2**63 - 1


class Start:
    """`run` once, while nothing else happens; it waits for the disk."""

    def __init__(self, broker: Context, transactions: Undecided) -> None:
        self._broker = broker
        self._store = broker.store
        self._all = transactions
        self._decided: set[int] = set()

    def run(self) -> None:
        """Fill the table and say what is decided and not noted."""
        store, all_ = self._store, self._all
        if HALF_TOPIC not in store.topics():
            return
        known = f"{HALF_TOPIC}/0"
        old = self._broker.cursors.find(known, "~half") is not None
        first = max(self._broker.offsets.query(CHECK_GROUP, HALF_TOPIC, 0), store.min_offset(HALF_TOPIC, 0))
        op_first = max(self._broker.offsets.query(CHECK_GROUP, OP_TOPIC, 0), store.min_offset(OP_TOPIC, 0))
        all_.make_cursors(first, op_first)
        assert all_.halves is not None
        window = all_.halves.window
        window.returned.clear()
        committed = self._broker.offsets.query(CHECK_GROUP, HALF_TOPIC, 0)
        if old and committed > window.floor:  # a real broker went on meanwhile
            window.done_range(window.floor, committed - 1)
            self._broker.append_ack(encode_range(all_.halves.id, 0, committed - 1))
        self._take_ops(old)
        end = self._broker.cursors.end(all_.halves)
        all_.pending = sum([not window.is_done(offset) for offset in range(window.floor, end)])
        while all_.take_more(UNITS_STEP):
            pass
        if all_.pending:
            self._drop_copies()
            self._find_committed(end)
        all_.opened(sorted(self._decided), max(op_first, 0))
        if all_.pending or self._decided:
            log.info("transactions: %d undecided, %d found decided", all_.pending, len(self._decided))

    def _take_ops(self, old: bool) -> None:
        halves, ops = self._all.halves, self._all.ops
        assert halves is not None
        assert ops is not None
        ops.window.returned.clear()
        floor, end = halves.window.floor, self._broker.cursors.end(halves)
        for message in replay_topic(self._store, OP_TOPIC, ops.window.floor):
            if message.tag != HALF_TAG:
                continue
            for offset in op_offsets(message.body):
                if floor <= offset < end and not halves.window.is_done(offset):
                    self._decided.add(offset)
        op_end = self._store.max_offset(OP_TOPIC, 0)
        if old and not self._decided and op_end > ops.window.floor:
            self._broker.append_ack(encode_range(ops.id, 0, op_end - 1))
            ops.window.done_range(ops.window.floor, op_end - 1)

    def _drop_copies(self) -> None:
        """Of a half message that a real broker stored anew only the last record counts, decided or not."""
        newest: dict[tuple[str, int], Half] = {}  # a producer that repeats a sending does so with another born time
        for half in sorted(self._all.table.values(), key=lambda half: -half.offset):
            later = newest.setdefault((half.unique, half.born_ms), half)
            if half.unique and later is not half and later.copy:
                self._decided.add(half.offset)

    def _find_committed(self, end: int) -> None:
        table = self._all.table
        if self._all.pending > LOOKUPS_MAX:
            self._read_log(min([half.position for half in table.values()], default=0), end)
            return
        for half in [half for half in table.values() if half.offset not in self._decided]:
            if self._is_committed(half) or self._is_given_up(half):
                self._decided.add(half.offset)

    def _with_key(self, topic: str, half: Half) -> list[tuple[int, int, int, int]]:
        """(prepared offset, position, sysFlag, checks) of the topic's messages with the half message's UNIQ_KEY."""
        if not half.unique or not topic:
            return []
        first_ms = min(half.store_ms, half.born_ms) if half.copy else half.store_ms  # what it copies came before
        begin_ms = first_ms - CLOCK_BACK_MAX_MS
        found = self._store.query(topic, half.unique, SAME_KEY_MAX, begin_ms, TIME_MAX_MS)
        return [
            (message.prepared_offset, message.physical_offset, message.sys_flag, whole(message.property(CHECK_TIMES)))
            for message in found
        ]

    def _is_committed(self, half: Half) -> bool:
        """A real broker may have committed an earlier record of a copy."""
        return any(
            flags & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT
            and (prepared == half.position or (half.copy and 0 < prepared < half.position))
            for prepared, _, flags, _ in self._with_key(half.topic, half)
        )

    def _is_given_up(self, half: Half) -> bool:
        return any(
            prepared == half.position or (not prepared and position > half.position and checks >= max(half.checks, 1))
            for prepared, position, _, checks in self._with_key(GIVEN_UP_TOPIC, half)
        )

    def _read_log(self, start: int, end: int) -> None:
        """Every record from `start` on: which half messages have become messages."""
        positions: set[int] = set()
        at, stop = start, self._store.written_position
        while at < stop:
            head = b"".join(self._store.read_records([(at, record.PREFIX.size, 0)], READ_STEP)[0])
            size, magic = record.PREFIX.unpack(head)
            if size <= 0:
                break
            if magic != record.MAGIC_BLANK:
                head = b"".join(self._store.read_records([(at, min(size, READ_STEP), 0)], READ_STEP)[0])
                flags = int.from_bytes(head[record.SYS_FLAG_AT : record.SYS_FLAG_AT + 4], "big")
                layout = record.heads(flags)
                prepared = layout.unpack_from(head)[-2] if len(head) >= layout.size else 0
                if prepared or flags & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT:
                    positions.add(prepared)
            at += size
        halves, table = self._all.halves, self._all.table
        assert halves is not None
        done = {(half.unique, half.born_ms) for half in table.values() if half.position in positions and half.unique}
        self._decided |= {half.offset for half in table.values() if half.copy and (half.unique, half.born_ms) in done}
        offset = halves.window.floor
        while positions and offset < end:
            units = self._broker.cursors.raw_units(halves, offset, UNITS_STEP)
            if not units:
                break
            for position, size, _ in units:
                if not halves.window.is_done(offset):
                    if size == HOLE_SIZE:
                        found = self._all.read(offset)
                        position = found[1] if found is not None else -1
                    if position in positions:
                        self._decided.add(offset)
                offset += 1
