"""Failures: one tree and one `ErrorCode` for every door.

Each adapter owns one table from `ErrorCode` to its own wire (Remoting response code, AMQP reply code,
MQTT return code, HTTP status). The text says what is wrong, where, and what to do next.
"""

from __future__ import annotations

from enum import Enum


class ErrorCode(Enum):
    """What went wrong, independent of any protocol."""

    TOPIC_NOT_FOUND = "topic not found"
    TOPIC_LIMIT = "limit of topics reached"
    LIMIT_REACHED = "limit reached"
    QUEUE_NOT_FOUND = "queue not found"
    GROUP_NOT_FOUND = "consumer group not found"
    NOT_FOUND = "not found"
    ALREADY_EXISTS = "already exists"
    NAME_INVALID = "invalid name"
    ILLEGAL_ARGUMENT = "illegal argument"
    MESSAGE_ILLEGAL = "illegal message"
    MESSAGE_TOO_LARGE = "message too large"
    PROPERTIES_TOO_LARGE = "properties too large"
    NO_PERMISSION = "no permission"
    NO_ROUTE = "no queue matches"
    QUEUE_FULL = "a queue that it is for is full"
    DUPLICATE = "each queue that it is for has one of the same key"
    NOT_ALONE = "not stored because something else of its batch was refused"
    OFFSET_OUT_OF_RANGE = "offset out of range"
    LEASE_HELD = "held by another connection"
    LEASE_LOST = "taken over by another connection"
    NOT_OWNER = "another broker group decides about it"
    BUSY = "server busy"
    STORE_FULL = "no space left in the store"
    STORE_FAILED = "store stopped after an I/O error"
    FLUSH_TIMEOUT = "flush to disk timed out"
    UNAVAILABLE = "broker not reachable"
    SHUTTING_DOWN = "server is shutting down"
    NOT_SUPPORTED = "not supported"


class GantryError(Exception):
    """A failure with a code that every adapter can render on its own terms.

    Attributes:
        code (ErrorCode): What went wrong.
        text (str): What is wrong, where, and what to do next.
    """

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(text or code.value)
        self.code = code
        self.text = text or code.value

    def __repr__(self) -> str:
        return f"GantryError({self.code.name}, {self.text!r})"


class StoreCorruptError(GantryError):
    """The directory holds something that cannot be read; the text names file and position."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.STORE_FAILED, text)


class ConfigError(Exception):
    """A bad setting: the text, one line, names the key, the value and what is allowed."""

    def __init__(self, text: str, source: str = "") -> None:
        super().__init__(text)
        self.source = source
        """Who gave it: `FILE:LINE`, an option, or a variable of the environment; empty: not a single value."""

    @property
    def each(self) -> tuple[ConfigError, ...]:
        """What is wrong, one by one."""
        return (self,)


class ConfigErrors(ConfigError):
    """Several bad settings: the text has a line for each."""

    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__("\n".join([str(error) for error in errors]))
        self._each = tuple(errors)

    @property
    def each(self) -> tuple[ConfigError, ...]:
        """See `ConfigError`."""
        return self._each
