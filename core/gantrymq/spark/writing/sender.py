"""Sends requests over blocking connections, several under way at each broker, through faults of connections and brokers.

A request that got no answer is sent again, so its rows may be stored twice; what becomes of that is the mode's business. Requests for one queue
keep their order.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantrymq.client.connecting.routes import DEFAULT_QUEUES, MessageQueue, Route
from gantrymq.client.errors import BrokerError
from gantrymq.model.batch import block
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import AUTO_CREATE_TEMPLATE
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.overview_codes import SEND_BLOCK
from gantrymq.spark.wire import Metadata, Patience, wire
from gantrymq.spark.writing.requests import Request

_log = logging.getLogger(__name__)

GROUP: Final = "gantry_spark_sink"
OPEN_MAX: Final = 6
"""Requests under way at one broker: it stores some while others are encoded and on their way."""
OPEN_BYTES_MAX: Final = 4 * 1024 * 1024
"""...and bytes of them, unless a single one is larger."""
STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)  # fmt: skip
_AGAIN: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.BUSY, ErrorCode.SHUTTING_DOWN})
_NUMBER: Final = re.compile(r"message (\d+) of the batch")


class RowError(RuntimeError):
    """A row that could not be sent; the text names partition, row and topic."""


@dataclass(slots=True)
class Open:
    """A request on its way. `fixed`: no other queue will do."""

    request: Request
    queue: MessageQueue
    fixed: bool
    first: int
    """Number in the task of its batch's row 0."""
    code: int
    common: str
    """Properties for the request as a whole."""
    opaque: int = 0


