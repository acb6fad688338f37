"""Three publishers, each with a client library that nobody here wrote: paho-mqtt, aiormq, cloudevents over httpx.

Each builds a message once and sends it until the server acknowledges it, over as many connections as that takes: the same id, the
same bytes. So what is not acknowledged when the server is killed comes again, and a duplicate may arise, never a loss.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import aiormq
import aiormq.exceptions
import httpx
import paho.mqtt.client as mqtt
from aiormq.abc import AbstractChannel, AbstractConnection
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from paho.mqtt.enums import CallbackAPIVersion
from pamqp.commands import Basic

from interop_tests.demo.ledger import Ledger
from interop_tests.demo.sources import Reading, Telemetry, flights, history, now, pack

TELEMETRY_PERIOD_S = 0.25
FLIGHTS_PER_S = 80
PUSHES_PER_S = 50
BATCH_EVENTS = 10
WORKERS = 8
"""Confirms, or requests, that one publisher waits for at a time."""
ANSWER_S = 20.0
CONNECT_S = 120.0
"""Long for slow machines; a server that is killed closes its connections at once."""
LATER = frozenset({408, 429})
"""The server had not seen the whole request in time, or has too much to do: sent again, as after a 5xx."""
RETRY_S = 0.1
SETTLE_POLL_S = 0.05


class PublishError(Exception):
    """The server refused a message for good, which nothing in the demonstration should bring about."""


class MqttTelemetry:
    """QoS 1 by paho-mqtt, which keeps unacknowledged messages itself and sends them again after a reconnect."""

    door = "mqtt"

    def __init__(self, ledger: Ledger, telemetry: Telemetry, device: str) -> None:
        self._ledger = ledger
        self._telemetry = telemetry
        self._host = device
        self._numbers = itertools.count()
        self._pubacks: deque[tuple[int, float]] = deque()
        self._waiting: dict[int, str] = {}
        self.published: list[tuple[str, Reading, float]] = []
        """(id, reading, time) of everything, for the alerts that are to be expected."""
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="demo-telemetry", protocol=mqtt.MQTTv311)
        self._client.max_inflight_messages_set(100)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = self._on_publish
        self._client.on_disconnect = self._on_disconnect

    def _on_publish(self, _client: Any, _userdata: Any, mid: int, *_rest: Any) -> None:
        self._pubacks.append((mid, now()))

    def _on_disconnect(self, *_: Any) -> None:
        self._ledger.sending_again(self.door, max(0, len(self._waiting) - len(self._pubacks)))

    async def start(self, address: tuple[str, int]) -> None:
        self._client.connect_async(*address, keepalive=20)
        self._client.loop_start()
        for _ in range(int(CONNECT_S / SETTLE_POLL_S)):
            if self._client.is_connected():
                return
            await asyncio.sleep(SETTLE_POLL_S)
        raise TimeoutError(f"MQTT: not connected within {CONNECT_S:.0f} s")

    def _publish(self, reading: Reading) -> str:
        at = now()
        message_id = f"mqtt-{next(self._numbers)}"
        record = {
            "id": message_id, "at": at, "host": self._host, "device": reading.device, "metric": reading.metric,
            "value": reading.value, "unit": reading.unit,
        }  # fmt: skip
        body = pack(record)
        self._ledger.sending(self.door, message_id, body)
        self.published.append((message_id, reading, at))
        info = self._client.publish(f"telemetry/{reading.device}/{reading.metric}", body, qos=1)
        if info.rc not in (mqtt.MQTT_ERR_SUCCESS, mqtt.MQTT_ERR_NO_CONN):  # without a connection paho keeps it
            raise PublishError(f"paho-mqtt: {mqtt.error_string(info.rc)}")
        self._waiting[info.mid] = message_id
        return message_id

    def _settle(self) -> None:
        for _ in range(len(self._pubacks)):
            mid, at = self._pubacks.popleft()
            message_id = self._waiting.pop(mid, None)
            if message_id is not None:
                self._ledger.acknowledged(self.door, message_id, at)

    async def first(self) -> str:
        message_id = self._publish(self._telemetry.read()[0])
        await self.settled()
        return message_id

    async def run(self, seconds: float) -> None:
        begun = time.monotonic()
        for turn in range(int(seconds / TELEMETRY_PERIOD_S)):
            for reading in self._telemetry.read():
                self._publish(reading)
            self._settle()
            await asyncio.sleep(max(0.0, begun + (turn + 1) * TELEMETRY_PERIOD_S - time.monotonic()))
        await self.settled()

    async def settled(self) -> None:
        """Until everything is acknowledged."""
        while self._waiting:
            self._settle()
            await asyncio.sleep(SETTLE_POLL_S)

    async def stop(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)


class Outcome(Enum):
    """What became of one attempt to send."""

    ACKNOWLEDGED = "acknowledged"
    UNANSWERED = "unanswered"
    """It left, and nobody knows how far it came."""
    UNSENT = "unsent"
    """There was no connection."""


@dataclass(slots=True)
class Job:
    """One thing to send until it is acknowledged; `ids`: the messages in it."""

    ids: list[str]
    send: Callable[[], Awaitable[Outcome]]


class Workers:
    """A few tasks that send jobs at a steady rate, each job again and again until it is acknowledged."""

    def __init__(self, ledger: Ledger, door: str) -> None:
        self._ledger = ledger
        self._door = door

    async def one(self, job: Job) -> None:
        while (outcome := await job.send()) is not Outcome.ACKNOWLEDGED:
            if outcome is Outcome.UNANSWERED:
                self._ledger.sending_again(self._door, len(job.ids))
            await asyncio.sleep(RETRY_S)
        at = now()
        for message_id in job.ids:
            self._ledger.acknowledged(self._door, message_id, at)

    async def run(self, make: Callable[[], Job], per_s: float, seconds: float) -> None:
        """`make` is called at each job's time, also behind schedule: after an outage the publisher catches up."""
        begun = time.monotonic()
        times: Iterator[float] = (begun + index / per_s for index in range(int(per_s * seconds)))

        async def work() -> None:
            for due in times:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self.one(make())

        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(work())


