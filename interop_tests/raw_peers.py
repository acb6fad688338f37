"""Peers that do not keep to a protocol: bytes on a socket, and the smallest honest beginnings of each protocol to misbehave after."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass

from interop_tests.bench import remoting_wire
from interop_tests.running import Gantry

ANSWER_S = 60.0

CLIENT_HELLO = bytes.fromhex(
    "16030100c8010000c40303" + "11" * 32 + "20" + "22" * 32 + "00021301" + "0100" + "0079" + "00" * 121
)
HTTP_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
MQTT_CONNECT = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc"
REMOTING_REQUEST = remoting_wire.encode(105, 1, {"topic": "x"})
NOISE = bytes(range(255, -1, -1)) * 4
PROTOCOLS = {
    "http": HTTP_REQUEST,
    "tls": CLIENT_HELLO,
    "amqp": AMQP_HEADER,
    "mqtt": MQTT_CONNECT,
    "remoting": REMOTING_REQUEST,
    "noise": NOISE,
}


@dataclass
class Ended:
    """What a peer got before the server closed the connection. `peer`: how the server's log names it."""

    answer: bytes
    peer: str


class Raw:
    """One socket."""

    def __init__(self, server: Gantry, door: str, receive_bytes: int = 0, source: str = "") -> None:
        """`source`: the address of this machine that it comes from."""
        self.sock = socket.socket()
        if source:
            self.sock.bind((source, 0))
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(server.address(door))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = "{}:{}".format(*self.sock.getsockname())

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """A server that closes early may reset what is still on its way."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.sock.recv(count - len(data))
            assert part, f"closed after {data!r}"
            data += part
        return data

    def to_end(self) -> Ended:
        """Everything until the server closes; fails when it does not."""
        answer = b""
        try:
            while part := self.sock.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return Ended(answer, self.peer)


def ended(server: Gantry, door: str, data: bytes) -> Ended:
    """Send, and read until the server closes."""
    with Raw(server, door) as raw:
        raw.send(data)
        return raw.to_end()


# MQTT 3.1.1


def mqtt(server: Gantry, receive_bytes: int = 0, client_id: bytes = b"") -> Raw:
    """A client that was let in."""
    raw = Raw(server, "mqtt", receive_bytes)
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + struct.pack(">H", len(client_id)) + client_id
    raw.send(b"\x10" + bytes([len(body)]) + body)
    assert raw.exactly(4) == b"\x20\x02\x00\x00"
    return raw


def mqtt_text(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


# AMQP 0-9-1


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    payload = struct.pack(">HH", class_id, method_id) + arguments
    return frame(1, channel, payload)


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def read_frame(raw: Raw) -> tuple[int, int, bytes]:
    kind, channel, size = struct.unpack(">BHI", raw.exactly(7))
    payload = raw.exactly(size)
    assert raw.exactly(1) == b"\xce"
    return kind, channel, payload


def amqp_login(user: bytes = b"\x00guest\x00guest") -> bytes:
    return method(0, 10, 11, struct.pack(">I", 0) + b"\x05PLAIN" + struct.pack(">I", len(user)) + user + b"\x05en_US")


def amqp(server: Gantry, channel: int = 1, receive_bytes: int = 0, heartbeat_s: int = 0) -> Raw:
    """An open connection, and a channel if `channel` is not 0."""
    raw = Raw(server, "amqp", receive_bytes)
    raw.send(AMQP_HEADER)
    read_frame(raw)
    raw.send(amqp_login())
    _, _, tune = read_frame(raw)
    raw.send(method(0, 10, 31, struct.pack(">HIH", 2047, struct.unpack_from(">I", tune, 6)[0], heartbeat_s)))
    raw.send(method(0, 10, 40, b"\x01/\x00\x00"))
    read_frame(raw)
    if channel:
        raw.send(method(channel, 20, 10, b"\x00"))
        read_frame(raw)
    return raw


def close_reason(answer: bytes) -> tuple[int, str] | None:
    """(reply code, reply text) of the first connection.close or channel.close; None if there is no whole one yet."""
    at = 0
    while at + 7 <= len(answer):
        _, _, size = struct.unpack_from(">BHI", answer, at)
        payload = answer[at + 7 : at + 7 + size]
        at += 8 + size
        if at <= len(answer) and payload[:4] in (b"\x00\x0a\x00\x32", b"\x00\x14\x00\x28"):
            code, length = struct.unpack_from(">HB", payload, 4)
            return code, payload[7 : 7 + length].decode()
    return None


# Remoting


def remoting_answer(answer: bytes) -> tuple[int, str]:
    """(code, remark) of the first frame."""
    size = int.from_bytes(answer[:4], "big")
    code, _, _, remark, _ = remoting_wire.decode(answer[4 : 4 + size])
    return code, remark


# HTTP


def problem(answer: bytes) -> tuple[int, dict[str, object]]:
    """(status, problem details) of the first response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    assert headers[b"content-type"].startswith(b"application/problem+json"), answer
    size = int(headers[b"content-length"])
    return int(lines[0].split()[1]), json.loads(body[:size])
