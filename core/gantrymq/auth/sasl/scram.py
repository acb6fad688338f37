"""SCRAM-SHA-256 (RFC 5802, RFC 7677): a user shows that it knows its password, which never crosses the wire.

A verifier is kept beside the password's hash: `SCRAM-SHA-256$ITERATIONS:SALT$STORED KEY:SERVER KEY`, each but the number in base64. Whoever has it
may try passwords at PBKDF2's price, which is less than argon2's: it is kept only where `auth.scram` says so. No channel binding (-PLUS).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final, NamedTuple

from gantrymq.auth.passwords import make_hash

NAME: Final = "SCRAM-SHA-256"

ITERATIONS: Final = 15_000
"""RFC 7677 4 wants 4,096 at least, and more where the clients can: these are 6 ms for a client here."""
ITERATIONS_MAX: Final = 1_000_000

SALT_BYTES: Final = 16
NONCE_BYTES: Final = 18
MESSAGE_BYTES_MAX: Final = 2_048
"""Of a client: a name of 255 characters, a nonce and a proof are 600."""


class ScramError(ValueError):
    """The client is not let in; the text says why, for the log."""


class Verifier(NamedTuple):
    """What a server knows of a password."""

    iterations: int
    salt: bytes
    stored: bytes
    server: bytes

    def __str__(self) -> str:
        salt, stored, server = [b64encode(part).decode() for part in self[1:]]
        return f"{NAME}${self.iterations}:{salt}${stored}:{server}"


def make_verifier(password: str) -> Verifier:
    """Takes 6 ms."""
    return _verifier(password, os.urandom(SALT_BYTES), ITERATIONS)


def hashes_of(password: str, with_verifier: bool) -> tuple[str, str]:
    """The hash of a checked password, and the text of its verifier or nothing; 40 ms."""
    return make_hash(password), str(make_verifier(password)) if with_verifier else ""


def _verifier(password: str, salt: bytes, iterations: int) -> Verifier:
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)
    client = hmac.digest(salted, b"Client Key", "sha256")
    return Verifier(iterations, salt, hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", "sha256"))


def prepared(password: str) -> bytes:
    """As RFC 4013 maps it, without its prohibitions: what is refused there was refused when the password was set, or not at all."""
    return unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")


def read_verifier(text: str) -> Verifier:
    """Raises ValueError."""
    name, cost, keys = text.split("$")
    iterations, salt = cost.split(":")
    stored, server = keys.split(":")
    found = Verifier(int(iterations), *[b64decode(part, validate=True) for part in (salt, stored, server)])
    if name != NAME or not 0 < found.iterations <= ITERATIONS_MAX or len(found.stored) != 32 or len(found.server) != 32:
        raise ValueError("no verifier of SCRAM-SHA-256")
    return found


def unknown(seed: bytes, user: str) -> Verifier:
    """For a user that is not there: the same salt each time, and a password that nobody has."""
    salt = hmac.digest(seed, user.encode("utf-8", "surrogatepass"), "sha256")[:SALT_BYTES]
    return Verifier(ITERATIONS, salt, secrets.token_bytes(32), secrets.token_bytes(32))


class Exchange:
    """One login, on the server's side: `first`, then `final`."""

    def __init__(self, verifier_of: Callable[[str], Verifier]) -> None:
        self._verifier_of = verifier_of
        self._verifier: Verifier
        self._said = b""
        """The exchange so far, as it is signed."""
        self._header = b""
        self._nonce = b""
        self.user = ""

    def first(self, data: bytes) -> bytes:
        """client-first -> server-first; `user` is known then. Raises `ScramError`."""
        if len(data) > MESSAGE_BYTES_MAX:
            raise ScramError("a message that is too long")
        flag, comma, rest = data.partition(b",")
        authorization, other, bare = rest.partition(b",")
        if not comma or not other or flag not in (b"n", b"y"):
            raise ScramError("no client-first message without channel binding (RFC 5802 7)")
        fields = bare.split(b",")
        if len(fields) < 2 or not fields[0].startswith(b"n=") or not fields[1].startswith(b"r=") or len(fields[1]) < 10:
            raise ScramError("no user name and nonce (RFC 5802 7), or extensions that nobody knows")
        self.user = _name(fields[0][2:])
        if authorization not in (b"", b"a=" + fields[0][2:]):
            raise ScramError("it wants to be another user than it shows to be")
        self._verifier = self._verifier_of(self.user)
        self._header = data[: len(data) - len(bare)]
        self._nonce = fields[1][2:] + secrets.token_urlsafe(NONCE_BYTES).encode()
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, b64encode(self._verifier.salt), self._verifier.iterations)
        self._said = bare + b"," + answer
        return answer

    def final(self, data: bytes) -> bytes:
        """client-final -> server-final. Raises `ScramError`."""
        without, mark, proof = data.rpartition(b",p=")
        fields = without.split(b",")
        if not mark or len(data) > MESSAGE_BYTES_MAX or len(fields) < 2:
            raise ScramError("no client-final message (RFC 5802 7)")
        if fields[0] != b"c=" + b64encode(self._header) or fields[1] != b"r=" + self._nonce:
            raise ScramError("another channel binding or nonce than before")
        said = self._said + b"," + without
        verifier = self._verifier
        try:
            given = b64decode(proof, validate=True)
        except ValueError as error:
            raise ScramError("no proof in base64") from error
        signature = hmac.digest(verifier.stored, said, "sha256")
        key = bytes(a ^ b for a, b in zip(given, signature, strict=False))
        if len(given) != len(signature) or not hmac.compare_digest(hashlib.sha256(key).digest(), verifier.stored):
            raise ScramError("the user name or password is wrong")
        return b"v=" + b64encode(hmac.digest(verifier.server, said, "sha256"))


def _name(text: bytes) -> str:
    """RFC 5802 5.1: `=2C` is a comma, `=3D` an equals sign, and no other = is allowed."""
    if b"=" in text.replace(b"=2C", b"").replace(b"=3D", b""):
        raise ScramError("a user name with a = in it")
    try:
        return text.replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError as error:
        raise ScramError("a user name that is not UTF-8") from error
