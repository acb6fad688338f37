"""Numbers and rates of a user over all doors together, each refused on its protocol's terms."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import httpx
import paho.mqtt.client as paho
import pika
import pika.exceptions
import pytest

from gantrymq.client.client import Client
from gantrymq.client.producing.producer import Producer
from gantrymq.model.errors import GantryError
from gantrymq.net.rotation import BOUNDED_BYTES_MAX
from interop_tests.accounts import Guarded
from interop_tests.test_auth_tokens import amqp, mqtt

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # paho's sockets

EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
REFUSED = "auth.user_connections_max (2) is reached"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(
        tmp_path_factory.mktemp("gantry"), settings=("auth.user_connections_max=2", "auth.user_bytes_per_s=20000")
    )
    try:
        gantry.start()
        for name in ("alice", "bob"):
            gantry.add_user(name, f"{name}-pass", ("topic:t", "pub,sub"))
        yield gantry
    finally:
        gantry.stop()
        gc.collect()
        assert "Traceback" not in gantry.log()


async def send(server: Guarded, user: str) -> None:
    async with Client(server.nameserver, user, f"{user}-pass") as client, Producer(client=client) as producer:
        await producer.send("t", b"hello")


def post(server: Guarded, user: str) -> httpx.Response:
    url = "http://{}:{}/topics/t".format(*server.address("cloudevents"))
    return httpx.post(url, headers=EVENT, auth=(user, f"{user}-pass"), content=b"x", timeout=20)


def test_a_user_has_so_many_connections_at_all_doors_together(server: Guarded) -> None:
    said, first, _ = mqtt(server, "alice", "alice-pass")
    assert said == "Success"
    second = amqp(server, "alice-pass", "alice")
    assert mqtt(server, "alice", "alice-pass")[0] == "Quota exceeded"
    assert mqtt(server, "alice", "alice-pass", paho.MQTTv311)[0] != "Success"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost '/' refused for user 'alice'"):
        amqp(server, "alice-pass", "alice")
    assert post(server, "alice").status_code == 429
    with pytest.raises(GantryError, match="user_connections_max"):
        asyncio.run(send(server, "alice"))
    asyncio.run(send(server, "bob"))
    assert post(server, "bob").status_code == 202
    second.close()
    assert post(server, "alice").status_code == 202
    first.disconnect()
    first.loop_stop()
    assert REFUSED in server.log()


def test_who_sends_more_than_his_rate_waits_and_nobody_else_does(server: Guarded) -> None:
    """100,000 bytes at 20,000 a second: one second's worth at once, and nobody waits behind the last piece that a door takes; the rest comes in its time."""
    _, first, _ = mqtt(server, "alice", "alice-pass")
    began = time.monotonic()
    sent = [first.publish("t/x", b"x" * 1_000, 1) for _ in range(100)]
    asyncio.run(send(server, "bob"))
    assert time.monotonic() - began < 3, "bob has a rate of his own"
    for each in sent:
        each.wait_for_publish(30)
    least = (100 * 1_000 - 20_000 - BOUNDED_BYTES_MAX) / 20_000
    assert least < time.monotonic() - began < 25
    first.disconnect()
    first.loop_stop()
