"""One HTTP connection as a `Door`: heads to a judge, requests to their handlers, answers back in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from gantrymq.net.http.limits import IDLE_DEADLINE_MS, REQUESTS_PER_TURN
from gantrymq.net.http.problems import Headers, Problem, Render, Respond, as_document
from gantrymq.net.http.server_connection import LATER, Request, ServerConnection
from gantrymq.net.http.server_connection import Headers as RequestHeaders

if TYPE_CHECKING:
    from gantrymq.net.api import Link

log = logging.getLogger(__name__)

T = TypeVar("T")

Handler = Callable[[Request, Respond], None]
"""What answers a request whose head was found good; raises Problem."""

InSlices = Callable[[Callable[[], None]], None]
"""`Turn.in_slices`."""


class HttpDoor:
    """A `Door` for HTTP/1.1. Who extends it says what there is, in `judge`."""

    render: Render = staticmethod(as_document)
    """How a refusal is told."""
    idle_ms = IDLE_DEADLINE_MS

    def __init__(
        self,
        now_ms: Callable[[], int],
        in_slices: InSlices,
        request_bytes_max: int,
        date_line: Callable[[], bytes] = bytes,
    ) -> None:
        """`now_ms`: the monotonic clock."""
        self._now_ms = now_ms
        self._in_slices = in_slices
        self._connection = ServerConnection(request_bytes_max, date_line, self._judge, self.render, self.idle_ms)
        self._requests: deque[Request] = deque()
        self.link: Link | None = None
        self.busy = False
        """A request is being worked off; those behind it wait."""
        self._paused = False
        self._handling = False
        self._continuing = False
        """The next turn goes on with what is here already."""
        self._eof = False
        self._armed_ms: int | None = None

    # -- for who extends it ----------------------------------------------------------------------------------------

    def judge(self, method: str, target: bytes, headers: RequestHeaders, length: int) -> Handler:
        """What the head alone decides about a request, before its body is taken. Raises Problem."""
        raise NotImplementedError

    def serve(self, request: Request, respond: Respond) -> None:
        """Answer a whole request. Raises Problem."""
        request.verdict(request, respond)

    def told(self, target: bytes, status: int) -> None:
        """A request was answered so."""

    def verdict_on(self, ask: Callable[[Callable[[T], None]], None], then: Callable[[T], Handler]) -> Handler:
        """For `judge`: what `then` makes of the answer to `ask`, which comes now or later, once. `then` raises Problem."""
        number = self._connection.number
        answers: list[T] = []
        late = False

        def known(answer: T) -> None:
            answers.append(answer)
            if late and self.link is not None:
                self._go_on_with(number, partial(then, answer))

        ask(known)
        if answers:
            return then(answers[0])
        late = True
        return cast(Handler, LATER)

    def go_on(self) -> None:
        """Nobody is `busy` any more: on with the next request."""
        self.busy = False
        self._handle(b"")

    # -- requests --------------------------------------------------------------------------------------------------

    def connected(self, link: Link) -> None:
        """See `Door`."""
        self.link = link
        self._settle()

    def received(self, data: bytes) -> None:
        """See `Door`."""
        self._handle(data)

    def _handle(self, data: bytes) -> None:
        if self._handling:
            return  # An answer given at once made room; the loop below goes on reading.
        self._handling = True
        now_ms = self._now_ms()
        requests = self._requests
        requests.extend(self._connection.receive_data(data, now_ms))
        budget = REQUESTS_PER_TURN
        while requests and not self.busy and budget:
            budget -= 1
            if self.link is not None:
                self.link.spent(1)
            self._dispatch(requests.popleft())
            if not requests and not self._connection.unfinished:
                requests.extend(self._connection.receive_data(b"", now_ms))
        self._handling = False
        if (not budget or self._connection.unfinished) and not self._continuing:
            self._continuing = True
            self._in_slices(self._continue)
        self._settle()

    def _continue(self) -> None:
        self._continuing = False
        if self.link is None:
            return
        self._handle(b"")
        self._end_input()

    def _end_input(self) -> None:
        """The peer's end of input, which waited until all before it was read."""
        if self._eof and not self._continuing and not self._connection.held:
            self._connection.receive_eof()
            self._settle()

    def _dispatch(self, request: Request) -> None:
        def respond(status: int, headers: Headers, body: bytes) -> None:
            self.told(request.target, status)
            self._connection.respond(request.number, status, headers, body)
            self._handle(b"")

        try:
            self.serve(request, respond)
        except Problem as problem:
            respond(problem.status, *self.render(problem))

    def _judge(self, method: str, target: bytes, headers: RequestHeaders, length: int) -> Any:
        try:
            return self.judge(method, target, headers, length)
        except Problem as problem:
            self.told(target, problem.status)
            raise

    def _go_on_with(self, number: int, judge: Callable[[], Handler]) -> None:
        """The verdict on a request that waited."""
        verdict: Handler | Problem
        try:
            verdict = judge()
        except Problem as problem:
            self.told(self._connection.target, problem.status)
            verdict = problem
        self._connection.judged(number, verdict, self._now_ms())
        self._handle(b"")
        self._end_input()

    def _settle(self) -> None:
        """After anything happened: reading, deadline, output and end follow the connection's state."""
        link, connection = self.link, self._connection
        if link is None:
            return
        link.mark()
        if connection.finished:
            if connection.refused:
                log.info("%s: closed: %s", link.peer, connection.refused)
            self.link = None
            link.close()
            return
        if (connection.is_full() or self._continuing) is not self._paused:
            self._paused = not self._paused
            if self._paused:
                link.pause_reading()
            else:
                link.resume_reading()
        due = connection.next_deadline(self._now_ms())
        # Deadlines only move away between requests, so the timer is set anew when it fires, not per request.
        if due is not None and (self._armed_ms is None or due < self._armed_ms):
            self._armed_ms = due
            link.set_deadline(due)

    # -- the rest of `Door` ----------------------------------------------------------------------------------------

    def refuse(self, problem: Problem) -> None:
        """Answer with this, whatever comes, and end."""
        self._connection.give_up(problem)
        self._settle()

    def inbound_bytes(self) -> int:
        """See `Door`."""
        return self._connection.inbound_bytes()

    def unfinished(self) -> int:
        """See `Door`."""
        return self._connection.unfinished_request()

    def missing_bytes(self) -> int:
        """See `Door`: a body may come in very many chunks."""
        return 0

    def overdue(self, why: str, busy: bool) -> None:
        """See `Door`."""
        self.refuse(Problem(503, why, ((b"retry-after", b"5"),)) if busy else Problem(408, why))

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
        self.link = None

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


class SmallSite(Protocol):
    """What the connections of a site share."""

    connections: int
    """How many are open."""


class OneByOneDoor(HttpDoor):
    """Of a small site: few connections, each answered one request after the other."""

    connections_max = 64

    def __init__(self, site: SmallSite, now_ms: Callable[[], int], in_slices: InSlices, request_bytes_max: int) -> None:
        super().__init__(now_ms, in_slices, request_bytes_max)
        self._shared = site

    def connected(self, link: Link) -> None:
        """See `Door`."""
        super().connected(link)
        self._shared.connections += 1
        if self._shared.connections > self.connections_max:
            log.warning("%s: refused, %d connections are open", link.peer, self.connections_max)
            self.refuse(Problem(503, f"{self.connections_max} connections are open already"))

    def closed(self, reason: str) -> None:
        """See `Door`."""
        super().closed(reason)
        self._shared.connections -= 1

    def serve(self, request: Request, respond: Respond) -> None:
        """See `HttpDoor`."""

        def answered(status: int, headers: Headers, body: bytes) -> None:
            self.busy = False
            respond(status, headers, body)

        self.busy = True
        try:
            request.verdict(request, answered)
        except Problem:
            self.busy = False
            raise
