"""Push consumers in groups and in broadcast, against a running server."""

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from core.tests.client.client_runs import collector, make, moment, run, until
from gantrymq.client import (
    DEAD_LETTER,
    Admin,
    MessageQueue,
    OutMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)
from gantrymq.client.pushing import pull_run
from gantrymq.model.errors import ErrorCode, GantryError


async def send(nameserver: str, topic: str, bodies: list[bytes], tag: str = "", **more: object) -> None:
    async with Producer(nameserver) as producer:
        await producer.send_many([OutMessage(topic, body, tag, **more) for body in bodies])


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def of_topic(consumer: PushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.queues)


def test_handlers_get_every_message_of_their_tags_once(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic)
        got: list[ReceivedMessage] = []
        consumer = PushConsumer(nameserver, group=topic, start="earliest")

        @consumer.subscribe(topic, tags="a || b")
        async def handle(message: ReceivedMessage) -> None:
            got.append(message)

        await send(nameserver, topic, numbers(50), "a")
        await send(nameserver, topic, numbers(50), "c")
        async with consumer:
            await send(nameserver, topic, numbers(50, 50), "b")
            await until(lambda: len(got) >= 100)
            assert {message.tag for message in got} == {"a", "b"}
        assert sorted(int(message.body) for message in got) == list(range(100))

    run(main())


