"""Tokens that `gantry token add` makes: `gantry_ID_SECRET`, both in hexadecimal. They stand for a user until they expire or are deleted.

Who makes one keeps its text; brokers get id and hash, so that none can be read off a log or a dump. The secret is 32 random bytes: nothing
is won by guessing, and the hash may be quick (HMAC-SHA256, keyed by the id, so that it is good for no other row).
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable
from typing import Final

PREFIX: Final = "gantry_"
"""Scanners for secrets find it by this."""
ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
DAYS_MAX: Final = 3660
"""A token that is good for ever is forgotten by everybody but who finds it."""

_FORM: Final = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")


def make(random: Callable[[int], bytes] = os.urandom) -> tuple[str, str]:
    """A new one: its id, and its text."""
    name = random(ID_BYTES).hex()
    return name, f"{PREFIX}{name}_{random(SECRET_BYTES).hex()}"


def looks_like_one(text: str) -> bool:
    """No password hash is asked for such a thing."""
    return text.startswith(PREFIX) and _FORM.fullmatch(text) is not None


def parse(text: str) -> tuple[str, str]:
    """Id and hash of what looks like one."""
    found = _FORM.fullmatch(text)
    assert found is not None, "asked before"
    return found[1], hash_of(found[1], found[2])


def hash_of(name: str, secret: str) -> str:
    """What a broker keeps of a token."""
    return hmac.digest(name.encode(), secret.encode(), "sha256").hex()
