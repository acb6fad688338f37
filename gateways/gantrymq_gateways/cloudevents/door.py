"""One HTTP connection of the door: requests to handlers, answers back in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import unquote_to_bytes

import msgspec

from gantrymq.auth.resources import Action
from gantrymq.model import names
from gantrymq.model.errors import GantryError
from gantrymq.net.api import Link
from gantrymq.net.host_names import HostNames, asked_host
from gantrymq_gateways.cloudevents.access import Asker, check
from gantrymq_gateways.cloudevents.numbers import EventNumbers
from gantrymq_gateways.cloudevents.publish import BatchJob, Place, Publisher, Respond, respond_problem
from gantrymq_gateways.cloudevents.wire.codec import FormatError
from gantrymq_gateways.cloudevents.wire.constants import (
    BATCH_TYPE,
    REQUESTS_PER_TURN,
    STRUCTURED_TYPE,
    SUBSCRIPTION_BYTES_MAX,
)
from gantrymq_gateways.cloudevents.wire.problems import Problem, problem_of
from gantrymq_gateways.cloudevents.wire.server_connection import LATER, Headers, Request, ServerConnection

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority, Identity

log = logging.getLogger(__name__)

_ENCODE: Final = msgspec.json.Encoder().encode
JSON_HEADER: Final = (b"content-type", b"application/json")
_ACCEPTED_TYPES: Final = (b"accept-post", f"*/*, {STRUCTURED_TYPE}, {BATCH_TYPE}".encode())


POSTS: Final = b"/topics/"


class Subscriptions(Protocol):
    """The handlers of `/subscriptions` (registry.py). `asker`: with authentication, who asks."""

    numbers: EventNumbers

    @property
    def is_up(self) -> bool:
        """Requests can be served."""

    def create(self, body: bytes, respond: Respond, asker: Identity | None) -> None:
        """`POST /subscriptions`."""

    def list_all(self, respond: Respond, asker: Identity | None) -> None:
        """`GET /subscriptions`."""

    def show(self, subscription_id: str, respond: Respond, asker: Identity | None) -> None:
        """`GET /subscriptions/{id}`."""

    def delete(self, subscription_id: str, respond: Respond, asker: Identity | None) -> None:
        """`DELETE /subscriptions/{id}`."""


Handler = Callable[[Request, Respond], None]
"""What answers a request whose head was found good; raises Problem or GantryError."""

Asked = tuple[str, list[str], Headers, int]
"""Method, path, headers and length of a request."""


def _content_type(headers: Headers) -> str:
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

    def __init__(
        self,
        publisher: Publisher,
        subscriptions: Subscriptions,
        names: HostNames,
        anonymous: bool,
        authority: Authority | None = None,
    ) -> None:
        """`authority`: asked who each request is from; None: nobody is asked."""
        self._authority = authority
        self._asker: Asker | None = None
        self._publisher = publisher
        self._names = names
        self._subscriptions = subscriptions
        self._anonymous = anonymous
        """Clients of other machines are welcome, too."""
        self._refused = False
        """The log has the line about this client."""
        self._clock = publisher.around.clock
        self._connection = ServerConnection(publisher.request_bytes_max, publisher.date_line, self._judge)
        self._requests: deque[Request] = deque()
        self._job: BatchJob | None = None
        self._link: Link | None = None
        self._paused = False
        self._handling = False
        self._continuing = False
        """The next turn goes on with what is here already."""
        self._eof = False
        self._armed_ms: int | None = None

    def connected(self, link: Link) -> None:
        """See `Door`."""
        self._link = link
        if self._authority is not None:
            self._asker = Asker(self._authority, link)
        self._settle()

    def received(self, data: bytes) -> None:
        """See `Door`."""
        self._handle(data)

    def _handle(self, data: bytes) -> None:
        if self._handling:
            return  # An answer given at once made room; the loop below goes on reading.
        self._handling = True
        now_ms = self._clock.monotonic_ms()
        requests = self._requests
        requests.extend(self._connection.receive_data(data, now_ms))
        budget = REQUESTS_PER_TURN
        while requests and self._job is None and budget:
            budget -= 1
            self._dispatch(requests.popleft())
            if not requests and not self._connection.unfinished:
                requests.extend(self._connection.receive_data(b"", now_ms))
        self._handling = False
        if (not budget or self._connection.unfinished) and not self._continuing:
            self._continuing = True
            self._publisher.around.turn.in_slices(self._go_on)
        self._settle()

    def _go_on(self) -> None:
        self._continuing = False
        if self._link is None:
            return
        self._handle(b"")
        self._end_input()

    def _end_input(self) -> None:
        """The peer's end of input, which waited until all before it was read."""
        if self._eof and not self._continuing and not self._connection.held:
            self._connection.receive_eof()
            self._settle()

    def _continue(self) -> None:
        """One more slice of a large batch; what was sent behind it waits, so that order is kept."""
        job = self._job
        if job is None or self._link is None:
            return
        if not job.step():
            self._publisher.around.turn.in_slices(self._continue)
            return
        self._job = None
        self._handle(b"")

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
        if (connection.is_full() or self._continuing) is not self._paused:
            self._paused = not self._paused
            if self._paused:
                link.pause_reading()
            else:
                link.resume_reading()
        due = connection.next_deadline(self._clock.monotonic_ms())
        # Deadlines only move away between requests, so the timer is set anew when it fires, not per request.
        if due is not None and (self._armed_ms is None or due < self._armed_ms):
            self._armed_ms = due
            link.set_deadline(due)

    def _dispatch(self, request: Request) -> None:
        def respond(status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
            if request.target.startswith(POSTS):
                self._subscriptions.numbers.posted(status)
            self._connection.respond(request.number, status, headers, body)
            self._handle(b"")

        try:
            request.verdict(request, respond)
        except Problem as problem:
            respond_problem(respond, problem)
        except GantryError as error:
            respond_problem(respond, problem_of(error))

    def _judge(self, method: str, target: bytes, headers: Headers, length: int) -> Handler:
        """What its head alone decides about a request, before its body is taken: who may ask, what there is, and in which form."""
        try:
            return self._admitted(method, target, headers, length)
        except Problem as problem:
            if target.startswith(POSTS):
                self._subscriptions.numbers.posted(problem.status)
            raise

    def _admitted(self, method: str, target: bytes, headers: Headers, length: int) -> Handler:
        refused = self._names.refusal(asked_host(target, headers))
        if refused:
            raise Problem(421, refused)
        segments = split_path(target)
        asked = (method, segments, headers, length)
        if segments == ["healthz"]:
            return self._handler(*asked, None)
        if self._asker is not None:
            return self._identified(self._asker, target, asked)
        self._admit()
        return self._handler(*asked, None)

    def _identified(self, asker: Asker, target: bytes, asked: Asked) -> Handler:
        """The handler for whoever asks; `LATER` while his password is checked."""
        number = self._connection.number
        answers: list[Identity | Problem] = []
        late = False

        def known(who: Identity | Problem) -> None:
            answers.append(who)
            if late and self._link is not None:
                self._go_on_with(number, target, partial(self._handler_for, who, asked))

        asker.identify(asked[2], known)
        if answers:
            return self._handler_for(answers[0], asked)
        late = True
        return cast(Handler, LATER)

    def _handler_for(self, who: Identity | Problem, asked: Asked) -> Handler:
        if isinstance(who, Problem):
            raise who
        if self._link is not None:
            self._link.known()
        return self._handler(*asked, who)

    def _go_on_with(self, number: int, target: bytes, judge: Callable[[], Handler]) -> None:
        """The verdict on a request that waited."""
        verdict: Handler | Problem
        try:
            verdict = judge()
        except Problem as problem:
            if target.startswith(POSTS):
                self._subscriptions.numbers.posted(problem.status)
            verdict = problem
        self._connection.judged(number, verdict, self._clock.monotonic_ms())
        self._handle(b"")
        self._end_input()

    def _handler(
        self, method: str, segments: list[str], headers: Headers, length: int, asker: Identity | None
    ) -> Handler:
        try:
            return self._route(method, segments, headers, length, asker)
        except FormatError as error:
            raise Problem(415, str(error), (_ACCEPTED_TYPES,)) from None
        except GantryError as error:
            raise problem_of(error) from None

    def _route(
        self, method: str, segments: list[str], headers: Headers, length: int, asker: Identity | None
    ) -> Handler:
        subscriptions = self._subscriptions
        match segments:
            case ["topics", topic] if topic:
                _allow(method, "POST")
                check(asker, Action.PUB, names.encode_topic(topic))
                place = self._publisher.place(topic, _content_type(headers))
                return partial(self._publish, place, asker)
            case ["subscriptions"]:
                if method == "GET":
                    return lambda request, respond: subscriptions.list_all(respond, asker)
                _allow(method, "GET", "POST")
                _check_subscription(_content_type(headers), length)
                return lambda request, respond: subscriptions.create(request.body, respond, asker)
            case ["subscriptions", name] if name:
                if method == "GET":
                    return lambda request, respond: subscriptions.show(name, respond, asker)
                _allow(method, "GET", "DELETE")
                return lambda request, respond: subscriptions.delete(name, respond, asker)
            case ["healthz"]:
                _allow(method, "GET", "HEAD")
                return self._tell_health
            case _:
                raise Problem(404, "there is /topics/{topic}, /subscriptions, /subscriptions/{id} and /healthz")

    def _tell_health(self, request: Request, respond: Respond) -> None:
        """503 while every other request is answered so, for want of a broker."""
        up = self._subscriptions.is_up
        shown = {"status": "ok"} if up else {"status": "unavailable", "detail": "the broker is not reachable"}
        respond(200 if up else 503, (JSON_HEADER, (b"cache-control", b"no-store")), _ENCODE(shown))

    def _publish(self, place: Place, asker: Identity | None, request: Request, respond: Respond) -> None:
        check(asker, Action.PUB, place[0])  # the body took its time
        self._job = self._publisher.publish(place, request.headers, request.body, respond, self)
        if self._job is not None:
            self._publisher.around.turn.in_slices(self._continue)

    def _admit(self) -> None:
        """Raises Problem for a client of another machine that is not welcome."""
        link = self._link
        if self._anonymous or link is None or link.peer_is_loopback:
            return
        if not self._refused:
            self._refused = True
            log.warning(
                "%s: refused: clients of other machines are; cloudevents.allow_anonymous=true lets them in", link.peer
            )
        raise Problem(403, "clients of other machines are refused; the server's log says which setting lets them in")

    def inbound_bytes(self) -> int:
        """See `Door`."""
        return self._connection.inbound_bytes()

    def unfinished(self) -> int:
        """See `Door`."""
        return self._connection.unfinished_request()

    def overdue(self, why: str, busy: bool) -> None:
        """See `Door`."""
        self._connection.give_up(Problem(503, why, ((b"retry-after", b"5"),)) if busy else Problem(408, why))
        self._settle()

    def data_to_send(self) -> bytes:
        """See `Door`."""
        return self._connection.data_to_send()

    def eof(self) -> bool:
        """See `Door`."""
        if self._continuing or self._connection.held:
            self._eof = True
            return True
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


def _check_subscription(content_type: str, length: int) -> None:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "a subscription is application/json", ((b"accept-post", b"application/json"),))
    if length > SUBSCRIPTION_BYTES_MAX:
        raise Problem(413, f"a subscription has at most {SUBSCRIPTION_BYTES_MAX} bytes")


def _allow(method: str, *methods: str) -> None:
    if method not in methods:
        raise Problem(405, f"{method[:32]} is not for this path", ((b"allow", ", ".join(methods).encode()),))
