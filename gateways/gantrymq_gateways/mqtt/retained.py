"""Retained messages: table `mqtt_retained`, held in memory, found by topic or by filter.

The record of a retained PUBLISH is the row, too (gantrymq.model.tables.message_rows): stored in one piece with it, and its body once. Rows of earlier versions,
and those that retention has moved, are records of their own.
Their form: gantrymq.model.tables.retained_rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.shared import shared
from gantrymq.model.limits import BODY_BYTES_CEILING, PROPERTIES_BYTES_MAX
from gantrymq.model.tables import message_rows
from gantrymq.model.tables.retained_rows import EXTENDED, FIXED, PAIRS_RESERVE, TABLE, row_head, row_key
from gantrymq_gateways.mqtt.topics.rules import LEVELS_MAX

if TYPE_CHECKING:
    from gantrymq.model.message import Message

__all__ = ["TABLE", "row_key"]


class RowPlace:
    """Where a message is retained, and all of the row but its body."""

    __slots__ = ("head", "key", "pair", "qos")

    def __init__(self, topic: str, qos: int, listed: bytes = b"", expires_ms: int = 0) -> None:
        self.key = row_key(topic)
        self.head = row_head(topic, qos, listed, expires_ms)
        self.qos = qos
        self.pair = message_rows.row_pair(self.key, self.head)

    def enter(self, message: Message) -> bool:
        """Make a message the row, too. False: its properties have no room for that."""
        if len(message.properties) + len(self.pair) + PAIRS_RESERVE > PROPERTIES_BYTES_MAX:
            return False
        message.properties += self.pair
        message.lmq = message_rows.queues_of(TABLE)
        return True


class Retained:
    """What one topic retains. `value`: the row, the table's own object where that is in this process. It changes with the message, so whoever waits
    to send it sends the newest: an older one, behind the newer as a live message, would be taken for the state."""

    __slots__ = ("kept", "value")

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.kept = True
        """False once the topic retains nothing any more."""

    @property
    def topic(self) -> str:
        """As it was published."""
        return self.topic_bytes.decode()

    @property
    def topic_bytes(self) -> bytes:
        """The same as it goes over the wire."""
        return self.value[3 : 3 + int.from_bytes(self.value[1:3], "big")]

    @property
    def qos(self) -> int:
        """It was published with."""
        return self.value[0] & ~EXTENDED

    @property
    def expires_ms(self) -> int:
        """0: never."""
        if not self.value[0] & EXTENDED:
            return 0
        at = 3 + int.from_bytes(self.value[1:3], "big")
        return int.from_bytes(self.value[at : at + 8], "big")

    @property
    def listed(self) -> bytes:
        """MQTT 5.0 properties, without expiry."""
        at, end = self._places()
        return self.value[at:end]

    @property
    def payload(self) -> bytes:
        """What was published."""
        return self.value[self._places()[1] :]

    @property
    def size(self) -> int:
        """Bytes of topic, properties and payload, as limits count them."""
        return len(self.value) - FIXED

    def _places(self) -> tuple[int, int]:
        """Where the properties begin and end."""
        value = self.value
        at = 3 + int.from_bytes(value[1:3], "big")
        if not value[0] & EXTENDED:
            return at, at
        return at + 12, at + 12 + int.from_bytes(value[at + 8 : at + 12], "big")

    def is_over(self, now_ms: int) -> bool:
        """It has expired [MQTT5-3.3.2-5]."""
        return self.value[0] >= EXTENDED and 0 < self.expires_ms <= now_ms


NO_LEVELS: Final[dict[str, _Level]] = {}
"""Of all levels with nothing below: never added to."""


class _Level:
    __slots__ = ("below", "message")

    def __init__(self) -> None:
        self.below = NO_LEVELS
        self.message: Retained | None = None

    def is_bare(self) -> bool:
        """Nobody needs this level any more."""
        return self.message is None and not self.below


def row_value(topic: str, payload: bytes, qos: int, listed: bytes = b"", expires_ms: int = 0) -> bytes | None:
    """Value of a topic's row; None deletes it."""
    return row_head(topic, qos, listed, expires_ms) + payload if payload else None


def parse_value(value: bytes) -> Retained:
    """The message in a row. Raises ValueError."""
    found = Retained(value)
    if len(value) < 3 or len(value) <= found._places()[1] or found.qos > 2:
        raise ValueError("the row is cut short, or its QoS is none")
    found.topic  # noqa: B018 (it may be no text)
    return found


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of the table that is none, or stands under another key than its topic's."""
    if row_key(parse_value(value).topic) != key:
        raise ValueError("the key is not that of the topic")


def topics_of_row(key: str, value: bytes) -> list[str]:
    """Native topics that a row needs, whatever `mqtt.topic_levels` is."""
    levels = parse_value(value).topic.split("/")
    return [names.encode_topic("/".join(levels[:count])) for count in range(1, min(len(levels), LEVELS_MAX) + 1)]


