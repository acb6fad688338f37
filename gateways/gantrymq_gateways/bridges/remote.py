"""The client's side of one MQTT 3.1.1 connection to another broker, for a bridge: it acknowledges what it is told to, when it is told to.

(amqtt's client acknowledges before its application has seen a message, and forgets after 5 s what was not acknowledged: a bridge on it loses messages.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import (
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    MalformedPacket,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
)

WINDOW: Final = 100
"""Messages of QoS 1 sent and not acknowledged: Mosquitto takes 20 at a time of one that it forwards, and any number that it stores."""


class RemoteHost(Protocol):
    """The bridge."""

    def accepted(self, present: bool) -> None: ...

    def subscribed(self, codes: list[int]) -> None: ...

    def arrived(self, publish: Publish) -> None: ...

    def acknowledged(self, packet_id: int) -> None: ...

    def writable(self) -> None: ...


class Remote(asyncio.Protocol):
    """One connection; `ended` is set with `why` once it is gone."""

    def __init__(self, host: RemoteHost, connect: Connect, packet_bytes_max: int) -> None:
        self._host = host
        self._connect = connect
        self._packet_bytes_max = packet_bytes_max
        self._parts: list[bytes] = []
        self._held = 0
        self._need = 0
        """Bytes that the incomplete packet at the front has."""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False
        self.ended = asyncio.Event()
        self.why = ""
        self.refused_code = 0
        """Return code of CONNACK."""
        self.full = False
        """The other side does not take what was written."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.send(codec.encode_packet(self._connect))
        self._timer = asyncio.get_running_loop().call_later(self._connect.keep_alive_s, self._tick)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        self._parts.append(data)
        self._held += len(data)
        if self._held < self._need:
            return
        data = b"".join(self._parts) if len(self._parts) > 1 else data
        start = self._need = 0
        try:
            while (found := codec.packet_end(data, start) if len(data) > start else None) is not None:
                body, end = found
                if end - body > self._packet_bytes_max:
                    raise MalformedPacket(f"a packet of {end - body} bytes; message.body_bytes_max allows no more here")
                if end > len(data):
                    self._need = end - start
                    break
                codec.check_fixed_header(data[start], end - body, False)
                self._handle(codec.decode_packet(data, start, body, end))
                start = end
        except MalformedPacket as error:
            self.close(f"the other side broke the protocol: {error}")
            return
        self._parts = [data[start:]]
        self._held = len(data) - start

    def _handle(self, packet: codec.Packet) -> None:
        host = self._host
        if isinstance(packet, Publish):
            host.arrived(packet)
        elif isinstance(packet, Ack):
            if packet.kind == c.PUBACK:
                host.acknowledged(packet.packet_id)
        elif isinstance(packet, ConnAck):
            if packet.code:
                self.refused_code = packet.code
                self.close(f"CONNACK with return code {packet.code}")
            else:
                host.accepted(packet.session_present)
        elif isinstance(packet, SubAck):
            host.subscribed(packet.codes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.why = self.why or str(exc or "the other side closed the connection")
        self.ended.set()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._host.writable()

    def _tick(self) -> None:
        """Two intervals without a word are the end; one is a reason to ask."""
        if not self._heard:
            self.close(f"nothing was heard for {2 * self._connect.keep_alive_s} s")
            return
        self._heard = False
        self.send(codec.encode_packet(PingReq()))
        self._timer = asyncio.get_running_loop().call_later(self._connect.keep_alive_s, self._tick)

    def send(self, data: bytes) -> None:
        """Write bytes; nothing once the connection is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def subscribe(self, filters: list[tuple[str, int]]) -> None:
        """One SUBSCRIBE."""
        self.send(codec.encode_packet(Subscribe(1, filters)))

    def publish(self, topic: str, payload: bytes, flags: int, packet_id: int) -> None:
        """One PUBLISH; flags as in its first byte."""
        encoded = topic.encode()
        number = packet_id.to_bytes(2, "big") if flags & c.FLAG_QOS else b""
        self.send(codec.encode_publish_head(encoded, len(payload), flags) + number + payload)

    def acknowledge(self, packet_id: int) -> None:
        """PUBACK."""
        self.send(codec.encode_ack(c.PUBACK, packet_id))

    def hold(self, on: bool) -> None:
        """Read nothing, or go on."""
        if self._transport is not None:
            reading: Callable[[], None] = self._transport.pause_reading if on else self._transport.resume_reading
            reading()

    def leave(self) -> None:
        """DISCONNECT, then the end."""
        self.send(codec.encode_packet(Disconnect()))
        self.close("stopped")

    def close(self, why: str) -> None:
        """End the connection."""
        self.why = self.why or why
        if self._transport is not None:
            self._transport.close()
