"""Keys of a queue's entries: an entry whose key is there already does not enter.

A key is what a property of the message says. It is known while its entry is in the queue, waiting or in somebody's hands, and is looked up by digest:
two keys are never taken for one. Each key that comes looks at the two that were looked at longest ago, and takes away those whose entries are done.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from gantrymq.model import properties as props

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.model.message import Message

log = logging.getLogger(__name__)

KEYS_MAX: Final = 1_000_000
"""Of all queues of a broker, some 200 bytes each. Entries beyond enter as if they had no key."""
LOOKED_AT: Final = 2
"""Keys for each one that comes: so the done ones go sooner than others come, and no turn looks at all of them."""


class KeyRoom:
    """How many are known, of all queues."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class UniqueKeys:
    """Of one queue. `name`: of the property."""

    __slots__ = ("_coming", "_cursor", "_mark", "_name", "_offsets", "_room", "_warned")

    def __init__(self, cursor: Cursor, name: str, room: KeyRoom) -> None:
        self._cursor = cursor
        self._name = name
        self._mark = name.encode() + b"\x01"
        self._room = room
        self._offsets: OrderedDict[bytes, int] = OrderedDict()
        """The one that was looked at longest ago first: a plain dict finds its first in time that grows with those taken out before."""
        self._coming: set[bytes] = set()
        """Of messages that this turn is about to append."""
        self._warned = False

    def _key(self, message: Message) -> bytes | None:
        if self._mark not in message.properties:
            return None
        value = props.find(message.properties, self._name)
        return blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).digest() if value else None

    def knows(self, message: Message) -> bool:
        """Whether an entry with its key is in the queue, or about to be."""
        key = self._key(message)
        if key is None:
            return False
        if key in self._coming:
            return True
        offset = self._offsets.get(key)
        return offset is not None and not self._cursor.window.is_done(offset)

    def comes(self, message: Message) -> bool:
        """It is about to be appended; whether it has a key."""
        key = self._key(message)
        if key is not None:
            self._coming.add(key)
        return key is not None

    def begin_turn(self) -> None:
        """What was about to be appended is in, or not."""
        self._coming.clear()

    def note(self, message: Message, offset: int) -> None:
        """It is in the queue."""
        key = self._key(message)
        if key is None:
            return
        self._forget_some()
        if key not in self._offsets:
            if self._room.count >= KEYS_MAX:
                if not self._warned:
                    log.warning(
                        "%d keys of queues without duplicates are known: further ones are not looked at", KEYS_MAX
                    )
                self._warned = True
                return
            self._room.count += 1
        self._offsets[key] = offset

    def _forget_some(self) -> None:
        offsets, is_done = self._offsets, self._cursor.window.is_done
        for _ in range(min(LOOKED_AT, len(offsets))):
            key, offset = offsets.popitem(last=False)
            if is_done(offset):
                self._room.count -= 1
            else:
                offsets[key] = offset

    def close(self) -> None:
        """The queue is gone, or has another policy."""
        self._room.count -= len(self._offsets)
        self._offsets.clear()
