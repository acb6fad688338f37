"""KV configuration by namespace, and its file `kvConfig.json` (RocketMQ's layout: {"configTable": {namespace:
{key: value}}}).

Holds the table and its bytes; `service.py` writes them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.remoting.json_bodies import BodyError, decode

ENTRIES_MAX: Final = 100_000
"""Keys of all namespaces; every change writes the whole file."""

BYTES_MAX: Final = 8 * 1024 * 1024
"""JSON of all namespaces, keys and values together: a namespace is one answer, which a client
takes up to 16 MiB, and every change makes the whole file."""

TEXT_CHARS_MAX: Final = 64 * 1024
"""Length of a namespace, key or value."""

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Namespace whose values `broker:queues;...` clients get as a topic's order configuration."""


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KVTable:
    """Text values by namespace and key."""

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[str, str]] = {}
        self._entries = 0
        self._bytes = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises ILLEGAL_ARGUMENT for what cannot be one, LIMIT_REACHED if there are too many."""
        if not namespace or not key:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "namespace or key is empty")
        if max(len(namespace), len(key), len(value)) > TEXT_CHARS_MAX:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"namespace, key and value have at most {TEXT_CHARS_MAX} characters"
            )
        values = self.namespaces.get(namespace, {})
        old = values.get(key)
        if old is None and self._entries >= ENTRIES_MAX:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{ENTRIES_MAX} keys are set; delete some first")
        more = _size(namespace, key, value) - (_size(namespace, key, old) if old is not None else 0)
        if more > 0 and self._bytes + more > BYTES_MAX:
            raise GantryError(
                ErrorCode.LIMIT_REACHED,
                f"KV configuration has at most {BYTES_MAX} bytes; {self._bytes} are used: delete some first",
            )
        self._bytes += more
        self._entries += old is None
        self.namespaces.setdefault(namespace, values)[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """The value or None."""
        return self.namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; unknown ones are ignored."""
        values = self.namespaces.get(namespace)
        if values is not None:
            old = values.pop(key, None)
            if old is not None:
                self._entries -= 1
                self._bytes -= _size(namespace, key, old)
            if not values:
                del self.namespaces[namespace]

    def to_bytes(self) -> bytes:
        """The file's content."""
        return msgspec.json.format(msgspec.json.encode(_File(self.namespaces))) + b"\n"

    def load(self, data: bytes, path: str) -> None:
        """Take over a file's content. Raises ConfigError naming `path`."""
        try:
            self.namespaces = decode(data, _File).config_table
        except BodyError as error:
            raise ConfigError(
                f"{path}: {error}; repair it, or move it away to start without KV configuration"
            ) from None
        self._entries = sum(map(len, self.namespaces.values()))
        self._bytes = sum(
            [_size(name, key, value) for name, values in self.namespaces.items() for key, value in values.items()]
        )


def _size(namespace: str, key: str, value: str) -> int:
    """What one key counts: its namespace, too. A control character takes six bytes."""
    return sum([len(msgspec.json.encode(text)) - 2 for text in (namespace, key, value)])
