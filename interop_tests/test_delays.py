"""Delayed messages over real sockets, with a kill in the middle: each comes, none before its time."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.client.messages import OutMessage
from gantrymq.client.producing.producer import Producer
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import GantryError
from gantrymq.remoting.codec import Command, FrameReader, encode
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

TOPIC = "Later"


@pytest.fixture(params=["async", "sync"])
def gantry(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gantry]:
    server = Gantry(tmp_path, settings=(f"store.flush={request.param}",))
    server.start()
    try:
        yield server
    finally:
        for process in server.processes:
            process.kill()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(nameserver: str, messages: list[tuple[bytes, dict[str, str]]]) -> None:
    async def run() -> None:
        async with Producer(nameserver) as producer:
            await producer.send_many([OutMessage(TOPIC, body, tag="a", properties=pairs) for body, pairs in messages])

    asyncio.run(run())


def received(nameserver: str) -> list[ReceivedMessage]:
    async def run() -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async with PullConsumer(nameserver, group="lookers") as consumer:
            try:
                queues = await consumer.queues(TOPIC)
            except GantryError:  # not registered yet (again)
                return []
            for queue in queues:
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull_queue(queue, offset, 32)
                    found += result.messages
                    offset = result.next_offset
        return found

    return asyncio.run(run())


def test_everything_comes_once_it_is_due_also_after_a_kill(gantry: Gantry) -> None:
    nameserver = gantry.doors["nameserver"]
    start = now_ms()
    due = {b"level": start + 1_000, b"late": start + 5_000}
    wanted = [(b"level", {"DELAY": "1"}), (b"late", {"DELAY": "2"})]
    for number in range(40):
        body, at_ms = b"%d" % number, start + 300 + number * 100
        due[body] = at_ms
        wanted.append(
            (body, {"TIMER_DELIVER_MS": str(at_ms)} if number % 2 else {"TIMER_DELAY_MS": str(at_ms - start)})
        )
    send(nameserver, wanted)
    until(lambda: len(received(nameserver)) >= 10)
    gantry.kill_and_restart()
    until(lambda: {message.body for message in received(nameserver)} == set(due))
    found = received(nameserver)
    assert len(found) >= len(due)
    for message in found:
        assert message.store_ms >= due[message.body], message.body
        assert message.tag == "a"


def raw(gantry: Gantry, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    reader = FrameReader()
    with socket.create_connection(gantry.address("broker"), LIMIT_S) as sock:
        sock.sendall(encode(Command(code, fields, body, 1, 0, language=0), False))
        while True:
            found = reader.feed(sock.recv(65_536))
            if found:
                return found[0]


def test_a_recall_holds_across_a_kill(gantry: Gantry) -> None:
    start = now_ms()
    at_ms = start + 8_000  # time enough for three requests on any machine
    handles = []
    for key in ("keep", "take"):
        text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{at_ms}\x02"
        fields = {
            "a": "g",
            "b": TOPIC,
            "c": "TBW102",
            "d": "1",
            "e": "0",
            "f": "0",
            "g": str(start),
            "h": "0",
            "i": text,
        }
        answer = raw(gantry, 310, fields, key.encode())
        assert answer.code == 0, answer.remark
        handles.append(answer.fields["recallHandle"])
    assert base64.urlsafe_b64decode(handles[1]).split()[-1] == b"take"
    answer = raw(gantry, 370, {"producerGroup": "g", "topic": TOPIC, "recallHandle": handles[1]})
    assert (answer.code, answer.fields["msgId"]) == (0, "take")
    gantry.kill_and_restart()
    nameserver = gantry.doors["nameserver"]
    until(lambda: now_ms() > at_ms + 500 and received(nameserver))
    assert [message.body for message in received(nameserver)] == [b"keep"]
