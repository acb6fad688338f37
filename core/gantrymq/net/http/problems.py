"""A request that is refused, and the forms in which its sender is told: a problem document (RFC 9457) or a line of text."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec

_ENCODE: Final = msgspec.json.Encoder().encode

Headers = tuple[tuple[bytes, bytes], ...]

PROBLEM_HEADER: Final = (b"content-type", b"application/problem+json")
TEXT_HEADER: Final = (b"content-type", b"text/plain; charset=utf-8")


class Problem(Exception):
    """A request refused. `headers`: further response headers. `members`: further members of the document."""

    def __init__(self, status: int, detail: str, headers: Headers = (), members: dict[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members or {}

    def body(self) -> bytes:
        """The document."""
        title = HTTPStatus(self.status).phrase
        return _ENCODE(
            {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail, **self.members}
        )


Respond = Callable[[int, Headers, bytes], None]
"""`respond(status, headers, body)`, once per request, now or later."""

Render = Callable[[Problem], tuple[Headers, bytes]]
"""Headers and body of the answer."""


def as_document(problem: Problem) -> tuple[Headers, bytes]:
    """A problem document (RFC 9457)."""
    return (PROBLEM_HEADER, *problem.headers), problem.body()


def as_text(problem: Problem) -> tuple[Headers, bytes]:
    """One line for people."""
    return (TEXT_HEADER, *problem.headers), problem.detail.encode() + b"\n"


def respond_problem(respond: Respond, problem: Problem) -> None:
    """Answer with a problem document."""
    respond(problem.status, *as_document(problem))
