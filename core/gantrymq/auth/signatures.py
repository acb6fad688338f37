"""RocketMQ's signature of a request: base64(HMAC-SHA1(secret, values of the fields in the order of their names + body)).

It says who sent the request and that nobody changed it; it holds for ever, so that on a network where others listen TLS is needed, too.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
"""RocketMQ's third field of credentials (SessionCredentials): here a JWT or a token of ours in it says who it is, and no signature is needed."""
UNIQUE_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Set behind the signature by tools up to 4.9.3."""
V4_9_3: Final = 401
"""MQVersion.V4_9_3."""


BLOCK_BYTES: Final = 64
"""Of SHA-1."""
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


class Secret:
    """What a user signs with, ready to sign: HMAC (RFC 2104) begins with a block of the key, hashed here once for all requests."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str) -> None:
        key = secret.encode()
        if len(key) > BLOCK_BYTES:
            key = hashlib.sha1(key).digest()
        block = key.ljust(BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(block.translate(_INNER))
        self._outer = hashlib.sha1(block.translate(_OUTER))

    def sign(self, fields: Mapping[str, str], body: bytes, version: int = V4_9_3 + 1) -> bytes:
        """The signature of a request with these fields, its own left out."""
        names = sorted(fields)
        if SIGNATURE in fields:
            names.remove(SIGNATURE)
        if version <= V4_9_3 and UNIQUE_QUERY in fields:
            names.remove(UNIQUE_QUERY)
        inner = self._inner.copy()
        inner.update("".join([fields[name] for name in names]).encode("utf-8", "surrogatepass"))
        inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False)

    def is_signed(self, fields: Mapping[str, str], body: bytes, version: int) -> bool:
        """Whether the request's signature is right."""
        given = fields.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
        return hmac.compare_digest(self.sign(fields, body, version), given)


def sign(secret: str, fields: Mapping[str, str], body: bytes, version: int = V4_9_3 + 1) -> str:
    """As `Secret.sign`, once."""
    return Secret(secret).sign(fields, body, version).decode()
