"""One store directory, two brokers in turn: a real RocketMQ 5.3.3 and ours, stopped cleanly or killed."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gantrymq.client.admin import Admin
from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.client.errors import BrokerError
from gantrymq.client.messages import OutMessage
from gantrymq.client.producing.producer import Producer
from gantrymq.model.errors import GantryError
from interop_tests.real_broker import REAL_BROKER, RealBroker, all_of, check, noted
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = REAL_BROKER


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


def test_a_killed_real_broker_is_taken_over(real: RealBroker, gantry: Gantry, tmp_path: Path) -> None:
    real.start()
    real.topic("Plain", queues=2)
    real.topic("Big", "Delayed", "Light", "Gone", "Decided", queues=1)
    real.java("Produce.java", "all")
    until(lambda: asyncio.run(all_of(real.address, "Decided"))[0], ignored=(GantryError,))  # decisions have no answer
    theirs, _ = real.consume("lookers", "Plain", "Decided", "Light")
    until(lambda: noted(tmp_path / "data", "Plain@readers") == {0: 17, 1: 17})
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


@pytest.mark.parametrize("how", ["stop", "kill", "kill, with CRCs of whole records"])
def test_the_real_broker_takes_over_ours_and_gives_it_back(
    real: RealBroker, gantry: Gantry, tmp_path: Path, how: str
) -> None:
    if "CRCs" in how:  # a record whose CRC it did not find right would end the log for it
        real.extra = "enabledAppendPropCRC=true;forceVerifyPropCRC=true"
        gantry.settings.append("--set=store.properties_crc=true")
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
    until(lambda: noted(tmp_path / "data", "Plain@walkers") == dict.fromkeys(range(4), 11))
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
