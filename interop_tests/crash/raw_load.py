"""Publishers that keep a window of messages open on a bare socket until the server is gone, and readers that check afterwards.

Bodies are `<who> <number>`. Nothing is sent twice, so what is stored twice was doubled by the server.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Iterator

from gantrymq.store.log import record
from interop_tests import raw_peers
from interop_tests.bench import remoting_wire
from interop_tests.crash.promises import Id, Ledger, Queue
from interop_tests.running import Gantry
from interop_tests.waiting import until

TOPIC = "kill"
QUEUES = 4
WINDOW = 100
RECEIVE_BYTES = 1 << 18


def parse(body: bytes) -> Id:
    who, _, number = body.decode().partition(" ")
    return who, int(number)


class Publisher(threading.Thread):
    """One connection. `ledger`: complete when the thread has ended."""

    who = ""

    def __init__(self, server: Gantry, numbers: Iterator[int]) -> None:
        super().__init__(name=self.who, daemon=True)
        self.numbers = numbers
        self.ledger = Ledger()
        self.open: dict[int, Id] = {}
        """Not acknowledged yet, by what the protocol calls it by."""
        self.failure: BaseException | None = None
        self.last = threading.Event()
        """Nothing new is sent; the thread ends when everything that was is answered."""
        self._data = bytearray()
        self.sock = self.connect(server)

    def connect(self, server: Gantry) -> socket.socket:
        raise NotImplementedError

    def encode(self, tag: int, number: int) -> bytes:
        raise NotImplementedError

    def received(self, data: bytearray) -> int:
        """Take whole frames off the front; returns how many bytes they had."""
        raise NotImplementedError

    def run(self) -> None:
        tags = itertools.count(1)
        try:
            while True:
                fresh = []
                while len(self.open) < WINDOW and not self.last.is_set():
                    tag, number = next(tags), next(self.numbers)
                    self.open[tag] = (self.who, number)
                    self.ledger.sent.add((self.who, number))
                    fresh.append(self.encode(tag, number))
                self.sock.sendall(b"".join(fresh))
                if not self.open:
                    return
                part = self.sock.recv(RECEIVE_BYTES)
                if not part:
                    return
                self._data += part
                del self._data[: self.received(self._data)]
        except OSError:
            return  # killed
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.sock.close()

    def done(self, tag: int, place: tuple[int, int] | None = None) -> None:
        one = self.open.pop(tag)
        self.ledger.acknowledged.add(one)
        if place is not None:
            self.ledger.places[one] = place


class RemotingPublisher(Publisher):
    who = "remoting"

    def connect(self, server: Gantry) -> socket.socket:
        sock = remoting_wire.connect(server.doors["broker"])
        sock.settimeout(raw_peers.ANSWER_S)
        return sock

    def encode(self, tag: int, number: int) -> bytes:
        fields = {
            "a": "kill", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "0", "g": "1700000000000",
            "h": "0", "i": f"TAGS\x01remoting\x02UNIQ_KEY\x01R{number}\x02", "j": "0", "k": "false", "m": "false", "n": "broker",
        }  # fmt: skip
        return remoting_wire.encode(310, tag, fields, f"{self.who} {number}".encode(), True)

    def received(self, data: bytearray) -> int:
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            code, opaque, fields, remark, _ = remoting_wire.decode(bytes(data[at + 4 : end]))
            at = end
            if code == 0:
                self.done(opaque, (int(fields["queueId"]), int(fields["queueOffset"])))
            else:
                self.refused(opaque, code, remark)
        return at

    def refused(self, tag: int, code: int, remark: str) -> None:
        raise AssertionError(f"{code} {remark}")


class AmqpPublisher(Publisher):
    who = "amqp"

    def connect(self, server: Gantry) -> socket.socket:
        raw = raw_peers.amqp(server)
        raw.send(raw_peers.method(1, 85, 10, b"\x00"))
        raw_peers.read_frame(raw)
        raw.sock.settimeout(raw_peers.ANSWER_S)
        return raw.sock

    def encode(self, tag: int, number: int) -> bytes:
        body = f"{self.who} {number}".encode()
        key = b"amqp.%d" % (number % 3)
        name = TOPIC.encode()
        arguments = b"\x00\x00" + bytes([len(name)]) + name + bytes([len(key)]) + key + b"\x00"
        header = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)
        return raw_peers.method(1, 60, 40, arguments) + raw_peers.frame(2, 1, header) + raw_peers.frame(3, 1, body)

    def received(self, data: bytearray) -> int:
        at = 0
        while len(data) - at >= 8:
            kind, _, size = struct.unpack_from(">BHI", data, at)
            if at + size + 8 > len(data):
                break
            payload = bytes(data[at + 7 : at + 7 + size])
            at += size + 8
            if kind == 1:
                self.answered(payload)
        return at

    def answered(self, payload: bytes) -> None:
        """A method of the server."""
        assert payload[:4] == b"\x00\x3c\x00\x50", payload  # basic.ack
        for one in self.meant(payload):
            self.done(one)

    def meant(self, payload: bytes) -> list[int]:
        """Delivery tags of a basic.ack or basic.nack."""
        tag, multiple = struct.unpack_from(">Q?", payload, 4)
        return [one for one in self.open if one <= tag] if multiple else [tag]


class MqttPublisher(Publisher):
    who = "mqtt"

    def connect(self, server: Gantry) -> socket.socket:
        sock = raw_peers.mqtt(server).sock
        sock.settimeout(raw_peers.ANSWER_S)
        return sock

    def encode(self, tag: int, number: int) -> bytes:
        topic = b"%s/mqtt/%d" % (TOPIC.encode(), number % 3)
        body = raw_peers.mqtt_text(topic) + struct.pack(">H", tag % 65_000 + 1) + f"{self.who} {number}".encode()
        return b"\x32" + bytes([len(body)]) + body

    def received(self, data: bytearray) -> int:
        for at in range(0, len(data) - 3, 4):
            assert data[at : at + 2] == b"\x40\x02"
            packet_id = int.from_bytes(data[at + 2 : at + 4], "big")
            self.done(next(tag for tag in self.open if tag % 65_000 + 1 == packet_id))
        return len(data) // 4 * 4


PUBLISHERS = (RemotingPublisher, AmqpPublisher, MqttPublisher)


class LogReader:
    """Pulls what is new in every queue since the last call."""

    def __init__(self) -> None:
        self.queues: dict[Queue, list[tuple[int, Id]]] = {(TOPIC, number): [] for number in range(QUEUES)}

    def read(self, server: Gantry) -> list[Id]:
        fresh: list[Id] = []
        with remoting_wire.connect(server.doors["broker"]) as sock:
            for (topic, queue_id), rows in self.queues.items():
                while messages := self._pull(sock, topic, queue_id, len(rows)):
                    rows += messages
                    fresh += [one for _, one in messages]
        return fresh

    @staticmethod
    def _pull(sock: socket.socket, topic: str, queue_id: int, offset: int) -> list[tuple[int, Id]]:
        fields = {
            "consumerGroup": "kill", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset), "maxMsgNums": "1024",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        code, _, answer, remark, body = remoting_wire.call(sock, 11, fields)
        if code == 19:
            assert int(answer["nextBeginOffset"]) == offset, answer
            return []
        assert code == 0, (code, remark)
        found, at = [], 0
        while at < len(body):
            message = record.decode(body, at)
            found.append((message.queue_offset, parse(message.body)))
            at += int.from_bytes(body[at : at + 4], "big")
        return found


class QueueReader:
    """Takes and acknowledges what is ready in the AMQP queue, and waits until the acknowledgements have arrived."""

    def __init__(self, server: Gantry, queue: str) -> None:
        self.raw = raw_peers.amqp(server)
        self.name = bytes([len(queue)]) + queue.encode()
        self._method(60, 10, struct.pack(">IHB", 0, 0, 0))

    def declare(self, exchange: str) -> None:
        name = bytes([len(exchange)]) + exchange.encode()
        self._method(40, 10, b"\x00\x00" + name + b"\x05topic\x02" + bytes(4))
        self._method(50, 10, b"\x00\x00" + self.name + b"\x02" + bytes(4))
        self._method(50, 20, b"\x00\x00" + self.name + name + b"\x01#\x00" + bytes(4))

    def _method(self, class_id: int, method_id: int, arguments: bytes) -> bytes:
        self.raw.send(raw_peers.method(1, class_id, method_id, arguments))
        return raw_peers.read_frame(self.raw)[2]

    def count(self) -> int:
        """Ready messages: a passive declaration."""
        answer = self._method(50, 10, b"\x00\x00" + self.name + b"\x01" + bytes(4))
        return int(struct.unpack_from(">I", answer, 4 + 1 + answer[4])[0])

    def take(self, known: int = 0) -> list[Id]:
        """`known`: so many at least are there, or will be when every group is asked."""
        wanted = until(lambda: (count := self.count()) >= known and (count,))[0]
        self._method(60, 20, b"\x00\x00" + self.name + b"\x01c\x00" + bytes(4))
        got: list[Id] = []
        tag = 0
        while len(got) < wanted:
            kind, _, payload = raw_peers.read_frame(self.raw)
            if kind == 1:
                tag = int(struct.unpack_from(">Q", payload, 4 + 1 + payload[4])[0])
            elif kind == 3:
                got.append(parse(payload))
        if tag:
            self.raw.send(raw_peers.method(1, 60, 80, struct.pack(">Q?", tag, True)))
        self._method(60, 30, b"\x01c\x00")
        assert self.count() == 0
        self.raw.sock.close()
        return got


class SessionReader:
    """A persistent MQTT session: takes what waits for it, acknowledges, and makes sure that this has arrived."""

    def __init__(self, server: Gantry, client_id: bytes = b"kill") -> None:
        self.raw = raw_peers.Raw(server, "mqtt")
        body = b"\x00\x04MQTT\x04\x00\x00\x00" + raw_peers.mqtt_text(client_id)
        self.raw.send(b"\x10" + bytes([len(body)]) + body)
        assert self.raw.exactly(4)[::3] == b"\x20\x00"
        self._data = bytearray()

    def subscribe(self, name: bytes) -> None:
        body = b"\x00\x01" + raw_peers.mqtt_text(name) + b"\x01"
        self.raw.send(b"\x82" + bytes([len(body)]) + body)
        assert self.raw.exactly(5) == b"\x90\x03\x00\x01\x01"

    def take(self, wanted: int) -> list[Id]:
        """Until so many different ones have come."""
        got: list[Id] = []
        while len(set(got)) < wanted:
            part = self.raw.sock.recv(RECEIVE_BYTES)
            assert part
            self._data += part
            acks = []
            while (size := self._packet()) > 0:
                packet = bytes(self._data[2:size])
                del self._data[:size]
                name = int.from_bytes(packet[:2], "big")
                acks.append(b"\x40\x02" + packet[2 + name : 4 + name])
                got.append(parse(packet[4 + name :]))
            self.raw.send(b"".join(acks))
        self.raw.send(b"\xc0\x00")
        assert not self._data
        assert self.raw.exactly(2) == b"\xd0\x00"
        self.raw.send(b"\xe0\x00")
        self.raw.sock.close()
        return got

    def _packet(self) -> int:
        if len(self._data) < 2:
            return 0
        assert self._data[0] & 0xF0 == 0x30, self._data[:8]
        assert self._data[1] < 128
        size = 2 + self._data[1]
        return size if size <= len(self._data) else 0
