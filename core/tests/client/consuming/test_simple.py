"""Simple consumers: receipts from a pop's answer, and a running server."""

import asyncio

import pytest

from core.tests.client.client_runs import make, run, until
from core.tests.client.fake_cluster import make_record
from gantrymq.client import OutMessage, Producer, Received, SimpleConsumer, decode_records
from gantrymq.client.consuming.simple import receipts_of, retry_flag
from gantrymq.model.errors import GantryError

POP = {"popTime": "1000", "invisibleTime": "60000", "reviveQid": "3"}


def handles(fields: dict[str, str], *places: tuple[str, int, int], properties: bytes = b"") -> list[str]:
    raw = b"".join(make_record(topic, queue, offset, b"", properties) for topic, queue, offset in places)
    return [receipt.handle for receipt in receipts_of({**POP, **fields}, decode_records(raw), "g", "broker-a")]


def test_handles_are_made_of_the_offsets_in_the_answer() -> None:
    fields = {"startOffsetInfo": "0 1 10;1 0 5", "msgOffsetInfo": "0 1 10,12;1 0 5"}
    assert handles(fields, ("t", 1, 10), ("t", 1, 12), ("%RETRY%g_t", 0, 5)) == [
        "10 1000 60000 3 0 broker-a 1 10",
        "10 1000 60000 3 0 broker-a 1 12",
        "5 1000 60000 3 1 broker-a 0 5",
    ]


def test_an_answer_without_offsets_is_about_one_message_each() -> None:
    assert handles({}, ("t", 1, 10)) == ["10 1000 60000 3 0 broker-a 1 10"]


def test_a_handle_in_the_message_counts_where_the_answer_names_none() -> None:
    assert handles({}, ("t", 1, 10), properties=b"POP_CK\x011 2 3 4 0 b 1 10\x02") == ["1 2 3 4 0 b 1 10"]


def test_kinds_of_topics() -> None:
    assert [retry_flag(name, "g") for name in ("t", "%RETRY%g_t", "%RETRY%g+t")] == ["0", "1", "2"]


@pytest.mark.parametrize("fields", [{"startOffsetInfo": "0 1"}, {"msgOffsetInfo": "0 1 x"}, {"popTime": "soon"}])
def test_an_answer_that_makes_no_sense(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"values to unpack|invalid literal"):
        handles(fields, ("t", 1, 10))


async def fill(nameserver: str, topic: str, count: int, tags: str = "a", queues: int = 4) -> None:
    await make(nameserver, topic, queues)
    async with Producer(nameserver) as producer:
        await producer.send_many([OutMessage(topic, b"%d" % n, tags[n % len(tags)]) for n in range(count)])


async def receive(consumer: SimpleConsumer, topic: str, count: int, invisible_s: float = 600.0) -> list[Received]:
    got: list[Received] = []
    for _ in range(100):
        got += await consumer.receive(topic, invisible_s=invisible_s, wait_s=1)
        if len(got) >= count:
            break
    return got


def test_members_share_messages_and_what_is_acknowledged_does_not_come_back(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 60)
        async with SimpleConsumer(nameserver, group=topic) as one, SimpleConsumer(nameserver, group=topic) as two:
            got = await receive(one, topic, 20)
            got += await receive(two, topic, 60 - len(got))
            assert sorted(int(received.body) for received in got) == list(range(60))
            for received in got:
                await one.ack(received)  # any member may
            assert await two.receive(topic, wait_s=0) == []

    run(main())


def test_what_is_not_acknowledged_comes_back(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 2, queues=1)
        async with SimpleConsumer(nameserver, group=topic) as consumer:
            (first,) = await consumer.receive(topic, 1, invisible_s=600)
            (second,) = await consumer.receive(topic, 1, invisible_s=1.0)
            await consumer.ack(first)
            (again,) = await receive(consumer, topic, 1)
            assert again.body == second.body
            assert again.message.topic == topic
            await consumer.ack(again)

    run(main())


def test_the_invisible_time_changes_and_old_receipts_end(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 1, queues=1)
        async with SimpleConsumer(nameserver, group=topic) as consumer:
            (received,) = await receive(consumer, topic, 1, invisible_s=600)
            old = received.receipt
            new = await consumer.change_invisible(received, 1.0)
            assert received.receipt is new
            assert new.handle != old.handle
            (again,) = await receive(consumer, topic, 1)
            await consumer.ack(again)
            assert await consumer.receive(topic, wait_s=0) == []

    run(main())


def test_filters(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 30, "abc")
        async with SimpleConsumer(nameserver, group=topic) as consumer:
            consumer.subscribe(topic, tags="a || c")
            got = await receive(consumer, topic, 20)
            assert sorted(received.message.tag for received in got) == ["a"] * 10 + ["c"] * 10

    run(main())


def test_receive_waits_for_a_message(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 0)
        async with SimpleConsumer(nameserver, group=topic) as consumer, Producer(nameserver) as producer:
            waiting = asyncio.ensure_future(consumer.receive(topic, wait_s=30))
            await until(lambda: consumer.client.links.open_links())
            await producer.send(topic, b"now")
            assert [received.body for received in await waiting] == [b"now"]

    run(main())


def test_where_a_group_may_begin(topic: str) -> None:
    with pytest.raises(GantryError, match="allowed are"):
        SimpleConsumer("127.0.0.1:1", start="yesterday")
