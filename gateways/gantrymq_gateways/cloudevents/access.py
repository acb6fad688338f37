"""Users and rights at the CloudEvents door: who a request is from (HTTP Basic or Bearer, else the client certificate), and which topics it may use.

The head of a request decides: nothing of a stranger's body is read.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.auth.authority import NOT_LOADED
from gantrymq.auth.logins import AGAIN
from gantrymq.auth.resources import Action, Kind
from gantrymq.auth.tokens.tokens import is_token
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.http.problems import Problem

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority, Identity
    from gantrymq.net.api import Link
    from gantrymq.net.http.server_connection import Headers

log = logging.getLogger(__name__)

CHALLENGE: Final = (b"www-authenticate", b'Basic realm="gantry", charset="UTF-8"')
"""RFC 7617 2."""
TOKEN_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="gantry"')
"""RFC 6750 3, beside the other where tokens are taken."""

DOOR: Final = "cloudevents"
"""What the audit trail calls it."""

OPEN: Final = Action(0)
"""The right that everybody has, strangers too."""

ROUTES: Final[dict[tuple[str, str], Action]] = {
    ("/topics/{topic}", "POST"): Action.PUB,
    ("/subscriptions", "GET"): Action.SUB, ("/subscriptions", "POST"): Action.SUB,
    ("/subscriptions/{id}", "GET"): Action.SUB, ("/subscriptions/{id}", "DELETE"): Action.SUB,
    ("/healthz", "GET"): OPEN, ("/healthz", "HEAD"): OPEN,
}  # fmt: skip
"""Paths and methods, and what they need on their topic. A method that has no row here is answered 405, whoever asks."""

_WORDS: Final = {Action.PUB: "pub", Action.SUB: "sub"}
_VERBS: Final = {Action.PUB: "publish to", Action.SUB: "subscribe to"}

Known = Callable[["Identity | Problem"], None]
"""Who it is, or the answer to a request of nobody."""


class Asker:
    """Who the requests of one connection are from. The credentials of the last one are known until users or policies change."""

    def __init__(self, authority: Authority, link: Link) -> None:
        self._authority = authority
        self._link = link
        self._last: tuple[bytes, int, Identity] | None = None
        """Credentials, epoch, and whose they are."""

    def identify(self, headers: Headers, on_known: Known) -> None:
        """By Authorization, else by the client certificate, else the user `anonymous` where there is one. `on_known` now or later, once."""
        authority, link = self._authority, self._link
        if not authority.loaded:
            on_known(_come_again(NOT_LOADED))
            return
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            found = authority.by_certificate(link.peer_certificate, "", link.peer)
            found = found or authority.anonymous("", link.peer, link.guest)
            if found is not None:
                authority.audit.login(DOOR, found.name, link.peer, how="certificate or anonymous")
            on_known(found or self._unknown("credentials are needed"))
            return
        last, epoch = self._last, authority.epoch
        if last is not None and last[:2] == (given[0], epoch) and len(given) == 1 and last[2].alive:
            on_known(last[2])
            return
        credentials = credentials_of(given[0]) if len(given) == 1 else None
        if credentials is None or (not credentials[0] and not authority.takes_tokens):
            text = "Authorization is read once, as Basic, with user and password in UTF-8 (RFC 7617)"
            on_known(self._unknown(f"{text}, or as Bearer (RFC 6750)" if authority.takes_tokens else text))
            return

        def done(identity: Identity | None, why: str) -> None:
            user = identity.name if identity is not None else credentials[0]
            how = (identity.came_with if identity is not None else "") or ("password" if credentials[0] else "token")
            authority.audit.login(DOOR, user, link.peer, why, how)
            if identity is None:
                log.warning("%s: refused: %s", link.peer, why)
                on_known(_come_again(why) if why in (*AGAIN, NOT_LOADED) else self._unknown(why))
                return
            self._last = (given[0], epoch, identity)
            on_known(identity)

        authority.login(*credentials, "", link.peer, done)

    def _unknown(self, why: str) -> Problem:
        return Problem(401, why, (CHALLENGE, TOKEN_CHALLENGE) if self._authority.takes_tokens else (CHALLENGE,))


def credentials_of(value: bytes) -> tuple[str, str] | None:
    """User and password of an Authorization header; of a Bearer the token, as the password of nobody."""
    scheme, _, token = value.partition(b" ")
    if scheme.lower() != b"bearer":
        return basic(value)
    text = token.strip().decode("latin-1")
    return ("", text) if is_token(text) else None


def basic(value: bytes) -> tuple[str, str] | None:
    """User and password of an Authorization header (RFC 7617 2); None: it holds something else."""
    scheme, _, text = value.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return (user, password) if colon else None


def _come_again(why: str) -> Problem:
    return Problem(503, why, ((b"retry-after", b"1"),))


def check(asker: Identity | None, action: Action, topic: str) -> None:
    """Whether somebody may do this with a topic, named natively or not. None: nobody is asked. Raises GantryError."""
    if asker is None:
        return
    kind, name = _resource(topic)
    decision = asker.decide(action, kind, name)
    if not decision.allowed:
        asker.refused(DOOR, _WORDS[action], f"{kind.value}:{name}", decision.rule)
        log.info("%s: user %s may not %s %s: %s", asker.address, asker.name, _VERBS[action], topic[:128], decision.rule)
        raise GantryError(ErrorCode.NO_PERMISSION, f"user {asker.name} may not {_VERBS[action]} topic {topic[:128]!r}")


def may_subscribe(asker: Identity | None, topic: str) -> bool:
    """As `check`, for a topic that a row names; administrators alone see rows that name none."""
    if asker is None or asker.is_admin:
        return True
    try:
        return bool(topic) and asker.may(Action.SUB, *_resource(topic))
    except GantryError:
        return False


def _resource(topic: str) -> tuple[Kind, str]:
    """Native, as `LongTopics.native_of_either` without noting anything; retries and dead letters are their group's, as at the Remoting door."""
    try:
        names.check_topic(topic)
    except GantryError:
        topic = names.encode_topic(topic)
    for prefix in (names.RETRY_PREFIX, names.DLQ_PREFIX):
        if topic.startswith(prefix):
            return Kind.GROUP, topic.removeprefix(prefix)
    return Kind.TOPIC, topic
