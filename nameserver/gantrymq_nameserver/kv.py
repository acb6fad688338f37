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

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises ILLEGAL_ARGUMENT at a limit."""
        if not namespace or not key:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "namespace or key is empty")
        if max(len(namespace), len(key), len(value)) > TEXT_CHARS_MAX:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"namespace, key and value have at most {TEXT_CHARS_MAX} characters"
            )
        values = self.namespaces.get(namespace, {})
        if key not in values and sum(map(len, self.namespaces.values())) >= ENTRIES_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{ENTRIES_MAX} keys are set; delete some first")
        self.namespaces.setdefault(namespace, values)[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """The value or None."""
        return self.namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; unknown ones are ignored."""
        values = self.namespaces.get(namespace)
        if values is not None:
            values.pop(key, None)
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
