"""What goes out to one client: packet identifiers, the in-flight window, the outbox and its back-pressure.

`Outlet` belongs to a connected session. `Message` -> PUBLISH is encoded once per version and QoS for all receivers (fanout.py); only the
packet identifier differs, unless a receiver has options of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, Protocol

from gantrymq.model import properties as props
from gantrymq.model.compression import inflate
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.messages.facts import Facts, facts_of
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.connection import MqttConnection
from gantrymq_gateways.mqtt.wire.properties import encode_one
from gantrymq_gateways.mqtt.wire.text import encode_length

FETCH_BYTES_MAX: Final = 256 * 1024
"""Bytes on their way to one client above which what can wait is not fetched any more: it is safe where it is, and other clients need the memory."""


class Writer(Protocol):
    """What an outlet needs of its link."""

    def mark(self) -> None: ...

    def outbound_bytes(self) -> int: ...

    def is_pressed(self) -> bool: ...


def message_qos(message: Message) -> int:
    """QoS that a message was published with; absent counts as 1 (docs/mapping)."""
    return facts_of(message).qos


def body_of(message: Message) -> bytes | None:
    """Raw data bytes; None if a compressed body is broken, larger than any body may be once inflated, or needs a package that is not
    installed (extra `compression`)."""
    try:
        return inflate(message.body, message.sys_flag)
    except GantryError:
        return None


def bridge_property(client_id: str) -> bytes:
    """The property that names the client which messages do not go back to: a bridge, or one with a no-local subscription."""
    return props.encode([(props.BRIDGE, client_id)])


class Aliases:
    """Topic aliases towards one client, chosen by use. The first topics get one at once; when all are taken, a topic that comes again takes the
    place of the one unused for longest."""

    __slots__ = ("_known", "_max", "_seen")

    def __init__(self, count_max: int) -> None:
        self._max = count_max
        """Highest alias [MQTT5-3.1.2-26] [MQTT5-3.3.2-8]."""
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._seen: dict[bytes, None] = {}
        """Topics sent once; forgotten when there are four times as many as aliases."""

    def take(self, topic: bytes) -> tuple[int, bool]:
        """(alias, whether the client knows it); 0: none."""
        alias = self._known.get(topic)
        if alias is not None:
            self._known.move_to_end(topic)
            return alias, True
        if len(self._known) < self._max:
            alias = self._known[topic] = len(self._known) + 1
            return alias, False
        if topic not in self._seen:
            if len(self._seen) >= 4 * self._max:
                self._seen.clear()
            self._seen[topic] = None
            return 0, False
        del self._seen[topic]
        _, alias = self._known.popitem(last=False)
        self._known[topic] = alias
        return alias, False


class Outlet:
    """The sending side of one connected session."""

    __slots__ = (
        "aliases",
        "blocked",
        "bridge",
        "connection",
        "direct",
        "first_id",
        "five",
        "inflight",
        "inflight_max",
        "link",
        "mark",
        "next_id",
        "outbound_bytes_max",
        "outbox",
        "packet_bytes_max",
        "too_large",
    )

    def __init__(
        self, connection: MqttConnection, link: Writer, inflight_max: int, outbound_bytes_max: int, bridge: bytes = b""
    ) -> None:
        self.connection = connection
        self.link = link
        self.outbox = connection.outbox
        self.five = connection.five
        self.bridge = bridge
        """`bridge_property` of a client that is another broker."""
        self.mark = bridge
        """`bridge_property` of a client that does not want its own messages, a bridge's too."""
        self.inflight: dict[int, Any] = {}
        """Packet identifier -> what its PUBACK settles (None: nothing), or a `Twice`."""
        self.inflight_max = inflight_max
        """With 5.0 the client's Receive Maximum [MQTT5-3.3.4-7]."""
        self.outbound_bytes_max = outbound_bytes_max
        """Beyond it QoS 0 is dropped."""
        self.packet_bytes_max = connection.outgoing_bytes_max
        """Bytes of a packet that the client takes; 0: all."""
        self.aliases: Aliases | None = None
        self.too_large = 0
        """Messages that were not sent because of it."""
        self.first_id = 1
        """Lowest packet identifier that is given in turn."""
        self.next_id = 1
        self.blocked = False
        """More than `FETCH_BYTES_MAX` are on their way: nothing that can wait is delivered until `unblock`."""
        self.direct = True
        """Nothing waits in front of a new live message."""

    @property
    def is_plain(self) -> bool:
        """Everything that one such client gets, another of the same version can get byte for byte."""
        return not (self.bridge or self.packet_bytes_max or self.aliases is not None)

    def room(self) -> int:
        """QoS 1 messages that may be sent now."""
        return 0 if self.blocked else self.inflight_max - len(self.inflight)

    def returns(self, message: Message) -> bool:
        """The message came from this very client, which is a bridge or wants it not back."""
        return (
            bool(self.mark)
            and self.mark in message.properties
            and self.mark == bridge_property(props.find(message.properties, props.BRIDGE) or "")
        )

    def retain_flag(self, facts: Facts, retains: bool = False) -> int:
        """Retain as published for a bridge and for subscriptions that want it [MQTT5-3.3.1-13]; else 0, because the subscription is not
        new [MQTT-3.3.1-9] [MQTT5-3.3.1-12]."""
        return int(facts.is_retained and (retains or bool(self.bridge)))

    def takes(self, size: int) -> bool:
        """A QoS 0 packet of `size` bytes may be sent although `blocked`; one always may when nothing else is on its way."""
        waiting = self.link.outbound_bytes() + self.connection.outbox_bytes
        limit = FETCH_BYTES_MAX if self.link.is_pressed() else self.outbound_bytes_max
        return not waiting or waiting + size <= limit

    def take_id(self) -> int:
        """A free packet identifier [MQTT-2.3.1-2]; the window is smaller than their number, so there is one."""
        packet_id = max(self.next_id, self.first_id)
        while packet_id in self.inflight:
            packet_id = self._after(packet_id)
        self.next_id = self._after(packet_id)
        return packet_id

    def _after(self, packet_id: int) -> int:
        return packet_id + 1 if packet_id < c.PACKET_ID_MAX else self.first_id

    def publish(
        self, topic: bytes, payload: bytes, flags: int, settles: Any, packet_id: int = 0, listed: bytes = b""
    ) -> bool:
        """Send one PUBLISH; the caller has seen that there is room. `packet_id` 0 takes the next one. `listed`: properties, for 5.0 alone.
        False: the client takes no packet so large; for it the message is done [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]."""
        tail = b""
        if self.five:
            if self.packet_bytes_max and len(topic) + len(listed) + len(payload) + 16 > self.packet_bytes_max:
                length = 2 + len(topic) + len(encode_length(len(listed))) + len(listed) + len(payload)
                length += 2 if flags & c.FLAG_QOS else 0
                if 1 + len(encode_length(length)) + length > self.packet_bytes_max:
                    self.too_large += 1
                    return False
            elif self.aliases is not None:
                topic, listed = self._aliased(self.aliases, topic, listed)
            tail = encode_length(len(listed)) + listed
        head = codec.encode_publish_head(topic, len(tail) + len(payload), flags)
        if flags & c.FLAG_QOS:
            if not packet_id or packet_id in self.inflight:
                packet_id = self.take_id()
            self.inflight[packet_id] = settles
            tail = packet_id.to_bytes(2, "big") + tail
        self.outbox += (head, tail, payload)
        counts = self.connection.counts
        counts.published_out += 1
        counts.published_bytes_out += len(payload)
        self.sent(len(head) + len(tail) + len(payload))
        return True

    def _aliased(self, aliases: Aliases, topic: bytes, listed: bytes) -> tuple[bytes, bytes]:
        alias, known = aliases.take(topic)
        if not alias:
            return topic, listed
        return b"" if known else topic, encode_one(p.TOPIC_ALIAS, alias) + listed

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
