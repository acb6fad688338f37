"""The key that gateways, brokers and nameservers of one cluster share (`auth.cluster_key_file`).

A file holds keys, one a line: the first is what a process shows, each of them is taken. So a key is replaced without a stop: the new one
behind the old one everywhere, then in front, then alone.
"""

from __future__ import annotations

import hmac
import logging
import os
from pathlib import Path
from typing import Final

from gantrymq.auth.keys import KeyFileError

log = logging.getLogger(__name__)

KEY_CHARS_MIN: Final = 32
"""`openssl rand -hex 32` makes 64. Whoever hears a proof may try keys against it at leisure: one that a person thought of would be found."""
KEYS_MAX: Final = 8
ID_CHARS: Final = 8
"""Of a key's id, which tells people that two processes have different keys, and nobody what they are."""


class ClusterKey:
    """The keys of one process, the one that it shows first."""

    __slots__ = ("_by_id", "id", "shown")

    def __init__(self, keys: list[bytes]) -> None:
        self.shown = keys[0]
        self._by_id = {id_of(key): key for key in keys}
        self.id = id_of(self.shown)

    def find(self, key_id: str) -> bytes | None:
        """The key with this id, if it is taken here."""
        return self._by_id.get(key_id)

    def ids(self) -> str:
        """Of all that are taken here, for people."""
        return ", ".join(self._by_id)

    def __repr__(self) -> str:
        return f"<cluster key {self.id}>"


def id_of(key: bytes) -> str:
    """Short, and says nothing of the key."""
    return hmac.digest(key, b"gantry cluster key id", "sha256").hex()[:ID_CHARS]


def parse_key(text: str) -> ClusterKey:
    """Keys of a file's lines, or of a setting. Raises `KeyFileError`; the text says nothing of a key."""
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise KeyFileError(
            "there is no key in it: one line of 32 characters or more, such as `openssl rand -hex 32` makes"
        )
    if len(keys) > KEYS_MAX:
        raise KeyFileError(f"{len(keys)} keys, at most {KEYS_MAX} are taken")
    for number, key in enumerate(keys, 1):
        if len(key) < KEY_CHARS_MIN or not key.isascii() or not key.isprintable():
            raise KeyFileError(f"key {number}: must be {KEY_CHARS_MIN} printable ASCII characters or more")
    return ClusterKey([key.encode() for key in keys])


def read_key_file(path: Path) -> ClusterKey:
    """Raises `KeyFileError`."""
    try:
        mode = os.stat(path).st_mode
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(getattr(error, "strerror", None) or "it is no ASCII text") from error
    if mode & 0o022:
        raise KeyFileError(f"others may write it: chmod 600 {path}")
    if mode & 0o004:
        log.warning("%s holds the cluster's key, and every user of this machine may read it", path)
    return parse_key(text)
