"""What is stored with a batch of messages in one piece: settlements and table rows. All of it through any crash, or nothing.

In the log they are one group (store/log/groups.py): its head, the rows, the acknowledgements, the messages. What a message's refusal would
leave half done is refused whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.consuming.acks import ACK_TOPIC
from gantrymq.broker.matches import NO_MATCH, RouteMatch, is_behind
from gantrymq.broker.queues.engine import is_told
from gantrymq.broker.tables.tables import item_message
from gantrymq.broker.turn.submitted import MESSAGE_ENTRIES
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import FORWARDED, HALF, RUN, Message
from gantrymq.store.log.groups import group_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Done
    from gantrymq.broker.queues.engine import QueueEngine
    from gantrymq.broker.tables.tables import Rows
    from gantrymq.broker.topics import Topic
    from gantrymq.broker.turn.submitted import Sent

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 10_000
"""Messages and rows of one such batch: it is written in one turn, which takes 50 ms then."""
SETTLED_MAX: Final = 100_000
"""Settlements of one such batch: an acknowledgement of 8 bytes each."""
BYTES_MAX: Final = 16 << 20
"""Bodies and values of one such batch: writing so much takes 20 ms."""


class Decided(Protocol):
    """Settlements that wait for the batch: `consuming.held.Held`, `queues.taken.TakenOut`."""

    def bodies(self) -> list[bytes]: ...

    def apply(self) -> None: ...

    def take_back(self) -> None: ...


def check_settled(count: int) -> None:
    """Raise LIMIT_REACHED for too many settlements in one piece."""
    if count > SETTLED_MAX:
        raise GantryError(ErrorCode.LIMIT_REACHED, f"{count} settlements in one piece, at most {SETTLED_MAX}")


class Companions:
    """Of one batch; it stands in front of the caller's `on_done`. `barred`: light queues that a message, by its identity, does not enter.
    Raises LIMIT_REACHED."""

    __slots__ = ("_on_done", "applied", "barred", "first", "held", "rows", "sent", "unfit")

    def __init__(
        self,
        batch: Sequence[Message],
        held: Decided,
        rows: Rows,
        on_done: Done,
        barred: Mapping[int, frozenset[int]],
    ) -> None:
        size = sum([len(message.body) for message in batch]) + sum([len(value or b"") for _, _, value in rows])
        if len(batch) + len(rows) > RECORDS_MAX or size > BYTES_MAX:
            text = f"{len(batch)} messages, {len(rows)} rows, {size} bytes in one piece"
            limits = f"at most {RECORDS_MAX} messages and rows, {BYTES_MAX} bytes"
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{text}; {limits}")
        self.rows = rows
        self.applied = False
        self.first: list[Message] = []
        """Records in front of the messages, the head first."""
        self.unfit = False
        """Some of it fits no record: none of it was written."""
        self.sent: Sent | None = None
        self._on_done = on_done
        self.barred = barred
        self.held = held

    def records(self, messages: int) -> list[Message]:
        """What is written before so many messages: nothing, where there is nothing at all."""
        rows = [item_message(*row) for row in self.rows]
        rows += [Message(ACK_TOPIC, body, queue_id=0) for body in self.held.bodies()]
        self.first = [group_head(len(rows) + messages), *rows] if rows or messages else []
        return self.first

    def apply(self, apply_row: Callable[[int, str, str, bytes | None], None]) -> None:
        """All of it is in the log."""
        self.applied = True
        for record, row in zip(self.first[1:], self.rows, strict=False):  # behind them stand acknowledgements
            apply_row(record.physical_offset, *row)
        self.held.apply()

    def done(self, token: Any, result: Any) -> None:
        """The batch's `on_done`."""
        if not self.applied:
            self.held.take_back()
            result = self._refusal(result)
        self._on_done(token, result)

    def _refusal(self, result: Any) -> Any:
        if isinstance(result, GantryError):
            return result
        codes = [code if isinstance(code, ErrorCode) else ErrorCode.NOT_ALONE for code in result]
        if any(code is not ErrorCode.NOT_ALONE for code in codes):
            return codes
        passing = self.sent.passing if self.sent is not None else None
        return GantryError(passing or ErrorCode.ILLEGAL_ARGUMENT)


