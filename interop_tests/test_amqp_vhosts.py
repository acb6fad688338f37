"""Virtual hosts by aiormq and aio-pika over real sockets: the same names in two of them, streams, policies' default types, RPC, through kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import aiormq
import httpx
import pytest
from aio_pika.patterns import RPC, Master

from interop_tests.running import Gantry, free_port
from interop_tests.test_amqp_clients import run, unique, url
from interop_tests.waiting import until_async

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
STREAM: dict[str, Any] = {"x-queue-type": "stream"}
VHOSTS = ("/", "shop", "été")


def with_vhosts(port: int, **vhosts: dict[str, str]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/", auth=("guest", "guest"), timeout=60) as api:
        for name, body in vhosts.items():
            assert api.put(f"vhosts/{quote(name)}", json=body).status_code == 201


@pytest.fixture(scope="module", params=["combined", "separated"])
def hosted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    port = free_port()
    server = Gantry(tmp_path_factory.mktemp("hosted"), request.param, (f"amqp.management_port={port}",)).start()
    with_vhosts(port, shop={}, été={}, logs={"default_queue_type": "stream"})
    yield server
    server.stop()


def at(server: Gantry, vhost: str) -> str:
    return url(server) + quote(vhost, safe="")


@run
async def test_aiormq_the_same_names_in_each(hosted: Gantry) -> None:
    """Exchange, queue, bindings and dead letters of one name; each vhost's consumers get what was published there, and nothing else."""
    exchange, queue, dead = unique("e"), unique("q"), unique("dead")
    connections = {vhost: await aiormq.connect(at(hosted, vhost)) for vhost in VHOSTS}
    channels = {vhost: await connection.channel() for vhost, connection in connections.items()}
    for vhost, channel in channels.items():
        await channel.exchange_declare(exchange, exchange_type="topic", durable=True)
        await channel.queue_declare(dead, durable=True)
        arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        await channel.queue_declare(queue, durable=True, arguments=arguments)
        await channel.queue_bind(queue, exchange, "a.#")
        await channel.basic_publish(vhost.encode(), exchange=exchange, routing_key="a.b", mandatory=True)
        with pytest.raises(aiormq.exceptions.PublishError):
            await channel.basic_publish(b"nobody", exchange=exchange, routing_key="b", mandatory=True)
    for vhost, channel in channels.items():
        got: Any = await channel.basic_get(queue)
        assert (got.delivery.exchange, got.delivery.routing_key, got.body) == (exchange, "a.b", vhost.encode())
        await channel.basic_reject(got.delivery.delivery_tag or 0, requeue=False)

        async def letter(channel: Any = channel) -> Any:
            return await channel.basic_get(dead, no_ack=True)

        found = await letter()
        while found.body == b"" and found.delivery_tag is None:
            found = await letter()
        assert found.body == vhost.encode()
        assert found.header.properties.headers["x-death"][0]["queue"] == queue
        assert (await letter()).delivery_tag is None
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match="in vhost 'shop'"):
        await channels["shop"].queue_declare("only-in-" + unique("x"), passive=True)
    for connection in connections.values():
        await connection.close()


@run
async def test_a_stream_of_one_name_in_each(hosted: Gantry) -> None:
    """Offsets begin at 0 in each; read from any place, as often as one likes."""
    name = unique("stream")
    connections = {vhost: await aio_pika.connect(at(hosted, vhost)) for vhost in VHOSTS}
    for vhost, connection in connections.items():
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True, arguments=STREAM)
        exchange = await channel.declare_exchange(unique("feed"), aio_pika.ExchangeType.FANOUT, durable=True)
        await queue.bind(exchange)
        for number in range(30):
            await exchange.publish(aio_pika.Message(f"{vhost} {number}".encode()), "k")
    for vhost, connection in connections.items():
        for offset, first in (("first", 0), (17, 17), ("last", None)):
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            queue = await channel.get_queue(name)
            got: list[tuple[Any, bytes]] = []
            async with queue.iterator(arguments={"x-stream-offset": offset}) as messages:
                async for message in messages:
                    got.append((message.headers["x-stream-offset"], message.body))
                    await message.ack()
                    if got[-1][0] == 29:
                        break
            begin = got[0][0] if first is None else first
            assert got == [(number, f"{vhost} {number}".encode()) for number in range(begin, 30)]
    for connection in connections.values():
        await connection.close()


