"""One server-side MQTT connection without I/O: bytes in, events out; commands append to an outbox.

It knows order and framing, not sessions: which packet may come when, how large, and when the peer has been silent for too
long. Time is an argument (`now_ms`, a clock that never goes back).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.net.held.outbound import LARGE_BYTES, Pieces, gathered
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.counts import Counts
from gantrymq_gateways.mqtt.wire.packets import (
    Ack,
    Auth,
    Connect,
    Disconnect,
    PingReq,
    Publish,
    Subscribe,
    Unsubscribe,
)
from gantrymq_gateways.mqtt.wire.properties import Properties
from gantrymq_gateways.mqtt.wire.reasons import Reason, return_code
from gantrymq_gateways.mqtt.wire.text import MalformedPacket

HEADER_BYTES_MAX: Final = 16 + c.STRING_BYTES_MAX + 1
"""Remaining length of a PUBLISH beside its payload: the longest topic, its length, a packet identifier, and some room."""


class State(Enum):
    """Where a connection stands."""

    AWAIT_CONNECT = "before CONNECT"
    CONNECTING = "CONNECT not answered yet"
    AUTHENTICATING = "while it authenticates"
    CONNECTED = "connected"
    CLOSED = "closed"


ALLOWED: Final[dict[State, frozenset[int]]] = {
    State.AWAIT_CONNECT: frozenset({c.CONNECT}),  # [MQTT-3.1.0-1] [MQTT5-3.1.0-1]
    State.CONNECTING: frozenset(),  # held back until CONNECT is answered [MQTT-3.1.4-5]
    State.AUTHENTICATING: frozenset({c.AUTH, c.DISCONNECT}),  # [MQTT5-3.1.2-30]
    State.CONNECTED: frozenset(
        {
            c.PUBLISH,
            c.PUBACK,
            c.PUBREC,
            c.PUBREL,
            c.PUBCOMP,
            c.SUBSCRIBE,
            c.UNSUBSCRIBE,
            c.PINGREQ,
            c.DISCONNECT,
            c.AUTH,
        }
    ),  # [MQTT-3.1.0-2] [MQTT5-3.1.0-2]
    State.CLOSED: frozenset(),
}
"""Packet types that may arrive."""

NEXT: Final[dict[tuple[State, int], State]] = {
    (State.AWAIT_CONNECT, c.CONNECT): State.CONNECTING,
    (State.AUTHENTICATING, c.AUTH): State.CONNECTING,
    (State.AUTHENTICATING, c.DISCONNECT): State.CLOSED,
    (State.CONNECTED, c.DISCONNECT): State.CLOSED,
}
"""State after a packet; pairs that are missing change nothing."""

SHORT_ACKS: Final = frozenset({0x40, 0x50, 0x62, 0x70})
"""First bytes of PUBACK, PUBREC, PUBREL and PUBCOMP; with two bytes more they mean the same in every version."""

PACKETS_MAX: Final = 128
"""Packets that are dealt with at once: publishes take about `SLICE_S` (net/rotation.py), and share what a batch of the log costs."""
REASON_STRING_MAX: Final = 512
"""Bytes of a reason string."""

STRANGERS: Final = (
    (b"\x16\x03", "a TLS handshake: this port speaks MQTT without TLS"),
    (b"AMQP", "AMQP: its port is amqp.port (5672)"),
    *[
        (method + b" ", "an HTTP request: this port speaks MQTT")
        for method in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT")
    ],
)
"""First bytes that come from clients of other protocols, and what they are told to be."""


def stranger(head: bytes) -> str:
    """What the first bytes of a connection look like if they are not MQTT."""
    return next((f"the first bytes look like {text}" for start, text in STRANGERS if head.startswith(start)), "")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may ask of us."""

    packet_bytes_max: int = BODY_BYTES_CEILING + HEADER_BYTES_MAX
    """Remaining length of any packet: the largest body of the native model with the longest topic."""
    connect_timeout_ms: int = 10_000
    """From the accepted socket to CONNECT: a silent stranger costs memory."""
    part_bytes: int = 0
    """A PUBLISH with more payload is handed over as parts (`Part`) of so many bytes of it; 0: over `packet_bytes_max` it ends the connection."""
    keep_alive_s_max: int = 0
    """Cap on what the client asked for; 0: none. MQTT 3.1.1 cannot tell the client, so a cap may cut honest ones."""
    topic_alias_max: int = 0
    """Topic aliases that a 5.0 client may use."""


