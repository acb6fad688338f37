"""Bad input at every door, over real sockets: a clear error on the protocol's terms, one line in the log naming the peer, nobody else disturbed.

Each test ends with a check of neighbours: honest clients connected all the time, whose messages arrive as if nothing were.
"""

from __future__ import annotations

import gc
import itertools
import json
import re
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pika.exceptions
import pytest

from gantrymq.client import BlockingProducer
from interop_tests import raw_peers as raw
from interop_tests.bench import remoting_wire
from interop_tests.raw_peers import ended, frame, method, mqtt_text
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S, until

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
EVENT = {"ce-id": "1", "ce-source": "/bad", "ce-type": "a", "ce-specversion": "1.0", "content-type": "text/plain"}


class Neighbours:
    """Honest clients of every door: what the MQTT publisher, the producer and the event sender say, the others hear."""

    def __init__(self, server: Gantry) -> None:
        self.server = server
        self.numbers = itertools.count()
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp"), heartbeat=0))
        self.channel = self.connection.channel()
        self.channel.exchange_declare("next-door", "topic", durable=True)
        self.channel.queue_declare("next-door", durable=True)
        self.channel.queue_bind("next-door", "next-door", "#")
        self.paho = Paho(server, keep_alive_s=600).start()
        self.paho.subscribe(("next-door/#", 1))
        self.producer = BlockingProducer(server.doors["nameserver"], timeout_s=LIMIT_S)
        self.http = httpx.Client(timeout=LIMIT_S, base_url="http://{}:{}".format(*server.address("cloudevents")))

    def check(self) -> None:
        """One message through each door, in order, out of two."""
        number = next(self.numbers)
        said = [f"{number} {door}".encode() for door in ("mqtt", "native", "event", "amqp")]
        self.paho.publish("next-door/a", said[0])
        self.producer.send("next-door", said[1])
        assert self.http.post("/topics/next-door", headers=EVENT, content=said[2]).status_code == 202
        self.channel.basic_publish("next-door", "a", said[3])
        assert [body for _, body in self.paho.receive(4)] == said
        got: list[bytes] = []

        def take() -> bool:
            method, _, body = self.channel.basic_get("next-door", auto_ack=True)
            if method is not None:
                got.append(body)
            return len(got) >= 4

        until(take)
        assert got == said
        assert not failed_doors(self.server)
        assert "Traceback" not in self.server.log(), self.server.log()[-4000:]

    def close(self) -> None:
        self.paho.stop()
        self.connection.close()
        self.producer.close()
        self.http.close()


@pytest.fixture(scope="module")
def neighbours(server: Gantry) -> Iterator[Neighbours]:
    neighbours = Neighbours(server)
    yield neighbours
    neighbours.close()
    gc.collect()


@pytest.fixture(autouse=True)
def undisturbed(request: pytest.FixtureRequest) -> Iterator[None]:
    with_server = "server" in request.fixturenames
    if with_server:
        request.getfixturevalue("server").mark_log()
    yield
    if with_server:
        request.getfixturevalue("neighbours").check()


def lines_of(server: Gantry, peer: str) -> list[str]:
    return [line for line in server.new_log().splitlines() if f" {peer}: " in line]


def failed_doors(server: Gantry) -> list[str]:
    """What the log says of doors that raised. Others have failures of the machine to tell: a nameserver that was late to answer."""
    return [line for line in server.log().splitlines() if "net.pump: " in line and " failed: " in line]


def one_line(server: Gantry, peer: str, said: str = "") -> None:
    """The log names the peer once, with the reason."""
    (line,) = until(lambda: lines_of(server, peer))
    assert re.search(said, line), line


# The wrong protocol on a port.

SPOKEN = {"mqtt": "mqtt", "amqp": "amqp", "broker": "remoting", "nameserver": "remoting", "cloudevents": "http"}
WRONG = [(door, name, data) for door, own in SPOKEN.items() for name, data in raw.PROTOCOLS.items() if name != own]


