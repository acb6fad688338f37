"""One of three brokers hangs or is dead: clean MQTT clients and AMQP queues that the server names go on as if it were not there."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from typing import Any

import aiormq
import aiormq.exceptions
import pytest

from interop_tests.running import Cluster, Gantry
from interop_tests.slots import client_of
from interop_tests.test_cluster_slots import comes_in, refused_after_s
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import moment, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CLIENTS = 30
QUEUES = 10
GIVEN_UP_S = 3.5
"""After so long the connection to a broker that hangs is given up: what needs every broker waits so long, once."""


class Queues:
    """Queues of one AMQP connection that the server names, each bound to `amq.topic` and consumed."""

    def __init__(self, gateway: Gantry) -> None:
        host, port = gateway.address("amqp")
        self.url = f"amqp://guest:guest@{host}:{port}/"
        self.got: asyncio.Queue[bytes] = asyncio.Queue()
        self.names: list[str] = []

    async def arrived(self, message: Any) -> None:
        await self.got.put(message.body)

    async def begin(self) -> None:
        self.connection = await aiormq.connect(self.url)
        self.channel = await self.connection.channel()
        for _ in range(QUEUES):
            declared = await self.channel.queue_declare(exclusive=True)
            assert declared.queue is not None
            self.names.append(declared.queue)
            await self.channel.queue_bind(declared.queue, "amq.topic", f"to.{declared.queue}")
            await self.channel.basic_consume(declared.queue, self.arrived, no_ack=True)

    async def is_gone(self, name: str) -> None:
        """Until another connection's queue is gone; so long it is locked."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await (await self.connection.channel()).queue_declare(name, passive=True)
                except aiormq.exceptions.ChannelNotFoundEntity:
                    return
                except aiormq.exceptions.ChannelLockedResource:
                    await moment()

    async def pass_on(self, word: bytes) -> None:
        """A message to each by its name and one by its binding."""
        for name in self.names:
            await self.channel.basic_publish(word + name.encode(), routing_key=name)
            await self.channel.basic_publish(
                word + b"to." + name.encode(), exchange="amq.topic", routing_key=f"to.{name}"
            )
        expected = {word + kind + name.encode() for name in self.names for kind in (b"", b"to.")}
        async with asyncio.timeout(WAIT_S):
            assert {await self.got.get() for _ in range(2 * QUEUES)} == expected


async def queues_go_on(gateways: list[Gantry], until_back: Any) -> None:
    both = [Queues(gateway) for gateway in gateways]
    began = time.monotonic()
    await both[0].begin()
    assert time.monotonic() - began < 2 * GIVEN_UP_S
    await both[1].begin()
    for queues in both:
        await queues.pass_on(b"while it is away ")
    gone = Queues(gateways[0])
    await gone.begin()
    await gone.connection.close()
    for name in gone.names:
        await both[0].is_gone(name)
    await asyncio.get_running_loop().run_in_executor(None, until_back)
    for queues in both:
        await queues.pass_on(b"when it is back ")
        await queues.connection.close()


def pass_on(clients: list[Paho], ids: list[str], word: str) -> None:
    """Each sends to the next one, which is at the other gateway."""
    for number, client in enumerate(clients):
        client.publish(f"to/{ids[(number + 1) % len(ids)]}", f"{word}{number}", 1 + number % 2)
    for number, client in enumerate(clients):
        assert client.receive(1) == [(f"to/{ids[number]}", f"{word}{(number - 1) % len(ids)}".encode())]


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_clean_clients_and_queues_without_a_name_of_their_own_go_on(cluster: Cluster, how: signal.Signals) -> None:
    gateways = [cluster.at(f"gateway{number}") for number in range(2)]
    third = cluster.process("broker2")
    lasting = client_of(cluster, "broker-2", "lasting")
    ids = [client_of(cluster, "broker-2", secrets.token_hex(8)), *[secrets.token_hex(8) for _ in range(CLIENTS - 1)]]
    if how is signal.SIGKILL:
        third.kill()
    else:
        os.kill(third.pid, how)

    def comes_back() -> None:
        if how is signal.SIGKILL:
            third.start()
        else:
            os.kill(third.pid, signal.SIGCONT)
        for gateway in gateways:
            until(lambda gateway=gateway: comes_in(gateway, lasting))  # type: ignore[misc]

    clients: list[Paho] = []
    try:
        for number, name in enumerate(ids):
            began = time.monotonic()
            clients.append(Paho(gateways[number % 2], name, reconnect=False).start())
            assert time.monotonic() - began < 2, "first it is found to say nothing"
            assert clients[-1].subscribe((f"to/{name}", 2)) == [2]
            assert time.monotonic() - began < 2 + GIVEN_UP_S
        began = time.monotonic()
        pass_on(clients, ids, "while it is away ")
        nameless = Paho(gateways[0], "", reconnect=False).start()
        nameless.stop()
        assert time.monotonic() - began < 2 * GIVEN_UP_S
        for gateway in gateways:
            assert refused_after_s(gateway, lasting) < 1
        taker = Paho(gateways[1], ids[0], reconnect=False).start()
        assert clients[0].event("disconnect"), "the other gateway's client, which was there before"
        clients[0] = taker
        taker.subscribe((f"to/{ids[0]}", 2))
        asyncio.run(queues_go_on(gateways, comes_back))
        pass_on(clients, ids, "when it is back ")
        for number, client in enumerate(clients):
            assert client.client.is_connected(), number
    finally:
        if how is signal.SIGSTOP:
            os.kill(third.pid, signal.SIGCONT)
        for client in clients:
            client.stop()
