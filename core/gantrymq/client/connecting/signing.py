"""Signed requests, for servers that authenticate (RocketMQ's AccessKey and Signature), and what the environment says of TLS."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Final, Self

from gantrymq.auth.signatures import ACCESS_KEY, SIGNATURE, sign
from gantrymq.remoting.codec import Command

USER_VARIABLE: Final = "GANTRY_USER"
PASSWORD_VARIABLE: Final = "GANTRY_PASSWORD"
"""In the environment: who a client or command is where nothing else says it."""
TLS_VARIABLE: Final = "GANTRY_TLS_CA"
"""In the environment: a file with the CAs to trust; connections have TLS where it is set."""


def tls_of_environment() -> ssl.SSLContext | None:
    """None: no TLS. Raises OSError for a file that cannot be read or holds no certificates."""
    authorities = os.environ.get(TLS_VARIABLE, "")
    return _context(authorities) if authorities else None


@lru_cache(maxsize=1)
def _context(authorities: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authorities)


class Signer:
    """One user's name and secret; shown nowhere."""

    __slots__ = ("_secret", "user")

    def __init__(self, user: str, secret: str) -> None:
        self.user = user
        self._secret = secret

    def sign(self, command: Command) -> None:
        """Add the two fields to a request."""
        fields = {name: value for name, value in command.fields.items() if name != SIGNATURE}
        fields[ACCESS_KEY] = self.user
        fields[SIGNATURE] = sign(self._secret, fields, command.body, command.version)
        command.fields = fields

    @classmethod
    def of(cls, user: str, password: str) -> Self | None:
        """Of these, or of the environment; None: requests are not signed."""
        user = user or os.environ.get(USER_VARIABLE, "")
        password = password or os.environ.get(PASSWORD_VARIABLE, "")
        return cls(user, password) if user else None