@dataclass(slots=True)
class Violation:
    """The peer broke the protocol; nothing more is read. Close [MQTT-4.8.0-1]."""

    text: str
    reason: Reason = Reason.PROTOCOL_ERROR
    refused: bool = False
    """A well-formed PUBLISH that is not taken here: the client will send it again."""


@dataclass(slots=True)
class Part:
    """Some of the payload of a PUBLISH that is larger than any message may be. `packet_id`: with the last part of one of QoS 1, else 0."""

    topic: bytes
    payload: bytes
    flags: int
    packet_id: int
    number: int
    count: int


class _Oversized:
    """A PUBLISH of which parts are still to come."""

    __slots__ = ("count", "flags", "left", "number", "packet_id", "topic")

    def __init__(self, topic: bytes, flags: int, packet_id: int, left: int, count: int) -> None:
        self.topic = topic
        self.flags = flags
        self.packet_id = packet_id
        self.left = left
        self.count = count
        self.number = 0


Event = Part | Connect | Publish | Ack | Subscribe | Unsubscribe | Disconnect | Auth | Violation


class MqttConnection:
    """The state machine. `known_topics` is shared by all connections of a door: topics found good before."""

    __slots__ = (
        "_aliases",
        "_auth_method",
        "_buffer",
        "_largest",
        "_last_ms",
        "_limits",
        "_need",
        "_number",
        "_opened_ms",
        "_oversized",
        "_part_bytes",
        "_parts",
        "counts",
        "five",
        "has_disconnected",
        "keep_alive_ms",
        "known_topics",
        "level",
        "outbox",
        "outbox_bytes",
        "outgoing_bytes_max",
        "server_keep_alive_s",
        "state",
        "taken",
    )

    def __init__(
        self, limits: ConnectionLimits, known_topics: set[bytes], now_ms: int, counts: Counts | None = None
    ) -> None:
        self._limits = limits
        self._parts: list[bytes] = []
        self._buffer = 0
        """Bytes in `_parts`."""
        self._need = 0
        """Bytes that the incomplete packet at the front needs at least; spares parsing it again with every piece."""
        self._number = 1
        """Of the packet that is unfinished: another one when that is whole."""
        self.taken = 0
        """How much of what was received last is dealt with, or kept."""
        self._oversized: _Oversized | None = None
        self._opened_ms = now_ms
        self._last_ms = now_ms
        self.known_topics = known_topics
        self.keep_alive_ms = 0
        """One and a half times what CONNECT asked for; 0: none."""
        self.level = c.LEVEL_3_1_1
        """Of the client's CONNECT, once that has come."""
        self.five = False
        """The client speaks 5.0."""
        self.has_disconnected = False
        """DISCONNECT was sent: nothing may follow it [MQTT5-3.14.4-2]."""
        self.server_keep_alive_s: int | None = None
        """What CONNACK must say because the client asked for something else."""
        self.outgoing_bytes_max = 0
        """The client's Maximum Packet Size; 0: none."""
        self._aliases: dict[int, bytes] = {}
        self._auth_method = ""
        self._largest = 0
        """Remaining length of a PUBLISH that is certainly handed over whole; 0: not connected."""
        self._part_bytes = limits.part_bytes
        self.state = State.AWAIT_CONNECT
        self.counts = counts if counts is not None else Counts()
        """What all connections of the gateway carry; reads and writes are counted by the door."""
        self.outbox: list[bytes] = []
        """Encoded pieces in order, always this list; the delivery path appends to it directly and adds to `outbox_bytes`."""
        self.outbox_bytes = 0

    @property
    def packet_bytes_max(self) -> int:
        """Largest packet that this connection takes."""
        return self._limits.packet_bytes_max

    def receive_data(self, data: bytes, now_ms: int) -> list[Event]:
        """Events of all packets that are complete, or of `PACKETS_MAX`: what is behind `data[:taken]` is to be handed over again. While CONNECT is
        unanswered everything is held back."""
        self._last_ms = now_ms
        self.taken = len(data)
        kept, state = self._buffer, self.state
        if state is State.CLOSED:
            return []
        if self._parts:
            if data:
                self._parts.append(data)
                self._buffer += len(data)
            if self._buffer < self._need:
                return []
            data = b"".join(self._parts)
            self._parts = []
        if state is State.CONNECTING:
            self._keep(data, 0, 0)
            return []
        return self._parse(data, kept)

    def _keep(self, data: bytes, start: int, need: int) -> None:
        rest = data[start:] if start else data
        if rest:
            self._parts = [rest]
        self._buffer = len(rest)
        self._need = need

    def _parse(self, data: bytes, kept: int) -> list[Event]:
        events: list[Event] = []
        known, size, start = self.known_topics, len(data), 0
        if self._oversized is not None:
            start = self._take_parts(self._oversized, data, 0, events)
            if start < 0:
                return events
        largest, five, left = self._largest, self.five, PACKETS_MAX
        while size - start >= 2:
            if left <= 0 and start >= kept:
                self.taken = start - kept
                data = data[:start]
                break
            left -= 1
            first = data[start]
            length = data[start + 1]
            if length < 0x80:
                end = (body := start + 2) + length
                if length == 2 and first in SHORT_ACKS and largest and end <= size:
                    packet_id = data[body] << 8 | data[body + 1]
                    if packet_id:
                        events.append(Ack(first >> 4, packet_id))
                        start = end
                        continue
            elif size - start > 2 and data[start + 2] < 0x80:
                body = start + 3
                end = body + (length & 0x7F | data[start + 2] << 7)
            else:
                try:
                    found = codec.packet_end(data, start)
                except MalformedPacket as error:
                    return self._violation(events, str(error), error.reason)
                if found is None:
                    break
                body, end = found
            if 0x30 <= first < 0x36 and end <= size and 4 <= end - body <= largest:
                # The hot path: PUBLISH without DUP and properties, checked as codec.decode_packet does, topics once per process.
                flags = first & 0x0F
                payload = body + 2 + (data[body] << 8 | data[body + 1])
                topic = data[body + 2 : payload]
                if topic in known and payload + 2 <= end:
                    packet_id = 0
                    if flags > 1:
                        packet_id = data[payload] << 8 | data[payload + 1]
                        payload += 2
                    if (packet_id or flags <= 1) and (not five or (payload < end and not data[payload])):
                        if five:
                            payload += 1
                        events.append(Publish(topic, data[payload:end], flags, packet_id))
                        start = end
                        continue
            refused = self._check_header(first, end - body)
            if refused is not None:
                text = (stranger(data[start : start + 8]) if self.state is State.AWAIT_CONNECT else "") or refused[0]
                return self._violation(events, text, refused[1], first >> 4 == c.PUBLISH)
            if first >> 4 == c.PUBLISH and end - body > largest:
                at, start = start, self._open_oversized(data, start, body, end, events)
                if start < 0:
                    return events
                if start > at:
                    continue
            if end > size:
                break
            if not self._packet(data, start, body, end, events):
                return events
            start = end
            if self.state is not State.CONNECTED:
                break
        self._keep_rest(data, start)
        return events

    def _keep_rest(self, data: bytes, start: int) -> None:
        if start:
            self._number += 1
        if self.state is State.CLOSED or start == len(data):
            self._parts = []
            self._buffer = self._need = 0
            return
        found = codec.packet_end(data, start) if self.state is not State.CONNECTING and len(data) - start >= 2 else None
        self._keep(data, start, found[1] - start if found else 0)

    def _check_header(self, first: int, length: int) -> tuple[str, Reason] | None:
        """Why a packet must not even be read to its end, or None."""
        limit = self._limits.packet_bytes_max if self.state is State.CONNECTED else c.CONNECT_BYTES_MAX
        if first >> 4 not in ALLOWED[self.state] or first >> 4 not in c.RULES[self.level]:
            rule = c.RULES[c.LEVEL_5].get(first >> 4)
            name = rule.name if rule else f"packet type {first >> 4}"
            reason = Reason.PROTOCOL_ERROR if rule else Reason.MALFORMED_PACKET
            return f"{name} is not allowed {self.state.value}", reason
        in_parts = self._part_bytes and first >> 4 == c.PUBLISH
        if length > limit and not in_parts:
            return f"packet of {length} bytes, at most {limit} are allowed", Reason.PACKET_TOO_LARGE
        try:
            codec.check_fixed_header(first, length, True, self.level)
        except MalformedPacket as error:
            return str(error), error.reason
        return None

    def _open_oversized(self, data: bytes, start: int, body: int, end: int, events: list[Event]) -> int:
        """A PUBLISH that may have to be taken in parts begins at `start`: where the next packet does, -1 if that is not here yet, `start` itself
        if the payload is no larger than a part."""
        flags = data[start] & 0x0F
        topic_end = body + 2 + int.from_bytes(data[body : body + 2], "big")
        payload = topic_end + (2 if flags & c.FLAG_QOS else 0)
        if len(data) < max(body + 2, payload):
            self._keep(data, start, max(body + 2, payload) - start)
            return -1
        if end - payload <= self._part_bytes:
            return start
        topic, packet_id = data[body + 2 : topic_end], int.from_bytes(data[topic_end:payload], "big")
        try:
            codec.check_publish(flags, topic, packet_id)
        except MalformedPacket as error:
            self._violation(events, str(error), error.reason)
            return -1
        left, part = end - payload, self._part_bytes
        parts = self._oversized = _Oversized(topic, flags, packet_id, left, -(-left // part))
        return self._take_parts(parts, data, payload, events)

    def _take_parts(self, parts: _Oversized, data: bytes, at: int, events: list[Event]) -> int:
        """As `_open_oversized`, from some of the payload on."""
        while parts.left:
            size = min(self._part_bytes, parts.left)
            if len(data) - at < size:
                self._keep(data, at, size)
                return -1
            parts.left -= size
            parts.number += 1
            self._number += 1
            packet_id = 0 if parts.left else parts.packet_id
            payload = data[at : at + size]
            events.append(Part(parts.topic, payload, parts.flags, packet_id, parts.number, parts.count))
            at += size
        self._oversized = None
        return at

    def _packet(self, data: bytes, start: int, body: int, end: int, events: list[Event]) -> bool:
        """Decode one complete packet; False ends the connection."""
        try:
            packet = codec.decode_packet(data, start, body, end, self.level)
            if isinstance(packet, Publish):
                self._known(packet)
            elif isinstance(packet, PingReq):
                self.counts.packets_in += 1  # It is no event.
                self.send(codec.PING_RESPONSE)  # [MQTT-3.12.4-1] [MQTT5-3.12.4-1]
                return True
            elif isinstance(packet, Connect):
                self._take_connect(packet)
            elif isinstance(packet, Auth):
                self._check_auth(packet)
        except MalformedPacket as error:
            if self.state is State.AWAIT_CONNECT and data[body : body + 7] == b"\0\4MQTT\5":
                self.send(codec.encode_connack(error.reason, level=c.LEVEL_5))  # (MQTT 5.0 3.1.4)
            self._violation(events, str(error), error.reason)
            return False
        except codec.UnsupportedVersion as unsupported:
            level = unsupported.level
            self.send(codec.encode_connack(return_code(Reason.UNSUPPORTED_VERSION)))  # [MQTT-3.1.2-2]
            text = f"MQTT protocol level {level} is not supported, use 5.0 (level 5) or 3.1.1 (level 4)"
            self._violation(events, text, Reason.UNSUPPORTED_VERSION)
            return False
        self.state = NEXT.get((self.state, data[start] >> 4), self.state)
        events.append(packet)  # type: ignore[arg-type]
        return True

    def _known(self, packet: Publish) -> None:
        """Put a topic for its alias, and note topics that are well-formed."""
        properties = packet.properties
        if properties is not None:
            alias = properties.pop(p.TOPIC_ALIAS, None)
            if alias is not None:
                self._take_alias(packet, alias)
            if p.SUBSCRIPTION_ID in properties:
                raise MalformedPacket("subscription identifier from a client [MQTT5-3.3.4-6]", Reason.PROTOCOL_ERROR)
            topic = properties.get(p.RESPONSE_TOPIC)
            if topic is not None and (not topic or "+" in topic or "#" in topic):
                raise MalformedPacket(
                    "response topic with a wildcard, or empty [MQTT5-3.3.2-14]", Reason.PROTOCOL_ERROR
                )
        if len(self.known_topics) >= c.TOPIC_CACHE_MAX:
            self.known_topics.clear()
        self.known_topics.add(packet.topic)

    def _take_alias(self, packet: Publish, alias: int) -> None:
        if not 0 < alias <= self._limits.topic_alias_max:
            limit = self._limits.topic_alias_max
            text = f"topic alias {alias}, at most {limit} are allowed [MQTT5-3.3.2-8] [MQTT5-3.3.2-9]"
            raise MalformedPacket(text, Reason.TOPIC_ALIAS_INVALID)
        if packet.topic:
            self._aliases[alias] = packet.topic
            return
        topic = self._aliases.get(alias)
        if topic is None:
            raise MalformedPacket(f"topic alias {alias} stands for no topic [MQTT5-3.3.2-10]", Reason.PROTOCOL_ERROR)
        packet.topic = topic

    def _take_connect(self, connect: Connect) -> None:
        self.level = connect.level
        self.five = connect.level == c.LEVEL_5
        cap = self._limits.keep_alive_s_max
        seconds = connect.keep_alive_s
        if cap and (not seconds or seconds > cap):
            seconds = cap
            self.server_keep_alive_s = cap  # [MQTT5-3.1.2-21]
        self.keep_alive_ms = seconds * 1500  # [MQTT-3.1.2-24] [MQTT5-3.1.2-22]
        if self.five:
            self._part_bytes = 0  # A 5.0 client is told the largest packet, and hears why one is refused.
            self.outgoing_bytes_max = connect.properties.get(p.MAXIMUM_PACKET_SIZE, 0)
            self._auth_method = connect.properties.get(p.AUTH_METHOD, "")

    def _check_auth(self, auth: Auth) -> None:
        wanted = Reason.CONTINUE_AUTHENTICATION if self.state is State.AUTHENTICATING else None
        if not self._auth_method:
            raise MalformedPacket("AUTH although CONNECT named no method [MQTT5-4.12.0-7]", Reason.PROTOCOL_ERROR)
        if auth.properties.get(p.AUTH_METHOD) != self._auth_method:
            raise MalformedPacket("another authentication method [MQTT5-4.12.0-5]", Reason.PROTOCOL_ERROR)
        if auth.reason == Reason.SUCCESS or (wanted is not None and auth.reason != wanted):
            raise MalformedPacket(f"AUTH with reason {auth.reason:#x} (MQTT 5.0 3.15.2.1)", Reason.PROTOCOL_ERROR)

    def _violation(
        self, events: list[Event], text: str, reason: Reason = Reason.PROTOCOL_ERROR, is_publish: bool = False
    ) -> list[Event]:
        self.disconnect(reason, text)
        events.append(Violation(text, reason, is_publish and reason is Reason.PACKET_TOO_LARGE))
        return events

    # Commands

    def accept(self, session_present: bool, properties: Properties | None = None) -> None:
        """Answer CONNECT; afterwards `receive_data(b"", now)` gives what was pipelined behind it."""
        self.send(codec.encode_connack(0, session_present, properties, self.level))
        self.state = State.CONNECTED
        self._largest = self._part_bytes or self._limits.packet_bytes_max

    def refuse(self, reason: Reason, text: str = "") -> None:
        """Answer CONNECT with a failure; the caller closes [MQTT-3.2.2-5] [MQTT5-3.2.2-7]."""
        if self.five:
            self._explained(lambda told: codec.encode_connack(reason, False, told, c.LEVEL_5), text)
        else:
            self.send(codec.encode_connack(return_code(reason)))
        self.close()

    def challenge(self, reason: Reason, data: bytes | None) -> None:
        """AUTH: what the method says next, or SUCCESS at the end of a re-authentication."""
        properties: Properties = {p.AUTH_METHOD: self._auth_method}
        if data is not None:
            properties[p.AUTH_DATA] = data
        self.send(codec.encode_auth(reason, properties))
        if self.state is State.CONNECTING:
            self.state = State.AUTHENTICATING

    def disconnect(self, reason: Reason, text: str = "") -> None:
        """Say why, if the version can [MQTT5-4.13.1-1] [MQTT5-3.14.0-1], and `close`."""
        if self.five and self.state is State.CONNECTED:
            self._explained(lambda told: codec.encode_disconnect(reason, told), text)
            self.has_disconnected = True
        self.close()

    def _explained(self, encode: Callable[[Properties | None], bytes], text: str) -> None:
        """Send a packet with a reason string, without it if that is too much for the client [MQTT5-3.2.2-19] [MQTT5-3.14.2-3]."""
        told = text.encode()[:REASON_STRING_MAX].decode("utf-8", "ignore").replace("\0", "")
        data = encode({p.REASON_STRING: told} if told else None)
        if self.outgoing_bytes_max and len(data) > self.outgoing_bytes_max:
            data = encode(None)
        if not self.outgoing_bytes_max or len(data) <= self.outgoing_bytes_max:
            self.send(data)

    def close(self) -> None:
        """Nothing more is read; the outbox may still be sent."""
        self.state = State.CLOSED
        self._largest = 0
        self._parts = []
        self._buffer = 0

    def send(self, data: bytes) -> None:
        """Append an encoded packet to the outbox."""
        self.counts.others_out += 1
        self.outbox.append(data)
        self.outbox_bytes += len(data)

    def data_to_send(self) -> Pieces:
        """Take and clear the outbox."""
        data = b"".join(self.outbox) if self.outbox_bytes < LARGE_BYTES else gathered(self.outbox)
        self.outbox.clear()
        self.outbox_bytes = 0
        return data

    # Time

    def next_deadline(self) -> int | None:
        """When `handle_deadline` wants to be called next; None: not at all."""
        if self.state is State.AWAIT_CONNECT or self.state is State.AUTHENTICATING:
            return self._opened_ms + self._limits.connect_timeout_ms
        if self.state is State.CONNECTED and self.keep_alive_ms:
            return self._last_ms + self.keep_alive_ms
        return None

    def handle_deadline(self, now_ms: int) -> list[Event]:
        """A Violation if the peer has been silent for too long, else nothing (ask `next_deadline` again)."""
        due = self.next_deadline()
        if due is None or now_ms < due:
            return []
        text = f"silent for {now_ms - self._last_ms} ms, keep-alive allows {self.keep_alive_ms}"
        if self.state is not State.CONNECTED:
            text = f"no CONNECT within {self._limits.connect_timeout_ms} ms"
        return self._violation([], text, Reason.KEEP_ALIVE_TIMEOUT)

    def resumed(self, now_ms: int) -> None:
        """Reading goes on after a pause of ours: the client's silence counts from here."""
        self._last_ms = now_ms

    def unfinished(self) -> int:
        """A number that stays the same while the same packet, or part of a larger one, waits for the peer; 0: none does."""
        return self._number if self._buffer and self.state is not State.CONNECTING else 0

    def missing_bytes(self) -> int:
        """Bytes that the packet lacks which is unfinished, as far as that is known."""
        return max(self._need - self._buffer, 0) if self._buffer else 0

    def buffered_bytes(self) -> int:
        """Bytes received and not parsed yet."""
        return self._buffer