class Sender:
    """One per task. `strict`: a request goes to its queue and no other, also where its broker is away."""

    def __init__(self, nameservers: Sequence[str], partition: int, strict: bool = False, group: str = GROUP) -> None:
        self._metadata = Metadata(nameservers)
        self._partition = partition
        self._strict = strict
        self._group = group
        self._routes: dict[str, Route] = {}
        self._turns: dict[str, int] = {}
        self._open: dict[str, deque[Open]] = {}
        """By broker address, in the order of sending."""
        self._bytes: dict[str, int] = {}
        self._takes_blocks: dict[str, bool] = {}
        """By broker address, once it has answered to one: a broker of RocketMQ gets items instead."""
        self._patience: Patience | None = None
        """Since the first fault behind the last answer that said stored: also a broker that takes requests and answers none ends it."""
        self.stored = 0
        """Rows that brokers have acknowledged."""

    def queues(self, topic: str) -> list[MessageQueue]:
        """Those of the topic that can be written; of one that is yet to be made by the first message, those it will have. Raises GantryError."""
        route = self._routes.get(topic)
        if route is None:
            route = self._routes[topic] = self._find(topic)
        found = route.write_queues()
        if not found:
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {topic!r} has no queue that can be written")
        return found

    def _find(self, topic: str) -> Route:
        patience = Patience()
        while True:
            try:
                try:
                    return self._metadata.route(topic)
                except GantryError as error:
                    if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                        raise
                    pattern = self._metadata.route(AUTO_CREATE_TEMPLATE)
                    queues = {
                        broker: (min(read, DEFAULT_QUEUES), min(write, DEFAULT_QUEUES), perm)
                        for broker, (read, write, perm) in pattern.queues.items()
                    }
                    return Route(topic, queues, pattern.brokers)
            except GantryError as error:
                patience.wait(error)

    def send(self, request: Request, first: int, code: int = SEND_BLOCK, common: str = "") -> None:
        """Have it sent; waits only where too much is under way. `first`: number in the task of its batch's row 0. Raises RowError."""
        try:
            queue = request.queue or self._next(request.topic)
            fixed = self._strict or request.queue is not None
            self._post([Open(request, queue, fixed, first, code, common)])
        except GantryError as error:
            raise self._failed(request, first, error) from None

    def finish(self) -> None:
        """Wait for all answers. Raises RowError."""
        for address in list(self._open):
            while self._open.get(address):
                self._settle(address)

    def _next(self, topic: str) -> MessageQueue:
        queues = self.queues(topic)
        turn = self._turns.get(topic, self._partition)
        self._turns[topic] = turn + 1
        return queues[turn % len(queues)]

    def _post(self, entries: list[Open]) -> None:
        """Each to its broker. A broker that cannot be reached is tried again, or (where any queue will do) another one."""
        waiting = deque(entries)
        while waiting:
            entry = waiting[0]
            try:
                address = self._address(entry.queue)
                link = wire(address)
            except GantryError as error:
                self._wait(error)
                self._again(entry)
                continue
            waiting.popleft()
            if entry.code == SEND_BLOCK and not self._takes_blocks.get(address, True):
                entry.code = RequestCode.SEND_BATCH_MESSAGE
            size = len(entry.request.body)
            entry.opaque = -1
            self._open.setdefault(address, deque()).append(entry)
            self._bytes[address] = self._bytes.get(address, 0) + size
            try:
                entry.opaque = link.post([self._command(entry)])[0]
            except GantryError as error:
                waiting.extendleft(reversed(self._lost(address, error)))
                continue
            while self._is_too_much(address, entry):
                self._settle(address)

    def _is_too_much(self, address: str, last: Open) -> bool:
        """Whether an answer has to come before more is sent there. Looked at anew each time: what was under way may go elsewhere meanwhile."""
        under_way = self._open.get(address)
        if not under_way:
            return False
        if last.code == SEND_BLOCK and address not in self._takes_blocks:
            return True
        return len(under_way) > OPEN_MAX or (len(under_way) > 1 and self._bytes[address] > OPEN_BYTES_MAX)

    def _wait(self, error: GantryError) -> None:
        """Before the next attempt; raises `error` if it is no fault that goes away, or has lasted too long."""
        if self._patience is None:
            self._patience = Patience()
        self._patience.wait(error)

    def _lost(self, address: str, error: GantryError) -> list[Open]:
        """A connection broke: everything under way on it is to be sent again."""
        entries = list(self._open.pop(address, ()))
        self._bytes.pop(address, None)
        _log.warning("%s: %d requests are sent again", error, len(entries))
        self._wait(error)
        for entry in entries:
            self._again(entry)
        return entries

    def _settle(self, address: str) -> None:
        """Wait for the answer to the oldest request at a broker."""
        entry = self._open[address][0]
        try:
            answer = wire(address).receive(entry.opaque)
        except GantryError as error:
            try:
                self._post(self._lost(address, error))
            except GantryError as last:
                raise self._failed(entry.request, entry.first, last) from None
            return
        self._open[address].popleft()
        self._bytes[address] -= len(entry.request.body)
        if entry.code == SEND_BLOCK:
            self._takes_blocks[address] = answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            if not self._takes_blocks[address]:
                try:
                    self._post([entry])
                except GantryError as last:
                    raise self._failed(entry.request, entry.first, last) from None
                return
        if answer.code in STORED:
            self._stored(entry, answer)
            return
        refused: GantryError = BrokerError(answer, f"send to {entry.queue}", address)
        if refused.code not in _AGAIN:
            raise self._failed(entry.request, entry.first, refused)
        self._retry(entry, refused)

    def _retry(self, entry: Open, refused: GantryError) -> None:
        """Refused for now: wait, and have it sent before anything else."""
        patience = Patience()
        while True:
            try:
                patience.wait(refused)
            except GantryError as error:
                raise self._failed(entry.request, entry.first, error) from None
            self._again(entry)
            try:
                address = self._address(entry.queue)
                answer = wire(address).request(self._command(entry))
            except GantryError as error:
                refused = error
                continue
            if answer.code in STORED:
                self._stored(entry, answer)
                return
            refused = BrokerError(answer, f"send to {entry.queue}", address)
            if refused.code not in _AGAIN:
                raise self._failed(entry.request, entry.first, refused)

    def _stored(self, entry: Open, answer: Command) -> None:
        self._patience = None
        self.stored += len(entry.request.rows)
        self.answered(entry, answer)

    def answered(self, entry: Open, answer: Command) -> None:
        """A request is stored; for those who want to know where."""

    def _again(self, entry: Open) -> None:
        """Look up where it goes now: to another broker's queue, if that will do."""
        topic = entry.queue.topic
        try:
            self._routes[topic] = self._metadata.route(topic)
        except GantryError as error:
            _log.warning("route of topic %s: %s; the old one counts", topic, error)
        if not entry.fixed:
            others = [queue for queue in self.queues(topic) if queue.broker != entry.queue.broker]
            if others:
                entry.queue = others[self._partition % len(others)]

    def _address(self, queue: MessageQueue) -> str:
        self.queues(queue.topic)
        return self._routes[queue.topic].address(queue.broker, master_only=True)

    def _command(self, entry: Open) -> Command:
        queue = entry.queue
        body, common, batch = entry.request.body, entry.common, "true"
        if entry.request.delayed:
            ((body, text),) = block.parse(body, 1).messages()
            common, batch = text.decode(), "false"
        elif entry.code == RequestCode.SEND_BATCH_MESSAGE:
            body = block.as_items(body)
        fields = {
            "a": self._group, "b": queue.topic, "c": AUTO_CREATE_TEMPLATE, "d": str(DEFAULT_QUEUES), "e": str(queue.queue_id), "f": "4" if "TRAN_MSG" in common else "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": common, "j": "0", "k": "false", "m": batch, "n": queue.broker,
        }  # fmt: skip
        return Command(entry.code, fields, body)

    def _failed(self, request: Request, first: int, error: GantryError) -> RowError:
        """Of several rows the one that the broker names, else all."""
        rows = request.rows
        found = _NUMBER.search(error.text)
        place = int(found[1]) if found and int(found[1]) < len(rows) else -1
        which = f"row {first + int(rows[max(0, place)])}"
        if place < 0 and len(rows) > 1:
            which = f"rows {first + int(rows[0])} to {first + int(rows[-1])}"
        return RowError(f"partition {self._partition}, {which} (topic {request.topic!r}): {error.text}")
