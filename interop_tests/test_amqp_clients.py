"""Foreign AMQP clients against a running installation: pika, aiormq, aio-pika."""

from __future__ import annotations

import asyncio
import functools
import gc
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import aio_pika
import aiormq
import pamqp.commands
import pika
import pika.exceptions
import pytest
from aio_pika.patterns import RPC, Master, RejectMessage

from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S

pytestmark = [
    # Connections that these tests cut or leave to the garbage collector are the point, or the client's own habit.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Abandoned sockets are collected while their warnings are expected."""
    yield
    gc.collect()


Test = Callable[..., Coroutine[Any, Any, None]]


def run(test: Test) -> Callable[..., None]:
    """An asyncio test; these clients are asyncio's own."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 2 * LIMIT_S))

    return wrapper


def url(server: Gantry) -> str:
    host, port = server.address("amqp")
    return f"amqp://guest:guest@{host}:{port}/"


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


class Served(Protocol):
    """A server of ours, or a real RabbitMQ."""

    def address(self, door: str, /) -> tuple[str, int]: ...


def connect(server: Served, **parameters: Any) -> pika.BlockingConnection:
    host, port = server.address("amqp")
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, **parameters))


@pytest.fixture
def channel(server: Gantry) -> Iterator[Any]:
    connection = connect(server)
    yield connection.channel()
    if connection.is_open:
        connection.close()


# pika


def test_pika_every_exchange_type(channel: Any) -> None:
    channel.confirm_delivery()
    for kind, key, sent in (("direct", "k", "k"), ("fanout", "", "any"), ("topic", "line.#", "line.1.temp")):
        exchange, queue = unique(kind), unique("q")
        channel.exchange_declare(exchange, kind, durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, key)
        channel.basic_publish(exchange, sent, b"body", pika.BasicProperties(delivery_mode=2))
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert (method.exchange, method.routing_key, body) == (exchange, sent, b"body")
        channel.queue_unbind(queue, exchange, key)
        channel.queue_delete(queue)
        channel.exchange_delete(exchange)


def test_pika_properties_come_back(channel: Any) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    assert queue.startswith("amq.gen-")
    properties = pika.BasicProperties(
        content_type="application/json", content_encoding="utf-8", headers={"text": "ä", "number": 5, "yes": True, "deep": {"a": [1, "b"]}},
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", message_id="m", timestamp=1_700_000_000, type="t",
        user_id="guest", app_id="a",
    )  # fmt: skip
    channel.basic_publish("", queue, b"x", properties)
    method, back, _ = channel.basic_get(queue)
    assert back == properties
    assert not method.redelivered


def test_pika_requeue_and_redelivered(channel: Any) -> None:
    queue = unique("q")
    channel.queue_declare(queue, durable=True)
    for number in range(1, 7):
        channel.basic_publish("", queue, b"%d" % number)
    tags = {}
    for _ in range(3):
        method, _, body = channel.basic_get(queue)
        tags[body] = method.delivery_tag
    channel.basic_nack(tags[b"3"])
    channel.basic_reject(tags[b"1"])
    channel.basic_reject(tags[b"2"], requeue=False)
    got = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            break
        got.append((body, method.redelivered))
    assert got == [(b"1", True), (b"3", True), (b"4", False), (b"5", False), (b"6", False)]


def test_pika_prefetch_and_consume(channel: Any) -> None:
    queue = unique("q")
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", queue, b"%d" % number)
    channel.basic_qos(prefetch_count=5)
    got = []
    for method, _, body in channel.consume(queue, inactivity_timeout=LIMIT_S):
        assert method is not None
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(got) == 50:
            break
    channel.cancel()
    assert got == [b"%d" % number for number in range(50)]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_pika_mandatory_is_returned(channel: Any) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", unique("nobody"), b"x", mandatory=True)
    assert caught.value.messages[0].method.reply_code == 312
    channel.basic_publish("", unique("nobody"), b"x")


def test_pika_errors_name_what_is_wrong(server: Gantry) -> None:
    connection = connect(server)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare("nope", passive=True)
    assert (caught.value.reply_code, caught.value.reply_text) == (404, "NOT_FOUND - no queue 'nope' in vhost '/'")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.channel().basic_qos(prefetch_size=1)
    assert closed.value.reply_code == 540


def test_pika_wrong_password(server: Gantry) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(server, credentials=pika.PlainCredentials("guest", "wrong"), socket_timeout=LIMIT_S)


def test_pika_exclusive_queue_is_free_at_once(server: Gantry) -> None:
    name = unique("mine")
    for _ in range(5):
        connection = connect(server)
        connection.channel().queue_declare(name, exclusive=True)
        connection._impl._transport._sock.close()  # simply gone
    connect(server).channel().queue_declare(name, exclusive=True)


def test_pika_large_body(channel: Any) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = bytes(range(256)) * 4096 * 3
    channel.basic_publish("", queue, body)
    method, _, back = channel.basic_get(queue)
    while method is None:
        method, _, back = channel.basic_get(queue)
    assert back == body


def test_pika_exchange_to_exchange(channel: Any) -> None:
    first, second, queue = unique("a"), unique("b"), unique("q")
    channel.exchange_declare(first, "topic")
    channel.exchange_declare(second, "fanout")
    channel.exchange_bind(second, first, "x.*")
    channel.queue_declare(queue)
    channel.queue_bind(queue, second)
    channel.confirm_delivery()
    channel.basic_publish(first, "x.1", b"in")
    channel.basic_publish(first, "y.1", b"out")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"in"
    assert channel.basic_get(queue)[0] is None


# aiormq


@run
async def test_aiormq_publish_confirmed_and_consume(server: Gantry) -> None:
    connection = await aiormq.connect(url(server))
    channel = await connection.channel()
    queue = unique("q")
    await channel.queue_declare(queue, durable=True)
    confirms = await asyncio.gather(*[channel.basic_publish(b"%d" % n, routing_key=queue) for n in range(200)])
    assert all(isinstance(confirm, pamqp.commands.Basic.Ack) for confirm in confirms)
    got: list[bytes] = []
    done = asyncio.Event()

    async def on_message(message: Any) -> None:
        got.append(message.body)
        await channel.basic_ack(message.delivery.delivery_tag)
        if len(got) == 200:
            done.set()

    await channel.basic_qos(prefetch_count=20)
    await channel.basic_consume(queue, on_message)
    await done.wait()
    assert got == [b"%d" % n for n in range(200)]
    await connection.close()


@run
async def test_aiormq_mandatory(server: Gantry) -> None:
    connection = await aiormq.connect(url(server))
    channel = await connection.channel()
    with pytest.raises(aiormq.exceptions.PublishError):
        await channel.basic_publish(b"x", routing_key=unique("nobody"), mandatory=True)
    await connection.close()


@run
async def test_aiormq_hears_which_argument_is_wrong(server: Gantry) -> None:
    connection = await aiormq.connect(url(server))
    channel = await connection.channel()
    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="x-max-priority"):
        await channel.queue_declare(unique("q"), arguments={"x-max-priority": 256})
    await connection.close()


# aio-pika


@run
async def test_aio_pika_robust_worker(server: Gantry) -> None:
    connection = await aio_pika.connect_robust(url(server))
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange(unique("ex"), aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(unique("q"), durable=True)
        await queue.bind(exchange, "sensor.*.temp")
        for number in range(20):
            message = aio_pika.Message(
                b"%d" % number, headers={"n": number}, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            await exchange.publish(message, routing_key=f"sensor.{number}.temp")
        got = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    got.append((message.body, message.headers["n"], message.routing_key))
                if len(got) == 20:
                    break
        assert got == [(b"%d" % n, n, f"sensor.{n}.temp") for n in range(20)]


@run
async def test_aio_pika_rpc(server: Gantry) -> None:
    async with await aio_pika.connect(url(server)) as connection:
        channel = await connection.channel()
        requests = await channel.declare_queue(unique("rpc"), durable=False)
        replies = await channel.declare_queue(exclusive=True)

        async def serve(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            assert message.reply_to
            async with message.process():
                answer = aio_pika.Message(message.body.upper(), correlation_id=message.correlation_id)
                await channel.default_exchange.publish(answer, routing_key=message.reply_to)

        await requests.consume(serve)
        question = aio_pika.Message(b"hello", reply_to=replies.name, correlation_id="7")
        await channel.default_exchange.publish(question, routing_key=requests.name)
        async with replies.iterator(no_ack=True) as answers:
            reply = await anext(answers)
        assert (reply.body, reply.correlation_id) == (b"HELLO", "7")


@run
async def test_aio_pika_two_connections_share_a_queue(server: Gantry) -> None:
    name = unique("q")
    async with await aio_pika.connect(url(server)) as one, await aio_pika.connect(url(server)) as two:
        counts = [0, 0]
        total = asyncio.Semaphore(0)
        for index, connection in enumerate((one, two)):
            channel = await connection.channel()
            queue = await channel.declare_queue(name, durable=True)

            async def on_message(message: aio_pika.abc.AbstractIncomingMessage, index: int = index) -> None:
                counts[index] += 1
                await message.ack()
                total.release()

            await queue.consume(on_message)
        channel = await one.channel()
        for number in range(100):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), routing_key=name)
        for _ in range(100):
            await total.acquire()
        assert counts == [50, 50]


@run
async def test_aio_pika_rpc_pattern(server: Gantry) -> None:
    """Its calls find nobody by a dead-letter exchange of type headers."""
    name = unique("double")

    async def double(*, number: int) -> int:
        if number < 0:
            raise ValueError("told to the caller")
        return 2 * number

    async with await aio_pika.connect_robust(url(server)) as one, await aio_pika.connect_robust(url(server)) as two:
        service = await RPC.create(await one.channel())
        await service.register(name, double, auto_delete=True)
        caller = await RPC.create(await two.channel())
        answers = await asyncio.gather(*(caller.call(name, {"number": number}) for number in range(20)))
        assert answers == [2 * number for number in range(20)]
        with pytest.raises(ValueError, match="told to the caller"):
            await caller.call(name, {"number": -1})
        with pytest.raises(aio_pika.exceptions.MessageProcessError):
            await caller.call(unique("nobody"))
        await caller.close()
        await service.close()


@run
async def test_aio_pika_master_pattern(server: Gantry) -> None:
    name = unique("work")
    done: set[int] = set()
    ready = asyncio.Event()

    async def work(*, number: int, again: bool = False) -> None:
        if number == 3 and not again:
            await master.create_task(name, {"number": number, "again": True})
            raise RejectMessage(requeue=False)
        done.add(number)
        if len(done) == 10:
            ready.set()

    async with await aio_pika.connect_robust(url(server)) as connection:
        master = Master(await connection.channel())
        worker = await master.create_worker(name, work, durable=True)
        for number in range(10):
            await master.create_task(name, {"number": number})
        await ready.wait()
        await worker.close()
    assert done == set(range(10))
