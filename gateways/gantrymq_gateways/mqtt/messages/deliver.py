"""What goes out to one client: packet identifiers, the in-flight window, the outbox and its back-pressure.

`Outlet` belongs to a connected session. `Message` -> PUBLISH is encoded once per QoS for all receivers (fanout.py); only the
packet identifier differs.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from gantrymq.model import properties as props
from gantrymq.model.compression import inflate
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.connection import MqttConnection

FETCH_BYTES_MAX: Final = 256 * 1024
"""Bytes on their way to one client above which what can wait is not fetched any more: it is safe where it is, and other clients need the memory."""

_QOS_ZERO: Final = props.QOS.encode() + props.NAME_END + b"0"


class Writer(Protocol):
    """What an outlet needs of its link."""

    def mark(self) -> None: ...

    def outbound_bytes(self) -> int: ...

    def is_pressed(self) -> bool: ...


def message_qos(message: Message) -> int:
    """QoS that a message was published with, 0 or 1; absent counts as 1 (docs/mapping)."""
    # The search spares most messages the parsing; `find` makes sure that it is that property.
    if _QOS_ZERO in message.properties and props.find(message.properties, props.QOS) == "0":
        return 0
    return 1


def body_of(message: Message) -> bytes | None:
    """Raw data bytes; None if a compressed body is broken, larger than any body may be once inflated, or needs a package that is not
    installed (extra `compression`)."""
    try:
        return inflate(message.body, message.sys_flag)
    except GantryError:
        return None


def bridge_property(client_id: str) -> bytes:
    """The property that marks messages of this bridge."""
    return props.encode([(props.BRIDGE, client_id)])


class Outlet:
    """The sending side of one connected session."""

    __slots__ = (
        "blocked",
        "bridge",
        "connection",
        "direct",
        "inflight",
        "inflight_max",
        "link",
        "next_id",
        "outbound_bytes_max",
        "outbox",
    )

    def __init__(
        self, connection: MqttConnection, link: Writer, inflight_max: int, outbound_bytes_max: int, bridge: bytes = b""
    ) -> None:
        self.connection = connection
        self.link = link
        self.outbox = connection.outbox
        self.bridge = bridge
        """`bridge_property` of a client that is another broker."""
        self.inflight: dict[int, Any] = {}
        """Packet identifier -> what its PUBACK settles (None: nothing)."""
        self.inflight_max = inflight_max
        self.outbound_bytes_max = outbound_bytes_max
        """Beyond it QoS 0 is dropped."""
        self.next_id = 1
        self.blocked = False
        """More than `FETCH_BYTES_MAX` are on their way: nothing that can wait is delivered until `unblock`."""
        self.direct = True
        """Nothing waits in front of a new live message."""

    def room(self) -> int:
        """QoS 1 messages that may be sent now."""
        return 0 if self.blocked else self.inflight_max - len(self.inflight)

    def returns(self, message: Message) -> bool:
        """The message came from this very client, which is a bridge: sent back it would go round for ever."""
        return self.bridge in message.properties and self.bridge == bridge_property(
            props.find(message.properties, props.BRIDGE) or ""
        )

    def retain_flag(self, message: Message) -> int:
        """Retain as published for a bridge; else 0, because the subscription is not new [MQTT-3.3.1-9]."""
        return int(bool(self.bridge) and props.find(message.properties, props.RETAIN) == "1")

    def takes(self, size: int) -> bool:
        """A QoS 0 packet of `size` bytes may be sent although `blocked`; one always may when nothing else is on its way."""
        waiting = self.link.outbound_bytes() + self.connection.outbox_bytes
        limit = FETCH_BYTES_MAX if self.link.is_pressed() else self.outbound_bytes_max
        return not waiting or waiting + size <= limit

    def take_id(self) -> int:
        """A free packet identifier [MQTT-2.3.1-2]; the window is smaller than their number, so there is one."""
        packet_id = self.next_id
        while packet_id in self.inflight:
            packet_id = packet_id % c.PACKET_ID_MAX + 1
        self.next_id = packet_id % c.PACKET_ID_MAX + 1
        return packet_id

    def publish(self, topic: bytes, payload: bytes, flags: int, settles: Any, packet_id: int = 0) -> None:
        """Send one PUBLISH; the caller has seen that there is room. `packet_id` 0 takes the next one."""
        head = codec.encode_publish_head(topic, len(payload), flags)
        if flags & c.FLAG_QOS:
            if not packet_id or packet_id in self.inflight:
                packet_id = self.take_id()
            self.inflight[packet_id] = settles
            self.outbox += (head, packet_id.to_bytes(2, "big"), payload)
            size = len(head) + 2 + len(payload)
        else:
            self.outbox += (head, payload)
            size = len(head) + len(payload)
        self.sent(size)

    def sent(self, size: int) -> None:
        """`size` bytes were appended to the outbox."""
        connection = self.connection
        connection.outbox_bytes += size
        self.link.mark()
        if connection.outbox_bytes > FETCH_BYTES_MAX:
            self.blocked = True

    def written(self, size: int) -> bool:
        """`size` bytes go to the link now. True if deliveries are held up: `unblock` will tell."""
        if not self.blocked and self.link.outbound_bytes() + size > FETCH_BYTES_MAX:
            self.blocked = True
        return self.blocked

    def unblock(self) -> bool:
        """After a write: True if deliveries may go on that could not before."""
        if not self.blocked or self.link.outbound_bytes() + self.connection.outbox_bytes > FETCH_BYTES_MAX:
            return False
        self.blocked = False
        return True
