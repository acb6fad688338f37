"""One HTTP connection of the door: requests to handlers, events to the log, answers back.

`EventGate` holds what all connections share. Publishing: an answer is given when `submit` calls back, so a 202 says
that the event is as safe as the topic's acknowledgement rule promises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from gantrymq.broker.port import LogPort
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.api import Link
from gantrymq_gateways.cloudevents import codec
from gantrymq_gateways.cloudevents.codec import Mode
from gantrymq_gateways.cloudevents.constants import (
    BATCH_EVENTS_MAX,
    BATCH_TYPE,
    JSON_OVERHEAD_BYTES,
    STRUCTURED_TYPE,
)
from gantrymq_gateways.cloudevents.event import Event, EventError
from gantrymq_gateways.cloudevents.long_topics import LongTopics
from gantrymq_gateways.cloudevents.mapping import to_message
from gantrymq_gateways.cloudevents.problems import PROBLEM_HEADER, Problem, problem_of
from gantrymq_gateways.cloudevents.server_connection import Request, ServerConnection

log = logging.getLogger(__name__)

_ENCODE: Final = msgspec.json.Encoder().encode
JSON_HEADER: Final = (b"content-type", b"application/json")
_ACCEPTED_TYPES: Final = (b"accept-post", f"*/*, {STRUCTURED_TYPE}, {BATCH_TYPE}".encode())

Respond = Callable[[int, tuple[tuple[bytes, bytes], ...], bytes], None]
"""`respond(status, headers, body)`, once per request, now or later."""


class Subscriptions(Protocol):
    """The handlers of `/subscriptions` (registry.py)."""

    def create(self, body: bytes, content_type: str, respond: Respond) -> None:
        """`POST /subscriptions`."""

    def list_all(self, respond: Respond) -> None:
        """`GET /subscriptions`."""

    def show(self, subscription_id: str, respond: Respond) -> None:
        """`GET /subscriptions/{id}`."""

    def delete(self, subscription_id: str, respond: Respond) -> None:
        """`DELETE /subscriptions/{id}`."""


class TimeSource(Protocol):
    """What a door needs of the clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""


class EventGate:
    """What the connections of one door share: the log, the subscriptions, limits."""

    def __init__(
        self, port: LogPort, topics: LongTopics, subscriptions: Subscriptions, clock: TimeSource, event_bytes_max: int
    ) -> None:
        self.port = port
        self.topics = topics
        self.subscriptions = subscriptions
        self.clock = clock
        self.event_bytes_max = event_bytes_max
        self._date = (0, b"")
        self.request_bytes_max = event_bytes_max * 4 // 3 + JSON_OVERHEAD_BYTES

    def date_line(self) -> bytes:
        """The Date header (RFC 9110 6.6.1), made once per second."""
        second = self.clock.now_ms() // 1000
        if self._date[0] != second:
            self._date = (second, f"date: {formatdate(second, usegmt=True)}\r\n".encode())
        return self._date[1]

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(self, topic: str, request: Request, respond: Respond) -> None:
        """`POST /topics/{topic}`. Raises Problem, EventError, GantryError, codec.FormatError."""
        native = self.topics.native(topic)
        if names.is_closed_to_gateways(native):
            raise Problem(403, f"topic {topic[:128]!r} is reserved; no gateway publishes to it")
        content_type = _content_type(request.headers)
        mode = codec.mode_of(content_type)
        now_ms = self.clock.now_ms()
        if mode is Mode.BATCHED:
            self._publish_batch(native, request.body, now_ms, respond)
            return
        if mode is Mode.STRUCTURED:
            event = codec.decode_structured(request.body)
        else:
            event = codec.decode_binary(request.headers, request.body)
        self._check_size(event)
        self.port.submit((to_message(event, native, now_ms),), respond, _published)

    def _check_size(self, event: Event) -> None:
        if len(event.data) > self.event_bytes_max:
            text = f"the data has {len(event.data)} bytes, at most {self.event_bytes_max} are allowed"
            raise GantryError(ErrorCode.MESSAGE_TOO_LARGE, text)

    def _publish_batch(self, native: str, body: bytes, now_ms: int, respond: Respond) -> None:
        events = codec.decode_batch(body)
        if len(events) > BATCH_EVENTS_MAX:
            raise Problem(413, f"the batch has {len(events)} events, at most {BATCH_EVENTS_MAX} are allowed")
        messages: list[Message] = []
        failures: list[dict[str, Any]] = []
        status = 0
        for index, event in enumerate(events):
            failure: GantryError
            if isinstance(event, EventError):
                failure = event
            else:
                try:
                    self._check_size(event)
                    messages.append(to_message(event, native, now_ms))
                    continue
                except GantryError as error:
                    failure = error
            problem = problem_of(failure)
            status = status or problem.status
            failures.append({"index": index, "status": problem.status, "detail": problem.detail})
        if failures:
            detail = f"{len(failures)} of {len(events)} events are not acceptable; none was stored"
            raise Problem(status, detail, members={"events": failures})
        if not messages:  # JSON format 4.3: an empty batch is legal.
            respond(202, (), b"")
            return
        self.port.submit(messages, respond, _batch_published)


def _published(respond: Respond, result: list[int | ErrorCode] | GantryError) -> None:
    failure = result if isinstance(result, GantryError) else result[0]
    if isinstance(failure, int):
        respond(202, (), b"")
    else:
        _respond_problem(respond, problem_of(failure))


