"""How two processes of a cluster show each other that they have its key, without saying it. No socket.

    applicant  name, key id, nonce A              ->
                                                  <-  nonce B, HMAC(key, "asked" name A B)      asked side
    applicant  HMAC(key, "applicant" name A B)    ->

HMAC-SHA256 over parts with their lengths. The side is part of it, so that no proof can be sent back to who made it; both nonces are, so that
none holds a second time. It is said at the beginning of a connection, and says nothing of who changes it on the way: for that there is TLS.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from typing import Final

from gantrymq.auth.members.key import ClusterKey

NONCE_BYTES: Final = 32
NAME_CHARS_MAX: Final = 255

ASKED, APPLICANT = b"asked", b"applicant"

Random = Callable[[int], bytes]


class MemberError(PermissionError):
    """The other side is no member of this cluster, or takes us for none. The text is one line for people; no key or proof is in it."""


class Applicant:
    """The side that connects."""

    def __init__(self, key: ClusterKey, name: str, random: Random = os.urandom) -> None:
        """`name`: what the other side calls it in its log."""
        self._key = key
        self._name = name[:NAME_CHARS_MAX]
        self._nonce = random(NONCE_BYTES)

    def begin(self) -> dict[str, str]:
        """What is said first."""
        return {"name": self._name, "key": self._key.id, "nonce": self._nonce.hex()}

    def finish(self, answer: Mapping[str, str]) -> dict[str, str]:
        """What is said to the answer. Raises `MemberError` where that shows no key."""
        other = _nonce(answer)
        wanted = _proof(self._key.shown, ASKED, self._name, self._nonce, other)
        if not hmac.compare_digest(wanted, answer.get("proof", "").encode("utf-8", "surrogatepass")):
            raise MemberError(
                "it says that it has the cluster's key and does not show it: it is no process of this cluster"
            )
        return {"proof": _proof(self._key.shown, APPLICANT, self._name, self._nonce, other).decode()}


class Porter:
    """The side that is connected to, for one connection."""

    __slots__ = ("_key", "_random", "_used", "_wanted", "name", "shown")

    def __init__(self, key: ClusterKey, random: Random = os.urandom) -> None:
        self._key = key
        self._random = random
        self._wanted = b""
        self._used = False
        self.name = ""
        """As the other side said it."""
        self.shown = False
        """The other side has the key."""

    def begin(self, said: Mapping[str, str]) -> dict[str, str]:
        """The answer to what is said first. Raises `MemberError`."""
        name = said.get("name", "")
        if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
            raise MemberError(f"a name of 1 to {NAME_CHARS_MAX} printable characters is needed")
        self.name = name
        if self._used:
            raise MemberError(f"{name} begins a second time: once per connection")
        self._used = True
        key_id = said.get("key", "")
        key = self._key.find(key_id)
        if key is None:
            raise MemberError(
                f"{name} has another cluster key ({key_id[:16]!r}) than is taken here ({self._key.ids()}): auth.cluster_key_file must name "
                "the same key everywhere"
            )
        other, own = _nonce(said), self._random(NONCE_BYTES)
        self._wanted = _proof(key, APPLICANT, name, other, own)
        return {"nonce": own.hex(), "proof": _proof(key, ASKED, name, other, own).decode()}

    def finish(self, said: Mapping[str, str]) -> None:
        """What is said last. Raises `MemberError`."""
        wanted, self._wanted = self._wanted, b""
        if not wanted or not hmac.compare_digest(wanted, said.get("proof", "").encode("utf-8", "surrogatepass")):
            raise MemberError(f"{self.name or 'it'} does not show the cluster's key")
        self.shown = True


def _nonce(said: Mapping[str, str]) -> bytes:
    try:
        nonce = bytes.fromhex(said.get("nonce", ""))
    except ValueError:
        nonce = b""
    if len(nonce) != NONCE_BYTES:
        raise MemberError(f"a nonce of {NONCE_BYTES} bytes in hexadecimal is needed")
    return nonce


def _proof(key: bytes, side: bytes, name: str, first: bytes, second: bytes) -> bytes:
    parts = (b"gantry member 1", side, name.encode("utf-8", "surrogatepass"), first, second)
    said = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
    return hmac.digest(key, said, "sha256").hex().encode()
