"""Packets of MQTT 3.1, 3.1.1 and 5.0 as objects. `properties` are those of 5.0 (properties.py); 3.x has none."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.properties import Properties


@dataclass(slots=True)
class Will:
    """What is published when the client is lost. `topic` is checked."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """CONNECT. `keep_alive_s` 0: none. `level`: 3 (MQTT 3.1), 4 (3.1.1) or 5. `clean`: Clean Session, or Clean Start."""

    client_id: str
    clean: bool = True
    keep_alive_s: int = 0
    level: int = c.LEVEL_3_1_1
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    bridge: bool = False
    """The client says that it is another broker (`BRIDGE_BIT`)."""
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class ConnAck:
    """CONNACK. `code`: a return code, or with 5.0 a reason code."""

    code: int
    session_present: bool = False
    properties: Properties = field(default_factory=dict)


class Publish:
    """PUBLISH. `topic`: checked UTF-8 bytes. `flags`: low four bits of the first byte. `packet_id` 0 with QoS 0."""

    __slots__ = ("flags", "packet_id", "payload", "properties", "topic")

    def __init__(
        self, topic: bytes, payload: bytes, flags: int, packet_id: int, properties: Properties | None = None
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.flags = flags
        self.packet_id = packet_id
        self.properties = properties
        """None: none."""

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        return self.flags & c.FLAG_RETAIN != 0

    @property
    def dup(self) -> bool:
        return self.flags & c.FLAG_DUP != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Publish) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Publish({self.topic!r}, {len(self.payload)} bytes, qos={self.qos}, id={self.packet_id}, {self.properties})"

    def _key(self) -> tuple[bytes, bytes, int, int, Properties]:
        return self.topic, self.payload, self.flags, self.packet_id, self.properties or {}


@dataclass(slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL, PUBCOMP, or UNSUBACK of 3.x, told apart by `kind`."""

    kind: int
    packet_id: int
    reason: int = 0
    properties: Properties | None = None


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE; `filters`: (filter, options), checked. Options of 3.x are the requested QoS 0..2 alone."""

    packet_id: int
    filters: list[tuple[str, int]]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class SubAck:
    """SUBACK; `codes`: granted QoS, or 0x80 or another reason code."""

    packet_id: int
    codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE."""

    packet_id: int
    filters: list[str]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class UnsubAck:
    """UNSUBACK of 5.0: a reason code for each filter."""

    packet_id: int
    codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class PingReq:
    """PINGREQ."""


@dataclass(slots=True)
class PingResp:
    """PINGRESP."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT; with 5.0 from either side."""

    reason: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    """AUTH of 5.0."""

    reason: int
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect
    | ConnAck
    | Publish
    | Ack
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
