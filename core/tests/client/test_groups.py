"""Pull consumers as members of a group, and the administration of groups, against a running server."""

import time

import pytest

from core.tests.client.client_runs import collector, make, moment, run, until
from gantrymq.client import Admin, OutMessage, Producer, PullConsumer, ReceivedMessage
from gantrymq.client.pushing import pull_run
from gantrymq.model.errors import ErrorCode, GantryError


async def fill(nameserver: str, topic: str, count: int, queues: int = 4) -> None:
    await make(nameserver, topic, queues)
    async with Producer(nameserver) as producer:
        await producer.send_many([OutMessage(topic, b"%d" % n) for n in range(count)])


async def drain(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    while len(got) < count:
        more = await consumer.pull(wait_s=30)
        assert more
        got += more
    return got


def test_subscribed_pull_consumers_share_a_topic(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 40)
        async with PullConsumer(nameserver, group=topic) as one:
            await one.subscribe(topic)
            assert len(await drain(one, 40)) == 40
            async with PullConsumer(nameserver, group=topic) as two:
                await two.subscribe(topic)
                await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)
                async with Producer(nameserver) as producer:
                    await producer.send_many([OutMessage(topic, b"%d" % n) for n in range(40, 60)])
                seen: set[bytes] = set()  # what a queue's last pull brought comes again where it moved meanwhile
                while not seen >= {b"%d" % n for n in range(40, 60)}:
                    for consumer in (one, two):
                        seen |= {message.body for message in await consumer.pull(wait_s=0.1)}
            await until(lambda: len(one.assignment()) == 4)
        async with Admin(nameserver) as admin:
            assert await admin.lag(topic, topic) == 0

    run(main())


def test_what_was_being_read_when_it_failed_comes_again(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 10, 1)

        async def fail() -> None:
            async with PullConsumer(nameserver, group=topic) as consumer:
                await consumer.subscribe(topic)
                assert len(await consumer.pull(4)) == 4
                assert len(await consumer.pull(4)) == 4
                raise ValueError("stop")

        with pytest.raises(ValueError, match="stop"):
            await fail()
        async with Admin(nameserver) as admin:
            assert await admin.lag(topic, topic) == 6

    run(main())


def test_paused_queues_give_nothing(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 8, 2)
        async with PullConsumer(nameserver, group=topic) as consumer:
            await consumer.subscribe(topic)
            first, second = consumer.assignment()
            consumer.pause([first])
            assert {message.queue_id for message in await drain(consumer, 4)} == {second.queue_id}
            consumer.resume([first])
            assert {message.queue_id for message in await drain(consumer, 4)} == {first.queue_id}

    run(main())


def test_assigning_and_subscribing_exclude_each_other(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 1)
        async with PullConsumer(nameserver, group=topic) as consumer:
            await consumer.subscribe(topic)
            with pytest.raises(GantryError, match="cannot be assigned"):
                await consumer.assign(topic)
        async with PullConsumer(nameserver, group=topic + "_2") as consumer:
            await consumer.assign(topic)
            with pytest.raises(GantryError, match="cannot subscribe"):
                await consumer.subscribe(topic)

    run(main())


def test_groups_and_their_members(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 1)
        async with Admin(nameserver) as admin:
            assert await admin.create_group(topic, reconsume_max=3)
            assert topic in await admin.groups()
            assert await admin.members(topic) == []
            async with PullConsumer(nameserver, group=topic) as consumer:
                await consumer.subscribe(topic)
                (member,) = await admin.members(topic)
                assert (member.client_id, member.language) == (consumer.client.members.client_id, "PYTHON")
            await admin.delete_group(topic)
            assert topic not in await admin.groups()

    run(main())


def test_offsets_of_a_group_that_is_away_are_reset(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 10, 1)
        await moment()
        between = time.time_ns() // 1_000_000
        async with Producer(nameserver) as producer:
            await producer.send_many([OutMessage(topic, b"") for _ in range(5)])
        async with Admin(nameserver) as admin:
            (row,) = await admin.progress(topic, topic)
            assert (row.committed, row.min_offset, row.max_offset, row.lag) == (None, 0, 15, 15)
            for to, lag in (("latest", 0), ("earliest", 15), (between, 5)):
                await admin.reset_offsets(topic, topic, to)
                assert await admin.lag(topic, topic) == lag
            with pytest.raises(GantryError) as caught:
                await admin.reset_offsets(topic, topic, "yesterday")
            assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT

    run(main())


def test_offsets_of_a_running_consumer_are_reset(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 10, 2)
        consumer, got = collector(nameserver, topic)
        async with consumer, Admin(nameserver) as admin:
            await until(lambda: len(got) == 10)
            await consumer.reset({queue: 2 for queue in consumer.queues if queue.topic == topic})
            await until(lambda: len(got) == 16)
            await consumer.commit()
            assert await admin.lag(topic, topic) == 0
            got.clear()
            # The rebalance sees it first: what it writes is the new offset, not what was done here.
            consumer.members_changed()
            await consumer.reset({queue: 5 for queue in consumer.queues if queue.topic == topic})
            await consumer.reset({queue: 4 for queue in consumer.queues if queue.topic == topic})
            await until(lambda: len(got) == 2)

    run(main())


def test_an_orderly_consumer_is_reset(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 10, 1)
        consumer, got = collector(nameserver, topic, orderly=True)
        async with consumer:
            await until(lambda: len(got) == 10)
            await consumer.reset({queue: 7 for queue in consumer.queues if queue.topic == topic})
            await until(lambda: len(got) == 13)
        assert got[10:] == [b"7", b"8", b"9"]

    run(main())


def test_a_running_consumer_hears_of_a_reset_by_the_broker(
    nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_run, "PULL_WAIT_S", 0.2)  # told with the answer to the next pull

    async def main() -> None:
        await fill(nameserver, topic, 10, 2)
        consumer, got = collector(nameserver, topic)
        async with consumer, Admin(nameserver) as admin:
            await until(lambda: len(got) == 10)
            await consumer.commit()
            await admin.reset_offsets(topic, topic, "earliest")
            await until(lambda: len(got) == 20)
            await consumer.commit()
            assert await admin.lag(topic, topic) == 0

    run(main())
