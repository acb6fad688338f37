"""A real RocketMQ 5.3.3 beside ours, on one store directory in turn. The fixtures `real` and `gantry` are made of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gantrymq.client.admin import Admin
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.model.dialect import DialectError, read_json
from gantrymq.model.errors import GantryError
from interop_tests.commands import gantry
from interop_tests.java import official
from interop_tests.java.official import PEER
from interop_tests.running import free_port
from interop_tests.waiting import LIMIT_S, moment

HERE = Path(__file__).parent
JAVA = HERE / "rocketmq_store"
SIZES = (
    "store.commitlog_file_size=65536",
    "store.consumequeue_file_size=2000",
    "store.index_slots=100",
    "store.index_entries=400",
)
"""Small files for ours, as RealBroker has them."""

REAL_BROKER = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.skipif(bool(official.missing()), reason=official.missing()),
]
"""Marks of tests that start one."""

LIMITS = {
    "RMQ_READY_S": "400",
    "RMQ_STOP_S": "300",
    "RMQ_XMX": "512m",
    "RMQ_XMX_OTHER": "192m",
    "RMQ_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
}
"""For a machine that does other work, too; the JVM compiles the quick way, as it runs for seconds."""
UNHURRIED = "brokerFastFailureEnable=false;osPageCacheBusyTimeOutMills=60000"
"""Likewise: by itself it refuses with SYSTEM_BUSY what waited for 200 ms, and all while a write takes longer than a second."""
RUN_S = 600.0


def peer(*arguments: str, **environment: str) -> str:
    """What rocketmq.sh printed; skips the test where RocketMQ cannot be had."""
    official.needed(official.peer_jars)
    extra = environment.get("RMQ_BROKER_EXTRA", "")
    environment["RMQ_BROKER_EXTRA"] = f"{UNHURRIED};{extra}" if extra else UNHURRIED
    done = subprocess.run(
        ["bash", str(PEER), *arguments],
        env=os.environ | LIMITS | environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class RealBroker:
    """RocketMQ with its NameServer on DIR/store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ns, self.port = free_port(), free_port(-2, 1)
        self.address = f"127.0.0.1:{self.ns}"
        self.extra = ""
        """More settings, `key=value;key=value`."""

    def run(self, *arguments: str) -> str:
        extra = "mappedFileSizeConsumeQueue=2000;maxHashSlotNum=100;maxIndexNum=400;mappedFileSizeTimerLog=52000;maxMessageSize=30000"
        extra = f"{extra};{self.extra}" if self.extra else extra
        return peer(*arguments, RMQ_COMMITLOG_SIZE="65536", RMQ_BROKER_EXTRA=extra)

    def start(self) -> RealBroker:
        self.run("start", str(self.directory), str(self.ns), str(self.port))
        return self

    def stop(self) -> None:
        self.run("stop", str(self.directory))

    def kill(self) -> None:
        self.run("kill", str(self.directory))

    def topic(self, *names: str, queues: int) -> None:
        """Made by our client: one command of the real tools takes a JVM. Returns when the nameserver knows them."""

        async def make() -> None:
            async with Admin(self.address) as admin:
                for name in names:
                    await admin.create_topic(name, queues)

        asyncio.run(make())

    def java(self, program: str, *arguments: str) -> list[str]:
        classpath = official.classes_of(JAVA / program, official.needed(official.peer_jars))
        done = subprocess.run(
            ["java", *official.PATIENT, "-cp", classpath, program.removesuffix(".java"), self.address, *arguments],
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.splitlines()

    def consume(self, group: str, *topics: str) -> tuple[list[dict[str, Any]], dict[tuple[str, int], int]]:
        """(messages, committed offsets) as RocketMQ's client sees them."""
        lines = [json.loads(line) for line in self.java("Consume.java", group, *topics) if line.startswith("{")]
        committed = {(line["topic"], line["queueId"]): line["committed"] for line in lines if "committed" in line}
        return [line for line in lines if "committed" not in line], committed


def check(directory: Path) -> None:
    """`gantry store check` finds nothing wrong."""
    done = gantry("store", "check", str(directory), "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def read_config(directory: Path, name: str) -> Any:
    """Also while a real broker writes it, which it does in place."""
    path = directory / "store" / "config" / name
    try:
        return {"offsetTable": {}} | read_json(path.read_bytes())
    except (FileNotFoundError, DialectError):
        return {"offsetTable": {}}


def noted(directory: Path, key: str) -> dict[int, int]:
    """Offsets by queue of `topic@group` in the file that either broker reads: a real one writes it every five seconds, whatever is being
    committed just then."""
    table = read_config(directory, "lmqConsumerOffset.json")["offsetTable"]
    return {int(queue): offset for queue, offset in table.get(key, {}).items()}


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
