"""The dispatch table of a Remoting server: one row per request code, with all that is to be known before its handler runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from gantrymq.remoting.codec import Command
from gantrymq.remoting.request_classes import RequestClass, class_of

R = TypeVar("R")
S = TypeVar("S")
K = TypeVar("K", bound=int)

Handler = Callable[[Command, R, S], None]
"""`handler(request, reply, services)`: `reply` is what it may do with the connection, `services` what it needs of the server. It answers now or
later; raises HeaderError, BodyError or GantryError for what is refused."""

Right = Callable[[Command], Iterable[tuple[str, str]]]
"""The (action, resource) pairs that who sends this request needs; it reads the request's header only."""

NO_RIGHTS: Final[Mapping[int, Right]] = {}


class Row(NamedTuple):
    """What a server knows of a request code. `right`: None where the class alone decides."""

    kind: RequestClass
    handler: Handler[Any, Any]
    services: Any
    right: Right | None = None


def rows(handlers: Mapping[K, Handler[R, S]], services: S, rights: Mapping[int, Right] = NO_RIGHTS) -> dict[int, Row]:
    """Rows of one family of requests, which share their services."""
    return {int(code): Row(class_of(code), handler, services, rights.get(code)) for code, handler in handlers.items()}