class Whole:
    """Prepares such batches for the turn's append; `taken`: those in it."""

    def __init__(self, broker: Context, engine: QueueEngine) -> None:
        self._broker = broker
        self._engine = engine
        self.taken: list[Companions] = []
        self.records = 0
        """Their records that are no messages."""

    def stored(self) -> None:
        """The turn's append is in the log."""
        taken = self.taken
        self.refused()
        for companions in taken:
            if not companions.unfit:
                companions.apply(self._broker.tables.companion)

    def refused(self) -> None:
        """It is not, or it is and was dealt with."""
        self.taken, self.records = [], 0

    def prepare(
        self,
        sent: Sent,
        messages: list[Message],
        lights: list[tuple[int, ...]],
        matches: list[tuple[Message, RouteMatch]],
    ) -> tuple[int, int]:
        """As `submitted.Prepare`: all of the batch, or it is refused, or it waits for whoever listens live."""
        broker, batch, companions = self._broker, sent.batch, sent.companions
        assert isinstance(companions, Companions)
        if batch and (passing := broker.refuses(len(batch))) is not None:
            sent.refuse_rest(passing)
            return 1, 0
        targets: list[RouteMatch] | None = None
        try:
            targets = self._check(sent)
            if targets is None:
                return MESSAGE_ENTRIES, 0
            if sent.results is None:
                self._redirect(sent, targets)
            if sent.results is None and (companions.barred or self._engine.rejecting or self._engine.unique):
                self._bar(sent, companions.barred, targets)
            if sent.results is None:
                self._mark(sent, targets)
            first = companions.records(len(batch)) if sent.results is None else []
        except Exception as error:  # this batch alone is refused
            log.error("%d messages in one piece were refused: %s: %s", len(batch), type(error).__name__, error)
            log.debug("traceback", exc_info=error)
            for index in range(len(batch)):
                sent.refuse(index, ErrorCode.MESSAGE_ILLEGAL)
        sent.end = len(batch)
        if sent.results is not None or targets is None:
            return MESSAGE_ENTRIES, 0
        messages += first
        lights += [()] * len(first)
        self.records += len(first)
        for message, hit in zip(batch, targets, strict=True):
            messages.append(message)
            lights.append(hit.lights)
            if hit is not NO_MATCH:
                matches.append((message, hit))
        self.taken.append(companions)
        sent.entries = sum([len(hit.lights) for hit in targets]) + MESSAGE_ENTRIES * (len(first) + len(batch))
        return sent.entries, sum([len(message.body) for message in batch])

    def _check(self, sent: Sent) -> list[RouteMatch] | None:
        """Check and route every message, changing none; None: somebody behind a tap has to take what he has first."""
        broker, targets = self._broker, []
        for index, message in enumerate(sent.batch):
            topic, code = self._topic_of(message, sent.sender)
            if message.kind != FORWARDED:  # as large as its source allows
                code = code or broker.store.check(message)
            hit = NO_MATCH
            if code is None and topic is not None:
                if topic.compacted and not message.property(props.KEYS).strip():
                    code = ErrorCode.MESSAGE_ILLEGAL
                elif topic.routed and not message.kind:
                    hit = broker.router.route(topic, message)
                    if hit.taps and is_behind(hit, message) and not broker.closed:
                        sent.results = None
                        return None
                if message.demand_route and message.demand_route not in hit.kinds and not message.kind:
                    code = ErrorCode.NO_ROUTE
                sent.strict = sent.strict or (
                    topic.strict and (topic.special or message.property(props.WAIT) != "false")
                )
            if code is not None:
                sent.refuse(index, code)
            targets.append(hit)
        sent.strict = sent.strict or broker.topics.strict
        return targets

    def _topic_of(self, message: Message, sender: object) -> tuple[Topic | None, ErrorCode | None]:
        if message.kind in (HALF, RUN):
            return None, ErrorCode.NOT_SUPPORTED
        topic = self._broker.topics.topics.get(message.topic)
        if topic is None or topic.system:
            return self._broker.topic_for(message, sender)
        return topic, None

    def _redirect(self, sent: Sent, targets: list[RouteMatch]) -> None:
        """Choose queues; what is delayed goes where it waits. What was refused so far is refused before any message is changed."""
        for index, message in enumerate(sent.batch):
            topic = self._broker.topics.topics[message.topic]
            if message.queue_id < 0:
                message.queue_id = topic.queue_for(message)
            if message.kind:
                place, code = self._broker.redirect(message, topic)
                if code is not None:
                    sent.refuse(index, code)
                elif place is topic and topic.routed:  # it is due now
                    targets[index] = self._broker.router.route(topic, message)

    def _mark(self, sent: Sent, targets: list[RouteMatch]) -> None:
        """Who wants them elsewhere."""
        for index, (message, match) in enumerate(zip(sent.batch, targets, strict=True)):
            if match.mark and (code := self._broker.mark(message, match, sent.sender)) is not None:
                sent.refuse(index, code)

    def _bar(self, sent: Sent, barred: Mapping[int, frozenset[int]], targets: list[RouteMatch]) -> None:
        """Leave out queues that a message must not enter, or that have its key; a full one that refuses it refuses all, or goes without."""
        for index, (message, match) in enumerate(zip(sent.batch, targets, strict=True)):
            if lights := barred.get(id(message)):
                targets[index] = match.without(lights)
            targets[index], is_refused = self._engine.let_in(targets[index], message)
            if is_refused and is_told(message):
                sent.refuse(index, ErrorCode.QUEUE_FULL)
