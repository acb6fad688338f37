"""One of the two brokers: plays scripts on raw connections, and shows what came back in a form that both have in common."""

from __future__ import annotations

import json
import re
import socket
import struct
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from gantrymq_gateways.amqp.wire.codec import FRAME, content_frames, decode_arguments, method_frame
from gantrymq_gateways.amqp.wire.constants import METHODS, METHODS_BY_NUMBER, PROTOCOL_HEADER
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table
from interop_tests.amqp_differential.steps import Call, Http, Send, Step

ANSWER_S: Final = 60.0
"""Only ends what hangs."""
CLIENT: Final[Table] = [
    ("capabilities", Field("F", [(name, Field("t", True)) for name in ("authentication_failure_close", "consumer_cancel_notify")]))
]  # fmt: skip
GENERATED: Final = re.compile(r"amq\.(gen|ctag)-[A-Za-z0-9_-]+|(?<=amq\.rabbitmq\.reply-to\.)\S+")
ENDS: Final = ("channel.close", "connection.close", "end")
UNASKED: Final = ("basic.deliver", "basic.return", "basic.ack", "basic.nack", "basic.cancel")
"""Messages, confirmations, and that a consumer has lost its queue: they come when queues have done their work."""

Answer = tuple[Any, ...]


def plain(value: Any) -> Any:
    """A typed value, or anything that holds some, without what differs from run to run; tables without an order."""
    if isinstance(value, Field):
        return value.kind, "a time" if value.kind == "T" else plain(value.value)
    if isinstance(value, bytes):
        return plain(value.decode("utf-8", "replace"))
    if isinstance(value, str):
        return GENERATED.sub("GENERATED", value)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: plain(field) for name, field in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def shown(properties: bytes) -> dict[str, Any]:
    """A property list, what is absent left out."""
    found = decode_properties(properties)
    return {name: plain(value) for name in Properties.__slots__ if (value := getattr(found, name)) is not None}


class Wire:
    """A raw connection with channels 1 and 2 open."""

    def __init__(self, port: int, user: str = "guest", password: str = "guest", vhost: str = "/") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self.ended = False
        self._socket.sendall(PROTOCOL_HEADER)
        self.start = self._one()
        self._send(0, "connection.start-ok", CLIENT, "PLAIN", f"\0{user}\0{password}".encode(), "en_US")
        self.opening = [self._one()]
        if self.opening[0][1] != "connection.tune":
            return
        self._send(0, "connection.tune-ok", 2047, 131072, 0)
        self._send(0, "connection.open", vhost, "", False)
        self.opening.append(self._one())
        if self.opening[1][1] == "connection.open-ok":
            for channel in (1, 2):
                self._send(channel, "channel.open", "")
                self._one()

    def close(self) -> None:
        self._socket.close()

    def _send(self, channel: int, name: str, *arguments: Any) -> None:
        self._socket.sendall(method_frame(channel, METHODS[name], arguments))

    def _frame(self) -> tuple[int, int, bytes] | None:
        size = FRAME.size
        while len(self._data) < size or len(self._data) < size + FRAME.unpack_from(self._data)[2] + 1:
            try:
                part = self._socket.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                self.ended = True
                return None
            self._data += part
        kind, channel, length = FRAME.unpack_from(self._data)
        payload, self._data = self._data[size : size + length], self._data[size + length + 1 :]
        return kind, channel, payload

    def _one(self) -> Answer:
        """(channel, name, arguments), with properties and body of a message; ("end",) when the peer closed."""
        frame = self._frame()
        if frame is None:
            return 0, "end"
        kind, channel, payload = frame
        if kind != 1:
            return (self._one()) if kind == 8 else (channel, f"frame {kind}")
        method = METHODS_BY_NUMBER[struct.unpack_from(">I", payload)[0]]
        answer: Answer = (channel, method.name, plain(decode_arguments(method.spec, payload, 4)))
        if not method.content:
            return answer
        header = self._frame()
        assert header is not None
        size, body = struct.unpack_from(">Q", header[2], 4)[0], b""
        while len(body) < size:
            part = self._frame()
            assert part is not None
            body += part[2]
        return *answer, shown(header[2][12:]), body.decode()

    def play(self, step: Call | Send) -> list[Answer]:
        """What came back for one step: its answer, everything up to the answer of a channel.flow behind it, and what comes unasked, of which the step
        says how much: a queue works beside its channels, so that nothing which a channel answers says that it is done."""
        if self.ended:
            return [(0, "end")]
        if isinstance(step, Call):
            self._send(step.channel, step.name, *step.arguments)
        else:
            self._send(step.channel, "basic.publish", 0, step.exchange, step.key, step.mandatory, False)
            properties = encode_properties(Properties(**step.properties))
            self._socket.sendall(content_frames(step.channel, properties, step.body, 131072))
        found: list[Answer] = []
        if isinstance(step, Call) and (own := _answers_of(step.name)):
            self._take(found, lambda: found[-1][1] in own)
        if step.channel and not self._over(found):
            self._send(step.channel, "channel.flow", True)
            self._take(found, lambda: (0, "barrier") in found and unasked(found) >= step.answers)
        if found and found[-1][1] == "channel.close":
            number = found[-1][0]
            self._send(number, "channel.close-ok")
            self._send(number, "channel.open", "")
            while self._one()[1] != "channel.open-ok":
                pass
        elif found and found[-1][1] == "connection.close":
            self._send(0, "connection.close-ok")
            self.ended = True
        return sorted([answer for answer in found if answer != (0, "barrier")], key=_order)

    @staticmethod
    def _over(found: list[Answer]) -> bool:
        return bool(found) and found[-1][1] in ENDS

    def _take(self, found: list[Answer], enough: Callable[[], bool]) -> None:
        """Read until that is enough, or the end of channel or connection."""
        while True:
            answer = self._one()
            found.append((0, "barrier") if answer[1] == "channel.flow-ok" else answer)
            if enough() or self._over(found):
                return


def _answers_of(name: str) -> tuple[str, ...]:
    """What a method is answered with, if it is."""
    if name == "basic.get":
        return "basic.get-ok", "basic.get-empty"
    return (name + "-ok",) if name + "-ok" in METHODS else ()


def _order(answer: Answer) -> tuple[bool, Any]:
    """Messages and confirmations keep their order, and come behind what a method answers."""
    return answer[1] in UNASKED, answer[1]


def unasked(answers: list[Answer]) -> int:
    return sum(answer[1] in UNASKED for answer in answers)


class Side:
    """A broker by its ports of AMQP and of the management API."""

    def __init__(self, amqp: int, management: int) -> None:
        self.amqp = amqp
        self._management = management
        self._wires: dict[str, Wire] = {}

    def play(self, step: Step) -> list[Answer]:
        """One step, on the connection that it names; `in NAME` is one in that vhost."""
        if isinstance(step, Http):
            return [self._http(step)]
        if step.on not in self._wires:
            self._wires[step.on] = Wire(self.amqp, vhost=step.on.partition("in ")[2] or "/")
        return self._wires[step.on].play(step)

    def forget(self) -> None:
        """The script is over."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def _http(self, step: Http) -> Answer:
        data = json.dumps(step.body).encode() if step.body is not None else None
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._management}/api/{step.path}", data, method=step.method
        )
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        found: Any = json.loads(body) if body else None
        if step.shows and isinstance(found, dict):
            found = {name: found.get(name) for name in step.shows}
        return "http", status, found
