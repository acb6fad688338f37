"""Secrets that must be known to check a signature lie encrypted in the log; the key to them lies in a file, and nowhere else.

A file holds keys, one a line, `NAME BASE64(32 bytes)`: the first encrypts, all of them decrypt, so that a new key is put in front and the
old one stays until everything was written anew. AES-256-GCM; the user's name is authenticated, so that no secret moves to another user.
"""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path
from typing import Any, Final

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12

KEY_FILE: Final = "auth.key"
"""Below D/gantry, unless `auth.key_file` says otherwise."""


class KeyFileError(Exception):
    """The text is one line for the user."""


class Keys:
    """The keys of one file."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._keys = keys

    def seal(self, user: str, secret: str) -> str:
        """`NAME.BASE64`. Raises `KeyFileError`."""
        name, key = next(iter(self._keys.items()))
        nonce = os.urandom(NONCE_BYTES)
        data = _cipher(key).encrypt(nonce, secret.encode(), user.encode())
        return f"{name}.{base64.b64encode(nonce + data).decode()}"

    def renewed(self, user: str, sealed: str) -> str | None:
        """The same secret under the key in front; None: it is already. Raises `KeyFileError`."""
        if sealed.partition(".")[0] == self.name:
            return None
        return self.seal(user, self.open(user, sealed))

    @property
    def name(self) -> str:
        """Of the key in front."""
        return next(iter(self._keys))

    def open(self, user: str, sealed: str) -> str:
        """The secret; raises `KeyFileError` if no key here made it."""
        name, _, text = sealed.partition(".")
        key = self._keys.get(name)
        if key is None:
            raise KeyFileError(
                f"the secret of user {user} is encrypted under key {name!r}, which the key file does not have"
            )
        try:
            data = base64.b64decode(text, validate=True)
            opened: bytes = _cipher(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], user.encode())
            return opened.decode()
        except Exception as error:
            raise KeyFileError(
                f"the secret of user {user} cannot be decrypted: it was changed, or the key was"
            ) from error


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise KeyFileError("the package cryptography is not installed: pip install 'gantrymq[auth]'") from error
    return AESGCM(key)


def read_keys(path: Path) -> Keys:
    """Raises `KeyFileError`, also for a file that others can read."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"key file {path}: {getattr(error, 'strerror', None) or error}") from error
    if mode & 0o077:
        raise KeyFileError(f"key file {path}: others may read it: chmod 600 {path}")
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, _, text = line.strip().partition(" ")
        try:
            key = base64.b64decode(text, validate=True)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES or name in keys:
            raise KeyFileError(f"key file {path}, line {number}: must be NAME and {KEY_BYTES} bytes in base64")
        keys[name] = key
    if not keys:
        raise KeyFileError(f"key file {path}: it is empty")
    return Keys(keys)


def drop_old_keys(path: Path) -> list[str]:
    """Leave the key in front alone; returns the names of those that are gone. Raises OSError."""
    lines = [line for line in path.read_text(encoding="ascii").splitlines() if line.strip()]
    _write(path, "".join([line + "\n" for line in lines[:1]]))
    return [line.strip().partition(" ")[0] for line in lines[1:]]


def add_key(path: Path) -> str:
    """Put a new key in front, in a file that only its owner may read; returns its name. Raises OSError."""
    before = path.read_text(encoding="ascii") if path.exists() else ""
    name = secrets.token_hex(4)
    text = f"{name} {base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}\n{before}"
    _write(path, text)
    return name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
