"""TLS handshakes that say who somebody is (pre-shared keys): those that fail are failed logins, which slow their address down and are audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.net.held.addresses import address_of

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority

HOW: Final = "pre-shared key"
WHY: Final = "the identity or its pre-shared key is wrong"


class Handshakes:
    """At the doors of one name; a `net.tls.contexts.Gate`."""

    def __init__(self, authority: Authority, door: str) -> None:
        self._authority = authority
        self._door = door

    def wait(self, peer: str, go: Callable[[str], None]) -> None:
        """Only its address is known yet."""
        self._authority.logins.after_delay("", address_of(peer), go)

    def failed(self, peer: str, identity: str) -> None:
        """See `Gate`."""
        self._authority.logins.note_failure(identity, address_of(peer))
        self._authority.audit.login(self._door, identity, peer, WHY, HOW)
