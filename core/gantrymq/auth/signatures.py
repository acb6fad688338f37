"""RocketMQ's signature of a request: base64(HMAC-SHA1(secret, values of the fields in the order of their names + body)).

It says who sent the request and that nobody changed it; it holds for ever, so that on a network where others listen TLS is needed, too.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
UNIQUE_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Set behind the signature by tools up to 4.9.3."""
V4_9_3: Final = 401
"""MQVersion.V4_9_3."""


def sign(secret: str, fields: Mapping[str, str], body: bytes, version: int = V4_9_3 + 1) -> str:
    """The signature of a request with these fields, its own left out."""
    values = [
        fields[name]
        for name in sorted(fields)
        if name != SIGNATURE and not (name == UNIQUE_QUERY and version <= V4_9_3)
    ]
    content = "".join(values).encode("utf-8", "surrogatepass") + body
    return base64.b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()


def is_signed(secret: str, fields: Mapping[str, str], body: bytes, version: int) -> bool:
    """Whether the request's signature is right."""
    given = fields.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
    return hmac.compare_digest(sign(secret, fields, body, version).encode(), given)
