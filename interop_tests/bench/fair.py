"""`./run bench fair`: what the worst clients of each door do to a neighbour who sends one message at a time.

usage: bench fair [--seconds S] [--only NAME ...] [--json FILE]

Each attack is four processes at lower priority (one for the crowd of pulls) that never wait: they write requests as fast as the server reads. The neighbour's
p50 and p99 beside them may be ten times what they are alone, or 10 ms where that is less. The server's own histograms of the same time stand
beside it. Exit 1 where a figure is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import select
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from rich.table import Table

from interop_tests.bench.remoting_wire import connect, create_topic, encode
from interop_tests.bench.servers import Server, gantry, wide_console

CLIENTS: Final = 4
NICE: Final = 10
TIMES_MAX: Final = 10.0
FLOOR_MS: Final = 10.0
QUEUES: Final = 1_500
PULLS: Final = 100_000
PULL_CONNECTIONS: Final = 10
EVENTS: Final = 10_000
BLOCK_BYTES: Final = 256 * 1024
PAUSE_S: Final = 0.002
"""Between two sends of the neighbour."""
SETTLE_S: Final = 1.0
TOPIC: Final = "fair"

Doors = dict[str, str]
"""Addresses by name."""
Block = Callable[[socket.socket, Doors], bytes]
"""Says hello on a new connection; returns what is then written again and again."""


def repeated(request: bytes) -> bytes:
    return request * (BLOCK_BYTES // len(request) + 1)


def answer(connection: socket.socket) -> bytes:
    """Something came back."""
    connection.settimeout(30)
    data = connection.recv(65536)
    if not data:
        raise SystemExit("the server closed the connection")
    return data


# AMQP.


def method(channel: int, kind: tuple[int, int], arguments: bytes) -> bytes:
    payload = struct.pack(">HH", *kind) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def amqp_hello(connection: socket.socket) -> None:
    login = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest" + short("en_US")
    connection.sendall(b"AMQP\0\0\x09\x01" + method(0, (10, 11), login))
    answer(connection)
    tune = struct.pack(">HIH", 2047, 131072, 0)
    connection.sendall(method(0, (10, 31), tune) + method(0, (10, 40), b"\x01/\0\0") + method(1, (20, 10), b"\0"))
    answer(connection)


def amqp_get(connection: socket.socket, _doors: Doors) -> bytes:
    amqp_hello(connection)
    connection.sendall(method(1, (50, 10), b"\0\0" + short("fair-empty") + b"\0" + b"\0\0\0\0"))
    answer(connection)
    return repeated(method(1, (60, 70), b"\0\0" + short("fair-empty") + b"\x01"))


def amqp_publish(exchange: str, key: str) -> bytes:
    header = struct.pack(">HHQH", 60, 0, 0, 0)
    return (
        method(1, (60, 40), b"\0\0" + short(exchange) + short(key) + b"\0")
        + struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce"
    )  # fmt: skip


def amqp_fanout(connection: socket.socket, _doors: Doors) -> bytes:
    amqp_hello(connection)
    return repeated(amqp_publish("amq.fanout", ""))


def declare_fanout(doors: Doors, queues: int = QUEUES) -> None:
    """Queues that stay for the attack; deleted with the server's directory."""
    with door(doors, "amqp") as connection:
        amqp_hello(connection)
        for number in range(queues):
            name = f"fair-{number}"
            declare = method(1, (50, 10), b"\0\0" + short(name) + b"\0" + b"\0\0\0\0")
            bind = method(1, (50, 20), b"\0\0" + short(name) + short("amq.fanout") + b"\0\0" + b"\0\0\0\0")
            connection.sendall(declare + bind)
            seen = b""
            while seen.count(b"\xce") < 2 or b"\0\x32\0\x15" not in seen:  # queue.bind-ok
                seen += answer(connection)


# The other doors.


