"""MQTT 3.1, 3.1.1 and 5.0 on the wire: packet types, fixed-header rules by version, limits. Data alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15


@dataclass(frozen=True, slots=True)
class PacketRule:
    """What the fixed header of one packet type may say, and who may send it."""

    name: str
    flags: tuple[int, ...] | None
    """The legal low four bits; None: they carry meaning (PUBLISH)."""
    length_min: int
    length_max: int | None
    from_client: bool
    from_server: bool


LEVEL_3_1: Final = 3
LEVEL_3_1_1: Final = 4
LEVEL_5: Final = 5

_RULES_3_1_1: Final[dict[int, PacketRule]] = {
    CONNECT: PacketRule("CONNECT", (0,), 12, None, True, False),
    CONNACK: PacketRule("CONNACK", (0,), 2, 2, False, True),
    PUBLISH: PacketRule("PUBLISH", None, 2, None, True, True),
    PUBACK: PacketRule("PUBACK", (0,), 2, 2, True, True),
    PUBREC: PacketRule("PUBREC", (0,), 2, 2, True, True),
    PUBREL: PacketRule("PUBREL", (2,), 2, 2, True, True),
    PUBCOMP: PacketRule("PUBCOMP", (0,), 2, 2, True, True),
    SUBSCRIBE: PacketRule("SUBSCRIBE", (2,), 2, None, True, False),
    SUBACK: PacketRule("SUBACK", (0,), 3, None, False, True),
    UNSUBSCRIBE: PacketRule("UNSUBSCRIBE", (2,), 2, None, True, False),
    UNSUBACK: PacketRule("UNSUBACK", (0,), 2, 2, False, True),
    PINGREQ: PacketRule("PINGREQ", (0,), 0, 0, True, False),
    PINGRESP: PacketRule("PINGRESP", (0,), 0, 0, False, True),
    DISCONNECT: PacketRule("DISCONNECT", (0,), 0, 0, True, False),
}
"""MQTT 3.1.1 tables 2.1 and 2.2; types 0 and 15 are reserved."""

_RULES_3_1: Final[dict[int, PacketRule]] = {
    **_RULES_3_1_1,
    PUBREL: PacketRule("PUBREL", (2, 10), 2, 2, True, True),
    SUBSCRIBE: PacketRule("SUBSCRIBE", (2, 10), 2, None, True, False),
    UNSUBSCRIBE: PacketRule("UNSUBSCRIBE", (2, 10), 2, None, True, False),
}
"""MQTT 3.1 sets DUP when it sends these again (3.1, sections 3.6, 3.8, 3.10)."""

_RULES_5: Final[dict[int, PacketRule]] = {
    **_RULES_3_1_1,
    CONNECT: PacketRule("CONNECT", (0,), 12, None, True, False),
    CONNACK: PacketRule("CONNACK", (0,), 3, None, False, True),
    PUBLISH: PacketRule("PUBLISH", None, 3, None, True, True),
    PUBACK: PacketRule("PUBACK", (0,), 2, None, True, True),
    PUBREC: PacketRule("PUBREC", (0,), 2, None, True, True),
    PUBREL: PacketRule("PUBREL", (2,), 2, None, True, True),
    PUBCOMP: PacketRule("PUBCOMP", (0,), 2, None, True, True),
    SUBSCRIBE: PacketRule("SUBSCRIBE", (2,), 3, None, True, False),
    SUBACK: PacketRule("SUBACK", (0,), 4, None, False, True),
    UNSUBSCRIBE: PacketRule("UNSUBSCRIBE", (2,), 3, None, True, False),
    UNSUBACK: PacketRule("UNSUBACK", (0,), 4, None, False, True),
    DISCONNECT: PacketRule("DISCONNECT", (0,), 0, None, True, True),
    AUTH: PacketRule("AUTH", (0,), 0, None, True, True),
}
"""MQTT 5.0 tables 2-1 and 2-2; type 0 is reserved."""

RULES: Final[dict[int, dict[int, PacketRule]]] = {
    LEVEL_3_1: _RULES_3_1,
    LEVEL_3_1_1: _RULES_3_1_1,
    LEVEL_5: _RULES_5,
}
"""By protocol level."""

BRIDGE_BIT: Final = 0x80
"""Set in the level of a CONNECT by Mosquitto's bridges, which so ask for no local and retain as published."""
PROTOCOL_NAMES: Final = {b"MQTT": (LEVEL_3_1_1, LEVEL_5), b"MQIsdp": (LEVEL_3_1,)}
"""Protocol name -> levels spoken here."""

FLAG_RETAIN: Final = 0x01
FLAG_QOS: Final = 0x06
FLAG_QOS_2: Final = 0x04
FLAG_DUP: Final = 0x08

OPTION_QOS: Final = 0x03
OPTION_NO_LOCAL: Final = 0x04
OPTION_RETAIN_AS_PUBLISHED: Final = 0x08
OPTION_RETAIN_HANDLING: Final = 0x30
OPTION_RESERVED: Final = 0xC0
"""Options of one subscription, MQTT 5.0 section 3.8.3.1."""

CONNECT_RESERVED: Final = 0x01
CONNECT_CLEAN: Final = 0x02
CONNECT_WILL: Final = 0x04
CONNECT_WILL_QOS: Final = 0x18
CONNECT_WILL_RETAIN: Final = 0x20
CONNECT_PASSWORD: Final = 0x40
CONNECT_USER_NAME: Final = 0x80

REMAINING_LENGTH_MAX: Final = 268_435_455
"""Four bytes of seven bits, MQTT 2.2.3."""

PACKET_ID_MAX: Final = 65_535

CONNECT_BYTES_MAX: Final = 65_536
"""Remaining length accepted before CONNECT was answered: a stranger must not make us hold more. A CONNECT with a will of 60 KB fits."""

STRING_BYTES_MAX: Final = 65_535

TOPIC_LEVELS_MAX: Final = 201
"""Levels in a topic or filter, as many as Mosquitto takes (200 separators): 65,535 bytes of `/` would make every match walk 65,536 nodes."""

TOPIC_CACHE_MAX: Final = 20_000
"""Distinct topics kept parsed per gateway process; at the limit the cache starts anew (about 5 MB at 60-byte topics)."""

FILTERS_MAX: Final = 10_000
"""Filters in one SUBSCRIBE or UNSUBSCRIBE. The largest packet has room for a million, which would hold up everybody for seconds."""

RECEIVE_MAX: Final = 65_535
"""Receive Maximum of a client that names none [MQTT5-3.1.2.11.3]."""

EXPIRY_NEVER: Final = 0xFFFF_FFFF
"""Session Expiry Interval that never ends."""

PROPERTIES_MAX: Final = 10_000
"""User properties and subscription identifiers in one packet: 30,000 of the shortest fit into a CONNECT, millions into a PUBLISH."""
