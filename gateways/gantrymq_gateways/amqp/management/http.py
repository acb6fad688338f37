"""One HTTP connection of the management API."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl, unquote

from gantrymq.net.host_names import asked_host
from gantrymq.net.http.door import Handler, InSlices, OneByOneDoor
from gantrymq.net.http.problems import Headers, Problem, Respond

if TYPE_CHECKING:
    from gantrymq.net.api import Link
    from gantrymq.net.http import server_connection as http

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Definitions of 50,000 queues; only of who has logged in."""
CONNECTIONS_MAX: Final = 64
"""Tools and dashboards of one process."""

HEADERS: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-cache"))
_ASK: Final = ((b"www-authenticate", b'Basic realm="RabbitMQ Management"'),)


@dataclass(slots=True)
class Request:
    """`parts`: of the path behind `/api/`, decoded; `query`: decoded."""

    method: str
    parts: list[str]
    query: dict[str, str]
    body: bytes
    user: str = ""
    peer: str = ""


Answer = Callable[[int, bytes, Headers], None]
"""`answer(status, body, further headers)`, once."""


class Site(Protocol):
    """What the connections of the door share."""

    connections: int

    def refusal(self, host: bytes | None) -> str:
        """Why a request with this Host is not answered."""

    def log_in(self, user: str, password: str, method: str, link: Link, answer: Callable[[str], None]) -> None:
        """Whose they are, if he may use the method, else empty; now or later. It is not always who is said: a token stands for its own user."""

    def handle(self, request: Request, answer: Answer) -> None:
        """Answer a request, now or later."""


def render(problem: Problem) -> tuple[Headers, bytes]:
    """As RabbitMQ tells a failure."""
    word = "not_authorised" if problem.status == 401 else "bad_request"
    return (*HEADERS, *problem.headers), error_body(word, problem.detail)


class ManagementDoor(OneByOneDoor):
    """See the module."""

    render = staticmethod(render)
    connections_max = CONNECTIONS_MAX

    def __init__(self, site: Site, now_ms: Callable[[], int], in_slices: InSlices) -> None:
        super().__init__(site, now_ms, in_slices, BODY_BYTES_MAX)
        self._site = site

    def judge(self, method: str, target: bytes, headers: http.Headers, length: int) -> Handler:
        """See `HttpDoor`: who asks is known before a body is read."""
        if refused := self._site.refusal(asked_host(target, headers)):
            raise Problem(421, refused)
        given = [value for name, value in headers if name == b"authorization"]
        credentials = _basic(given[0]) if len(given) == 1 else None  # of two, who asks would be up to who reads them
        if credentials is None:
            raise Problem(401, "Login failed", _ASK)
        path, _, query = target.decode("latin-1").partition("?")
        try:
            # Tools end a list's path with a slash.
            parts = [unquote(part, errors="strict") for part in path.removesuffix("/").split("/")[1:]]
        except UnicodeDecodeError:
            raise Problem(400, "the path is not UTF-8 after percent-decoding") from None
        assert self.link is not None
        return self.verdict_on(
            partial(self._site.log_in, *credentials, method, self.link),
            partial(self._handler, parts, dict(parse_qsl(query))),
        )

    def _handler(self, parts: list[str], query: dict[str, str], user: str) -> Handler:
        if not user:
            raise Problem(401, "Login failed", _ASK)
        if self.link is not None and (why := self.link.known(user)):
            raise Problem(429, f"user {user}: {why}")
        return partial(self._answer, parts, query, user)

    def _answer(
        self, parts: list[str], query: dict[str, str], user: str, asked: http.Request, respond: Respond
    ) -> None:
        peer = self.link.peer if self.link is not None else ""

        def answer(status: int, body: bytes, more: Headers) -> None:
            respond(status, (*HEADERS, *more), body)

        self._site.handle(Request(asked.method, parts, query, asked.body, user, peer), answer)


def _basic(value: bytes) -> tuple[str, str] | None:
    """User and password of an Authorization header (RFC 7617); of a Bearer (RFC 6750) the token, as the password of nobody."""
    scheme, _, text = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return "", text.strip().decode("latin-1")
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