@pytest.mark.parametrize(("door", "name", "data"), WRONG, ids=[f"{name} to {door}" for door, name, _ in WRONG])
def test_wrong_protocol(server: Gantry, neighbours: Neighbours, door: str, name: str, data: bytes) -> None:
    end = ended(server, door, data)
    if door == "mqtt" and name == "http":
        assert end.answer.startswith(b"HTTP/1.1 40")  # the port takes WebSockets, so it has words for HTTP
    elif door == "mqtt":
        assert end.answer == b""  # before a CONNECT, MQTT has no words [MQTT-3.1.0-1]
    elif door == "amqp":
        assert end.answer == raw.AMQP_HEADER  # AMQP 4.2.2: what we speak
    elif door == "cloudevents":
        status, problem = raw.problem(end.answer)
        assert status == problem["status"] == 400
        assert problem["detail"]
    else:
        code, remark = raw.remoting_answer(end.answer)
        assert code == 1
        assert "frame of" in remark
        assert name not in ("http", "tls", "amqp") or f"looks like {name.upper()}" in remark
    one_line(server, end.peer, "closed[:,] ")


# MQTT.

CONNECT = raw.MQTT_CONNECT


def connect(
    protocol: bytes = b"MQTT", level: int = 4, flags: int = 2, client_id: bytes = b"", more: bytes = b""
) -> bytes:
    body = mqtt_text(protocol) + bytes([level, flags]) + b"\x00\x3c" + mqtt_text(client_id) + more
    return b"\x10" + length(len(body)) + body


def length(size: int) -> bytes:
    out = b""
    while True:
        size, low = divmod(size, 128)
        out += bytes([low | (128 if size else 0)])
        if not size:
            return out


def publish(topic: bytes, payload: bytes = b"", first: int = 0x30, packet_id: bytes = b"") -> bytes:
    body = mqtt_text(topic) + packet_id + payload
    return bytes([first]) + length(len(body)) + body


ACCEPTED = b"\x20\x02\x00\x00"
MQTT_CASES: list[tuple[str, bytes, bytes]] = [
    ("unknown level", connect(level=9), b"\x20\x02\x00\x01"),
    ("wrong protocol name", connect(b"MQTX"), b""),
    ("reserved connect flag", connect(flags=3), b""),
    ("no id and not clean", connect(flags=0), b"\x20\x02\x00\x02"),
    ("long client id", connect(client_id=b"x" * 5000), b"\x20\x02\x00\x02"),
    ("client id not UTF-8", connect(client_id=b"\xff\xfe"), b""),
    ("NUL in the client id", connect(client_id=b"a\x00b"), b""),
    ("PUBLISH first", publish(b"a"), b""),
    ("second CONNECT", CONNECT + CONNECT, ACCEPTED),
    ("length of five bytes", CONNECT + b"\x30\xff\xff\xff\xff\x01", ACCEPTED),
    ("packet of 256 MiB", CONNECT + b"\x30\xff\xff\xff\x7f", ACCEPTED),
    ("unknown packet type", CONNECT + b"\xf0\x00", ACCEPTED),
    ("topic over its packet", CONNECT + b"\x30\x04\x00\x09ab", ACCEPTED),
    ("wildcard in a topic", CONNECT + publish(b"a/+/b"), ACCEPTED),
    ("empty topic", CONNECT + publish(b""), ACCEPTED),
    ("NUL in a topic", CONNECT + publish(b"a\x00b"), ACCEPTED),
    ("surrogate in a topic", CONNECT + publish(b"a\xed\xa0\x80"), ACCEPTED),
    ("QoS 3", CONNECT + publish(b"a", b"", 0x36, b"\x00\x01"), ACCEPTED),
    ("packet id 0", CONNECT + publish(b"a", b"", 0x32, b"\x00\x00"), ACCEPTED),
    ("system topic", CONNECT + publish(b"$SYS/x"), ACCEPTED),
    ("table of the broker", CONNECT + publish(b"rmq_sys_gantry_x/y"), ACCEPTED),
    ("tag of 60,000 bytes", CONNECT + publish(b"a/" + b"x" * 60_000), ACCEPTED),
    ("flags of SUBSCRIBE", CONNECT + b"\x80\x06\x00\x01\x00\x01a\x00", ACCEPTED),
    ("SUBSCRIBE without filter", CONNECT + b"\x82\x02\x00\x01", ACCEPTED),
    ("bad filter", CONNECT + b"\x82\x08\x00\x01\x00\x03a#b\x00", ACCEPTED),
    ("PUBACK of nothing and then noise", CONNECT + b"\x40\x02\x00\x07" + b"\xf7\x00", ACCEPTED),
    ("PINGREQ with a body", CONNECT + b"\xc0\x01x", ACCEPTED),
]  # fmt: skip


