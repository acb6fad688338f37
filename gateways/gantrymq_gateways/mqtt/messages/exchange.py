"""The state of QoS 2 exchanges of one session: what it is in memory, and as a row of table `mqtt_exchange`.

Key: `<` + client id for what the client publishes, `>` + client id for what it gets. Value of `<`: packet identifiers that came in and are
not released, two bytes each. Value of `>`: the same for identifiers that wait for PUBCOMP, then U+FF, then of deliveries whose identifier is
not the one that their place gives (`natural_id`): light queue and offset (8 bytes each), identifier (2 bytes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gantrymq_gateways.mqtt.wire.constants import PACKET_ID_MAX

TABLE: Final = "mqtt_exchange"


class Twice:
    """In flight with QoS 2: PUBREC settles it."""

    __slots__ = ("settles",)

    def __init__(self, settles: object) -> None:
        self.settles = settles
        """What a PUBACK would settle."""


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


def natural_id(offset: int) -> int:
    """The packet identifier that a delivery has by its place in its light queue, so that nobody must write it down before it is sent."""
    return offset % PACKET_ID_MAX + 1


class Inbound:
    """Packet identifiers of QoS 2 publishes that the client has not released [MQTT-4.3.3-2] [MQTT5-4.3.3-10]."""

    __slots__ = ("ids", "key", "stored")

    def __init__(self, key: str = "", stored: Iterable[int] = ()) -> None:
        self.key = key
        """Of the row; empty: a session that ends with its connection."""
        self.stored = set(stored)
        """As the log has it, or will have when what is on its way is stored."""
        self.ids = set(self.stored)
        """With those on their way."""