@run
async def test_a_vhost_whose_queues_are_streams(hosted: Gantry) -> None:
    """`default_queue_type`: a plain declaration makes a stream there, and its classic arguments are refused."""
    async with await aio_pika.connect(at(hosted, "logs")) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        queue = await channel.declare_queue(unique("log"), durable=True)
        for number in range(3):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        for _ in range(2):
            got: list[bytes] = []
            async with queue.iterator(arguments={"x-stream-offset": "first"}) as messages:
                async for message in messages:
                    got.append(message.body)
                    await message.ack()
                    if len(got) == 3:
                        break
            assert got == [b"0", b"1", b"2"]
        private = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"x"), private.name)
        message = await private.get()
        assert message is not None
        await message.ack()


@run
async def test_aio_pika_patterns_stay_in_their_vhost(hosted: Gantry) -> None:
    """RPC and Master of the same names in two vhosts: callers are answered by their own."""
    method, task = unique("who"), unique("task")
    done: dict[str, list[int]] = {vhost: [] for vhost in VHOSTS}
    connections = {vhost: await aio_pika.connect_robust(at(hosted, vhost)) for vhost in VHOSTS}
    callers, masters = {}, {}
    for vhost, connection in connections.items():

        async def who(*, number: int, vhost: str = vhost) -> str:
            return f"{vhost} {number}"

        async def work(*, number: int, vhost: str = vhost) -> None:
            done[vhost].append(number)

        service = await RPC.create(await connection.channel())
        await service.register(method, who, auto_delete=True)
        callers[vhost] = await RPC.create(await connection.channel())
        masters[vhost] = Master(await connection.channel())
        await masters[vhost].create_worker(task, work, auto_delete=True)
    for number, vhost in enumerate(VHOSTS):
        assert await callers[vhost].call(method, kwargs={"number": number}) == f"{vhost} {number}"
        await masters[vhost].create_task(task, kwargs={"number": number})
    await until_async(lambda: all(done.values()))
    assert done == {vhost: [number] for number, vhost in enumerate(VHOSTS)}
    for connection in connections.values():
        await connection.close()


@run
async def test_streams_and_queues_of_vhosts_survive_kill(tmp_path: Path) -> None:
    port = free_port()
    server = Gantry(tmp_path, settings=(f"amqp.management_port={port}",)).start()
    try:
        with_vhosts(port, shop={})
        for vhost in ("/", "shop"):
            async with await aio_pika.connect(at(server, vhost)) as connection:
                channel = await connection.channel()
                await channel.declare_queue("s", durable=True, arguments=STREAM)
                await channel.declare_queue("q", durable=True)
                for number in range(5):
                    for name in ("s", "q"):
                        await channel.default_exchange.publish(aio_pika.Message(f"{vhost} {number}".encode()), name)
        server.kill_and_restart()
        for vhost in ("/", "shop"):
            async with await aio_pika.connect(at(server, vhost)) as connection:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=5)
                for name, arguments in (("s", {"x-stream-offset": 2}), ("q", {})):
                    first = 2 if name == "s" else 0
                    queue = await channel.get_queue(name)
                    got: list[bytes] = []
                    async with queue.iterator(arguments=arguments) as messages:
                        async for message in messages:
                            got.append(message.body)
                            await message.ack()
                            if len(got) == 5 - first:
                                break
                    assert got == [f"{vhost} {number}".encode() for number in range(first, 5)]
    finally:
        server.stop()