@pytest.mark.parametrize(("label", "data", "answer"), MQTT_CASES, ids=[case[0] for case in MQTT_CASES])
def test_mqtt(server: Gantry, neighbours: Neighbours, label: str, data: bytes, answer: bytes) -> None:
    # A client that sends again what is refused is let in later each time, and the log says it once: each case is another client.
    end = ended(server, "mqtt", data.replace(CONNECT, connect(client_id=label.replace(" ", "-").encode())))
    assert end.answer == answer
    one_line(server, end.peer)


# AMQP.

WRONG_ARGUMENT = method(1, 50, 10, b"\x00\x00\x05bad-x\x02" + struct.pack(">I", 12) + b"\x09x-expirest\x01")
AMQP_CASES: list[tuple[str, bytes, int, str]] = [
    ("bad frame end", frame(1, 1, b"\x00\x3c\x00\x0a", b"\x00"), 501, "FRAME_ERROR"),
    ("frame of 2 GiB", b"\x01\x00\x01\x7f\xff\xff\xff", 501, "FRAME_ERROR"),
    ("unknown frame type", frame(7, 1, b""), 501, "FRAME_ERROR"),
    ("heartbeat on a channel", frame(8, 1, b""), 505, "UNEXPECTED_FRAME"),
    ("unknown method", method(1, 60, 99), 0, "unknown method"),  # RabbitMQ closes the socket without a word
    ("unknown class", method(1, 77, 10), 0, "unknown method"),
    ("method of the client's peer", method(1, 60, 60, b"\x01c" + b"\x00" * 9 + b"\x00\x00"), 503, "COMMAND_INVALID"),
    ("channel opened twice", method(1, 20, 10, b"\x00"), 504, "CHANNEL_ERROR"),
    ("channel not open", method(9, 60, 70, b"\x00\x00\x01q\x00"), 504, "CHANNEL_ERROR"),
    ("connection method on a channel", method(1, 10, 40, b"\x01/\x00\x00"), 503, "COMMAND_INVALID"),
    ("body without header", frame(3, 1, b"x"), 505, "UNEXPECTED_FRAME"),
    ("header without method", frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)), 505, "UNEXPECTED_FRAME"),
    ("arguments cut short", method(1, 50, 10, b"\x00\x00\x09ab"), 501, "FRAME_ERROR - cannot decode"),
    ("unknown type in a table", method(1, 50, 10, b"\x00\x00\x01q\x02\x00\x00\x00\x04\x01a?x"), 541, "INTERNAL_ERROR"),
    ("argument of a wrong type", WRONG_ARGUMENT, 406, "PRECONDITION_FAILED"),
    ("reserved queue name", method(1, 50, 10, b"\x00\x00\x05amq.x\x02\x00\x00\x00\x00"), 403, "ACCESS_REFUSED"),
    ("queue name not UTF-8", method(1, 50, 10, b"\x00\x00\x02\xff\xfe\x02\x00\x00\x00\x00"), 501, "FRAME_ERROR - Malformed UTF-8"),
    ("unknown exchange", method(1, 60, 40, b"\x00\x00\x06absent\x01k\x00") + frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0)),
     404, "NOT_FOUND - no exchange 'absent' in vhost '/'"),
    ("too large a body", method(1, 60, 40, b"\x00\x00\x00\x01k\x00") + frame(2, 1, struct.pack(">HHQH", 60, 0, 1 << 40, 0)),
     406, "PRECONDITION_FAILED"),
    ("ack of nothing", method(1, 60, 80, struct.pack(">QB", 99, 0)), 406, "PRECONDITION_FAILED - unknown delivery tag 99"),
    ("system topic as exchange", method(1, 40, 10, b"\x00\x00\x10rmq_sys_gantry_x\x05topic\x02\x00\x00\x00\x00"),
     403, "ACCESS_REFUSED"),
]  # fmt: skip


@pytest.mark.parametrize(("label", "data", "code", "text"), AMQP_CASES, ids=[case[0] for case in AMQP_CASES])
def test_amqp(server: Gantry, neighbours: Neighbours, label: str, data: bytes, code: int, text: str) -> None:
    with raw.amqp(server) as peer:
        peer.send(data)
        answer = b""
        while not raw.close_reason(answer):
            part = peer.sock.recv(65536)
            if not part:
                break
            answer += part
        said = raw.close_reason(answer)
        if not code:
            assert answer == b""
            one_line(server, peer.peer, f"closed: {re.escape(text)}")
            return
        assert said is not None
        assert said[0] == code
        assert said[1].startswith(text)
        if code >= 500:  # an error of the connection: close-ok, then the end
            peer.send(method(0, 10, 51))
            peer.to_end()
    one_line(server, peer.peer, re.escape(text))


