"""Pre-shared keys instead of certificates (TLS-PSK, RFC 4279 and RFC 8446 2.2): a file of identities and keys, followed as it changes.

Each connection has a context of its own (0.13 ms, 13 KiB): the callback of `ssl` says an identity and not whose, and a context that is
used once can resume no session, whose identity nobody would be told. An identity that is not known has a key that nobody knows: the
handshake fails where one with a wrong key does.
"""

from __future__ import annotations

import hmac
import logging
import os
import platform
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from gantrymq.net.places import HINT, IDENTITY_IS_USER, PSK_FILE, Place
from gantrymq.net.tls.contexts import Context, TlsConfig, TlsError

log = logging.getLogger(__name__)

KEYS_MAX: Final = 100_000
"""Of one file: a fleet, 20 MiB of memory."""

IDENTITY_BYTES_MAX: Final = 128
"""RFC 4279 5.3: what everybody has to take."""

KEY_BYTES_MAX: Final = 256
"""OpenSSL's PSK_MAX_PSK_LEN."""

KEY_BYTES_GOOD: Final = 16
"""128 bits. Whoever hears a handshake without Diffie-Hellman, or is part of one, can try shorter keys at home."""

CIPHERS: Final = "kECDHEPSK+CHACHA20:kECDHEPSK+AES:kPSK+AESGCM:kPSK+CHACHA20:kPSK+AES:!SHA1:!AESCCM8"
"""Of TLS 1.2, forward secrecy first; TLS 1.3 has its own and always has that."""


class OneConnection(ssl.SSLContext):
    """The context of one connection."""

    said: list[str]
    """The identity that its peer said last; empty: none yet."""
    identity_is_user: bool

    @property
    def user(self) -> str:
        """Whose key it was, once the handshake is over; empty: whoever has a key says by other means who it is."""
        return self.said[0] if self.identity_is_user else ""


class KeyedContext(Context):
    """Contexts of one place with `psk_file`."""

    def __init__(self, config: TlsConfig, place: Place, protocols: Iterable[str] = ()) -> None:
        """Raises `TlsError`."""
        self._file = place.options[PSK_FILE]
        self._hint = place.options.get(HINT, "")
        self._identity_is_user = place.options.get(IDENTITY_IS_USER) == "true"
        self._keys: dict[str, bytes] = {}
        self._seed = os.urandom(32)
        super().__init__(config, protocols)

    def for_connection(self) -> OneConnection:
        """See `Context`."""
        return self._with(self._keys)

    def _files(self) -> list[str]:
        return [self._file]

    def _make(self) -> ssl.SSLContext:
        check_python()
        try:
            keys = read_keys(Path(self._file))
            made = self._with(keys)
        except (OSError, ValueError) as error:
            raise TlsError(f'psk_file = "{self._file}": {getattr(error, "strerror", None) or error}') from None
        self._keys = keys
        return made

    def _with(self, keys: dict[str, bytes]) -> OneConnection:
        context = OneConnection(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.set_ciphers(CIPHERS)
        context.identity_is_user = self._identity_is_user
        context.said = said = [""]
        # Not the context itself: it would refer to its own callback.
        known_only: Any = context  # `ssl` of 3.11 has no such method
        known_only.set_psk_server_callback(_answer(keys, said, self._seed), self._hint or None)
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        return context


def _answer(keys: dict[str, bytes], said: list[str], seed: bytes) -> Callable[[str | None], bytes]:
    def key_of(identity: str | None) -> bytes:
        said[0] = identity = identity or ""
        nobodys = hmac.digest(
            seed, identity.encode("utf-8", "surrogatepass"), "sha256"
        )  # made for all, to cost the same
        return keys.get(identity, nobodys)

    return key_of


def said_identity(context: ssl.SSLContext) -> str:
    """What the peer of a connection called itself, right or wrong; empty: nothing, or it was not asked."""
    return context.said[0] if isinstance(context, OneConnection) else ""


def user_of(connection: Any) -> str:
    """The user whose key an `ssl.SSLObject`'s peer has; empty: nobody's, or it has none (None: no TLS)."""
    context = connection.context if connection is not None else None
    return context.user if isinstance(context, OneConnection) else ""


def check_python() -> None:
    """Raises `TlsError` where `ssl` has no pre-shared keys."""
    able = getattr(ssl, "HAS_PSK", None)
    if able is None:
        raise TlsError(
            f"psk_file needs Python 3.13 or newer, and this is {platform.python_version()}; start gantry with one, "
            "or give this listener a certificate (cert=, key=) in place of psk_file="
        )
    if not able:
        raise TlsError(
            f"psk_file needs an OpenSSL with pre-shared keys, and this Python's ({ssl.OPENSSL_VERSION}) was built without; "
            "start gantry with another Python, or give this listener a certificate (cert=, key=) in place of psk_file="
        )


def read_keys(path: Path) -> dict[str, bytes]:
    """Keys by identity, of lines IDENTITY:HEXADECIMAL as Mosquitto has them; empty ones and those with # in front are passed over. Raises
    OSError, and ValueError that says nothing of a key."""
    if path.stat().st_mode & 0o077:
        raise ValueError(f"others may read it: chmod 600 {path}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        identity, _, text = line.partition(":")
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if not identity or not 0 < len(key) <= KEY_BYTES_MAX:
            raise ValueError(
                f"line {number}: must be IDENTITY:KEY, the key 2 to {2 * KEY_BYTES_MAX} hexadecimal digits (openssl rand -hex 32)"
            )
        if len(identity.encode()) > IDENTITY_BYTES_MAX:
            raise ValueError(f"line {number}: an identity has at most {IDENTITY_BYTES_MAX} bytes")
        if identity in keys:
            raise ValueError(f"line {number}: identity {identity!r} stands there twice")
        keys[identity] = key
        if len(keys) > KEYS_MAX:
            raise ValueError(f"more than {KEYS_MAX} keys")
    if not keys:
        raise ValueError("there is no key in it; one line each: IDENTITY:KEY")
    short = sum(len(key) < KEY_BYTES_GOOD for key in keys.values())
    if short:
        log.warning(
            "%s: %d of %d keys have under 128 bits and can be guessed: openssl rand -hex 32", path, short, len(keys)
        )
    return keys
