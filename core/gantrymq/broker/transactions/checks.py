"""Asking producers what became of their transactions, in passes like RocketMQ's (TransactionalMessageServiceImpl.check).

A pass comes every `transactions.check_interval_ms`. It asks one live producer of the group about each half message that is old enough, and
puts aside what was asked about too often or is older than the log keeps messages. A group without a producer costs no check. In slices.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.broker.consuming.acks import AckKind, encode_offsets
from gantrymq.broker.transactions.half_messages import CHECK_TIMES, GIVEN_UP, ROLLBACK, Half
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.broker.parts import Context
    from gantrymq.broker.transactions.half_messages import Undecided

log = logging.getLogger(__name__)

SLICE: Final = 16
"""Half messages asked about, or read, in one slice: some 40 us each."""
LOOKED_AT_MAX: Final = 1_000
"""Half messages looked at in one slice."""
SLICE_EVERY_MS: Final = 2
HOUR_MS: Final = 3_600_000


class Producers(Protocol):
    """Who can be asked; the Remoting door."""

    def alive(self, group: str) -> bool:
        """Some producer of the group is connected."""

    def ask(self, half: Half, message: Message) -> bool:
        """Send the question to one of them; False if that did not happen."""


class NoProducers:
    """Until a door is open."""

    def alive(self, group: str) -> bool:
        """Nobody is."""
        return False

    def ask(self, half: Half, message: Message) -> bool:
        """Nobody is asked."""
        return False


class Checks:
    """One per broker."""

    def __init__(self, broker: Context, transactions: Undecided) -> None:
        self._broker = broker
        self._transactions = transactions
        self.producers: Producers = NoProducers()
        self.made = 0
        """Questions sent since the start."""
        self._armed = False
        self._pass: list[int] = []
        self._at = 0
        self._asked: list[int] = []
        self._quarantine: list[str] = []
        self._failures: list[str] = []

    def arm(self) -> None:
        """There is something undecided: the next pass comes in time."""
        if not self._armed and self._transactions.pending:
            self._armed = True
            wheel = self._broker.wheel
            wheel.call_at(wheel.now_ms() + self._transactions.config.check_interval_ms, self._begin)

    def _begin(self, now_ms: int) -> None:
        self._pass = list(self._transactions.table)
        self._at = 0
        self._go_on(now_ms)

    def _go_on(self, now_ms: int) -> None:
        """A slice of the pass; the next pass is armed behind the last one."""
        if self._broker.closed:
            return
        try:
            more = self._slice()
        except Cold as cold:
            self._broker.fetch(cold, self, lambda call: self._go_on(self._broker.wheel.now_ms()))
            return
        finally:
            self._count()
        if more:
            self._broker.wheel.call_at(now_ms + SLICE_EVERY_MS, self._go_on)
            return
        self._armed = False
        self._pass = []
        self._report()
        self.arm()

    def _slice(self) -> bool:
        asked = looked_at = 0
        table = self._transactions.table
        now_ms = self._broker.clock.now_ms()
        while self._at < len(self._pass):
            if asked >= SLICE or looked_at >= LOOKED_AT_MAX:
                return True
            half = table.get(self._pass[self._at])
            looked_at += 1
            if half is not None:
                try:
                    asked += self._check(half, now_ms)  # may raise Cold: the same one again when it is read
                except (GantryError, OSError) as error:
                    self._failures.append(f"transaction {half.unique} of group {half.group}: {error}")
                    asked += 1
            self._at += 1
        try:
            return self._transactions.take_more(SLICE)
        except OSError as error:
            self._failures.append(f"those from half message {self._transactions.covered} on: {error}")
            return False

    def _check(self, half: Half, now_ms: int) -> bool:
        """Ask about one half message if it is time; True if that took some."""
        transactions = self._transactions
        config = transactions.config
        # A producer's clock may be ahead of ours.
        age_ms = now_ms - min(half.born_ms, half.store_ms)
        immunity_ms = half.immunity_ms if half.immunity_ms >= 0 else config.timeout_ms
        kept_ms = self._broker.store.config.file_reserved_hours * HOUR_MS
        if transactions.checks_of(half) >= config.check_max or (kept_ms and now_ms - half.store_ms > kept_ms):
            self._give_up(half)
            return True
        if 0 <= age_ms <= immunity_ms:  # below 0 our own clock was set back
            return False
        if not self.producers.alive(half.group):
            transactions.drop_message(half)
            return False
        try:
            message = transactions.message_of(half)
        except GantryError as error:
            self._lost(half, error)
            return True
        transactions.drop_message(half)
        # Producers may decide by it (TransactionalMessageServiceImpl.needDiscard counts before it asks).
        pairs = props.decode(message.properties)
        pairs[CHECK_TIMES] = str(transactions.checks_of(half) + 1)
        message.properties = props.encode(pairs)
        if self.producers.ask(half, message):
            self.made += 1
            self._asked.append(half.offset)
        return True

    def _give_up(self, half: Half) -> None:
        try:
            message = self._transactions.message_of(half)
            self._transactions.decide(half, GIVEN_UP, message, half, self._gave_up)
        except GantryError as error:
            if error.code is ErrorCode.NOT_FOUND:
                self._lost(half, error)

    def _gave_up(self, half: Half, error: object) -> None:
        if isinstance(error, GantryError):
            self._failures.append(f"transaction {half.unique} stays undecided until the next check: {error.text}")
        else:
            self._quarantine.append(half.unique)

    def _report(self) -> None:
        """One line a pass, however many there are."""
        if self._quarantine:
            log.warning("%d transactions were asked about in vain and went to TRANS_CHECK_MAX_TIME_TOPIC; the last was %s",
                        len(self._quarantine), self._quarantine[-1])  # fmt: skip
        if self._failures:
            log.warning("%d transactions could not be asked about or put aside; the last: %s",
                        len(self._failures), self._failures[-1])  # fmt: skip
        self._quarantine, self._failures = [], []

    def _lost(self, half: Half, error: GantryError) -> None:
        log.error("transaction %s of group %s is rolled back: %s", half.unique, half.group, error.text)
        self._transactions.decide(half, ROLLBACK, None, half, lambda half, error: None)

    def _count(self) -> None:
        """Note the checks made: they are not made again after a restart."""
        asked, self._asked = self._asked, []
        halves = self._transactions.halves
        if not asked or halves is None:
            return
        for offset in asked:
            halves.window.count(offset, halves.window.counts.get(offset, 0) + 1)
        for entry in encode_offsets(AckKind.BACK, halves.id, asked):
            self._broker.append_ack(entry)
