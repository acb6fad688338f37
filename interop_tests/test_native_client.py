"""The native Python client: one script against ours and against a real RocketMQ 5.3.3, with the same outcome; brokers and nameservers that go away
in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.client import (
    DEAD_LETTER,
    Admin,
    Client,
    Fate,
    OutMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SimpleConsumer,
)
from gantrymq.model.errors import GantryError
from interop_tests.real_broker import REAL_BROKER, peer
from interop_tests.running import Gantry, free_port
from interop_tests.waiting import LIMIT_S, moment, until_async

pytestmark = [pytest.mark.slow]


class Ours:
    """Nameserver and broker in processes of their own."""

    def __init__(self, directory: Path) -> None:
        self._gantry = Gantry(directory, "separated")

    def start(self) -> None:
        self._gantry.start()
        self.nameserver = self._gantry.doors["nameserver"]

    def kill(self, role: str) -> None:
        self._gantry.process(role).kill()

    def restart(self, role: str) -> None:
        self._gantry.process(role).start()

    def stop(self) -> None:
        self._gantry.stop()


class RocketMQ:
    """The real one, from its published Java artifacts."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._ports = [str(free_port()), str(free_port(-2, 1))]
        self.nameserver = f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        peer("start", self._directory, *self._ports)

    @staticmethod
    def _role(role: str) -> str:
        return "namesrv" if role == "nameserver" else role

    def kill(self, role: str) -> None:
        peer("kill", self._directory, self._role(role))

    def restart(self, role: str) -> None:
        peer("start", self._directory, *self._ports, RMQ_ROLES=self._role(role))

    def stop(self) -> None:
        peer("kill", self._directory)


@pytest.fixture(scope="module", params=["gantry", pytest.param("rocketmq", marks=REAL_BROKER)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours | RocketMQ]:
    directory = tmp_path_factory.mktemp(request.param)
    cluster = Ours(directory) if request.param == "gantry" else RocketMQ(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 800))


async def create(nameserver: str, *topics: str) -> None:
    async with Admin(nameserver) as admin:
        for topic in topics:
            await admin.create_topic(topic)


async def drain(nameserver: str, topic: str, count: int, **settings: str) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    async with PullConsumer(nameserver, group=f"{topic}_drain", **settings) as consumer:
        await consumer.assign(topic)
        while len(got) < count:
            more = await consumer.pull(wait_s=LIMIT_S)
            assert more, got
            got += more
    return got


def test_sending(cluster: Ours | RocketMQ) -> None:
    async def main() -> None:
        names = ("plain", "batched", "delayed", "bought")
        await create(cluster.nameserver, *names)
        async with Producer(cluster.nameserver, group="senders") as producer:
            sent = await producer.send("plain", b"x" * 10_000, tag="a", keys="k1 k2", properties={"p": "v"})
            piped = await producer.send_many([OutMessage("plain", b"%d" % n, sharding_key="s") for n in range(100)])
            await producer.send_one_way(OutMessage("plain", b"one way"))
            batch = await producer.send_batch([OutMessage("batched", b"%d" % n, f"t{n}") for n in range(10)])
            gone = await producer.send(OutMessage("delayed", b"recalled", deliver_after_s=600))
            await producer.send(OutMessage("delayed", b"later", deliver_after_s=2))
            await producer.send(OutMessage("delayed", b"level", delay_level=1))
            await producer.recall(gone)
            local = {b"yes": Fate.COMMIT, b"no": Fate.ROLLBACK}
            for body in local:
                result = await producer.send_transaction(
                    OutMessage("bought", body), lambda message, _: local[message.body]
                )
                assert result.fate is local[body]
        first, *_ = [m for m in await drain(cluster.nameserver, "plain", 102) if m.keys]
        assert (first.message_id, first.body, first.tag, first.property("p")) == (
            sent.message_id, b"x" * 10_000, "a", "v",
        )  # fmt: skip
        assert len({result.queue for result in piped}) == 1
        got = await drain(cluster.nameserver, "batched", 10)
        assert [(m.message_id, m.tag) for m in got] == [(r.message_id, f"t{n}") for n, r in enumerate(batch)]
        assert {m.body for m in await drain(cluster.nameserver, "delayed", 2)} == {b"later", b"level"}
        assert [m.body for m in await drain(cluster.nameserver, "bought", 1)] == [b"yes"]

    run(main())


