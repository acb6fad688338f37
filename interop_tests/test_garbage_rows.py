"""Rows that nobody can read, in every table: refused from whoever sends them, put aside at a start, named, listed, removed; everything else works."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import httpx
import msgspec
import pika
import pytest

from gantrymq.broker.tables.tables import item_message
from gantrymq.client import BlockingProducer
from gantrymq.clock import SystemClock
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from gateways.tests.test_row_checks import GARBAGE as DOORS
from interop_tests.bench import remoting_wire
from interop_tests.commands import gantry
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S, until
from tests.broker.test_own_rows import GARBAGE as OWN

GARBAGE = {**DOORS, **OWN, "ce_subscription": [("x", b"{"), ("y", b"[]"), ("z", b"\xff")]}
LISTED = {(table, key) for table, rows in {**DOORS, **OWN}.items() for key, _ in rows}
"""Events' subscriptions are shown by their door, as invalid ones."""
UNREAD = {"mqtt_bridge", "amqp_bridge_state"}
"""Read, and complained of, only where bridges are configured, or run."""
PUT, PUT_IF = 60030, 60032
MESSAGES = [b"%d" % number for number in range(5)]

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def ask(sock: socket.socket, code: int, body: object) -> tuple[int, bytes]:
    """Code and body of the answer to one request."""
    sock.sendall(remoting_wire.encode(code, 1, {}, msgspec.msgpack.encode(body)))
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
        part = sock.recv(65536)
        assert part, "the broker closed the connection"
        data += part
    answer = remoting_wire.decode(data[4:])
    return answer[0], answer[4]


def fill(server: Gantry) -> None:
    """Something behind every door, that waits."""
    paho = Paho(server, client_id="sleeper", clean=False).start()
    paho.subscribe(("sound/#", 1))
    paho.publish("kept/a", b"retained", retain=True)
    paho.stop()
    with pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp"))) as connection:
        channel = connection.channel()
        channel.exchange_declare("sound", "topic", durable=True)
        channel.queue_declare("sound-queue", durable=True)
        channel.queue_bind("sound-queue", "sound", "#")
    with BlockingProducer(server.doors["nameserver"], timeout_s=LIMIT_S) as producer:
        for body in MESSAGES:
            producer.send("sound", body, tag="a", sharding_key="one")


def check(server: Gantry) -> None:
    """It is there, and new things can be made; leaves as much behind as `fill`."""
    with pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp"))) as connection:
        channel = connection.channel()
        channel.queue_declare("sound-queue", passive=True)
        assert [until(lambda: channel.basic_get("sound-queue", auto_ack=True)[2]) for _ in MESSAGES] == MESSAGES
        channel.queue_declare("q", durable=True)  # its row may be one that nobody can read
    paho = Paho(server, client_id="sleeper", clean=False).start()
    assert [payload for _, payload in paho.receive(len(MESSAGES))] == MESSAGES
    paho.subscribe(("kept/#", 1))
    assert paho.receive(1) == [("kept/a", b"retained")]
    paho.client.unsubscribe("kept/#")
    paho.event("unsubscribe")
    paho.stop()
    answer = httpx.get("http://{}:{}/subscriptions".format(*server.address("cloudevents")))
    assert answer.status_code == 200
    with BlockingProducer(server.doors["nameserver"], timeout_s=LIMIT_S) as producer:
        for body in MESSAGES:
            producer.send("sound", body, tag="a", sharding_key="one")


def spoil(directory: Path) -> None:
    """What no wire takes: straight into the log of a stopped server."""
    store = MessageStore(OsFileSystem(), directory, StoreConfig(), SystemClock())
    store.load()
    rows = [item_message(table, key, value) for table, of_table in GARBAGE.items() for key, value in of_table]
    store.append(rows, [()] * len(rows))
    store.close()


def listed(directory: Path, *options: str) -> list[dict[str, object]]:
    done = gantry("store", "rows", str(directory), "--json", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_gateway_wire_takes_no_garbage(own_server: Gantry) -> None:
    fill(own_server)
    with socket.create_connection(own_server.address("broker"), LIMIT_S) as sock:
        for table, rows in {**DOORS, **OWN}.items():
            for key, value in rows:
                assert ask(sock, PUT, [table, [[key, value]]])[0] != 0, (table, key)
                assert ask(sock, PUT_IF, [table, [[key, None, value]]])[0] != 0, (table, key)
    own_server.kill_and_restart()
    assert "put aside" not in own_server.log()
    check(own_server)


def test_a_directory_with_garbage_in_every_table_starts(own_server: Gantry) -> None:
    fill(own_server)
    own_server.stop()
    data = own_server.directory / "data"
    spoil(data)
    assert {(row["table"], row["key"]) for row in listed(data)} == LISTED
    own_server.restart()
    for table, key in LISTED:
        assert table in UNREAD or f"row {key!r} of table {table} cannot be read" in own_server.log()
    check(own_server)
    own_server.kill_and_restart()
    check(own_server)
    own_server.stop()
    left = {(row["table"], row["key"]) for row in listed(data, "--remove")}
    assert left < LISTED  # some were replaced
    assert listed(data) == []
    own_server.mark_log()
    own_server.restart()
    assert "put aside" not in own_server.new_log()
    check(own_server)
