"""One HTTP/1.1 connection of the management API (`net.api.Door`): requests in order, each answered before the next is read."""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl, unquote

import h11

if TYPE_CHECKING:
    from gantrymq.net.api import Link

log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 16 * 1024
"""A request line and its headers; tools send some 300 bytes."""
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Definitions of 50,000 queues; only of who has logged in."""
CONNECTIONS_MAX: Final = 64
"""Tools and dashboards of one process."""
REQUEST_MS: Final = 30_000
"""From the first byte of a request to its end."""
IDLE_MS: Final = 60_000

JSON: Final = b"application/json"
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_ASK: Final = ((b"www-authenticate", b'Basic realm="RabbitMQ Management"'),)


@dataclass(slots=True)
class Request:
    """`parts`: of the path behind `/api/`, decoded; `query`: decoded."""

    method: str
    parts: list[str]
    query: dict[str, str]
    body: bytes
    user: str = ""


Answer = Callable[[int, bytes, tuple[tuple[bytes, bytes], ...]], None]
"""`answer(status, body, further headers)`, once."""


class Site(Protocol):
    """What the connections of the door share."""

    open: int

    def refusal(self, host: bytes | None) -> str:
        """Why a request with this Host is not answered."""

    def log_in(self, user: str, password: str, method: str, link: Link, answer: Callable[[bool], None]) -> None:
        """Whether they are somebody's who may use the method, now or later."""

    def handle(self, request: Request, answer: Answer) -> None:
        """Answer a request, now or later."""


class ManagementDoor:
    """See the module."""

    def __init__(self, site: Site, now_ms: Callable[[], int]) -> None:
        self._site = site
        self._now_ms = now_ms
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._link: Link | None = None
        self._out: list[bytes] = []
        self._request: h11.Request | None = None
        self._user = ""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._busy = False
        """An answer is being made."""
        self._ending = False

    def connected(self, link: Link) -> None:
        """See `Door`."""
        self._link = link
        self._site.open += 1
        link.set_deadline(self._now_ms() + REQUEST_MS)
        if self._site.open > CONNECTIONS_MAX:
            log.warning("%s: refused, %d connections are open", link.peer, CONNECTIONS_MAX)
            self._fail(503, f"{CONNECTIONS_MAX} connections are open already")

    def received(self, data: bytes) -> None:
        """See `Door`."""
        if self._ending or self._link is None:
            return
        if self._busy and len(self._http.trailing_data[0]) + len(data) > HEAD_BYTES_MAX:
            self._link.abort()  # it sends on and on while its answer is being made
            return
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            if data:
                self._http.receive_data(data)
            while not self._busy and not self._ending:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    return
                if isinstance(event, h11.Request):
                    self._begin(event)
                elif isinstance(event, h11.Data):
                    self._body_bytes += len(event.data)
                    if self._body_bytes > BODY_BYTES_MAX:
                        raise h11.RemoteProtocolError(f"over {BODY_BYTES_MAX} bytes", error_status_hint=413)
                    self._body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._dispatch()
        except h11.RemoteProtocolError as error:
            self._fail(error.error_status_hint, str(error))

    def _begin(self, event: h11.Request) -> None:
        """Who asks is known before a body is read."""
        link = self._link
        assert link is not None
        self._request, self._body, self._body_bytes = event, [], 0
        link.set_deadline(self._now_ms() + REQUEST_MS)
        headers = dict(event.headers)
        if refused := self._site.refusal(headers.get(b"host")):
            self._fail(421, refused)
            return
        credentials = _basic(headers.get(b"authorization", b""))
        if credentials is None:
            self._fail(401, "Login failed", _ASK)
            return
        self._user = credentials[0]
        self._busy = True
        link.pause_reading()
        self._site.log_in(*credentials, event.method.decode("latin-1"), link, self._logged_in)

    def _logged_in(self, good: bool) -> None:
        link = self._link
        if link is None or self._ending:
            return
        link.resume_reading()
        self._busy = False
        if not good:
            self._fail(401, "Login failed", _ASK)
            return
        link.known()
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            link.mark()
        self._take(b"")

    def _dispatch(self) -> None:
        assert self._request is not None
        assert self._link is not None
        self._busy = True
        self._link.set_deadline(None)
        path, _, query = self._request.target.decode("latin-1").partition("?")
        parts = [unquote(part) for part in path.split("/")[1:]]
        request = Request(
            self._request.method.decode("latin-1"), parts, dict(parse_qsl(query)), b"".join(self._body), self._user
        )
        self._body = []
        self._site.handle(request, self._answer)

    def _answer(self, status: int, body: bytes, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        link, request = self._link, self._request
        if link is None or request is None or not self._busy:
            return  # it left while the answer was made
        headers = [(b"content-type", JSON), (b"cache-control", b"no-cache"), *more]
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        if self._ending:
            headers.append((b"connection", b"close"))
        self._write(h11.Response(status_code=status, headers=headers, reason=_REASONS[status]))
        if request.method != b"HEAD" and status != 204:
            self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())
        self._busy = False
        self._request = None
        link.mark()
        if self._ending or self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            self._ending = True
            link.close()
            return
        self._http.start_next_cycle()
        link.set_deadline(self._now_ms() + IDLE_MS)
        self._take(b"")

    def _fail(self, status: int, text: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Answer what cannot be read, or is not, and end."""
        self._ending = self._busy = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            word = "not_authorised" if status == 401 else "bad_request"
            body = error_body(word, text)
            headers = [
                (b"content-type", JSON),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
                *more,
            ]
            self._write(h11.Response(status_code=status, headers=headers, reason=_REASONS[status]))
            self._write(h11.Data(data=body))
            self._write(h11.EndOfMessage())
        if self._link is not None:
            self._link.mark()
            self._link.close()

    def _write(self, event: h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage) -> None:
        data = self._http.send(event)
        if data:
            self._out.append(data)

    def inbound_bytes(self) -> int:
        """See `Door`."""
        return self._body_bytes + len(self._http.trailing_data[0])

    def unfinished(self) -> int:
        """See `Door`: a request has `REQUEST_MS`."""
        return 0

    def overdue(self, why: str, busy: bool) -> None:
        """See `Door`."""
        if self._link is not None:
            self._link.abort()

    def data_to_send(self) -> bytes:
        """See `Door`."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def eof(self) -> bool | None:
        """See `Door`: an answer that is being made still goes out."""
        if self._busy and not self._ending:
            self._ending = True
            return True
        return None

    def closed(self, reason: str) -> None:
        """See `Door`."""
        self._link = None
        self._site.open -= 1

    def writable(self) -> None:
        """See `Door`."""

    def deadline(self, now_ms: int) -> None:
        """See `Door`: it took too long, or is idle."""
        if self._link is not None and not self._busy:
            self._ending = True
            self._link.close()

    def shutdown(self) -> None:
        """See `Door`."""
        self._ending = True
        if self._link is not None and not self._busy:
            self._link.close()


def _basic(value: bytes) -> tuple[str, str] | None:
    """User and password of an Authorization header (RFC 7617)."""
    scheme, _, text = value.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return (user, password) if colon else None


def error_body(word: str, reason: str) -> bytes:
    """RabbitMQ's JSON of a failure."""
    return json.dumps({"error": word, "reason": reason}).encode()
