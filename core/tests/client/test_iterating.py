"""Consumers in `for` loops, with and without an event loop."""

import ast
import asyncio
import logging
from pathlib import Path

import pytest

import gantrymq.client
from core.tests.client.client_runs import make, run, until
from gantrymq.client import (
    BlockingPullConsumer,
    BlockingSimpleConsumer,
    OutMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from gantrymq.model.errors import GantryError


async def fill(nameserver: str, topic: str, count: int) -> None:
    await make(nameserver, topic, 2)
    async with Producer(nameserver) as producer:
        await producer.send_many([OutMessage(topic, b"%d" % number) for number in range(count)])


def test_a_pull_consumer_gives_one_message_after_the_other(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 20)
        async with PullConsumer(nameserver, group=topic) as consumer:
            await consumer.assign(topic)
            seen: list[bytes] = []
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 20:
                    break
            assert sorted(seen, key=int) == [b"%d" % number for number in range(20)]
            assert await consumer.pull(wait_s=0) == []
            waiting = asyncio.ensure_future(anext(consumer))
            async with Producer(nameserver) as producer:
                await producer.send(topic, b"later")
            assert (await waiting).body == b"later"

    run(main())


def test_what_a_loop_has_not_given_yet_is_not_committed(nameserver: str, topic: str) -> None:
    async def take(count: int) -> list[bytes]:
        async with PullConsumer(nameserver, group=topic) as consumer:
            await consumer.subscribe(topic)
            seen: list[bytes] = []
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == count:
                    break
            return seen

    async def main() -> None:
        await fill(nameserver, topic, 30)
        seen = await take(7) + await take(11) + await take(12)
        assert sorted(seen, key=int) == [b"%d" % number for number in range(30)], (
            "each once: all was given, all was done"
        )

    run(main())


def test_a_loop_ends_when_its_consumer_is_closed(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 3)
        consumer = PullConsumer(nameserver, group=topic)
        await consumer.assign(topic)
        seen = []
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == 2:
                await consumer.close()
        assert len(seen) == 2

    run(main())


def test_a_simple_consumer_gives_one_message_after_the_other(nameserver: str, topic: str) -> None:
    async def main() -> None:
        await fill(nameserver, topic, 6)
        await fill(nameserver, topic + "_b", 6)
        async with SimpleConsumer(nameserver, group=topic) as consumer:
            with pytest.raises(GantryError, match="call subscribe"):
                await anext(consumer)
            consumer.subscribe(topic)
            consumer.subscribe(topic + "_b")
            seen = []
            async for received in consumer:
                seen.append((received.message.topic, received.body))
                await consumer.ack(received)
                if len(seen) == 12:
                    break
            assert len(set(seen)) == 12

    run(main())


def test_blocking_consumers_in_for_loops(nameserver: str, topic: str) -> None:
    run(fill(nameserver, topic, 5))
    with BlockingPullConsumer(nameserver, group=topic) as consumer:
        consumer.assign(topic)
        assert len([message.body for _, message in zip(range(5), consumer, strict=False)]) == 5
    with BlockingSimpleConsumer(nameserver, group=topic + "_s") as simple:
        simple.subscribe(topic)
        seen = set()
        for received in simple:
            seen.add(received.body)
            simple.ack(received)
            if len(seen) == 5:
                break
        assert len(seen) == 5
        simple.close()
        assert list(simple) == []


def test_a_push_consumer_says_what_is_missing(nameserver: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        caplog.set_level(logging.WARNING)
        async with PushConsumer(nameserver) as consumer:
            assert consumer.group == "gantry_push"
            assert "nothing is subscribed" in caplog.text
            assert "no group was given" in caplog.text
        caplog.clear()
        await make(nameserver, topic)
        named = PushConsumer(nameserver, group=topic)
        named.subscribe(topic, lambda message: None)
        async with named:
            await until(lambda: bool(named.queues))
            assert caplog.text == ""

    run(main())


def test_dir_shows_what_is_public() -> None:
    assert dir(gantrymq.client) == sorted(gantrymq.client.__all__)
    assert all(hasattr(gantrymq.client, name) for name in dir(gantrymq.client))
    with pytest.raises(AttributeError, match=r"'gantrymq\.client' has no attribute 'Consumer'"):
        gantrymq.client.Consumer  # type: ignore[attr-defined]  # noqa: B018


def test_names_stand_where_the_types_say() -> None:
    """`gantrymq.client` says it twice: in the imports that only a type checker reads, and in the table that is read at run time."""
    tree = ast.parse(Path(gantrymq.client.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {name.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert typed == gantrymq.client._HOME
    assert sorted(typed) == sorted(gantrymq.client.__all__)