class AmqpFlights:
    """Persistent messages with publisher confirms by aiormq."""

    door = "amqp"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._numbers = itertools.count()
        self._rows = flights()
        self._workers = Workers(ledger, self.door)
        self._connecting = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._url = ""

    async def start(self, address: tuple[str, int]) -> None:
        self._url = f"amqp://guest:guest@{address[0]}:{address[1]}/"
        await self._open_channel()

    async def _open_channel(self) -> AbstractChannel:
        async with self._connecting:
            if self._channel is None or self._channel.is_closed:
                self._connection = await aiormq.connect(self._url)
                channel = await self._connection.channel(publisher_confirms=True)
                await channel.exchange_declare("flights", exchange_type="topic", durable=True)
                self._channel = channel
            return self._channel

    def _job(self) -> Job:
        row = next(self._rows)
        message_id = f"amqp-{next(self._numbers)}"
        body = pack({"id": message_id, "at": now(), **row})
        key = f"{row['carrier']}.{row['origin']}.{row['dest']}"
        properties = Basic.Properties(
            content_type="application/json",
            delivery_mode=2,
            message_id=message_id,
            headers={"tailnum": row["tailnum"] or "unknown", "distance": int(row["distance"])},
        )
        self._ledger.sending(self.door, message_id, body)

        async def publish() -> bool:
            channel = await self._open_channel()
            answer = await channel.basic_publish(body, exchange="flights", routing_key=key, properties=properties)
            return isinstance(answer, Basic.Ack)

        return Job([message_id], lambda: self._try(publish))

    async def _try(self, publish: Callable[[], Awaitable[bool]]) -> Outcome:
        # A task of its own: aiormq cancels what waits for a confirm when the connection is lost.
        was_open = self._channel is not None and not self._channel.is_closed
        failed = Outcome.UNANSWERED if was_open else Outcome.UNSENT
        task = asyncio.ensure_future(publish())
        try:
            await asyncio.wait({task}, timeout=ANSWER_S)
        finally:
            task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            return failed
        error = task.exception()
        if error is None:
            return Outcome.ACKNOWLEDGED if task.result() else failed
        # A channel that the kill closed between our look at it and the publish is no AMQPError but a RuntimeError of its own.
        lost = (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, OSError, TimeoutError)
        if isinstance(error, lost):
            return failed
        raise error

    async def first(self) -> str:
        job = self._job()
        await self._workers.one(job)
        return job.ids[0]

    async def run(self, seconds: float) -> None:
        await self._workers.run(self._job, FLIGHTS_PER_S, seconds)

    async def stop(self) -> None:
        if self._connection is not None and not self._connection.is_closed:
            await self._connection.close()


