"""Posted events to the log. An answer is given when `submit` calls back: 202 means stored as the topic's rule promises.

A large batch is decoded and submitted in slices, one per loop turn, so that it holds up no other connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from operator import itemgetter
from typing import Any, Final

from gantrymq.broker.port import LogPort
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.http.problems import Problem, Respond, respond_problem
from gantrymq_gateways.cloudevents.long_topics import LongTopics
from gantrymq_gateways.cloudevents.mapping import to_message
from gantrymq_gateways.cloudevents.surroundings import Surroundings
from gantrymq_gateways.cloudevents.wire import codec
from gantrymq_gateways.cloudevents.wire.codec import Mode
from gantrymq_gateways.cloudevents.wire.constants import BATCH_EVENTS_MAX, JSON_OVERHEAD_BYTES
from gantrymq_gateways.cloudevents.wire.event import Event
from gantrymq_gateways.cloudevents.wire.problems import problem_of

DECODE_SLICE: Final = 50
"""Events decoded in one slice: about a millisecond."""
SUBMIT_SLICE: Final = 200
"""Events submitted in one slice: about a millisecond of the store's work."""

Place = tuple[str, Mode]
"""Native topic and mode of a request's events."""


class Publisher:
    """What the connections of one door share for publishing."""

    def __init__(self, port: LogPort, topics: LongTopics, around: Surroundings, limit: Callable[[], int]) -> None:
        """`limit`: largest body, as it is now."""
        self.port = port
        self.around = around
        self._topics = topics
        self._limit = limit
        self._date = (0, b"")

    def request_bytes_max(self) -> int:
        """Largest body of a request: data may be base64 in JSON."""
        return self._limit() * 4 // 3 + JSON_OVERHEAD_BYTES

    def date_line(self) -> bytes:
        """The Date header (RFC 9110 6.6.1), made once per second."""
        second = self.around.clock.now_ms() // 1000
        if self._date[0] != second:
            self._date = (second, f"date: {formatdate(second, usegmt=True)}\r\n".encode())
        return self._date[1]

    def place(self, topic: str, content_type: str) -> Place:
        """Where events of a request go, and how they come. Raises Problem, GantryError, codec.FormatError."""
        native = self._topics.native(topic)
        if names.is_closed_to_gateways(native):
            raise Problem(403, f"topic {topic[:128]!r} is reserved; no gateway publishes to it")
        return native, codec.mode_of(content_type)

    def publish(
        self, place: Place, headers: codec.Headers, body: bytes, respond: Respond, sender: object
    ) -> BatchJob | None:
        """`POST /topics/{topic}` of the connection `sender`. Raises Problem, EventError, GantryError.

        A batch that needs more turns is returned: its `step` is to be called until it is True, one call per turn.
        """
        native, mode = place
        if mode is Mode.BATCHED:
            job = BatchJob(self, native, body, respond)
            return None if job.step() else job
        event = codec.decode_structured(body) if mode is Mode.STRUCTURED else codec.decode_binary(headers, body)
        self.port.submit((self.message_of(event, native, self.around.clock.now_ms()),), respond, _published, sender)
        return None

    def message_of(self, event: Event, native: str, now_ms: int) -> Message:
        """The message of an event. Raises GantryError if it is too large."""
        if len(event.data) > (limit := self._limit()):
            text = f"the data has {len(event.data)} bytes, at most {limit} are allowed"
            raise GantryError(ErrorCode.MESSAGE_TOO_LARGE, text)
        return to_message(event, native, now_ms)


def _published(respond: Respond, result: list[int | ErrorCode] | GantryError) -> None:
    failure = result if isinstance(result, GantryError) else result[0]
    if isinstance(failure, int):
        respond(202, (), b"")
    else:
        respond_problem(respond, problem_of(failure))


class BatchJob:
    """One batch on its way into the log: decode all, refuse all if one is bad, then submit all in order.

    What is done with is let go of slice by slice: ten thousand messages that end together take the loop 6 ms.
    """

    def __init__(self, publisher: Publisher, native: str, body: bytes, respond: Respond) -> None:
        """Raises EventError, Problem."""
        self._elements = codec.split_batch(body)
        self._count = len(self._elements)
        if self._count > BATCH_EVENTS_MAX:
            text = f"the batch has {self._count} events, at most {BATCH_EVENTS_MAX} are allowed"
            raise Problem(413, text)
        self._elements.reverse()  # taken from its end
        self._publisher = publisher
        self._native = native
        self._now_ms = publisher.around.clock.now_ms()
        self._respond = respond
        self._parts: deque[list[Message]] = deque()
        """Messages to submit, `SUBMIT_SLICE` in each but the last."""
        self._bad: list[dict[str, Any]] = []
        """What is wrong with which event, whatever found it."""
        self._submitted = 0
        self._waiting = 0
        self._failure: tuple[int, ErrorCode | GantryError] | None = None
        """Of the first event that was not stored, its index with it."""

    def step(self) -> bool:
        """Do one slice; True if nothing is left but to wait for the log."""
        if self._elements:
            self._decode()
            if self._elements or len(self._parts) > 1:
                return False
        if self._bad:
            if self._parts:
                self._parts.pop()
                return False
            detail = f"{len(self._bad)} of {self._count} events are not acceptable; none was stored"
            problem = Problem(self._bad[0]["status"], detail, members={"events": self._bad})
            respond_problem(self._respond, problem)
            return True
        if not self._parts:  # JSON format 4.3: an empty batch is legal.
            self._respond(202, (), b"")
            return True
        part = self._parts.popleft()
        start = self._submitted
        self._submitted += len(part)
        self._waiting += 1
        self._publisher.port.submit(part, (start, len(part)), self._stored, self)
        return not self._parts

    def drop(self) -> bool:
        """Let go of one slice of what was not submitted: nobody waits for it. True: there is more."""
        del self._elements[-SUBMIT_SLICE:]
        if self._parts:
            self._parts.pop()
        return bool(self._elements or self._parts)

    def _decode(self) -> None:
        elements, parts = self._elements, self._parts
        for index in range(first := self._count - len(elements), min(first + DECODE_SLICE, self._count)):
            try:
                event = codec.decode_element(elements.pop())
                message = self._publisher.message_of(event, self._native, self._now_ms)
            except GantryError as error:
                problem = problem_of(error)
                self._bad.append({"index": index, "status": problem.status, "detail": problem.detail})
                continue
            if not self._bad:
                if not parts or len(parts[-1]) == SUBMIT_SLICE:
                    parts.append([])
                parts[-1].append(message)
        if self._bad and parts:
            parts.pop()

    def _stored(self, place: tuple[int, int], result: list[int | ErrorCode] | GantryError) -> None:
        first, count = place
        self._waiting -= 1
        codes = [result] * count if isinstance(result, GantryError) else result
        for index, failure in enumerate(codes, first):
            if not isinstance(failure, int):
                if self._failure is None or index < self._failure[0]:
                    self._failure = (index, failure)
                bad = problem_of(failure)
                self._bad.append({"index": index, "status": bad.status, "detail": bad.detail})
        if self._waiting or self._submitted < self._count:
            return
        if self._failure is None:
            self._respond(202, (), b"")
            return
        problem = problem_of(self._failure[1])
        problem.detail = f"{len(self._bad)} of {self._count} events were not stored: {problem.detail}"
        problem.members["events"] = sorted(self._bad, key=itemgetter("index"))
        respond_problem(self._respond, problem)
