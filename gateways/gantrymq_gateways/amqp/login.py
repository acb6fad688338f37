"""Who an AMQP client is, where there are users: one login, in as many steps as its SASL mechanism has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gantrymq.auth.sasl import exchanges
from gantrymq_gateways.amqp import access
from gantrymq_gateways.amqp.wire.constants import MECHANISMS
from gantrymq_gateways.amqp.wire.login import credentials_of

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority, Identity
    from gantrymq.net.api import Link

log = logging.getLogger(__name__)

Reply = Callable[["str | bytes | bool"], None]
"""Of the connection: a user's name lets it in, bytes are a challenge, False refuses."""

Identified = Callable[[Reply, "Identity | None", "str | bytes | bool"], None]


class Login:
    """Of one connection."""

    def __init__(self, authority: Authority, link: Link, identified: Identified) -> None:
        """`identified(reply, identity, what)`: once for each step, now or later."""
        self._authority = authority
        self._link = link
        self._identified = identified
        self._exchange: exchanges.Login | None = None

    @property
    def mechanisms(self) -> bytes:
        """What connection.start offers."""
        more = exchanges.mechanisms(self._authority)
        external = ("EXTERNAL",) if self._link.peer_certificate is not None else ()
        return b" ".join([MECHANISMS, *[name.encode() for name in (*more, *external)]])

    def step(self, mechanism: str, response: bytes, reply: Reply) -> None:
        """What the client said."""
        authority, link = self._authority, self._link
        if self._exchange is None:
            self._exchange = exchanges.begin(authority, mechanism, "", link.peer)
        if self._exchange is not None:
            self._exchange.step(response, partial(self._stepped, self._exchange, mechanism, reply))
            return
        credentials = credentials_of(mechanism, response)
        if credentials is None:
            self._tell(reply, "", None, "the response makes no sense", mechanism)
            return
        user, password = credentials
        if mechanism == "EXTERNAL":
            found = authority.by_certificate(link.peer_certificate, "", link.peer)
            self._tell(reply, user, found, "" if found is not None else "its certificate is no user's", "certificate")
            return

        def done(identity: Identity | None, why: str) -> None:
            how = identity.came_with if identity is not None else ""
            self._tell(reply, user, identity, why, how or "password")

        authority.login(user, password, "", link.peer, done)

    def _stepped(self, login: exchanges.Login, how: str, reply: Reply, step: exchanges.Step) -> None:
        if step.identity is None and not step.why:
            self._identified(reply, None, step.data)
            return
        self._tell(reply, login.user, step.identity, step.why, how, step.data)

    def _tell(self, reply: Reply, user: str, identity: Identity | None, why: str, how: str, last: bytes = b"") -> None:
        """`last`: what the mechanism says with its success; the client answers it with nothing."""
        name = identity.name if identity is not None else user
        self._authority.audit.login(access.DOOR, name, self._link.peer, why, how)
        if identity is None:
            log.warning("%s: login refused: %s", self._link.peer, why)
            self._identified(reply, None, False)
        elif last:
            self._exchange = _Shown(identity)
            self._identified(reply, None, last)
        else:
            self._identified(reply, identity, identity.name)


class _Shown:
    """It has shown who it is, and takes note of the server's proof with an empty response."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self.user = identity.name

    def step(self, data: bytes, answer: exchanges.Answer) -> None:
        """See `exchanges.Login`."""
        answer(exchanges.Step(self._identity) if not data else exchanges.Step(why="a response after the last one"))
