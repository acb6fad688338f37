"""One HTTP/1.1 server connection without I/O: bytes in, requests out; answers in, bytes out in request order.

h11 parses; in front of it stand the checks that it leaves out (request smuggling, sizes, counts, absolute limits).
Requests are read ahead of their answers (pipelining); any malformed byte ends the connection after its answer.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import h11

from gantrymq.net.http.limits import (
    BODY_DEADLINE_MS,
    BODY_PROGRESS_BYTES,
    CHUNK_BYTES_MIN,
    CHUNKS_MAX,
    CHUNKS_PER_TURN,
    DRAIN_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEAD_DEADLINE_MS,
    HEADERS_MAX,
    IDLE_DEADLINE_MS,
    PIPELINE_BYTES_MAX,
    PIPELINE_MAX,
    TARGET_BYTES_MAX,
)
from gantrymq.net.http.problems import Problem, Render, as_document

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32} ([!-~]+) HTTP/1\.([01])\Z")
_DIGITS = re.compile(rb"[0-9]{1,18}\Z")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""What no head of a request holds, and the first bytes of most other protocols do."""


Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Request:
    """One whole request. `headers`: names in lower case. `target`: origin form. `number`: handle for `respond`. `verdict`: what the judge
    of its head returned."""

    method: str
    target: bytes
    headers: Headers
    body: bytes
    number: int
    verdict: Any


Judge = Callable[[str, bytes, Headers, int], Any]
"""`judge(method, target, headers, length)` of a request whose body is still to come (`length`: its bytes, 0 if the head does not say). Raises
Problem: that is the answer, and the body is not taken. Returns `LATER` if it tells `judged`."""

LATER: Final = object()
"""No verdict yet: nothing more is read until there is one."""


def admit_all(method: str, target: bytes, headers: Headers, length: int) -> None:
    """A judge."""


class _Slot:
    """Place of one answer in the output."""

    __slots__ = ("answer", "body_bytes", "close", "head_only", "wants_continue")

    def __init__(self, head_only: bool, close: bool) -> None:
        self.answer: bytes | None = None
        self.close = close
        self.head_only = head_only
        self.wants_continue = False
        self.body_bytes = 0


def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())


_STATUS_LINES: Final = {status.value: _status_line(status.value) for status in HTTPStatus}


