"""amqtt's client against a running server."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from interop_tests.running import Gantry

amqtt_client = pytest.importorskip("amqtt.client")

QOS = [0, 1]


def _client(client_id: str) -> object:
    return amqtt_client.MQTTClient(client_id=client_id, config={"auto_reconnect": False})


@pytest.mark.filterwarnings("ignore")
def test_publish_and_subscribe(server: Gantry) -> None:
    top = f"t{uuid4().hex[:8]}"
    host, port = server.address("mqtt")

    async def run() -> list[tuple[str, bytes, int]]:
        sub, pub = _client(f"{top}s"), _client(f"{top}p")
        await sub.connect(f"mqtt://{host}:{port}/")  # type: ignore[attr-defined]
        assert await sub.subscribe([(f"{top}/+", 1), (f"{top}/#", 0)]) == [1, 0]  # type: ignore[attr-defined]
        await pub.connect(f"mqtt://{host}:{port}/")  # type: ignore[attr-defined]
        got = []
        for qos in QOS:
            await pub.publish(f"{top}/a", b"%d" % qos, qos=qos)  # type: ignore[attr-defined]
            message = await sub.deliver_message(timeout_duration=60)  # type: ignore[attr-defined]
            got.append((message.topic, bytes(message.data), message.qos))
        await sub.disconnect()  # type: ignore[attr-defined]
        await pub.disconnect()  # type: ignore[attr-defined]
        return got

    assert asyncio.run(run()) == [(f"{top}/a", b"%d" % qos, qos) for qos in QOS]


@pytest.mark.filterwarnings("ignore")
def test_session_is_kept(server: Gantry) -> None:
    top = f"t{uuid4().hex[:8]}"
    host, port = server.address("mqtt")

    async def run() -> list[bytes]:
        sub, pub = _client(f"{top}s"), _client(f"{top}p")
        await sub.connect(f"mqtt://{host}:{port}/", cleansession=False)  # type: ignore[attr-defined]
        await sub.subscribe([(f"{top}/#", 1)])  # type: ignore[attr-defined]
        await sub.disconnect()  # type: ignore[attr-defined]
        await pub.connect(f"mqtt://{host}:{port}/")  # type: ignore[attr-defined]
        for i in range(5):
            await pub.publish(f"{top}/a", b"%d" % i, qos=1)  # type: ignore[attr-defined]
        await pub.disconnect()  # type: ignore[attr-defined]
        sub = _client(f"{top}s")
        await sub.connect(f"mqtt://{host}:{port}/", cleansession=False)  # type: ignore[attr-defined]
        got = [bytes((await sub.deliver_message(timeout_duration=60)).data) for _ in range(5)]  # type: ignore[attr-defined]
        await sub.disconnect()  # type: ignore[attr-defined]
        return got

    assert asyncio.run(run()) == [b"%d" % i for i in range(5)]
