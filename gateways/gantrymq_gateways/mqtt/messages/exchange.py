"""The state of QoS 2 exchanges of one session. What a client publishes is in the log, too: a row of table `mqtt_exchange` is stored in one piece
with the records that came under its packet identifiers, so that a kill between any two packets neither loses nor repeats one.

Key: `<` + client id. Value: packet identifiers that came in and are not released, two bytes each.
Key: `>` + client id. Value: entries of 18 bytes, what the client received and may not have released (receipts.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from gantrymq.broker.port import Done

TABLE: Final = "mqtt_exchange"

Place = tuple[int, int]
"""(light queue, offset) of a delivery."""

_ENTRY: Final = Struct(">HQQ")
"""Packet identifier, light queue, offset."""


class Twice:
    """In flight with QoS 2: PUBREC settles it."""

    __slots__ = ("settles",)

    def __init__(self, settles: object) -> None:
        self.settles = settles
        """What a PUBACK would settle."""


class Kept(Twice):
    """The same of a persistent session's queue: PUBREC is stored first (receipts.py)."""

    __slots__ = ("place",)

    def __init__(self, settles: object, place: Place) -> None:
        super().__init__(settles)
        self.place = place


class Released:
    """PUBREL was sent, PUBCOMP has not come: the identifier is in use."""

    __slots__ = ()


AWAITING_RECEIPT: Final = Twice(None)
RELEASED: Final = Released()


def encode_ids(ids: Iterable[int]) -> bytes:
    """Packet identifiers of a row."""
    return b"".join([number.to_bytes(2, "big") for number in sorted(ids)])


def decode_ids(value: bytes) -> list[int]:
    """The way back. Raises ValueError."""
    if len(value) % 2:
        raise ValueError(f"{len(value)} bytes are no packet identifiers")
    return [int.from_bytes(value[at : at + 2], "big") for at in range(0, len(value), 2)]


def row_key(client_id: str) -> str:
    """Key of the row of what a client publishes."""
    return "<" + client_id


def receipts_key(client_id: str) -> str:
    """Key of the row of what a client received."""
    return ">" + client_id


def encode_entries(entries: Iterable[tuple[int, Place]]) -> bytes:
    """Receipts of a row."""
    return b"".join([_ENTRY.pack(number, *place) for number, place in entries])


def decode_entries(value: bytes) -> dict[int, Place]:
    """The way back. Raises ValueError."""
    if len(value) % _ENTRY.size:
        raise ValueError(f"{len(value)} bytes are no receipts")
    return {number: (light, offset) for number, light, offset in _ENTRY.iter_unpack(value)}


def check_row(key: str, value: bytes) -> None:
    """Raise for a row that cannot be read."""
    if key.startswith(">"):
        decode_entries(value)
    elif key.startswith("<"):
        decode_ids(value)
    else:
        raise ValueError(f"key {key[:80]!r} begins with neither < nor >")


class Inbound:
    """Packet identifiers of QoS 2 publishes that the client has not released [MQTT-4.3.3-2] [MQTT5-4.3.3-10]."""

    __slots__ = ("_waiting", "flying", "ids", "key", "stored")

    def __init__(self, key: str = "", stored: Iterable[int] = ()) -> None:
        self.key = key
        """Of the row; empty: a session that ends with its connection."""
        self.stored = frozenset(stored)
        """As the log has it, or will have when what is on its way is stored."""
        self.ids = set(self.stored)
        """With those on their way."""
        self.flying = 0
        """Batches on their way to the log that change it."""
        self._waiting: list[tuple[object, Done]] = []

    def landed(self) -> None:
        """Such a batch was answered."""
        self.flying -= 1
        if not self.flying:
            waiting, self._waiting = self._waiting, []
            for token, on_done in waiting:
                on_done(token, None)

    def wait(self, token: object, on_done: Done) -> None:
        """Answered when nothing is on its way any more."""
        if self.flying:
            self._waiting.append((token, on_done))
        else:
            on_done(token, None)

    def resume(self) -> None:
        """Another connection of the client: what was not handed to the log never will be."""
        self.ids = set(self.stored)
