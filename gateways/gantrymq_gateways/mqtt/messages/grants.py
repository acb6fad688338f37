"""What a subscription was granted, packed into one number, and what several that match a message make together.

Bits 0-1: QoS; 4: no local; 8: retain as published; from bit 8 on the subscription identifier (0: none). A subscription of 3.x is its QoS
alone, so stored rows of earlier versions read the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.properties import encode_one

QOS: Final = c.OPTION_QOS
_ID_SHIFT: Final = 8


def pack(options: int, identifier: int = 0) -> int:
    """The number for the options of a SUBSCRIBE and its subscription identifier."""
    return options & (QOS | c.OPTION_NO_LOCAL | c.OPTION_RETAIN_AS_PUBLISHED) | identifier << _ID_SHIFT


class Grant:
    """What a delivery needs to know. `listed`: subscription identifiers as they stand in a PUBLISH. `retains`: retain as published."""

    __slots__ = ("listed", "qos", "retains")

    def __init__(self, qos: int, listed: bytes = b"", retains: bool = False) -> None:
        self.qos = qos
        self.listed = listed
        self.retains = retains


PLAIN: Final = (Grant(0), Grant(1), Grant(2))
"""By QoS, with no option."""


def combine(granted: Iterable[int], own: bool = False) -> Grant | None:
    """One delivery for all subscriptions that match: the highest QoS [MQTT5-3.3.4-2], every identifier [MQTT5-3.3.4-4]. `own`: the receiver
    published it, so subscriptions with no local do not count [MQTT5-3.8.3-3]. None: no subscription is left."""
    qos = -1
    identifiers: list[int] = []
    retains = False
    for number in granted:
        if own and number & c.OPTION_NO_LOCAL:
            continue
        qos = max(qos, number & QOS)
        retains = retains or number & c.OPTION_RETAIN_AS_PUBLISHED != 0
        if number >> _ID_SHIFT:
            identifiers.append(number >> _ID_SHIFT)
    if qos < 0:
        return None
    if not identifiers and not retains:
        return PLAIN[qos]
    return Grant(qos, encode_one(p.SUBSCRIPTION_ID, identifiers) if identifiers else b"", retains)


def identifier_of(granted: int) -> bytes:
    """The subscription identifier as it stands in a PUBLISH."""
    number = granted >> _ID_SHIFT
    return encode_one(p.SUBSCRIPTION_ID, [number]) if number else b""