def test_pushing(cluster: Ours | RocketMQ) -> None:
    async def main() -> None:
        await create(cluster.nameserver, "pushed", "ordered")
        got: list[tuple[bytes, int]] = []
        consumer = PushConsumer(cluster.nameserver, group="pushed_g", start="earliest")

        async def handle(message: ReceivedMessage) -> None:
            got.append((message.body, message.reconsume_times))
            if message.body == b"again" and not message.reconsume_times:
                raise RetryLater(1)
            if message.body == b"never":
                raise RetryLater(DEAD_LETTER)

        consumer.subscribe("pushed", handle, sql="kind IN ('good', 'bad')")
        async with Producer(cluster.nameserver) as producer, consumer:
            await producer.send("pushed", b"ignored", properties={"kind": "other"})
            for body in (b"again", b"never", b"fine"):
                await producer.send("pushed", body, properties={"kind": "good"})
            await until_async(lambda: len(set(got)) == 4)
            second = PushConsumer(cluster.nameserver, group="pushed_g", start="earliest")
            second.subscribe("pushed", handle, sql="kind IN ('good', 'bad')")
            async with second:
                await until_async(
                    lambda: [sum(q.topic == "pushed" for q in c.queues) for c in (consumer, second)] == [2, 2]
                )
            await until_async(lambda: sum(queue.topic == "pushed" for queue in consumer.queues) == 4)
        # At least once: a queue that moves between members may bring again what was not committed yet.
        assert set(got) == {(b"again", 0), (b"again", 1), (b"fine", 0), (b"never", 0)}
        assert {m.body for m in await drain(cluster.nameserver, "%DLQ%pushed_g", 1)} == {b"never"}

        places: list[tuple[int, int]] = []
        orderly = PushConsumer(cluster.nameserver, group="ordered_g", start="earliest", orderly=True, suspend_s=0.05)

        async def handle_in_order(message: ReceivedMessage) -> None:
            if message.queue_offset == 1 and not message.reconsume_times:
                raise ValueError("first time")
            places.append((message.queue_id, message.queue_offset))

        orderly.subscribe("ordered", handle_in_order)
        async with Producer(cluster.nameserver) as producer, orderly:
            await producer.send_many([OutMessage("ordered", b"%d" % n) for n in range(40)])
            await until_async(lambda: len(places) == 40)
        for queue_id in range(4):
            assert [offset for queue, offset in places if queue == queue_id] == list(range(10))

    run(main())


def test_requests_pop_and_administration(cluster: Ours | RocketMQ) -> None:
    async def main() -> None:
        await create(cluster.nameserver, "asked", "popped")
        async with Client(cluster.nameserver) as client, Producer(client=client) as server:
            consumer = PushConsumer(client=client, group="asked_g", start="earliest")

            async def answer(message: ReceivedMessage) -> None:
                await server.reply(message, message.body[::-1])

            consumer.subscribe("asked", answer)
            async with consumer, Producer(cluster.nameserver) as asker:
                assert (await asker.request("asked", b"abc", timeout_s=LIMIT_S)).body == b"cba"

        async with Producer(cluster.nameserver) as producer:
            await producer.send_many([OutMessage("popped", b"%d" % n) for n in range(20)])
        async with SimpleConsumer(cluster.nameserver, group="popped_g") as popper:
            seen: dict[bytes, int] = {}
            while len(seen) < 20 or b"7" not in {body for body, times in seen.items() if times > 1}:
                for received in await popper.receive("popped", invisible_s=LIMIT_S, wait_s=5):
                    seen[received.body] = seen.get(received.body, 0) + 1
                    if received.body == b"7" and seen[b"7"] == 1:
                        await popper.change_invisible(received, 5)
                    else:
                        await popper.ack(received)
            assert {body: times for body, times in seen.items() if times > 1} == {b"7": 2}

        async with Admin(cluster.nameserver) as admin:
            async with PullConsumer(cluster.nameserver, group="lite_g") as lite:
                await lite.subscribe("popped")
                count = 0
                while count < 20:
                    count += len(await lite.pull(wait_s=LIMIT_S))
                (member,) = await admin.members("lite_g")
                assert member.client_id == lite.client.members.client_id
            assert await admin.lag("lite_g", "popped") == 0
            assert "lite_g" in await admin.groups()
            await admin.reset_offsets("lite_g", "popped", "earliest")

    run(main())


