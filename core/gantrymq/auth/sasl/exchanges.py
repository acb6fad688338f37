"""What the doors carry between a client and its authentication: `begin` a mechanism, then `step` with each message of the client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from gantrymq.auth.authority import NOT_LOADED, Authority, Identity
from gantrymq.auth.logins import WRONG
from gantrymq.auth.sasl import scram
from gantrymq.auth.sasl.scram import Verifier
from gantrymq.net.held.addresses import address_of

BEARER: Final = "OAUTHBEARER"
"""RFC 7628."""


@dataclass(frozen=True, slots=True)
class Step:
    """The answer to a message: who it is, with what the client is told at last; why it is nobody; or neither: `data` is the next challenge."""

    identity: Identity | None = None
    data: bytes = b""
    why: str = ""


Answer = Callable[[Step], None]


class Login(Protocol):
    """One exchange."""

    user: str
    """Who it says it is, as far as it has."""

    def step(self, data: bytes, answer: Answer) -> None:
        """A message of the client; `answer` now or later, once."""


def mechanisms(authority: Authority) -> tuple[str, ...]:
    """Those that this process takes."""
    scrams = (scram.NAME,) if authority.config.scram else ()
    return (*scrams, BEARER) if authority.takes_tokens else scrams


def begin(authority: Authority, mechanism: str, client_id: str, address: str) -> Login | None:
    """None: it is not taken here."""
    if mechanism not in mechanisms(authority):
        return None
    if mechanism == BEARER:
        return _Bearer(authority, client_id, address)
    return _Scram(authority, client_id, address)


class _Bearer:
    """A token, in one message."""

    def __init__(self, authority: Authority, client_id: str, address: str) -> None:
        self._authority = authority
        self._client_id = client_id
        self._address = address
        self.user = ""

    def step(self, data: bytes, answer: Answer) -> None:
        """See `Login`."""
        if not self._authority.loaded:
            answer(Step(why=NOT_LOADED))
            return
        # RFC 7628 3.1: a GS2 header, then pairs of key and value, each ended by \x01.
        pairs = dict(part.split(b"=", 1) for part in data.split(b"\x01")[1:] if b"=" in part)
        scheme, _, token = pairs.get(b"auth", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            answer(Step(why="no token (RFC 7628 3.1)"))
            return
        identity, why = self._authority.by_token(token.strip().decode("latin-1"), self._client_id, self._address)
        if identity is not None:
            self.user = identity.name
        answer(Step(identity, why=why))


class _Scram:
    """Two messages; a user that is not there costs what one costs that is, and hears the same."""

    def __init__(self, authority: Authority, client_id: str, address: str) -> None:
        self._authority = authority
        self._client_id = client_id
        self._address = address
        self._known = ""
        self._exchange = scram.Exchange(self._verifier_of)
        self._begun = False
        self.user = ""

    def _verifier_of(self, name: str) -> Verifier:
        user = self._authority.user(name)
        if user is None or not user.scram:
            return scram.unknown(self._authority.logins.seed, name)
        self._known = user.scram
        return scram.read_verifier(user.scram)

    def step(self, data: bytes, answer: Answer) -> None:
        """See `Login`."""
        if not self._authority.loaded:
            answer(Step(why=NOT_LOADED))
            return
        try:
            if self._begun:
                self._finish(self._exchange.final(data), answer)
                return
            self._begun = True
            challenge = self._exchange.first(data)
        except ValueError as error:
            self._fail(str(error), answer)
            return
        self.user = self._exchange.user
        go = partial(self._go, challenge, answer)
        self._authority.logins.after_delay(self.user, address_of(self._address), go)

    @staticmethod
    def _go(challenge: bytes, answer: Answer, why: str) -> None:
        answer(Step(why=why) if why else Step(data=challenge))

    def _finish(self, verdict: bytes, answer: Answer) -> None:
        authority, name = self._authority, self.user
        user = authority.user(name)
        if user is None or not self._known or user.scram != self._known:
            self._fail(WRONG, answer)
            return
        authority.logins.note_success(name, address_of(self._address))
        answer(Step(authority.identity(name, self._client_id, self._address), verdict))

    def _fail(self, why: str, answer: Answer) -> None:
        self._authority.logins.note_failure(self.user, address_of(self._address))
        answer(Step(why=why))