def test_amqp_wrong_password(server: Gantry, neighbours: Neighbours) -> None:
    parameters = pika.ConnectionParameters(*server.address("amqp"), credentials=pika.PlainCredentials("guest", "wrong"))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
        pika.BlockingConnection(parameters)


# Remoting.


def remoting_frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


BROKEN_FRAMES = [
    ("header over its frame", struct.pack(">II", 8, 500) + b"{}{}"),
    ("unknown serializer", remoting_frame(b"{}", b"", 9)),
    ("header is no JSON", remoting_frame(b"{nonsense")),
    ("header is no object", remoting_frame(b"[1,2]")),
    ("binary header cut short", remoting_frame(b"\x00\x0a\x00", b"", 1)),
    ("frame of 0 bytes", struct.pack(">I", 0)),
    ("frame over the limit", struct.pack(">II", 0x01000001, 2)),
]


@pytest.mark.parametrize("door", ["broker", "nameserver"])
@pytest.mark.parametrize(("label", "data"), BROKEN_FRAMES, ids=[case[0] for case in BROKEN_FRAMES])
def test_broken_remoting(server: Gantry, neighbours: Neighbours, door: str, label: str, data: bytes) -> None:
    end = ended(server, door, data)
    code, remark = raw.remoting_answer(end.answer)
    assert code == 1
    assert remark
    one_line(server, end.peer, "closed[:,] ")


def send_fields(topic: str, properties: str = "") -> dict[str, str]:
    return {
        "a": "bad", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": properties,
        "j": "0", "k": "false",
    }  # fmt: skip