class CloudEventPushes:
    """Events made by `cloudevents`, posted by httpx: in turn binary, structured and a batch. Only 202 acknowledges."""

    door = "cloudevents"

    def __init__(self, ledger: Ledger, root: Path) -> None:
        self._ledger = ledger
        self._numbers = itertools.count()
        self._pushes = itertools.cycle(history(root))
        self._modes = itertools.cycle((self._binary, self._structured, self._batch))
        self._workers = Workers(ledger, self.door)
        self._format = JSONFormat()
        self._client: httpx.AsyncClient | None = None
        self._url = ""

    async def start(self, address: tuple[str, int]) -> None:
        self._url = f"http://{address[0]}:{address[1]}/topics/pushes"
        self._client = httpx.AsyncClient(timeout=ANSWER_S, trust_env=False)

    def _event(self) -> CloudEvent:
        push = next(self._pushes)
        message_id = f"push-{next(self._numbers)}"
        event = CloudEvent(
            {
                "id": message_id, "source": "/gantrymq/git", "type": "git.push", "subject": push["path"] or push["ref"],
                "specversion": "1.0", "datacontenttype": "application/json",
            },
            {"id": message_id, "at": now(), **push},
        )  # fmt: skip
        self._ledger.sending(self.door, message_id, self._format.write_data(event.get_data(), "application/json"))
        return event

    def _binary(self) -> Job:
        event = self._event()
        message = to_binary_event(event)
        return self._job([event], message.headers, message.body)

    def _structured(self) -> Job:
        event = self._event()
        message = to_structured_event(event)
        return self._job([event], message.headers, message.body)

    def _batch(self) -> Job:
        events = [self._event() for _ in range(BATCH_EVENTS)]
        body = b"[" + b",".join([self._format.write(event) for event in events]) + b"]"
        return self._job(events, {"content-type": "application/cloudevents-batch+json"}, body)

    def _job(self, events: list[CloudEvent], headers: dict[str, str], body: bytes) -> Job:
        async def post() -> Outcome:
            assert self._client is not None
            try:
                answer = await self._client.post(self._url, headers=headers, content=body)
            except httpx.ConnectError:
                return Outcome.UNSENT
            except httpx.TransportError:
                return Outcome.UNANSWERED
            if 400 <= answer.status_code < 500 and answer.status_code not in LATER:
                raise PublishError(f"POST {self._url}: {answer.status_code} {answer.text}")
            return Outcome.ACKNOWLEDGED if answer.status_code == 202 else Outcome.UNANSWERED

        return Job([event.get_id() for event in events], post)

    async def first(self) -> str:
        job = self._binary()
        await self._workers.one(job)
        return job.ids[0]

    async def run(self, seconds: float) -> None:
        per_turn = (2 + BATCH_EVENTS) / 3
        await self._workers.run(lambda: next(self._modes)(), PUSHES_PER_S / per_turn, seconds)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.aclose()