def mqtt_hello(connection: socket.socket) -> None:
    connection.sendall(b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0")
    answer(connection)


def mqtt_ping(connection: socket.socket, _doors: Doors) -> bytes:
    mqtt_hello(connection)
    return repeated(b"\xc0\0")


def mqtt_publish(connection: socket.socket, _doors: Doors) -> bytes:
    mqtt_hello(connection)
    return repeated(b"\x32\x0a\0\x05fairq\0\x01x")


def mqtt_receivers(doors: Doors, ready: Any) -> None:
    """So many clean sessions on the topic of `mqtt_publish`, which read what they get."""
    os.nice(NICE)
    selector = selectors.DefaultSelector()
    for _ in range(QUEUES):
        host, _, port = doors["mqtt"].rpartition(":")
        connection = socket.create_connection((host, int(port)), 30)
        mqtt_hello(connection)
        connection.sendall(b"\x82\x0a\0\x01\0\x05fairq\0")
        answer(connection)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
    ready.set()
    while True:
        for key, _ in selector.select():
            try:
                key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            except BlockingIOError:
                continue


def remoting_config(_connection: socket.socket, _doors: Doors) -> bytes:
    return repeated(encode(26, 1, {}, b"", False))


def send_frame(opaque: int) -> bytes:
    fields = {"a": "FAIR", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
              "i": "", "j": "0", "k": "false", "m": "false", "n": "broker-a"}  # fmt: skip
    return encode(310, opaque, fields, b"x" * 64, False)


def remoting_send(_connection: socket.socket, _doors: Doors) -> bytes:
    return repeated(send_frame(1))


def http_list(_connection: socket.socket, doors: Doors) -> bytes:
    return repeated(f"GET /subscriptions HTTP/1.1\r\nHost: {doors['cloudevents']}\r\n\r\n".encode())


def http_batch(_connection: socket.socket, doors: Doors) -> bytes:
    event = '{"specversion":"1.0","id":"%d","source":"/fair","type":"t","data":1}'
    body = f"[{','.join([event % number for number in range(EVENTS)])}]".encode()
    head = (
        f"POST /topics/fairbatch HTTP/1.1\r\nHost: {doors['cloudevents']}\r\n"
        f"Content-Type: application/cloudevents-batch+json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


ATTACKS: Final[dict[str, tuple[str, Block]]] = {
    "MQTT PINGREQ": ("mqtt", mqtt_ping),
    "MQTT publish, QoS 1": ("mqtt", mqtt_publish),
    f"MQTT publish to {QUEUES} receivers": ("mqtt", mqtt_publish),
    "AMQP basic.get, empty queue": ("amqp", amqp_get),
    f"AMQP publish to {QUEUES} queues": ("amqp", amqp_fanout),
    "Remoting GET_BROKER_CONFIG": ("broker", remoting_config),
    "Remoting send": ("broker", remoting_send),
    "HTTP GET /subscriptions": ("cloudevents", http_list),
    f"HTTP batch of {EVENTS} events": ("cloudevents", http_batch),
}
CROWD: Final = f"{PULLS} waking pulls"


@contextmanager
def door(doors: Doors, name: str) -> Iterator[socket.socket]:
    host, _, port = doors[name].rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        yield connection


def attack(doors: Doors, name: str) -> None:
    """One client: writes while the server reads, and throws its answers away."""
    os.nice(NICE)
    where, hello = ATTACKS[name]
    with door(doors, where) as connection:
        block = memoryview(hello(connection, doors))
        connection.setblocking(False)
        at = 0
        while True:
            readable, writable, _ = select.select([connection], [connection], [])
            try:
                if readable and not connection.recv(1 << 20):
                    return
                if writable:
                    at = (at + connection.send(block[at:])) % len(block)
            except BlockingIOError:
                continue


def crowd(doors: Doors) -> None:
    """Pulls that all wait for one queue, each again once it is answered; and a message for them twice a second."""
    os.nice(NICE)
    with door(doors, "broker") as connection:
        create_topic(connection, "faircrowd", 1)
    pull = {"consumerGroup": "crowd", "topic": "faircrowd", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "6",
            "commitOffset": "0", "suspendTimeoutMillis": "30000", "subscription": "*", "subVersion": "0"}  # fmt: skip
    fields = {"a": "FAIR", "b": "faircrowd", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
              "i": "", "j": "0", "k": "false", "m": "false", "n": "broker-a"}  # fmt: skip
    with door(doors, "broker") as sender:
        for offset in range(1_000):
            pull["queueOffset"] = str(offset + 1)
            sender.sendall(encode(310, 1, fields, b"x", False))
            answer(sender)
            connections = [connect(doors["broker"]) for _ in range(PULL_CONNECTIONS)]
            frame = encode(11, 1, pull, b"", False)
            for connection in connections:
                connection.sendall(frame * (PULLS // PULL_CONNECTIONS))
            time.sleep(SETTLE_S)
            sender.sendall(encode(310, 1, fields, b"x", False))
            answer(sender)
            for connection in connections:
                connection.settimeout(0.2)
                try:
                    while connection.recv(1 << 20):
                        pass
                except TimeoutError:
                    connection.close()


def neighbour(server: Server, seconds: float) -> dict[str, float]:
    """Sends one message at a time; milliseconds."""
    took: list[float] = []
    with door(server.doors, "broker") as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(60)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.perf_counter()
            connection.sendall(send_frame(len(took)))
            seen = b""
            while len(seen) < 4 or len(seen) < 4 + int.from_bytes(seen[:4], "big"):
                part = connection.recv(65536)
                if not part:
                    raise SystemExit("the server closed the neighbour's connection")
                seen += part
            took.append((time.perf_counter() - begun) * 1000)
            time.sleep(PAUSE_S)
    took.sort()
    return {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100], "max": took[-1], "sends": len(took)}


def histograms(server: Server) -> dict[str, list[tuple[float, float]]]:
    """Cumulative counts by bound, of the turns and of the broker's door."""
    with urlopen(f"http://{server.doors['metrics']}/metrics", timeout=30) as page:  # our own server
        text = page.read().decode()
    wanted = {"turn": r"gantry_turn_seconds_bucket\{", "answer": r'gantry_answer_seconds_bucket\{door="broker",'}
    return {
        key: [
            (float(bound), float(count)) for bound, count in re.findall(rf'^{mark}le="([^"]+)"\}} (\S+)$', text, re.M)
        ]
        for key, mark in wanted.items()
    }


def p99_ms(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> float:
    """Upper bound of the bucket that holds the 99th of a hundred between two readings."""
    counts = [(bound, count - old) for (bound, count), (_, old) in zip(after, before, strict=True)]
    total = counts[-1][1]
    return next((bound * 1000 for bound, count in counts if count >= total * 0.99), 0.0) if total else 0.0


def processor(server: Server) -> tuple[int, int]:
    """Nanoseconds for which the loop's thread had a processor, and for which it waited for one."""
    had, waited, _ = Path(f"/proc/{server.pid}/schedstat").read_text().split()
    return int(had), int(waited)


def beside(server: Server, name: str, seconds: float) -> dict[str, Any]:
    """The neighbour's figures while an attack goes on."""
    if name == f"AMQP publish to {QUEUES} queues":
        declare_fanout(server.doors)
    receivers: list[multiprocessing.Process] = []
    if name.endswith("receivers"):
        ready = multiprocessing.Event()
        receivers.append(multiprocessing.Process(target=mqtt_receivers, args=(server.doors, ready), daemon=True))
        receivers[0].start()
        ready.wait()
    processes = (
        [multiprocessing.Process(target=crowd, args=(server.doors,), daemon=True)]
        if name == CROWD
        else [multiprocessing.Process(target=attack, args=(server.doors, name), daemon=True) for _ in range(CLIENTS)]
    )
    for process in processes:
        process.start()
    try:
        time.sleep(SETTLE_S)
        before, (had, waited) = histograms(server), processor(server)
        found: dict[str, Any] = neighbour(server, seconds)
        after, (had_after, waited_after) = histograms(server), processor(server)
        waited = waited_after - waited
        found["waited"] = waited / max(had_after - had + waited, 1)
        found["alive"] = sum(process.is_alive() for process in processes)
    finally:
        for process in processes + receivers:
            process.terminate()
            process.join()
    for key, old in before.items():
        found[f"{key}_p99"] = p99_ms(old, after[key])
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench fair", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--only", nargs="+", default=[], help="attacks whose name contains one of these words")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args(arguments)
    names = [
        name for name in (*ATTACKS, CROWD) if not args.only or any(word.lower() in name.lower() for word in args.only)
    ]
    table = Table("beside", "p50 ms", "p99 ms", "max ms", "allowed p50 / p99", "turns p99", "answers p99", "waited", "")
    figures: dict[str, Any] = {}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gantry-fair-") as place:
        for name in names:
            sys.stderr.write(f"{name} ...\n")
            directory = Path(place) / str(len(figures))
            directory.mkdir()
            with gantry(directory) as server:
                with door(server.doors, "broker") as connection:
                    create_topic(connection, TOPIC, 4)
                neighbour(server, SETTLE_S)
                alone = neighbour(server, args.seconds)
                found = beside(server, name, args.seconds)
            allowed = {key: max(alone[key] * TIMES_MAX, FLOOR_MS) for key in ("p50", "p99")}
            good = found["alive"] > 0 and all(found[key] <= limit for key, limit in allowed.items())
            failed += not good
            figures[name] = {"alone": alone, "beside": found, "good": good}
            table.add_row(
                name, *[f"{found[key]:.1f} ({alone[key]:.2f})" for key in ("p50", "p99", "max")],
                f"{allowed['p50']:.0f} / {allowed['p99']:.0f}", f"{found['turn_p99']:g}", f"{found['answer_p99']:g}", f"{found['waited']:.0%}",
                "ok" if good else "missed" if found["alive"] else "the attackers were cut off",
            )  # fmt: skip
    wide_console().print(table)
    sys.stdout.write(
        "in parentheses: alone; waited: of the time in which the server had work, how much it waited for a processor that others had\n"
    )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))
    return 1 if failed else 0