class RetainedStore:
    """The table in memory, indexed by levels. Writes of this process count from `stored`, those of others from `changed`."""

    def __init__(self, count_max: int, bytes_max: int, body_bytes_max: int = BODY_BYTES_CEILING) -> None:
        self._root = _Level()
        self._by_key: dict[str, Retained] = {}
        self._pending: dict[str, list[bytes | None]] = {}
        self.owed: dict[str, object] = {}
        """Rows that are to be tried again should the table refuse them (wills.py); forgotten as soon as something newer comes."""
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.body_bytes_max = body_bytes_max
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def load(self, rows: dict[str, bytes]) -> None:
        """Start from the table's rows."""
        self._root = _Level()
        self._by_key.clear()
        self._pending.clear()
        self.owed.clear()
        self.size_bytes = 0
        for key, value in rows.items():
            self._apply(key, value)

    def check_room(self, place: RowPlace, payload: bytes) -> None:
        """Raise GantryError unless a retained message of this size may be kept."""
        if not payload:
            return
        if len(payload) > self.body_bytes_max:
            raise GantryError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a retained message of {len(payload)} bytes; message.body_bytes_max is {self.body_bytes_max}",
            )
        old = self._by_key.get(place.key)
        if old is None and len(self._by_key) >= self.count_max:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"mqtt.retained_max ({self.count_max}) is reached")
        # What takes another one's place counts by what it adds: else many small ones could be made large ones later.
        growth = len(place.head) - FIXED + len(payload) - (old.size if old is not None else 0)
        if growth > 0 and self.size_bytes + growth > self.bytes_max:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"mqtt.retained_bytes_max ({self.bytes_max}) is reached")

    def storing(self, key: str, value: bytes | None) -> None:
        """A row was handed to the table."""
        self._pending.setdefault(key, []).append(value)
        self.owed.pop(key, None)

    def stored(self, key: str, value: bytes | None, failed: bool) -> None:
        """The table answered: whoever asks from now on finds it, whether `changed` has come or not."""
        pending = self._pending.get(key)
        if pending is None or value not in pending:
            return
        pending.remove(value)
        if not pending:
            del self._pending[key]
        if not failed:
            self._apply(key, value)

    def changed(self, key: str, value: bytes | None) -> None:
        """A change of the table, our own included."""
        pending = self._pending.get(key)
        if pending is not None and value in pending:
            # Ours, before its answer: `stored` must not set it again over something newer.
            pending.remove(value)
            if not pending:
                del self._pending[key]
        else:
            self.owed.pop(key, None)
        self._apply(key, value)

    def _apply(self, key: str, value: bytes | None) -> None:
        old = self._by_key.get(key)
        if value is None:
            if old is not None:
                old.kept = False
                del self._by_key[key]
                self.size_bytes -= old.size
                self._unlink(old.topic)
        elif old is None:
            message = self._by_key[key] = parse_value(value)
            self.size_bytes += message.size
            self._level(message.topic).message = message
        elif old.value == value:
            old.value = value  # the table's own object, in place of ours
        else:
            parse_value(value)
            self.size_bytes += len(value) - len(old.value)
            old.value = value

    def _level(self, topic: str) -> _Level:
        level = self._root
        for word in topic.split("/"):
            found = level.below.get(word)
            if found is None:
                if level.below is NO_LEVELS:
                    level.below = {}
                found = level.below[shared(word)] = _Level()
            level = found
        return level

    def show(self, topic: str, payload: bytes) -> None:
        """Keep what the gateway itself says at a topic of `$SYS`, until `load`: subscriptions find it as they find the others, but it is in no table
        and counts for no limit."""
        level = self._level(topic)
        value = row_head(topic, 0) + payload
        if level.message is None:
            level.message = Retained(value)
        else:
            level.message.value = value

    def _unlink(self, topic: str) -> None:
        path: list[tuple[_Level, str]] = []
        level = self._root
        for word in topic.split("/"):
            path.append((level, word))
            level = level.below[word]
        level.message = None
        while path and level.is_bare():
            level, word = path.pop()
            del level.below[word]

    def match(self, text: str) -> list[Retained]:
        """Retained messages whose topics match a filter, in no particular order."""
        return [message for message in self.walk(text) if message is not None]

    def walk(self, text: str) -> Iterator[Retained | None]:
        """Look for what `match` finds, level by level: a message or None for each, so that the caller can count the work and stop for a
        while. What changes meanwhile may be found or not: who subscribed before walking gets it as a live message."""
        words = [*text.split("/"), ""]
        last = len(words) - 1
        # Levels to look at, and the index of the word that theirs must match next.
        stack = [(iter((self._root,)), 0)]
        while stack:
            levels, index = stack[-1]
            level = next(levels, None)
            if level is None:
                stack.pop()
                continue
            word = words[index]
            # `#` also matches the level above it (MQTT 4.7.1.2).
            yield level.message if index == last or word == "#" else None
            if index == last or not level.below:
                continue
            if word == "#" or word == "+":
                below = list(level.below.values())
                if level is self._root:
                    below = [found for name, found in level.below.items() if not name.startswith("$")]  # [MQTT-4.7.2-1]
                stack.append((iter(below), index + (word == "+")))
            elif word in level.below:
                stack.append((iter((level.below[word],)), index + 1))
