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
from gantrymq_gateways.mqtt import codec
from gantrymq_gateways.mqtt import constants as c
from gantrymq_gateways.mqtt.connection import MqttConnection

_QOS_ZERO: Final = props.QOS.encode() + props.NAME_END + b"0"


class Writer(Protocol):
    """What an outlet needs of its link."""

    def mark(self) -> None: ...

    def outbound_bytes(self) -> int: ...


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


class Outlet:
    """The sending side of one connected session."""

    __slots__ = (
        "blocked",
        "connection",
        "delivered",
        "direct",
        "dropped",
        "inflight",
        "inflight_max",
        "link",
        "next_id",
        "outbound_bytes_max",
        "outbox",
    )

    def __init__(self, connection: MqttConnection, link: Writer, inflight_max: int, outbound_bytes_max: int) -> None:
        self.connection = connection
        self.link = link
        self.outbox = connection.outbox
        self.inflight: dict[int, Any] = {}
        """Packet identifier -> what its PUBACK settles (None: nothing)."""
        self.inflight_max = inflight_max
        self.outbound_bytes_max = outbound_bytes_max
        self.next_id = 1
        self.blocked = False
        """Too many bytes are on their way: nothing is delivered until `unblock`."""
        self.direct = True
        """Nothing waits in front of a new live message."""
        self.dropped = 0
        self.delivered = 0

    def room(self) -> int:
        """QoS 1 messages that may be sent now."""
        return 0 if self.blocked else self.inflight_max - len(self.inflight)

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
        self.delivered += 1
        self.sent(size)

    def sent(self, size: int) -> None:
        """`size` bytes were appended to the outbox."""
        connection = self.connection
        connection.outbox_bytes += size
        self.link.mark()
        if connection.outbox_bytes > self.outbound_bytes_max:
            self.blocked = True

    def written(self, size: int) -> bool:
        """`size` bytes go to the link now. True if deliveries are held up: `unblock` will tell."""
        if not self.blocked and self.link.outbound_bytes() + size > self.outbound_bytes_max:
            self.blocked = True
        return self.blocked

    def unblock(self) -> bool:
        """After a write: True if deliveries may go on that could not before."""
        if not self.blocked or self.link.outbound_bytes() + self.connection.outbox_bytes > self.outbound_bytes_max:
            return False
        self.blocked = False
        return True