class ServerConnection:
    """The state of one connection; `receive_data` and `handle_deadline` take the time as an argument."""

    def __init__(
        self,
        request_bytes_max: int,
        date_line: Callable[[], bytes] = bytes,
        judge: Judge = admit_all,
        render: Render = as_document,
        idle_ms: int = IDLE_DEADLINE_MS,
    ) -> None:
        """`date_line` gives the Date header of an answer, line end included; `render` the answer that is a Problem. `idle_ms`: how long a
        connection lives without a request."""
        self._request_bytes_max = request_bytes_max
        self._render = render
        self._idle_ms = idle_ms
        self._date_line = date_line
        self._judge = judge
        self._headers: Headers = []
        self._verdict: Any = None
        self.held = False
        """The request that is being read waits for its verdict."""
        self._length = 0
        """Of the body of the request that is being read, as its head says; 0 if it does not."""
        self._rest_bytes: int | None = 0
        """Of the body of the request that is being read; None: the head does not tell how much comes, or whether it comes at all."""
        self._turned_away = False
        """The request that is being read has its answer; the rest of its body is dropped."""
        self._dropped = False
        """The last of such a body was read just now."""
        self._last = False
        """The peer wants the connection to end with the request that is being read."""
        self._in = bytearray()
        self._out: list[bytes] = []
        self._slots: dict[int, _Slot] = {}
        self._order: deque[int] = deque()
        self._numbers = 0
        self._pending_bytes = 0
        self._parser: h11.Connection | None = None
        self._head: h11.Request | None = None
        self._method = ""
        self._chunks: list[bytes] = []
        self._body_bytes = 0
        self._chunk_count = 0
        self._chunks_left = 0
        self._progress_bytes = 0
        self._head_since: int | None = None
        self._body_until = 0
        self._idle_since: int | None = None
        self.reading = True
        """False: nothing more is read from this peer (an error, `Connection: close`, or shutdown)."""
        self.unfinished = False
        """True: there is more to parse, and `receive_data` wants to be called again in the next turn."""
        self.finished = False
        """True: everything is answered and the connection is to be closed."""
        self.refused = ""
        """Why the connection was ended by us, for one log line; empty otherwise."""

    # -- input ---------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ms: int) -> list[Request]:
        """Take what the socket gave (empty: nothing new, but answers made room) and return the whole requests."""
        requests: list[Request] = []
        self._idle_since = None
        self.unfinished = False
        self._chunks_left = CHUNKS_PER_TURN
        if not self.reading:
            return requests
        self._in += data
        while self._wants_more():
            request = self._next_request(now_ms)
            if request is not None:
                requests.append(request)
            elif not self._dropped:
                break
        return requests

    def _wants_more(self) -> bool:
        return self.reading and (len(self._in) > 0 or self._parser is not None) and not self.is_full()

    def is_full(self) -> bool:
        """True while nothing more is parsed, for want of a verdict or of answers; reading should pause."""
        return self.held or len(self._order) >= PIPELINE_MAX or self._pending_bytes >= PIPELINE_BYTES_MAX

    def _next_request(self, now_ms: int) -> Request | None:
        self._dropped = False
        try:
            if self._parser is None:
                self._begin(now_ms)
            return None if self.held else self._read_body(now_ms)
        except Problem as problem:
            self._refuse(problem)
        except h11.RemoteProtocolError as error:
            self._refuse(Problem(error.error_status_hint, f"malformed request: {error}"))
        return None

    def _begin(self, now_ms: int) -> None:
        """Check one request head and hand it to h11, if it is whole."""
        while self._in[:2] == b"\r\n":  # RFC 9112 2.2: at least one empty line before a request line is ignored
            del self._in[:2]
        end = self._in.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX + 4)
        if end < 0:
            if len(self._in) > HEAD_BYTES_MAX:
                raise Problem(431, f"request line and headers have over {HEAD_BYTES_MAX} bytes")
            _refuse_other_protocols(self._in)
            self._refuse_bare_line_ends(bytes(self._in))
            if not self._in:
                self._head_since = None
            elif self._head_since is None:
                # From the first byte on, or a byte now and then would keep the connection for ever.
                self._head_since = now_ms
            return
        head = bytes(self._in[: end + 4])
        self._method, length, chunked, close = _check_head(head)
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX + 4)
        parser.receive_data(head)
        event = parser.next_event()
        if type(event) is not h11.Request:
            raise Problem(400, "malformed request")
        del self._in[: end + 4]
        self._parser, self._head = parser, event
        self._open_slot(close)
        self._last = close
        self._length = length or 0
        self._body_bytes = self._progress_bytes = self._chunk_count = 0
        self._head_since = None
        self._body_until = now_ms + BODY_DEADLINE_MS
        self._headers = list(event.headers)
        self._rest_bytes = None if chunked or parser.they_are_waiting_for_100_continue else length or 0
        try:
            verdict = self._judge(self._method, bytes(event.target), self._headers, length or 0)
        except Problem as problem:
            self._turn_away(problem)
            return
        if verdict is LATER:
            self.held = True
        else:
            self._admit(verdict)

    def _turn_away(self, problem: Problem) -> None:
        """Answer the request that is being read; the rest of a short body is dropped, none of a stranger's is read."""
        rest = self._rest_bytes
        if rest is None or rest > (0 if problem.status == 401 else DRAIN_BYTES_MAX):
            raise problem  # RFC 9110 10.1.1: the connection ends
        self._turned_away = True
        self._answer(problem)

    def _admit(self, verdict: Any) -> None:
        assert self._parser is not None
        if self._length > self._request_bytes_max:
            raise Problem(413, f"the body has {self._length} bytes, at most {self._request_bytes_max} are allowed")
        self._verdict = verdict
        if self._parser.they_are_waiting_for_100_continue:
            self._slots[self._order[-1]].wants_continue = not self._in
            self._flush()

    @property
    def number(self) -> int:
        """Of the request that was begun last."""
        return self._numbers

    @property
    def target(self) -> bytes:
        """Of the request that is being read."""
        return b"" if self._head is None else bytes(self._head.target)

    def judged(self, number: int, verdict: Any, now_ms: int) -> None:
        """The verdict on request `number`, or the Problem that answers it, where the judge said `LATER`; `receive_data` goes on with it."""
        if not self.held or number != self._numbers:
            return  # it was refused meanwhile
        self.held = False
        self._body_until = now_ms + BODY_DEADLINE_MS
        try:
            if isinstance(verdict, Problem):
                self._turn_away(verdict)
            else:
                self._admit(verdict)
        except Problem as problem:
            self._refuse(problem)

    @staticmethod
    def _refuse_bare_line_ends(head: bytes) -> None:
        if head.replace(b"\r\n", b"").find(b"\n") >= 0:
            raise Problem(400, "a line of the request ends without CR (RFC 9112 2.2)")

    def _open_slot(self, close: bool) -> None:
        self._numbers += 1
        self._slots[self._numbers] = _Slot(self._method == "HEAD", close)
        self._order.append(self._numbers)

    def _read_body(self, now_ms: int) -> Request | None:
        parser, head = self._parser, self._head
        if parser is None or head is None:
            return None
        if self._in:
            parser.receive_data(bytes(self._in))
            self._in.clear()
        while True:
            if not self._chunks_left:
                self.unfinished = True
                return None
            event = parser.next_event()
            kind = type(event)
            if kind is h11.Data:
                self._chunks_left -= 1
                self._chunk_count += 1
                if not self._turned_away:
                    self._chunks.append(bytes(event.data))  # type: ignore[union-attr]
                self._body_bytes += len(event.data)  # type: ignore[union-attr]
                if self._body_bytes > self._request_bytes_max:
                    raise Problem(413, f"the body has over {self._request_bytes_max} bytes")
                if self._chunk_count > CHUNKS_MAX + self._body_bytes // CHUNK_BYTES_MIN:
                    raise Problem(400, f"the body comes in over {CHUNKS_MAX} chunks of under {CHUNK_BYTES_MIN} bytes")
            elif kind is h11.EndOfMessage:
                if not self._turned_away:
                    return self._complete(parser, head)
                self._drop(parser)
                return None
            elif event is h11.NEED_DATA:
                if self._body_bytes - self._progress_bytes >= BODY_PROGRESS_BYTES:
                    self._progress_bytes = self._body_bytes
                    self._body_until = now_ms + BODY_DEADLINE_MS
                return None
            else:
                raise Problem(400, "malformed request")

    def _complete(self, parser: h11.Connection, head: h11.Request) -> Request:
        self._in += parser.trailing_data[0]
        number = self._order[-1]
        slot = self._slots[number]
        slot.wants_continue = False
        slot.body_bytes = self._body_bytes
        self._pending_bytes += self._body_bytes
        self.reading = not self._last
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._parser = self._head = None
        self._chunks = []
        return Request(self._method, bytes(head.target), self._headers, body, number, self._verdict)

    def _drop(self, parser: h11.Connection) -> None:
        """All of a request that was turned away is read: the next one may follow."""
        self._in += parser.trailing_data[0]
        self._parser = self._head = None
        self._turned_away, self._dropped = False, True
        self.reading = not self._last

    def _refuse(self, problem: Problem) -> None:
        """Answer what cannot be read and stop: after a parse error the place of the next request is unknown."""
        answered, self._turned_away = self._turned_away, False
        self.held = False
        if self._parser is None:
            self._open_slot(True)
        self._parser = self._head = None
        self._chunks = []
        self._in.clear()
        self.reading = False
        self.refused = problem.detail
        if answered:
            self._flush()
            return
        self._slots[self._order[-1]].close = True
        self._answer(problem)

    def _answer(self, problem: Problem) -> None:
        """Answer the request that is being read."""
        headers, body = self._render(problem)
        self.respond(self._order[-1], problem.status, headers, body)

    def receive_eof(self) -> None:
        """The peer sends nothing more; open requests are still answered."""
        if self._parser is not None:
            # Cut off in the middle of a body: nobody waits for its answer, but for those of whole requests before it (RFC 9112 9.3.2).
            if not self._turned_away:
                del self._slots[self._order.pop()]
            self._parser = self._head = None
            self._chunks = []
        self.reading = False
        self._flush()

    # -- output --------------------------------------------------------------------------------------------------

    def respond(self, number: int, status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
        """Answer request `number`; the bytes go out after the answers of all earlier requests."""
        slot = self._slots.get(number)
        if slot is None or slot.answer is not None:
            return
        parts = [_STATUS_LINES[status], self._date_line()]
        for name, value in headers:
            parts.append(b"%b: %b\r\n" % (name, value))
        if status != 204:
            parts.append(b"content-length: %d\r\n" % len(body))
        parts.append(b"connection: close\r\n\r\n" if slot.close else b"\r\n")
        if not slot.head_only and status != 204:
            parts.append(body)
        slot.answer = b"".join(parts)
        self._flush()

    def _flush(self) -> None:
        order = self._order
        while order and not self.finished:
            slot = self._slots[order[0]]
            if slot.answer is None:
                if slot.wants_continue:
                    slot.wants_continue = False
                    self._out.append(CONTINUE)
                break
            self._out.append(slot.answer)
            self._pending_bytes -= slot.body_bytes
            del self._slots[order.popleft()]
            if slot.close:
                self.finished = True
        if not order and not self.reading:
            self.finished = True

    def data_to_send(self) -> bytes:
        """Take and clear the output."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    # -- time ----------------------------------------------------------------------------------------------------

    def next_deadline(self, now_ms: int) -> int | None:
        """When `handle_deadline` is to be called; None while only we are at work."""
        if not self.reading or self.is_full():
            return None
        if self._parser is not None:
            return self._body_until
        if self._head_since is not None:
            return self._head_since + HEAD_DEADLINE_MS
        if self._order:
            self._idle_since = None
            return None
        if self._idle_since is None:
            self._idle_since = now_ms
        return self._idle_since + self._idle_ms

    def handle_deadline(self, now_ms: int) -> None:
        """End the connection if the peer took too long: 408 within a request, silently between requests."""
        due = self.next_deadline(now_ms)
        if due is None or now_ms < due:
            return
        if self._parser is not None or self._head_since is not None:
            self._refuse(Problem(408, "the request did not arrive in time"))
        else:
            self.reading = False
            self.finished = True

    def inbound_bytes(self) -> int:
        """Held of the request that is being read, and of those without an answer."""
        return len(self._in) + self._pending_bytes + (self._body_bytes if self._parser is not None else 0)

    def unfinished_request(self) -> int:
        """Number of the request whose body is being read; 0: none is."""
        return self._numbers if self._parser is not None and not self.held else 0

    def give_up(self, problem: Problem) -> None:
        """Answer the request that is being read, and take no further one."""
        if self.reading:
            self._refuse(problem)

    def shutdown(self) -> None:
        """Take no further request; the connection is finished when the open ones are answered."""
        for number in self._order:
            self._slots[number].close = number == self._order[-1]
        if self._parser is not None:
            self._refuse(Problem(503, "the server is shutting down", ((b"retry-after", b"5"),)))
        self.reading = False
        self._flush()


def _refuse_other_protocols(begun: bytearray) -> None:
    """A peer that speaks something else is told so at once: it may never send the end of a head."""
    found = _CONTROL.search(begun)
    if found is not None:
        hint = "; this looks like TLS, which is not configured on this port" if begun[0] == 0x16 else ""
        raise Problem(400, f"this is not HTTP/1.1: byte {found.group()[0]:#04x} at {found.start()}{hint}")


def _check_head(head: bytes) -> tuple[str, int | None, bool, bool]:
    """Method, Content-Length, whether the body comes in chunks, and whether the connection ends with this request. Raises Problem.

    What h11 lets pass and a proxy in front may read differently is refused here (RFC 9112 11.2).
    """
    lines = head[:-4].split(b"\r\n")
    line = lines[0]
    match = _REQUEST_LINE.match(line)
    if match is None:
        raise Problem(400, "the request line is malformed (RFC 9112 3); this port speaks HTTP/1.1")
    if len(match[1]) > TARGET_BYTES_MAX:
        raise Problem(414, f"the request target has over {TARGET_BYTES_MAX} bytes")
    if len(lines) > HEADERS_MAX + 1:
        raise Problem(431, f"the request has over {HEADERS_MAX} header lines")
    if b"\n" in head.replace(b"\r\n", b"") or b"\r" in head.replace(b"\r\n", b""):
        raise Problem(400, "a line of the request ends without CR LF (RFC 9112 2.2)")
    method = line[: line.index(b" ")].decode("ascii")
    if method == "CONNECT":
        raise Problem(501, "this server is no proxy")
    hosts = 0
    length: bytes | None = None
    coded = close = False
    minor = match[2]
    for text in lines[1:]:
        if text[:1] in (b" ", b"\t"):
            raise Problem(400, "a header is folded over two lines (RFC 9112 5.2)")
        name, _, value = text.partition(b":")
        name = name.lower()
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None:
                raise Problem(400, "Content-Length is repeated (RFC 9112 6.3)")
            length = value.strip(b" \t")
            if _DIGITS.match(length) is None:
                raise Problem(400, "Content-Length is not a number (RFC 9112 6.3)")
        elif name == b"transfer-encoding":
            if coded or value.strip(b" \t").lower() != b"chunked":
                raise Problem(501 if not coded else 400, "the only transfer coding is chunked, once (RFC 9112 6.1)")
            coded = True
        elif name == b"connection":
            close = close or b"close" in [option.strip(b" \t").lower() for option in value.split(b",")]
    if coded and (length is not None or minor == b"0"):
        raise Problem(400, "Transfer-Encoding with Content-Length or HTTP/1.0 (RFC 9112 6.1)")
    if hosts > 1 or (hosts == 0 and minor == b"1"):
        raise Problem(400, "a request has exactly one Host header (RFC 9112 3.2)")
    return method, None if length is None else int(length), coded, close or minor == b"0"
