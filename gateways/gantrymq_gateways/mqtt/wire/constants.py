"""MQTT 3.1 and 3.1.1 on the wire: packet types, fixed-header rules, return codes, limits. Data alone."""

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


@dataclass(frozen=True, slots=True)
class PacketRule:
    """What the fixed header of one packet type may say, and who may send it."""

    name: str
    flags: int | None
    """The only legal low four bits; None: they carry meaning (PUBLISH)."""
    length_min: int
    length_max: int | None
    from_client: bool
    from_server: bool


RULES: Final[dict[int, PacketRule]] = {
    CONNECT: PacketRule("CONNECT", 0, 12, None, True, False),
    CONNACK: PacketRule("CONNACK", 0, 2, 2, False, True),
    PUBLISH: PacketRule("PUBLISH", None, 2, None, True, True),
    PUBACK: PacketRule("PUBACK", 0, 2, 2, True, True),
    PUBREC: PacketRule("PUBREC", 0, 2, 2, True, True),
    PUBREL: PacketRule("PUBREL", 2, 2, 2, True, True),
    PUBCOMP: PacketRule("PUBCOMP", 0, 2, 2, True, True),
    SUBSCRIBE: PacketRule("SUBSCRIBE", 2, 2, None, True, False),
    SUBACK: PacketRule("SUBACK", 0, 3, None, False, True),
    UNSUBSCRIBE: PacketRule("UNSUBSCRIBE", 2, 2, None, True, False),
    UNSUBACK: PacketRule("UNSUBACK", 0, 2, 2, False, True),
    PINGREQ: PacketRule("PINGREQ", 0, 0, 0, True, False),
    PINGRESP: PacketRule("PINGRESP", 0, 0, 0, False, True),
    DISCONNECT: PacketRule("DISCONNECT", 0, 0, 0, True, False),
}
"""MQTT 3.1.1 tables 2.1 and 2.2; types 0 and 15 are reserved."""

LEVEL_3_1: Final = 3
LEVEL_3_1_1: Final = 4
LEVEL_5: Final = 5
BRIDGE_BIT: Final = 0x80
"""Set in the level of a CONNECT by Mosquitto's bridges, which so ask for no local and retain as published."""
PROTOCOL_NAMES: Final = {b"MQTT": (LEVEL_3_1_1,), b"MQIsdp": (LEVEL_3_1,)}
"""Protocol name -> levels spoken here."""

ACCEPTED: Final = 0
REFUSED_VERSION: Final = 1
REFUSED_IDENTIFIER: Final = 2
REFUSED_UNAVAILABLE: Final = 3
REFUSED_CREDENTIALS: Final = 4
REFUSED_NOT_AUTHORIZED: Final = 5
"""CONNACK return codes, table 3.1."""

V5_UNSUPPORTED_VERSION: Final = 0x84
"""MQTT 5 reason code Unsupported Protocol Version: what a v5 client is told, in v5 form."""

SUBACK_FAILURE: Final = 0x80

FLAG_RETAIN: Final = 0x01
FLAG_QOS: Final = 0x06
FLAG_QOS_2: Final = 0x04
FLAG_DUP: Final = 0x08

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
