"""RabbitMQ's OAuth 2.0 scopes: `PREFIX` + `configure|write|read:VHOST/NAME[/ROUTING KEY]`, in which `*` stands for any text.

Parts are percent-encoded. RabbitMQ's `tag:` scopes make nobody an administrator here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from gantrymq.auth.resources import Action, Kind

SCOPES_MAX: Final = 1_000
"""Of one token; it has 8 KiB."""

VHOST: Final = "/"

CONFIGURE, WRITE, READ = WORDS = ("configure", "write", "read")

_NATIVE: Final = {
    Action.PUB: WRITE, Action.SUB: READ, Action.GET: READ, Action.LIST: READ,
    Action.CREATE: CONFIGURE, Action.UPDATE: CONFIGURE, Action.DELETE: CONFIGURE,
}  # fmt: skip
"""Which scope is a native action on a topic, group or queue of that name, at every door."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One of them, decoded."""

    permission: str
    vhost: str
    name: str
    key: str
    text: str


def parse_scopes(texts: Iterable[str], prefix: str) -> tuple[Scope, ...]:
    """Those that begin with the prefix and can be read; what is for other services is passed over."""
    found = []
    for text in texts:
        permission, colon, rest = text.removeprefix(prefix).partition(":")
        if not text.startswith(prefix) or permission not in WORDS or not colon:
            continue
        parts = [unquote(part) for part in rest.split("/")]
        if 2 <= len(parts) <= 3:
            found.append(Scope(permission, parts[0], parts[1], parts[2] if len(parts) == 3 else "*", text))
        if len(found) >= SCOPES_MAX:
            break
    return tuple(found)


def for_native(scopes: Iterable[Scope], action: Action, kind: Kind, name: str | None) -> Scope | None:
    """The scope that allows an action; `name` None: on any name whatever."""
    if kind not in (Kind.TOPIC, Kind.GROUP, Kind.QUEUE):
        return None
    permission = _NATIVE.get(action)
    for scope in scopes:
        named = matches(scope.name, name) if name is not None else scope.name == "*"
        if named and scope.permission == permission and scope.key == "*" and matches(scope.vhost, VHOST):
            return scope
    return None


def for_amqp(scopes: Iterable[Scope], permission: str, vhost: str, name: str, key: str | None = None) -> Scope | None:
    """The scope that gives a permission on an exchange or queue; with `key`, for that routing key."""
    for scope in scopes:
        fits = matches(scope.vhost, vhost) and matches(scope.name, name)
        if fits and scope.permission == permission and (key is None or matches(scope.key, key)):
            return scope
    return None


def matches(pattern: str, text: str) -> bool:
    """`*` stands for any text, also none; every other sign for itself. One pass for each part between stars."""
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    last = others.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in others:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