REMOTING_CASES: list[tuple[str, int, dict[str, str], bytes, int, str]] = [
    ("unknown code", 54321, {}, b"", 3, "54321"),
    ("no fields", 310, {}, b"", 1, "SEND_MESSAGE_V2"),
    ("a number that is none", 11, {"topic": "t", "queueId": "x"}, b"", 1, "PULL_MESSAGE"),
    ("long topic", 310, send_fields("t" * 200), b"", 29, "127"),
    ("characters of a topic", 310, send_fields("a/b"), b"", 29, "a/b"),
    ("empty topic", 310, send_fields(""), b"", 29, "topic"),
    ("table of the broker", 310, send_fields("rmq_sys_gantry_offset"), b"", 16, "rmq_sys_gantry_offset"),
    ("large body", 310, send_fields("bad"), b"x" * ((15 << 20) + 1), 13, "bytes"),
    ("large properties", 310, send_fields("bad", "n\x01" + "v" * 40_000 + "\x02"), b"", 13, "properties"),
    ("long tag", 310, send_fields("bad", "TAGS\x01" + "v" * 5_000 + "\x02"), b"", 13, "tag"),
    ("unknown topic", 11, {
        "consumerGroup": "g", "topic": "absent", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "0",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}, b"", 17, "absent"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("label", "number", "fields", "body", "code", "text"), REMOTING_CASES, ids=[case[0] for case in REMOTING_CASES]
)
def test_remoting(
    server: Gantry,
    neighbours: Neighbours,
    label: str,
    number: int,
    fields: dict[str, str],
    body: bytes,
    code: int,
    text: str,
) -> None:
    """Refused with code and remark; the connection goes on."""
    with remoting_wire.connect(server.doors["broker"]) as broker:
        for _ in range(2):
            got, _, _, remark, _ = remoting_wire.call(broker, number, fields, body)
            assert got == code, remark
            assert text in remark


# HTTP.


def head(line: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([line, b"host: localhost", *headers, b"", b""])


POST = b"POST /topics/bad HTTP/1.1"
BINARY = [b"%s: %s" % (name.encode(), value.encode()) for name, value in EVENT.items()]
BROKEN_REQUESTS: list[tuple[str, bytes, int]] = [
    ("no version", b"GET /healthz\r\n\r\n", 400),
    ("HTTP 2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("bare line ends", b"GET /healthz HTTP/1.1\nhost: localhost\n\n", 400),
    ("blank in a header's name", head(POST, b"bad name: x", b"content-length: 0"), 400),
    ("folded header", head(POST, b"a: b\r\n c", b"content-length: 0"), 400),
    ("two lengths", head(POST, b"content-length: 1", b"content-length: 2") + b"xy", 400),
    ("length and coding", head(POST, b"content-length: 1", b"transfer-encoding: chunked") + b"0\r\n\r\n", 400),
    ("bad chunk", head(POST, b"transfer-encoding: chunked", *BINARY) + b"zz\r\n", 400),
    ("head of 40 KiB", head(POST, b"x: " + b"y" * 40_000), 431),
    ("long target", head(b"GET /" + b"x" * 9000 + b" HTTP/1.1"), 414),
    ("body of 1 TiB", head(POST, b"content-length: 1099511627776"), 413),
]  # fmt: skip


@pytest.mark.parametrize(("label", "data", "status"), BROKEN_REQUESTS, ids=[case[0] for case in BROKEN_REQUESTS])
def test_broken_http(server: Gantry, neighbours: Neighbours, label: str, data: bytes, status: int) -> None:
    end = ended(server, "cloudevents", data)
    got, problem = raw.problem(end.answer)
    assert (got, problem["status"]) == (status, status), problem
    one_line(server, end.peer, "closed[:,] ")


STRUCTURED = {"content-type": "application/cloudevents+json"}
WHOLE: dict[str, Any] = {"id": "1", "source": "/s", "type": "t", "specversion": "1.0"}
HTTP_CASES: list[tuple[str, str, str, dict[str, str], bytes, int]] = [
    ("unknown path", "GET", "/nothing", {}, b"", 404),
    ("wrong method", "PUT", "/topics/bad", EVENT, b"", 405),
    ("no attributes", "POST", "/topics/bad", {"content-type": "text/plain"}, b"x", 400),
    ("no type", "POST", "/topics/bad", {k: v for k, v in EVENT.items() if k != "ce-type"}, b"x", 400),
    ("version 0.3", "POST", "/topics/bad", {**EVENT, "ce-specversion": "0.3"}, b"x", 400),
    ("unknown format", "POST", "/topics/bad", {"content-type": "application/cloudevents+xml"}, b"<a/>", 415),
    ("compressed", "POST", "/topics/bad", {**EVENT, "content-encoding": "gzip"}, b"x", 415),
    ("no JSON", "POST", "/topics/bad", STRUCTURED, b"{", 400),
    ("no object", "POST", "/topics/bad", STRUCTURED, b"[]", 400),
    ("broken base64", "POST", "/topics/bad", STRUCTURED, json.dumps({**WHOLE, "data_base64": "!"}).encode(), 400),
    ("data twice", "POST", "/topics/bad", STRUCTURED, json.dumps({**WHOLE, "data": 1, "data_base64": "eA=="}).encode(), 400),
    ("NUL in the type", "POST", "/topics/bad", STRUCTURED, json.dumps({**WHOLE, "type": "a\x00b"}).encode(), 400),
    ("type of 5,000 bytes", "POST", "/topics/bad", STRUCTURED, json.dumps({**WHOLE, "type": "x" * 5000}).encode(), 400),
    ("large data", "POST", "/topics/bad", EVENT, b"x" * ((15 << 20) + 1), 413),
    ("nested too deep", "POST", "/topics/bad", STRUCTURED, b"[" * 100_000, 400),
    ("batch with one bad event", "POST", "/topics/bad", {"content-type": "application/cloudevents-batch+json"},
     json.dumps([WHOLE, {"id": "2"}]).encode(), 400),
    ("NUL in the topic", "POST", "/topics/" + quote("a\x00b"), EVENT, b"x", 400),
    ("topic not UTF-8", "POST", "/topics/%ff%fe", EVENT, b"x", 400),
    ("system topic", "POST", "/topics/rmq_sys_gantry_x", EVENT, b"x", 403),
    ("subscription without sink", "POST", "/subscriptions", {"content-type": "application/json"}, b"{}", 400),
    ("subscription that is no JSON", "POST", "/subscriptions", EVENT, b"{}", 415),
    ("unknown subscription", "GET", "/subscriptions/nothing", {}, b"", 404),
]  # fmt: skip


@pytest.mark.parametrize(
    ("label", "verb", "path", "headers", "body", "status"), HTTP_CASES, ids=[case[0] for case in HTTP_CASES]
)
def test_http(
    server: Gantry,
    neighbours: Neighbours,
    label: str,
    verb: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
) -> None:
    """Refused with problem details; the connection goes on."""
    answer = neighbours.http.request(verb, path, headers=headers, content=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    problem = answer.json()
    assert problem["status"] == status
    assert problem["detail"]
