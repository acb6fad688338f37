"""One store directory, two brokers in turn: a real RocketMQ 5.3.3 and ours, stopped cleanly or killed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.client.admin import Admin
from gantrymq.client.consumer import PullConsumer
from gantrymq.client.errors import BrokerError
from gantrymq.client.messages import OutMessage
from gantrymq.client.producer import Producer
from gantrymq.client.routes import MessageQueue
from gantrymq.model.errors import GantryError
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S, moment, until

HERE = Path(__file__).parent
PEER = HERE / "bench" / "peers" / "rocketmq.sh"
JAVA = HERE / "rocketmq_store"
SIZES = (
    "store.commitlog_file_size=65536",
    "store.consumequeue_file_size=2000",
    "store.index_slots=100",
    "store.index_entries=400",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not shutil.which("java") or not shutil.which("mvn"), reason="needs a JDK and Maven for the real broker"
    ),
]


def free_port(*around: int) -> int:
    """A port that is free, and those at these distances from it (a real broker also listens at -2 and +1)."""
    while True:
        held = [socket.socket()]
        try:
            held[0].bind(("127.0.0.1", 0))
            port = int(held[0].getsockname()[1])
            for distance in around:
                if distance:
                    held.append(socket.socket())
                    held[-1].bind(("", port + distance))
            return port
        except OSError:
            continue
        finally:
            for one in held:
                one.close()


class RealBroker:
    """RocketMQ with its NameServer on DIR/store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ns, self.port = free_port(0), free_port(-2, 0, 1)
        self.address = f"127.0.0.1:{self.ns}"
        self.extra = ""
        """More settings, `key=value;key=value`."""

    def run(self, *arguments: str) -> str:
        extra = "mappedFileSizeConsumeQueue=2000;maxHashSlotNum=100;maxIndexNum=400;mappedFileSizeTimerLog=52000;maxMessageSize=30000"
        extra = f"{extra};{self.extra}" if self.extra else extra
        env = {**os.environ, "RMQ_COMMITLOG_SIZE": "65536", "RMQ_XMX": "512m", "RMQ_BROKER_EXTRA": extra}
        done = subprocess.run(["bash", str(PEER), *arguments], env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> RealBroker:
        self.run("start", str(self.directory), str(self.ns), str(self.port))
        return self

    def stop(self) -> None:
        self.run("stop", str(self.directory))

    def kill(self) -> None:
        self.run("kill", str(self.directory))

    def topic(self, name: str, queues: int) -> None:
        self.run(
            "mqadmin",
            "updateTopic",
            "-n",
            self.address,
            "-b",
            f"127.0.0.1:{self.port}",
            "-t",
            name,
            "-r",
            str(queues),
            "-w",
            str(queues),
        )

    def java(self, program: str, *arguments: str) -> list[str]:
        classpath = self.run("classpath").strip()
        done = subprocess.run(
            ["java", "-cp", classpath, str(JAVA / program), self.address, *arguments],
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.splitlines()

    def consume(self, group: str, *topics: str) -> tuple[list[dict[str, Any]], dict[tuple[str, int], int]]:
        """(messages, committed offsets) as RocketMQ's client sees them."""
        lines = [json.loads(line) for line in self.java("Consume.java", group, *topics) if line.startswith("{")]
        committed = {(line["topic"], line["queueId"]): line["committed"] for line in lines if "committed" in line}
        return [line for line in lines if "committed" not in line], committed


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBroker]:
    broker = RealBroker(tmp_path / "data")
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def gantry(tmp_path: Path) -> Iterator[Gantry]:
    server = Gantry(tmp_path, settings=SIZES)
    try:
        yield server
    finally:
        for process in server.processes:
            process.kill()


def check(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", "store", "check", str(directory), "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def dumped(directory: Path, topic: str, queue: int) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "gantrymq",
        "store",
        "dump",
        str(directory),
        "--topic",
        topic,
        "--queue",
        str(queue),
        "--from",
        "0",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


async def queues_of(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    """As soon as the nameserver knows the topic: a broker that has just started, or has just made it, tells it a little later."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_S
    while True:
        try:
            return await consumer.queues(topic)
        except GantryError:
            if loop.time() > end:
                raise
        await moment()


async def all_of(
    nameserver: str, topic: str, group: str = ""
) -> tuple[dict[tuple[int, int], bytes], dict[int, int | None]]:
    """(bodies by place, committed offsets by queue) as our client sees them."""
    found: dict[tuple[int, int], bytes] = {}
    committed: dict[int, int | None] = {}
    async with PullConsumer(nameserver, group=group or "lookers") as consumer:
        for queue in await queues_of(consumer, topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull_queue(queue, offset, 32)
                found.update({(queue.queue_id, message.queue_offset): message.body for message in result.messages})
                offset = result.next_offset
            committed[queue.queue_id] = await consumer.committed(queue)
    return found, committed


def test_a_killed_real_broker_is_taken_over(real: RealBroker, gantry: Gantry, tmp_path: Path) -> None:
    real.start()
    for topic, queues in (("Plain", 2), ("Big", 1), ("Delayed", 1), ("Light", 1), ("Gone", 1), ("Decided", 1)):
        real.topic(topic, queues)
    real.java("Produce.java", "all")
    theirs, _ = real.consume("lookers", "Plain", "Decided", "Light")
    written = until(
        lambda: (tmp_path / "data/store/config/lmqConsumerOffset.json").read_text().count("Plain@readers"),
        ignored=(FileNotFoundError,),
    )
    assert written
    real.kill()
    check(tmp_path / "data" / "store")
    gantry.start()
    nameserver = gantry.doors["nameserver"]
    for topic in ("Plain", "Decided", "Light"):
        found, committed = asyncio.run(all_of(nameserver, topic, "readers"))
        expected = {
            (row["queueId"], row["queueOffset"]): base64.b64decode(row["body"])
            for row in theirs
            if row["topic"] == topic
        }
        assert found == expected
        if topic == "Plain":
            assert committed == {0: 17, 1: 17}
    light, _ = asyncio.run(all_of(nameserver, "%LMQ%alpha"))
    assert len(light) >= 2
    gantry.stop()
    check(tmp_path / "data" / "store")


async def load(nameserver: str, bodies: list[bytes], acknowledged: list[bytes]) -> None:
    async with Producer(nameserver) as producer:
        for body in bodies:
            try:
                await producer.send(OutMessage("Plain", body, tag="load", keys=[body.decode()]))
            except (GantryError, BrokerError, OSError):
                return
            acknowledged.append(body)


def make_topic(gantry: Gantry, tmp_path: Path) -> str:
    """Topic Plain; returns when the nameserver knows it and its export is there, which may take a second."""
    nameserver = gantry.doors["nameserver"]

    async def create() -> None:
        async with Admin(nameserver) as admin:
            await admin.create_topic("Plain", 4)

    asyncio.run(create())
    path = tmp_path / "data/store/config/topics.json"
    until(lambda: path.exists() and '"Plain"' in path.read_text())
    return nameserver


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_real_broker_takes_over_ours_and_gives_it_back(
    real: RealBroker, gantry: Gantry, tmp_path: Path, how: str
) -> None:
    gantry.start()
    session = Paho(gantry, "keeper", False).start()  # a light queue, so that records name %LMQ%~ queues
    session.subscribe(("Plain/#", 1))
    session.stop()
    nameserver = make_topic(gantry, tmp_path)
    acknowledged: list[bytes] = []
    bodies = [b"%d:" % number + b"x" * (number % 300) for number in range(3000)]
    if how == "stop":
        asyncio.run(load(nameserver, bodies[:400], acknowledged))
        gantry.stop()
        gantry.processes.clear()
    else:
        writer = threading.Thread(target=lambda: asyncio.run(load(nameserver, bodies, acknowledged)))
        writer.start()
        until(lambda: len(acknowledged) > 400)
        gantry.processes[0].kill()
        writer.join()
    check(tmp_path / "data" / "store")
    real.start()
    rows, _ = real.consume("lookers", "Plain")
    assert set(acknowledged) <= {base64.b64decode(row["body"]) for row in rows}
    for queue in range(4):
        ours = [(row["queueOffset"], row["body"]) for row in dumped(tmp_path / "data" / "store", "Plain", queue)]
        theirs = [(row["queueOffset"], row["body"]) for row in rows if row["queueId"] == queue]
        assert theirs == ours[: len(theirs)]
        assert len(theirs) == len(ours)
    real.java("Produce.java", "more")
    more, _ = real.consume("lookers", "Plain")
    (real.stop if how == "stop" else real.kill)()
    check(tmp_path / "data" / "store")
    gantry.start()
    found, _ = asyncio.run(all_of(gantry.doors["nameserver"], "Plain"))
    assert found == {(row["queueId"], row["queueOffset"]): base64.b64decode(row["body"]) for row in more}
    assert len(more) == len(rows) + 31
    gantry.stop()
    gantry.processes.clear()
    check(tmp_path / "data" / "store")


async def commit(nameserver: str, topic: str, group: str, offset: int) -> None:
    async with PullConsumer(nameserver, group=group) as consumer:
        await consumer.commit(dict.fromkeys(await consumer.queues(topic), offset))


def test_offsets_go_both_ways(real: RealBroker, gantry: Gantry, tmp_path: Path) -> None:
    gantry.start()
    nameserver = make_topic(gantry, tmp_path)
    asyncio.run(load(nameserver, [b"%d" % number for number in range(100)], []))
    asyncio.run(commit(nameserver, "Plain", "walkers", 11))
    # The last file of an export, and the one that a broker with enableLmq reads.
    path = tmp_path / "data/store/config/lmqConsumerOffset.json"
    until(lambda: path.exists() and "Plain@walkers" in path.read_text())
    gantry.processes[0].kill()
    gantry.processes.clear()
    real.start()
    _, committed = real.consume("walkers", "Plain")
    assert committed == {("Plain", queue): 11 for queue in range(4)}
    real.java("Produce.java", "more")
    real.stop()
    gantry.start()
    _, ours = asyncio.run(all_of(gantry.doors["nameserver"], "Plain", "walkers"))
    assert ours == dict.fromkeys(range(4), 11)
    gantry.stop()
    gantry.processes.clear()