def _batch_published(respond: Respond, result: list[int | ErrorCode] | GantryError) -> None:
    if isinstance(result, GantryError):
        _respond_problem(respond, problem_of(result))
        return
    failures = [(index, code) for index, code in enumerate(result) if isinstance(code, ErrorCode)]
    if not failures:
        respond(202, (), b"")
        return
    problem = problem_of(failures[0][1])
    problem.detail = f"{len(failures)} of {len(result)} events were not stored: {problem.detail}"
    problem.members["events"] = [
        {"index": index, "status": problem_of(code).status, "detail": code.value} for index, code in failures
    ]
    _respond_problem(respond, problem)


def _respond_problem(respond: Respond, problem: Problem) -> None:
    respond(problem.status, (PROBLEM_HEADER, *problem.headers), problem.body())


def _content_type(headers: list[tuple[bytes, bytes]]) -> str:
    found: list[bytes] = []
    for name, value in headers:
        if name == b"content-type":
            found.append(value)
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            raise Problem(415, "Content-Encoding is not supported; send the body as it is", (_ACCEPTED_TYPES,))
    if len(found) > 1:
        raise Problem(400, "Content-Type is repeated")
    return found[0].decode("latin-1") if found else ""


def split_path(target: bytes) -> list[str]:
    """Decoded segments of a request target's path (origin or absolute form). Raises Problem."""
    if not target.startswith(b"/"):
        scheme, mark, rest = target.partition(b"://")
        if not mark or scheme.lower() not in (b"http", b"https"):
            raise Problem(400, "the request target is neither a path nor a URL (RFC 9112 3.2)")
        target = b"/" + rest.partition(b"/")[2]
    path = target.partition(b"?")[0]
    try:
        return [unquote_to_bytes(segment).decode("utf-8", "strict") for segment in path[1:].split(b"/")]
    except UnicodeDecodeError:
        raise Problem(400, "the path is not UTF-8 after percent-decoding") from None


class EventDoor:
    """A `Door` for HTTP/1.1."""

    def __init__(self, gate: EventGate) -> None:
        self._gate = gate
        self._connection = ServerConnection(gate.request_bytes_max, gate.date_line)
        self._link: Link | None = None
        self._paused = False
        self._handling = False
        self._armed_ms: int | None = None

    def connected(self, link: Link) -> None:
        """See `Door`."""
        self._link = link
        self._settle()

    def received(self, data: bytes) -> None:
        """See `Door`."""
        self._handle(data)

    def _handle(self, data: bytes) -> None:
        if self._handling:
            return  # An answer given at once made room; the loop below goes on reading.
        self._handling = True
        now_ms = self._gate.clock.monotonic_ms()
        requests = self._connection.receive_data(data, now_ms)
        while requests:
            for request in requests:
                self._dispatch(request)
            requests = self._connection.receive_data(b"", now_ms)
        self._handling = False
        self._settle()

    def _settle(self) -> None:
        """After anything happened: reading, deadline, output and end follow the connection's state."""
        link, connection = self._link, self._connection
        if link is None:
            return
        link.mark()
        if connection.finished:
            if connection.refused:
                log.info("%s: closed: %s", link.peer, connection.refused)
            self._link = None
            link.close()
            return
        if connection.is_full() is not self._paused:
            self._paused = not self._paused
            if self._paused:
                link.pause_reading()
            else:
                link.resume_reading()
        due = connection.next_deadline(self._gate.clock.monotonic_ms())
        # Deadlines only move away between requests, so the timer is set anew when it fires, not per request.
        if due is not None and (self._armed_ms is None or due < self._armed_ms):
            self._armed_ms = due
            link.set_deadline(due)

    def _dispatch(self, request: Request) -> None:
        def respond(status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
            self._connection.respond(request.number, status, headers, body)
            self._handle(b"")

        try:
            self._route(request, respond)
        except Problem as problem:
            _respond_problem(respond, problem)
        except codec.FormatError as error:
            _respond_problem(respond, Problem(415, str(error), (_ACCEPTED_TYPES,)))
        except GantryError as error:
            _respond_problem(respond, problem_of(error))

    def _route(self, request: Request, respond: Respond) -> None:
        segments = split_path(request.target)
        subscriptions = self._gate.subscriptions
        match segments:
            case ["topics", topic] if topic:
                _allow(request.method, "POST")
                self._gate.publish(topic, request, respond)
            case ["subscriptions"]:
                if request.method == "GET":
                    subscriptions.list_all(respond)
                else:
                    _allow(request.method, "GET", "POST")
                    subscriptions.create(request.body, _content_type(request.headers), respond)
            case ["subscriptions", name] if name:
                if request.method == "GET":
                    subscriptions.show(name, respond)
                else:
                    _allow(request.method, "GET", "DELETE")
                    subscriptions.delete(name, respond)
            case ["healthz"]:
                _allow(request.method, "GET", "HEAD")
                respond(200, (JSON_HEADER, (b"cache-control", b"no-store")), _ENCODE({"status": "ok"}))
            case _:
                raise Problem(404, "there is /topics/{topic}, /subscriptions, /subscriptions/{id} and /healthz")

    def data_to_send(self) -> bytes:
        """See `Door`."""
        return self._connection.data_to_send()

    def eof(self) -> bool:
        """See `Door`."""
        self._connection.receive_eof()
        self._settle()
        return not self._connection.finished

    def closed(self, reason: str) -> None:
        """See `Door`."""
        self._link = None

    def writable(self) -> None:
        """See `Door`."""

    def deadline(self, now_ms: int) -> None:
        """See `Door`."""
        self._armed_ms = None
        self._connection.handle_deadline(now_ms)
        self._settle()

    def shutdown(self) -> None:
        """See `Door`."""
        self._connection.shutdown()
        self._settle()


def _allow(method: str, *methods: str) -> None:
    if method not in methods:
        raise Problem(405, f"{method[:32]} is not for this path", ((b"allow", ", ".join(methods).encode()),))
