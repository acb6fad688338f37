"""Requests that say who sends them, for servers that authenticate: signed (RocketMQ's AccessKey and Signature), or with a token; and what the
environment says of TLS."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Final, Self

from gantrymq.auth.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, sign
from gantrymq.remoting.codec import Command

USER_VARIABLE: Final = "GANTRY_USER"
PASSWORD_VARIABLE: Final = "GANTRY_PASSWORD"
"""In the environment: who a client or command is where nothing else says it."""
TOKEN_VARIABLE: Final = "GANTRY_TOKEN"
"""In the environment, instead of both: a token, which says who it is."""
TLS_VARIABLE: Final = "GANTRY_TLS_CA"
"""In the environment: a file with the CAs to trust; connections have TLS where it is set."""
CERTIFICATE_VARIABLE: Final = "GANTRY_TLS_CERT"
CERTIFICATE_KEY_VARIABLE: Final = "GANTRY_TLS_KEY"
"""In the environment: files with the client certificate that is shown then, and with its key, if that is not in the same file."""


def tls_of_environment() -> ssl.SSLContext | None:
    """None: no TLS. Raises OSError for a file that cannot be read or holds no certificates."""
    get = os.environ.get
    authorities = get(TLS_VARIABLE, "")
    if not authorities:
        return None
    return _context(authorities, get(CERTIFICATE_VARIABLE, ""), get(CERTIFICATE_KEY_VARIABLE, ""))


@lru_cache(maxsize=1)
def _context(authorities: str, certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities)
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return context


class Signer:
    """One user's name and secret, or a token; shown nowhere."""

    __slots__ = ("_secret", "_token", "user")

    def __init__(self, user: str, secret: str, token: str = "") -> None:
        """`token`: instead of the others."""
        self.user = user
        self._secret = secret
        self._token = token

    def sign(self, command: Command) -> None:
        """Add what says who sends a request."""
        if self._token:
            command.fields = {**command.fields, SECURITY_TOKEN: self._token}
            return
        fields = {name: value for name, value in command.fields.items() if name != SIGNATURE}
        fields[ACCESS_KEY] = self.user
        fields[SIGNATURE] = sign(self._secret, fields, command.body, command.version)
        command.fields = fields

    @classmethod
    def of(cls, user: str, password: str, token: str = "") -> Self | None:
        """Of these, else of the environment: its token, or its user; None: requests say nothing of it."""
        token = token or ("" if user else os.environ.get(TOKEN_VARIABLE, ""))
        if token:
            return cls("", "", token)
        user = user or os.environ.get(USER_VARIABLE, "")
        password = password or os.environ.get(PASSWORD_VARIABLE, "")
        return cls(user, password) if user else None