def test_a_strategy_that_fails_once_is_asked_again(
    nameserver: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fails, share = False, 2

    def strategy(own_id: str, queues: list[MessageQueue], ids: list[str]) -> list[MessageQueue]:
        nonlocal fails
        if fails:
            fails = False
            raise ValueError("not today")
        return queues[:share]

    async def main() -> None:
        nonlocal fails, share
        await make(nameserver, topic, 2)
        consumer = PushConsumer(nameserver, group=topic, start="earliest", strategy=strategy)

        @consumer.subscribe(topic)
        async def handle(message: ReceivedMessage) -> None: ...

        async with consumer:
            await until(lambda: of_topic(consumer, topic) == 2)
            fails, share = True, 1
            consumer.members_changed()
            await until(lambda: of_topic(consumer, topic) == 1)

    run(main())
    assert "the rebalance failed" in caplog.text


def test_an_sql_filter(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic)
        consumer, got = collector(nameserver, topic, sql="price > 10 AND TAGS = 'a'")
        await send(nameserver, topic, [b"cheap"], "a", properties={"price": "9"})
        await send(nameserver, topic, [b"dear"], "a", properties={"price": "11"})
        await send(nameserver, topic, [b"other"], "b", properties={"price": "11"})
        async with consumer:
            await until(lambda: got)
        assert got == [b"dear"]

    run(main())


def test_what_a_handler_fails_for_comes_again(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        got: list[tuple[bytes, int, str]] = []
        consumer = PushConsumer(nameserver, group=topic, start="earliest")

        async def handle(message: ReceivedMessage) -> None:
            got.append((message.body, message.reconsume_times, message.topic))
            if message.body == b"bad" and not message.reconsume_times:
                raise RetryLater(1)

        consumer.subscribe(topic, handle)
        async with consumer:
            await send(nameserver, topic, [b"bad", b"good"])
            await until(lambda: len(got) == 3)
        assert got[0] == (b"bad", 0, topic)
        # It comes again after a second: whether the other one was pulled by then is the machine's business.
        assert set(got[1:]) == {(b"good", 0, topic), (b"bad", 1, topic)}

    run(main())


def test_a_message_without_hope_becomes_a_dead_letter(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        consumer = PushConsumer(nameserver, group=topic, start="earliest")

        async def handle(message: ReceivedMessage) -> None:
            raise RetryLater(DEAD_LETTER)

        consumer.subscribe(topic, handle)
        async with consumer, PullConsumer(nameserver, group=topic + "_dead") as dead:
            await send(nameserver, topic, [b"bad"])
            letter = f"%DLQ%{topic}"

            async def find() -> list[ReceivedMessage]:
                while True:
                    try:
                        await dead.assign(letter)
                        return await dead.pull(wait_s=1)
                    except GantryError:  # the topic comes with its first letter
                        await moment()

            assert [message.body for message in await find()] == [b"bad"]

    run(main())


def test_orderly_keeps_the_order_of_a_queue_also_behind_failures(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic)
        got: dict[int, list[int]] = {}
        failed: set[tuple[int, int]] = set()
        at_work: set[int] = set()
        consumer = PushConsumer(nameserver, group=topic, start="earliest", orderly=True, suspend_s=0.02)

        async def handle(message: ReceivedMessage) -> None:
            assert message.queue_id not in at_work
            at_work.add(message.queue_id)
            await asyncio.sleep(0)
            at_work.discard(message.queue_id)
            place = (message.queue_id, message.queue_offset)
            if message.queue_offset == 2 and place not in failed:
                failed.add(place)
                raise ValueError("not yet")
            got.setdefault(message.queue_id, []).append(message.queue_offset)

        consumer.subscribe(topic, handle)
        await send(nameserver, topic, numbers(40))
        async with consumer:
            await until(lambda: sum(map(len, got.values())) == 40)
        assert got == {queue: list(range(10)) for queue in range(4)}
        assert len(failed) == 4

    run(main())


def test_an_orderly_queue_belongs_to_one_member(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 2)
        got: list[tuple[int, int, int]] = []

        def member(number: int) -> PushConsumer:
            consumer = PushConsumer(nameserver, group=topic, start="earliest", orderly=True)

            async def handle(message: ReceivedMessage) -> None:
                got.append((number, message.queue_id, message.queue_offset))

            consumer.subscribe(topic, handle)
            return consumer

        first, second = member(1), member(2)
        async with first:
            await send(nameserver, topic, numbers(20))
            await until(lambda: len(got) == 20)
            async with second:
                await until(lambda: of_topic(first, topic) == of_topic(second, topic) == 1)
                await send(nameserver, topic, numbers(20))
                await until(lambda: len(got) == 40)
        assert {number for number, _, _ in got[20:]} == {1, 2}
        for queue in (0, 1):
            offsets = [offset for _, queue_id, offset in got if queue_id == queue]
            assert offsets == sorted(set(offsets))

    run(main())


def test_members_share_the_queues_and_hear_of_each_other_at_once(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic)
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        members = [PushConsumer(nameserver, group=topic, start="earliest") for _ in range(3)]
        for member in members:
            member.subscribe(topic, handle)
        async with members[0]:
            assert of_topic(members[0], topic) == 4
            async with members[1]:
                await until(lambda: [of_topic(member, topic) for member in members[:2]] == [2, 2])
                await send(nameserver, topic, numbers(40))
                await until(lambda: set(got) >= set(numbers(40)))
                async with members[2]:
                    await until(lambda: sorted(of_topic(member, topic) for member in members) == [1, 1, 2])
            await until(lambda: of_topic(members[0], topic) == 4)
            await send(nameserver, topic, numbers(40, 40))
            await until(lambda: set(got) >= set(numbers(80)))
        # What a queue's last pull brought comes again where it moved before that was committed; later ones do not.
        assert sorted(int(body) for body in got if int(body) >= 40) == list(range(40, 80))

    run(main())


def test_a_closed_consumer_has_committed_and_nothing_is_repeated(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic)
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            got.append(message.body)

        for part in range(3):
            await send(nameserver, topic, numbers(30, part * 30))
            consumer = PushConsumer(nameserver, group=topic, start="earliest")
            consumer.subscribe(topic, handle)
            async with consumer:
                await until(lambda part=part: len(got) == 30 * part + 30)
        assert sorted(map(int, got)) == list(range(90))

    run(main())


def test_where_a_new_group_begins(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        await send(nameserver, topic, [b"old"])
        await moment()
        between = time.time_ns() // 1_000_000
        await send(nameserver, topic, [b"middle"])
        got: dict[str, list[bytes]] = {"latest": [], "earliest": [], "time": []}
        consumers = []
        for name, start in (("latest", "latest"), ("earliest", "earliest"), ("time", between)):
            consumer = PushConsumer(nameserver, group=f"{topic}_{name}", start=start)

            async def handle(message: ReceivedMessage, into: list[bytes] = got[name]) -> None:
                into.append(message.body)

            consumer.subscribe(topic, handle)
            await consumer.start()
            consumers.append(consumer)
        await send(nameserver, topic, [b"new"])
        await until(lambda: all(b"new" in bodies for bodies in got.values()))
        for consumer in consumers:
            await consumer.close()
        assert got == {"latest": [b"new"], "earliest": [b"old", b"middle", b"new"], "time": [b"middle", b"new"]}

    run(main())


def test_pulls_pause_while_the_handler_does_not_keep_up(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        gate = asyncio.Event()
        got: list[bytes] = []
        consumer = PushConsumer(
            nameserver, group=topic, start="earliest", queue_messages_max=10, pull_batch=5, concurrency=2
        )

        async def handle(message: ReceivedMessage) -> None:
            await gate.wait()
            got.append(message.body)

        consumer.subscribe(topic, handle)
        await send(nameserver, topic, numbers(100))
        async with consumer:
            await until(lambda: consumer.in_hand() >= 10)
            (buffer,) = [buffer for queue, buffer in consumer.states().items() if queue.topic == topic]
            pulls = buffer.pulls
            for _ in range(5):
                await moment()
            assert (buffer.pulls, len(buffer), buffer.is_full()) == (pulls, 10, True)
            gate.set()
            await until(lambda: len(got) == 100)
        assert got == numbers(100)

    run(main())


def test_plain_functions_run_in_threads_and_batches_are_lists(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        sizes: list[int] = []
        threads: set[str] = set()

        def handle(messages: list[ReceivedMessage]) -> None:
            threads.add(threading.current_thread().name)
            sizes.append(len(messages))

        await send(nameserver, topic, numbers(25))
        consumer = PushConsumer(nameserver, group=topic, start="earliest", batch=10)
        consumer.subscribe(topic, handle)
        async with consumer:
            await until(lambda: sum(sizes) == 25)
        assert max(sizes) == 10
        assert all(name.startswith("gantrymq-handler") for name in threads)

    run(main())


def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_comes_again(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await make(nameserver, topic, 1)
        cancelled = 0
        consumer = PushConsumer(nameserver, group=topic, start="earliest", consume_timeout_s=0.05)

        async def handle(message: ReceivedMessage) -> None:
            nonlocal cancelled
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise

        consumer.subscribe(topic, handle)
        async with consumer:
            await send(nameserver, topic, [b"slow"])
            await until(lambda: cancelled and not consumer.in_hand())
        async with Admin(nameserver) as admin:
            assert await admin.lag(topic, topic) == 0

    run(main())


def test_broadcast_reads_everything_everywhere_and_keeps_its_offsets_in_a_file(
    nameserver: str, topic: str, tmp_path: Path
) -> None:
    async def main() -> None:
        await make(nameserver, topic, 2)
        await send(nameserver, topic, numbers(10))
        got: list[list[bytes]] = [[], []]
        members = []
        for number in range(2):
            member = PushConsumer(
                nameserver, group=topic, start="earliest", broadcast=True, offset_directory=tmp_path / str(number)
            )

            async def handle(message: ReceivedMessage, into: list[bytes] = got[number]) -> None:
                into.append(message.body)
                if message.body == b"3":
                    raise ValueError("dropped, not sent back")

            member.subscribe(topic, handle)
            members.append(member)
        async with members[0], members[1]:
            await until(lambda: [len(bodies) for bodies in got] == [10, 10])
        kept = json.loads((tmp_path / "0" / f"{topic}.json").read_text())
        assert sum(kept.values()) == 10
        again = PushConsumer(nameserver, group=topic, start="earliest", broadcast=True, offset_directory=tmp_path / "0")
        more: list[bytes] = []

        async def handle_more(message: ReceivedMessage) -> None:
            more.append(message.body)

        again.subscribe(topic, handle_more)
        async with again:
            await send(nameserver, topic, [b"new"])
            await until(lambda: more)
        assert more == [b"new"]

    run(main())


def test_subscriptions_change_while_it_runs(nameserver: str, topic: str) -> None:
    async def main() -> None:
        other = topic + "_other"
        await make(nameserver, topic, 1)
        await make(nameserver, other, 1)
        got: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.topic)

        consumer = PushConsumer(nameserver, group=topic, start="earliest")
        consumer.subscribe(topic, handle)
        async with consumer:
            await send(nameserver, topic, [b"1"])
            await until(lambda: got == [topic])
            consumer.subscribe(other, handle)
            await send(nameserver, other, [b"2"])
            await until(lambda: got == [topic, other])
            consumer.unsubscribe(topic)
            await until(lambda: not of_topic(consumer, topic))

    run(main())


def test_other_tags_of_a_topic_that_is_being_read(nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_run, "PULL_WAIT_S", 0.2)  # the pull that waits still has the old ones

    async def main() -> None:
        await make(nameserver, topic)
        got: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.tag)

        consumer = PushConsumer(nameserver, group=topic, start="earliest")
        consumer.subscribe(topic, handle, tags="a")
        async with consumer:
            await send(nameserver, topic, numbers(20), "a")
            await until(lambda: len(got) == 20)
            consumer.subscribe(topic, handle, tags="b")
            before = {queue: state.pulls for queue, state in consumer.states().items() if queue.topic == topic}
            await until(lambda: all(consumer.states()[queue].pulls > pulls for queue, pulls in before.items()))
            await send(nameserver, topic, numbers(20), "a")
            await send(nameserver, topic, numbers(20), "b")
            await until(lambda: "b" in got)
        assert got[20:] == ["b"] * (len(got) - 20)

    run(main())


def test_one_consumer_per_group_and_client(nameserver: str, topic: str) -> None:
    async def main() -> None:
        first = PushConsumer(nameserver, group=topic)
        async with first:
            with pytest.raises(GantryError) as caught:
                await PushConsumer(group=topic, client=first.client).start()
            assert caught.value.code is ErrorCode.ALREADY_EXISTS

    run(main())


def test_tags_and_sql_exclude_each_other(topic: str) -> None:
    with pytest.raises(GantryError, match="exclude"):
        PushConsumer("127.0.0.1:1", group=topic).subscribe(topic, tags="a", sql="b > 1")
    with pytest.raises(GantryError, match="allowed are"):
        PushConsumer("127.0.0.1:1", group=topic, start="yesterday")
