"""aiomqtt, with which ../driver.py talks."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import aiomqtt
from lines import arrived, serve
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

clients: dict[str, tuple[aiomqtt.Client, asyncio.Task[None]]] = {}


async def listen(name: str, client: aiomqtt.Client) -> None:
    async for message in client.messages:
        payload = message.payload
        assert isinstance(payload, bytes)
        arrived(name, message.topic.value, message.qos, message.retain, payload)


async def connect(name: str, url: str, level: str, client_id: str, clean: str, will: str) -> str:
    at = urlsplit(url)
    options: dict[str, Any] = {}
    if level == "5":
        options["clean_start"] = clean == "1"
        options["properties"] = Properties(PacketTypes.CONNECT)
        options["properties"].SessionExpiryInterval = 0 if clean == "1" else 3600
    else:
        options["clean_session"] = clean == "1"
    if at.scheme == "ws":
        options |= {"transport": "websockets", "websocket_path": at.path}
    if will != "-":
        options["will"] = aiomqtt.Will(will, b"gone", 1)
    client = aiomqtt.Client(
        at.hostname or "", at.port or 0, identifier=client_id, protocol=aiomqtt.ProtocolVersion(int(level)), timeout=60, **options
    )  # fmt: skip
    await client.__aenter__()
    clients[name] = client, asyncio.create_task(listen(name, client))
    return "-"  # it does not tell


async def subscribe(name: str, text: str, qos: str) -> int:
    granted = (await clients[name][0].subscribe(text, int(qos)))[0]
    return granted if isinstance(granted, int) else granted.value


async def publish(name: str, topic: str, qos: str, retain: str, count: str, text: str) -> None:
    client, _ = clients[name]
    bodies = ["" if text == "-" else f"{text}.{number}" for number in range(int(count))]
    await asyncio.gather(*[client.publish(topic, body, int(qos), retain == "1") for body in bodies])


async def disconnect(name: str) -> None:
    client, listening = clients.pop(name)
    listening.cancel()
    await client.__aexit__(None, None, None)


asyncio.run(serve({"connect": connect, "subscribe": subscribe, "publish": publish, "disconnect": disconnect}))
