"""What this door needs to know of a message: QoS, expiry, retain flag, who published it, its MQTT 5.0 properties. Worked out once per
distinct property list: most messages of a topic have the same."""

from __future__ import annotations

from typing import Final

from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.messages.properties import expiry_of, from_native, may_expire
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.properties import encode_one
from gantrymq_gateways.mqtt.wire.text import encode_length

CACHE_MAX: Final = 4_096
"""Distinct property lists kept; at the limit the cache starts anew."""
CACHED_BYTES_MAX: Final = 512
"""Longer ones are worked out each time, so that the cache has a bound in bytes: 4 MiB."""

_QOS: Final = props.QOS.encode() + props.NAME_END
_RETAIN: Final = props.RETAIN.encode() + props.NAME_END + b"1" + props.PAIR_END


class Facts:
    """Of one property list. `expires_ms` 0: never. `qos`: as published, absent counts as 1."""

    __slots__ = ("_listed", "_properties", "_tail", "expires_ms", "is_retained", "qos")

    def __init__(self, properties: bytes) -> None:
        self._properties = properties
        self.qos = 1
        if _QOS in properties:
            qos = props.find(properties, props.QOS)
            self.qos = int(qos) if qos in ("0", "2") else 1
        self.expires_ms = expiry_of(properties) if may_expire(properties) else 0
        self.is_retained = _RETAIN in properties and props.find(properties, props.RETAIN) == "1"
        self._listed: bytes | None = None
        self._tail = b""

    def is_over(self, now_ms: int) -> bool:
        """The message has expired [MQTT5-3.3.2-5]."""
        return 0 < self.expires_ms <= now_ms

    def listed(self, now_ms: int) -> bytes:
        """MQTT 5.0 properties as they stand in a PUBLISH, without their length and without subscription identifiers."""
        if self._listed is None:
            self._listed = from_native(self._properties)
        if not self.expires_ms:
            return self._listed
        left_s = min(max(0, (self.expires_ms - now_ms + 999) // 1000), 0xFFFF_FFFF)
        return encode_one(p.MESSAGE_EXPIRY, left_s) + self._listed  # [MQTT5-3.3.2-6]

    def tail(self, now_ms: int) -> bytes:
        """The same with the length in front."""
        if self._tail:
            return self._tail
        listed = self.listed(now_ms)
        tail = encode_length(len(listed)) + listed
        if not self.expires_ms:
            self._tail = tail
        return tail


_known: dict[bytes, Facts] = {}


def facts_of(message: Message) -> Facts:
    """The facts of a message's properties."""
    properties = message.properties
    found = _known.get(properties)
    if found is None:
        found = Facts(properties)
        if len(properties) <= CACHED_BYTES_MAX:
            if len(_known) >= CACHE_MAX:
                _known.clear()
            _known[properties] = found
    return found