def test_a_broker_that_is_killed_and_started_again(cluster: Ours | RocketMQ) -> None:
    async def main() -> None:
        await create(cluster.nameserver, "survivors")
        got: set[bytes] = set()
        consumer = PushConsumer(cluster.nameserver, group="survivors_g", start="earliest")

        async def handle(message: ReceivedMessage) -> None:
            got.add(message.body)

        consumer.subscribe("survivors", handle)
        acknowledged: list[bytes] = []
        async with Producer(cluster.nameserver, timeout_s=3.0) as producer, consumer:

            async def send(count: int) -> None:
                for n in range(len(acknowledged), len(acknowledged) + count):
                    while True:
                        try:
                            await producer.send("survivors", b"%d" % n)
                            break
                        except GantryError:
                            await moment()
                    acknowledged.append(b"%d" % n)

            await send(200)
            await asyncio.to_thread(cluster.kill, "broker")
            sending = asyncio.ensure_future(send(200))
            await asyncio.to_thread(cluster.restart, "broker")
            await sending
            await until_async(lambda: got >= set(acknowledged))
            assert len(acknowledged) == 400

    run(main())


def test_all_nameservers_lost(cluster: Ours | RocketMQ) -> None:
    async def main() -> None:
        await create(cluster.nameserver, "orphans")
        got: set[bytes] = set()
        consumer = PushConsumer(cluster.nameserver, group="orphans_g", start="earliest")

        async def handle(message: ReceivedMessage) -> None:
            got.add(message.body)

        consumer.subscribe("orphans", handle)
        async with Producer(cluster.nameserver) as producer, consumer:
            await producer.send("orphans", b"before")
            await asyncio.to_thread(cluster.kill, "nameserver")
            try:
                for n in range(50):
                    await producer.send("orphans", b"%d" % n)
                await producer.client.routes.route("orphans", fresh=True)  # the old one
                await until_async(lambda: len(got) == 51)
            finally:
                await asyncio.to_thread(cluster.restart, "nameserver")
            await producer.send("orphans", b"after")
            await until_async(lambda: b"after" in got)

    run(main())


def test_a_lost_decision_is_asked_for(tmp_path: Path) -> None:
    settings = ("transactions.timeout_ms=0", "transactions.check_interval_ms=200")
    gantry = Gantry(tmp_path, settings=settings).start()
    decided = {b"yes": Fate.COMMIT, b"no": Fate.ROLLBACK}
    asked: list[bytes] = []

    async def check(message: ReceivedMessage) -> Fate:
        asked.append(message.body)
        return decided[message.body] if asked.count(message.body) > 1 else Fate.UNKNOWN

    async def nobody_knows(message: OutMessage, transaction_id: str) -> Fate:
        return Fate.UNKNOWN

    async def main() -> None:
        nameserver = gantry.doors["nameserver"]
        await create(nameserver, "lost")
        async with Producer(nameserver, group="losers", timeout_s=3) as first:  # dies before it knows, and has no check
            for body in decided:
                await first.send_transaction(OutMessage("lost", body), nobody_knows)
        async with Producer(nameserver, group="losers", check=check) as second:
            await second.start("lost")
            assert [message.body for message in await drain(nameserver, "lost", 1)] == [b"yes"]
            await until_async(lambda: asked.count(b"no") >= 2)
            assert await read_all(nameserver, "lost_g", "lost") == [b"yes"]

    try:
        run(main())
    finally:
        gantry.stop()


async def read_all(nameserver: str, group: str, topic: str) -> list[bytes]:
    """Everything that is there now."""
    async with PullConsumer(nameserver, group=group) as consumer:
        await consumer.assign(topic)
        got: list[bytes] = []
        while more := await consumer.pull(wait_s=0):
            got += [message.body for message in more]
        return got
