"""Stream queues by pika and aio-pika over real sockets: any offset, any time, as often as one likes; through kill -9 and over two gateways."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest

from interop_tests.running import Gantry
from interop_tests.test_amqp_clients import connect, run, unique, url
from interop_tests.waiting import LIMIT_S, until

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def channel(server: Gantry) -> Iterator[Any]:
    connection = connect(server)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=100)
    yield channel
    if connection.is_open:
        connection.close()


def declare(channel: Any, **arguments: Any) -> str:
    named = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    name: str = channel.queue_declare(unique("stream"), durable=True, arguments=STREAM | named).method.queue
    return name


def send(channel: Any, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def read(channel: Any, queue: str, count: int, offset: Any = "first", **arguments: Any) -> list[tuple[int, bytes]]:
    """(offset, body) of the next messages."""
    named = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    found: list[tuple[int, bytes]] = []
    for method, properties, body in channel.consume(
        queue, arguments={"x-stream-offset": offset} | named, inactivity_timeout=LIMIT_S
    ):
        assert method is not None
        found.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_pika_reads_as_often_as_it_likes(channel: Any) -> None:
    queue = declare(channel)
    sent = [b"%d" % number for number in range(500)]
    send(channel, queue, *sent)
    for offset, first in (("first", 0), (0, 0), (123, 123), ("last", 499), ("1h", 0)):
        assert read(channel, queue, 500 - first, offset) == list(enumerate(sent))[first:]
    assert channel.queue_declare(queue, passive=True).method.message_count == 500


def test_next_and_several_consumers(server: Gantry, channel: Any) -> None:
    queue = declare(channel)
    send(channel, queue, b"old")
    got: dict[str, list[bytes]] = {"early": [], "late": [], "one": []}

    def on(name: str) -> Any:
        def taken(ch: Any, method: Any, _properties: Any, body: bytes) -> None:
            got[name].append(body)
            ch.basic_ack(method.delivery_tag)

        return taken

    channel.basic_consume(queue, on("early"), arguments={"x-stream-offset": "first"})
    channel.basic_consume(queue, on("late"))
    one = channel.connection.channel()
    one.basic_qos(prefetch_count=1)
    one.basic_consume(queue, on("one"), arguments={"x-stream-offset": "last"})
    other = connect(server)
    send(other.channel(), queue, b"1", b"2", b"3")
    other.close()

    def all_there() -> bool:
        channel.connection.process_data_events(0.05)
        return [len(bodies) for bodies in got.values()] == [4, 3, 4]

    until(all_there)
    assert got == {"early": [b"old", b"1", b"2", b"3"], "late": [b"1", b"2", b"3"], "one": [b"old", b"1", b"2", b"3"]}


def test_by_time_and_max_age(channel: Any) -> None:
    queue = declare(channel, max_age="1s")
    send(channel, queue, b"1", b"2")
    until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 0)
    queue = declare(channel)
    send(channel, queue, b"1")
    second = datetime.datetime.now(tz=datetime.UTC).replace(microsecond=0) + datetime.timedelta(seconds=2)
    until(lambda: datetime.datetime.now(tz=datetime.UTC) > second)
    send(channel, queue, b"2", b"3")
    assert read(channel, queue, 2, second) == [(1, b"2"), (2, b"3")]


def test_max_length_bytes(channel: Any) -> None:
    queue = declare(channel, max_length_bytes=20_000)
    send(channel, queue, *[bytes(1000)] * 60)
    left = until(lambda: channel.queue_declare(queue, passive=True).method.message_count)
    assert 10 <= left < 20
    assert [offset for offset, _ in read(channel, queue, left)] == list(range(60 - left, 60))


def test_a_filter(channel: Any) -> None:
    queue = declare(channel)
    for number in range(30):
        send(channel, queue, b"%d" % number, headers={"x-stream-filter-value": ["eu", "us", "as"][number % 3]})
    assert [at for at, _ in read(channel, queue, 10, stream_filter="us")] == list(range(1, 30, 3))
    assert len(read(channel, queue, 20, stream_filter=["us", "as"])) == 20
    send(channel, queue, b"plain")
    send(channel, queue, b"us", headers={"x-stream-filter-value": "us"})
    assert [at for at, _ in read(channel, queue, 11, stream_filter="us")][-1] == 31
    assert [at for at, _ in read(channel, queue, 12, stream_filter="us", stream_match_unfiltered=True)][-2:] == [30, 31]


@pytest.mark.parametrize(
    "argument", ["stream_max_segment_size_bytes", "stream_filter_size_bytes", "initial_cluster_size"]
)
def test_arguments_of_streams_without_effect_are_taken(channel: Any, argument: str) -> None:
    queue = declare(channel, **{argument: 100})
    send(channel, queue, *[b"%d" % number for number in range(20)])
    assert [body for _, body in read(channel, queue, 20)] == [b"%d" % number for number in range(20)]


def ask(channel: Any, queue: str, arguments: dict[str, Any]) -> None:
    if "get" in arguments:
        channel.basic_get(queue)
    elif "purge" in arguments:
        channel.queue_purge(queue)
    else:
        offset = {"x-stream-offset": arguments.get("offset", "first")}
        channel.basic_consume(queue, lambda *_: None, auto_ack=bool(arguments.get("auto_ack")), arguments=offset)


def test_what_pika_is_refused(server: Gantry, channel: Any) -> None:
    queue = declare(channel)
    for arguments, code in (
        ({"prefetch": 0}, 406),
        ({"auto_ack": True}, 540),
        ({"offset": "soon"}, 406),
        ({"get": True}, 540),
        ({"purge": True}, 540),
    ):
        connection = connect(server)
        other = connection.channel()
        other.basic_qos(prefetch_count=arguments.get("prefetch", 10))
        with pytest.raises((pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)) as error:
            ask(other, queue, arguments)
        assert error.value.reply_code == code
        if connection.is_open:
            connection.close()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="of queue type rabbit_stream_queue"):
        declare(channel, dead_letter_exchange="")


@run
async def test_aio_pika(server: Gantry) -> None:
    async with await aio_pika.connect(url(server)) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue(unique("stream"), durable=True, arguments=STREAM)
        exchange = await channel.declare_exchange(unique("ex"), aio_pika.ExchangeType.TOPIC, durable=True)
        await queue.bind(exchange, "line.*")
        for number in range(50):
            await exchange.publish(aio_pika.Message(b"%d" % number), f"line.{number}")
        for offset, first in (("first", 0), (20, 20)):
            got = []
            async with queue.iterator(arguments={"x-stream-offset": offset}) as messages:
                async for message in messages:
                    got.append((message.headers["x-stream-offset"], message.body, message.routing_key))
                    await message.ack()
                    if len(got) == 50 - first:
                        break
            assert got == [(number, b"%d" % number, f"line.{number}") for number in range(first, 50)]


@pytest.mark.crash
def test_a_stream_survives_kill(own_server: Gantry) -> None:
    connection = connect(own_server)
    channel = connection.channel()
    channel.confirm_delivery()
    queue = declare(channel, max_length_bytes=100_000)
    send(channel, queue, *[b"%d" % number for number in range(300)])
    own_server.kill_and_restart()
    connection = connect(own_server)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=50)
    assert channel.queue_declare(queue, passive=True).method.message_count == 300
    send(channel, queue, b"300")
    assert read(channel, queue, 301) == [(number, b"%d" % number) for number in range(301)]
    assert read(channel, queue, 11, 290)[-1] == (300, b"300")
    connection.close()
