"""Everything that a producer can send, against a running server."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from core.tests.client.client_runs import make, moment, run, until
from gantrymq.client import (
    Admin,
    Client,
    Fate,
    MessageQueue,
    OutMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from gantrymq.client.connecting import routes
from gantrymq.client.producing import batches, sending
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode


async def read(nameserver: str, topic: str, count: int) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    async with PullConsumer(nameserver, group=f"{topic}_read") as consumer:
        await consumer.assign(topic)
        while len(got) < count:
            more = await consumer.pull(wait_s=30)
            assert more, got
            got += more
    return got


def test_a_batch_is_one_request_and_its_messages_have_their_own_ids(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic)
        async with Producer(nameserver) as producer:
            messages = [OutMessage(topic, b"%d" % n, f"t{n}", f"k{n}", {"n": str(n)}) for n in range(5)]
            results = await producer.send_batch(messages)
        got = await read(nameserver, topic, 5)
        assert [(message.message_id, message.queue_offset) for message in got] == [
            (result.message_id, result.queue_offset) for result in results
        ]
        assert [(m.body, m.tag, m.keys, m.property("n")) for m in got] == [
            (b"%d" % n, f"t{n}", f"k{n}", str(n)) for n in range(5)
        ]
        assert [message.offset_message_id for message in got] == [result.offset_message_id for result in results]

    run(main())


def test_a_large_batch_becomes_several_requests(nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_MAX", 2)

    async def main() -> None:
        await make(nameserver, topic, 1)
        async with Producer(nameserver) as producer:
            results = await producer.send_batch([OutMessage(topic, b"%d" % n) for n in range(5)])
        assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]

    run(main())


@pytest.mark.parametrize(
    "second",
    [OutMessage("other", b""), OutMessage("t", b"", delay_level=1), OutMessage("t", b"", sharding_key="k")],
    ids=["topic", "delay", "sharding key"],
)
def test_what_cannot_share_a_batch(second: OutMessage) -> None:
    with pytest.raises(GantryError) as caught:
        batches.check_batch([OutMessage("t", b""), second])
    assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT
    with pytest.raises(GantryError):
        batches.check_batch([])


def test_sends_are_gathered(nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "HELD_BYTES_MAX", 4096)  # some have to wait for room

    async def main() -> None:
        await make(nameserver, topic, 1)
        async with Producer(nameserver, accumulate=True) as producer:
            results = await asyncio.gather(*[producer.send(topic, b"%03d" % n) for n in range(200)])
            delayed = await producer.send(OutMessage(topic, b"later", delay_level=1))
            assert delayed.recall_handle == ""
        assert sorted(result.queue_offset for result in results) == list(range(200))
        got = await read(nameserver, topic, 200)
        assert {message.message_id: message.body for message in got[:200]} == {
            result.message_id: b"%03d" % n for n, result in enumerate(results)
        }

    run(main())


def test_gathered_sends_fail_together(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "ASK_TIMEOUT_S", 0.2)

    async def main() -> None:
        async with Producer("127.0.0.1:1", accumulate=True, timeout_s=0.1, retries=0) as producer:
            results = await asyncio.gather(*[producer.send(topic, b"x") for _ in range(3)], return_exceptions=True)
        assert [type(result) for result in results] == [GantryError] * 3

    run(main())


def test_large_bodies_travel_compressed_where_that_helps(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        bodies = [b"x" * 100_000, bytes(range(256)) * 40, b"small"]
        async with Producer(nameserver) as producer:
            for body in bodies:
                await producer.send(topic, body)
        got = await read(nameserver, topic, 3)
        assert [message.body for message in got] == bodies
        assert [bool(message.sys_flag & sysflag.COMPRESSED) for message in got] == [True, True, False]
        assert len(got[0].raw_body) < 1000

    run(main())


def test_posted_sends_call_back(nameserver: str, topic: str) -> None:
    async def main() -> None:
        results: list[SendResult | GantryError] = []
        async with Producer(nameserver) as producer:
            for n in range(50):  # the first ones find neither route nor connection
                producer.post(OutMessage(topic, b"%d" % n), results.append)
            producer.post(OutMessage("no/topic", b""), results.append)
            await until(lambda: len(results) == 51)
            producer.post(OutMessage(topic, b"50"), results.append)
            await until(lambda: len(results) == 52)
        failed = [result for result in results if isinstance(result, GantryError)]
        assert [error.code for error in failed] == [ErrorCode.NAME_INVALID]
        assert len({result.message_id for result in results if isinstance(result, SendResult)}) == 51

    run(main())


def test_posted_bytes_have_a_limit(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "POSTED_BYTES_MAX", 10)
    monkeypatch.setattr(routes, "ASK_TIMEOUT_S", 0.1)

    async def main() -> None:
        results: list[SendResult | GantryError] = []
        async with Producer("127.0.0.1:1", retries=0) as producer:
            for size in (20, 1, 1):  # one message may be larger than the limit
                producer.post(OutMessage(topic, bytes(size)), results.append)
            codes = [result.code for result in results if isinstance(result, GantryError)]
            assert codes == [ErrorCode.BUSY, ErrorCode.BUSY]
            await until(lambda: len(results) == 3)
            producer.post(OutMessage(topic, b"x"), results.append)
            assert len(results) == 3  # there is room again

    run(main())


def test_selector_and_queue(nameserver: str, topic: str) -> None:
    def select(message: OutMessage, queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[len(message.body)]

    async def main() -> None:
        await make(nameserver, topic)
        async with Producer(nameserver, selector=select) as producer:
            assert (await producer.send(topic, b"12")).queue.queue_id == 2
            chosen = MessageQueue(topic, "broker-a", 3)
            broker = (await producer.send(topic, b"")).queue.broker
            chosen = MessageQueue(topic, broker, 3)
            assert (await producer.send(OutMessage(topic, b"", queue=chosen))).queue == chosen
            keyed = {(await producer.send(topic, b"x" * n, sharding_key="key")).queue for n in range(4)}
            assert len(keyed) == 1

    run(main())


def test_topics_that_are_sent_to_by_turns_each_use_all_their_queues(
    nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topics = [f"{topic}-{number}" for number in range(4)]
        for one in topics:
            await make(nameserver, one, 4)
        async with Producer(nameserver) as producer:
            for _ in range(2):
                used = [[(await producer.send(one, b"x")).queue.queue_id for one in topics] for _ in range(4)]
                for queues in zip(*used, strict=True):
                    assert sorted(queues) == [0, 1, 2, 3]
            monkeypatch.setattr(sending, "TURNS_MAX", 2)
            for one in topics:
                await producer.send(one, b"x")
            await make(nameserver, f"{topic}-4", 4)
            await producer.send(f"{topic}-4", b"x")
            assert len(producer._sender._turns) <= 2

    run(main())


def test_a_transaction_is_seen_if_and_only_if_it_is_committed(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        seen: list[str] = []

        async def local(message: OutMessage, transaction_id: str) -> Fate:
            seen.append(transaction_id)
            return Fate.COMMIT if message.body == b"yes" else Fate.ROLLBACK

        async with Producer(nameserver, group=topic) as producer:
            no = await producer.send_transaction(OutMessage(topic, b"no"), local)
            yes = await producer.send_transaction(OutMessage(topic, b"yes"), local)
            in_thread = await producer.send_transaction(OutMessage(topic, b"2"), lambda message, name: Fate.COMMIT)
            with pytest.raises(GantryError, match="delayed"):
                await producer.send_transaction(OutMessage(topic, b"", delay_level=1), local)
        assert [result.fate for result in (no, yes, in_thread)] == [Fate.ROLLBACK, Fate.COMMIT, Fate.COMMIT]
        assert seen == [no.transaction_id, yes.transaction_id]
        assert [message.body for message in await read(nameserver, topic, 2)] == [b"yes", b"2"]

    run(main())


def test_a_producer_begins_at_any_queue_and_goes_on_in_turn(
    nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "randrange", lambda count: count - 2)

    async def main() -> None:
        await make(nameserver, topic, 4)
        async with Producer(nameserver) as producer:
            results = [await producer.send(topic, b"x") for _ in range(6)]
        assert [result.queue.queue_id for result in results] == [3, 0, 1, 2, 3, 0]

    run(main())


def test_a_delayed_message_is_recalled(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        async with Producer(nameserver) as producer:
            sent = await producer.send(OutMessage(topic, b"never", deliver_after_s=3600))
            assert await producer.recall(sent) == sent.message_id
            handled = await producer.send(OutMessage(topic, b"never", deliver_after_s=3600))
            assert await producer.recall(handled.recall_handle) == handled.message_id
            with pytest.raises(GantryError, match="no recall handle"):
                await producer.recall(await producer.send(topic, b"now"))

    run(main())


def test_delays(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        async with Producer(nameserver) as producer:
            begun_ms = time.time_ns() // 1_000_000
            await producer.send(OutMessage(topic, b"at", deliver_at_ms=begun_ms - 1000))
            await producer.send(OutMessage(topic, b"level", delay_level=1))
            await producer.send(OutMessage(topic, b"after", deliver_after_s=1.2))
        got = await read(nameserver, topic, 3)
        assert got[0].body == b"at"
        assert {message.body for message in got[1:]} == {b"level", b"after"}
        assert all(message.store_ms - begun_ms >= 1000 for message in got[1:])

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [{"delay_level": 19}, {"delay_level": 1, "deliver_after_s": 1.0}, {"deliver_at_ms": -1}],
    ids=["level", "two", "negative"],
)
def test_delays_that_are_refused_here(wrong: dict[str, int], topic: str) -> None:
    async def main() -> None:
        async with Producer("127.0.0.1:1") as producer:
            with pytest.raises(GantryError) as caught:
                await producer.send(OutMessage(topic, b"", **wrong))
            assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT

    run(main())


def test_request_and_reply(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic)
        async with Client(nameserver) as client, Producer(client=client) as server, Producer(nameserver) as asker:
            consumer = PushConsumer(client=client, group=topic, start="earliest")

            async def answer(message: ReceivedMessage) -> None:
                if message.body != b"ignored":
                    await server.reply(message, b"re: " + message.body, {"kind": "echo"})

            consumer.subscribe(topic, answer)
            async with consumer:
                replies = await asyncio.gather(*[asker.request(topic, b"%d" % n, timeout_s=30) for n in range(20)])
                assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(20)]
                assert replies[0].property("kind") == "echo"
                with pytest.raises(GantryError, match="no reply"):
                    await asker.request(topic, b"ignored", timeout_s=0.2)
            got = await read(nameserver, topic, 1)
            sent = await asker.send(topic, b"plain")
            message = await until_found(nameserver, topic, sent.message_id)
            with pytest.raises(GantryError, match="no request"):
                await server.reply(message, b"")
            assert got[0].property("CORRELATION_ID")

    run(main())


async def until_found(nameserver: str, topic: str, message_id: str) -> ReceivedMessage:
    async with Admin(nameserver) as admin:
        for _ in range(200):
            found = await admin.query_by_key(topic, message_id, unique=True)
            if found:
                return found[0]
            await moment()
    raise AssertionError(message_id)


def test_producers_show_in_their_group(nameserver: str, topic: str) -> None:
    async def main() -> None:
        async with Producer(nameserver, group=topic) as producer:
            await producer.send(topic, b"x")
            address = next(iter(producer.client.routes.broker_addresses()))

            async def connections() -> bytes:
                fields = {"producerGroup": topic}
                command = Command(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
                return (await producer.client.ask(address, command, "connections")).body

            await producer.client.members.beat()
            assert producer.client.members.client_id.encode() in await connections()

    run(main())
