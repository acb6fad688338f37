"""gmqtt, with which ../driver.py talks."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import gmqtt
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from gmqtt.storage import PersistentStorage
from lines import arrived, serve

clients: dict[str, Talker] = {}


class Talker:
    def __init__(self, name: str, client_id: str, clean: bool, level: int, will: str) -> None:
        self.storage = PersistentStorage()
        options: dict[str, Any] = {"session_expiry_interval": 0 if clean else 3600} if level == 5 else {}
        message = None if will == "-" else gmqtt.Message(will, b"gone", qos=1)
        self.client = gmqtt.Client(client_id, clean, False, message, self.storage, **options)
        self.client.set_config({"reconnect_retries": 0})
        self.present: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.granted: asyncio.Queue[int] = asyncio.Queue()
        self.client.on_connect = self.connected
        self.client.on_subscribe = lambda client, mid, granted, properties: self.granted.put_nowait(granted[0])
        self.client.on_message = lambda client, topic, payload, qos, properties: self.message(
            name, topic, payload, qos, properties
        )

    def connected(self, client: object, flags: int, code: int, properties: object) -> None:
        if not self.present.done():
            self.present.set_result(flags & 1)

    def message(self, name: str, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
        arrived(name, topic, qos, bool(properties["retain"]), payload)
        return 0


async def connect(name: str, url: str, level: str, client_id: str, clean: str, will: str) -> int:
    at = urlsplit(url)
    made = clients[name] = Talker(name, client_id, clean == "1", int(level), will)
    await made.client.connect(at.hostname, at.port, version=MQTTv50 if level == "5" else MQTTv311)
    return await made.present


async def subscribe(name: str, text: str, qos: str) -> int:
    clients[name].client.subscribe(text, int(qos))
    return await clients[name].granted.get()


async def publish(name: str, topic: str, qos: str, retain: str, count: str, text: str) -> None:
    made = clients[name]
    for number in range(int(count)):
        body = "" if text == "-" else f"{text}.{number}"
        made.client.publish(topic, body, qos=int(qos), retain=retain == "1")
    await made.storage.wait_empty()


async def disconnect(name: str) -> None:
    await clients[name].client.disconnect()


asyncio.run(serve({"connect": connect, "subscribe": subscribe, "publish": publish, "disconnect": disconnect}))
