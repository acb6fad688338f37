"""Foreign names of topics too long for a native name, which stands for them as prefix and digest (docs/mapping, Names).

The table is shared by the doors: whoever uses such a name first notes it, so that every door can show it again.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from gantrymq.broker.port import BrokerPort
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import TOPIC_BYTES_MAX

log = logging.getLogger(__name__)

TABLE: Final = "long_topic"
"""Native name to foreign name (UTF-8)."""


class LongTopics:
    """`foreign`: native to foreign name, bounded by the number of topics that there may be."""

    def __init__(self, port: BrokerPort) -> None:
        self._port = port
        self.foreign: dict[str, str] = {}

    def start(self) -> None:
        """Follow the table while the port is there."""
        self._port.watch_state(self._on_state)

    def _on_state(self, up: bool) -> None:
        if up:
            self._port.watch_table(TABLE, self._on_change, None, self._loaded)

    def _loaded(self, token: Any, rows: dict[str, bytes] | GantryError) -> None:
        if not isinstance(rows, GantryError):
            self.foreign.update({native: value.decode("utf-8", "replace") for native, value in rows.items()})

    def _on_change(self, native: str, value: bytes | None) -> None:
        if value is not None:
            self.foreign[native] = value.decode("utf-8", "replace")

    def native(self, foreign: str) -> str:
        """Native name of a foreign one. Raises GantryError."""
        if not foreign:
            raise GantryError(ErrorCode.NAME_INVALID, "the topic name is empty")
        native = names.encode_topic(foreign)
        if len(native) == TOPIC_BYTES_MAX and native != foreign and native not in self.foreign:
            self.foreign[native] = foreign
            self._port.put(TABLE, [(native, foreign.encode())], native, self._noted)
        return native

    def native_of_either(self, name: str) -> str:
        """Native name of a name that may be native already: then it stands for itself. Raises GantryError."""
        try:
            names.check_topic(name)
        except GantryError:
            return self.native(name)
        return name

    def _noted(self, native: str, result: object) -> None:
        if isinstance(result, GantryError):
            self.foreign.pop(native, None)  # The next use tries again.
            log.warning("the name behind topic %s could not be stored: %s", native, result)
