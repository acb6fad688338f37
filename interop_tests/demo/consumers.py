"""Consumers of everything: an MQTT session (paho-mqtt), an AMQP queue (pika), a webhook receiver, a native pull consumer.

Each hands every delivery to the same ledger. Queue, session and subscriptions are durable: after the kill they must still be there, and
a consumer that finds them gone reports a problem.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx
import paho.mqtt.client as mqtt
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
from paho.mqtt.enums import CallbackAPIVersion

from gantrymq.client import PullConsumer, ReceivedMessage
from gantrymq.model.errors import ErrorCode, GantryError
from interop_tests.demo.faces import Faces, Lines, join, own
from interop_tests.demo.ledger import Ledger, digest_of
from interop_tests.demo.sources import now

DOOR_OF: Final = {"telemetry": "mqtt", "flights": "amqp", "pushes": "cloudevents"}
"""Topic -> the door that its messages are published through."""
ALERTS: Final = "alerts"
REJECTED: Final = "rejected"
PREFETCH: Final = 200
RECONNECT_S: Final = 0.2
READY_S: Final = 120.0
POLL_S: Final = 0.02
PULL_WAIT_S: Final = 1.0
COMMIT_S: Final = 2.0
BUSY: Final = "Server unavailable"
"""The one refusal of CONNECT that is no verdict: paho tries again by itself."""
RETRIED: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.TOPIC_NOT_FOUND})


class Inbox:
    """Where a consumer puts what it receives: the ledger's books under its name, and the faces."""

    def __init__(self, name: str, ledger: Ledger, faces: Faces, problems: list[str]) -> None:
        self.name = name
        self._ledger = ledger
        self._faces = faces
        self._problems = problems

    def put(self, topic: str, body: bytes, face: Callable[[], Lines]) -> None:
        """`topic`: the native one, which tells the publishing door."""
        door = DOOR_OF.get(topic)
        if door is None:
            self.problem(f"a message of {topic!r}, where nobody publishes")
            return
        message_id = self._ledger.received(self.name, door, body, now())
        if message_id in self._faces.wanted:
            self._faces.add(message_id, self.name, face(), digest_of(body), body.decode("utf-8", "replace"))

    def problem(self, text: str) -> None:
        self._problems.append(f"{self.name}: {text}")


async def wait_for_event(event: threading.Event, what: str) -> None:
    end = time.monotonic() + READY_S
    while not event.is_set():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {READY_S:.0f} s")
        await asyncio.sleep(POLL_S)


class MqttSession:
    """Persistent session, QoS 1; what comes on `alerts/#` goes to `on_alert`, and on `rejected/#` to `on_rejected`."""

    def __init__(
        self, inbox: Inbox, on_alert: Callable[[str, bytes, float], None], on_rejected: Callable[[bytes], None]
    ) -> None:
        self._inbox = inbox
        self._on_alert = on_alert
        self._on_rejected = on_rejected
        self._subscribed = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="demo-subscriber", protocol=mqtt.MQTTv311, clean_session=False
        )
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def _on_connect(self, client: mqtt.Client, _userdata: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            if reason.getName() != BUSY:
                self._inbox.problem(f"CONNECT refused: {reason}")
        elif not self._subscribed.is_set():
            client.subscribe([(f"{topic}/#", 1) for topic in (*DOOR_OF, ALERTS, REJECTED)])
        elif not flags.session_present:
            self._inbox.problem("the session is gone")

    def _on_subscribe(self, _client: Any, _userdata: Any, _mid: int, reasons: list[Any], _properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._inbox.problem(f"SUBSCRIBE refused: {', '.join(map(str, reasons))}")
        self._subscribed.set()

    def _on_message(self, _client: Any, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        topic = message.topic.partition("/")[0]
        if topic == ALERTS:
            self._on_alert(message.topic, bytes(message.payload), now())
        elif topic == REJECTED:
            self._on_rejected(bytes(message.payload))
        else:
            self._inbox.put(topic, bytes(message.payload), lambda: {"topic": message.topic, "QoS": str(message.qos)})

    async def start(self, address: tuple[str, int]) -> None:
        self._client.connect_async(*address, keepalive=20)
        self._client.loop_start()
        await wait_for_event(self._subscribed, "MQTT: no SUBACK")

    async def stop(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)


class AmqpQueue:
    """A durable queue bound to the three exchanges with `#`, manual acknowledgement, in a thread of its own."""

    queue = "demo-everything"

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._consuming = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-amqp", daemon=True)
        self._parameters = pika.ConnectionParameters()

    async def start(self, address: tuple[str, int]) -> None:
        self._parameters = pika.ConnectionParameters(*address, socket_timeout=5, blocked_connection_timeout=30)
        self._thread.start()
        await wait_for_event(self._consuming, "AMQP: not consuming")

    async def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, 10)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._consume()
            except pika.exceptions.ChannelClosedByBroker as error:
                self._inbox.problem(f"channel closed: {error}")
                return
            except (pika.exceptions.AMQPError, OSError):
                self._stopping.wait(RECONNECT_S)
            except Exception as error:  # nobody would hear of it: this is a thread
                self._inbox.problem(repr(error))
                return

    def _consume(self) -> None:
        connection = pika.BlockingConnection(self._parameters)
        channel = connection.channel()
        if self._consuming.is_set():
            channel.queue_declare(self.queue, passive=True)  # it must have survived
        else:
            channel.queue_declare(self.queue, durable=True)
            for exchange in DOOR_OF:
                channel.exchange_declare(exchange, exchange_type="topic", durable=True)
                channel.queue_bind(self.queue, exchange, "#")
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, properties, body in channel.consume(self.queue, inactivity_timeout=0.2):
            self._consuming.set()
            if self._stopping.is_set():
                break
            if method is not None:
                self._inbox.put(method.exchange, body, partial(self._face, method, properties))
                channel.basic_ack(method.delivery_tag)
        connection.close()

    @staticmethod
    def _face(method: Any, properties: Any) -> Lines:
        lines = {"exchange": method.exchange, "routing key": method.routing_key}
        if properties.content_type:
            lines["content type"] = properties.content_type
        if properties.headers:
            lines["headers"] = join(properties.headers)
        return lines


class _HookServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    """The server connects many times at once; beyond this a connection is tried again a second later."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that the killed server left behind; everything else is worth seeing."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Webhook:
    """An HTTP server on loopback and one subscription per topic."""

    def __init__(self, inbox: Inbox) -> None:
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                receive(self.path.rpartition("/")[2], {k.lower(): v for k, v in self.headers.items()}, body)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing: the ledger counts."""

        self._inbox = inbox
        self._server = _HookServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="demo-webhook", daemon=True)

    def _receive(self, topic: str, headers: dict[str, str], body: bytes) -> None:
        self._inbox.put(topic, body, lambda: {k: v for k, v in headers.items() if k.startswith(("ce-", "content-t"))})

    async def start(self, address: tuple[str, int]) -> None:
        self._thread.start()
        sink = f"http://127.0.0.1:{self._server.server_port}/inbox/"
        async with httpx.AsyncClient(
            base_url=f"http://{address[0]}:{address[1]}", trust_env=False, timeout=READY_S
        ) as client:
            for topic in DOOR_OF:
                wanted = {
                    "sink": sink + topic,
                    "protocol": "HTTP",
                    "config": {"topic": topic, "from": "earliest", "maxattempts": 100},
                }
                answer = await client.post("/subscriptions", json=wanted)
                if answer.status_code != 201:
                    self._inbox.problem(f"POST /subscriptions: {answer.status_code} {answer.text}")

    async def stop(self) -> None:
        if self._thread.is_alive():
            await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()


class NativePull:
    """The native client: pulls by queue offset and commits its group's offsets."""

    group = "demo-pull"

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._task: asyncio.Task[None] | None = None
        self._consumer: PullConsumer | None = None

    async def start(self, address: tuple[str, int]) -> None:
        """`address`: the nameserver's. The topics must exist."""
        self._consumer = PullConsumer(f"{address[0]}:{address[1]}", self.group)
        end = time.monotonic() + READY_S
        while True:
            try:
                queues = [queue for topic in DOOR_OF for queue in await self._consumer.queues(topic)]
                await self._consumer.assign(queues)
                break
            except GantryError as error:
                if error.code not in RETRIED or time.monotonic() > end:
                    raise
            await asyncio.sleep(RECONNECT_S)
        self._task = asyncio.create_task(self._run(self._consumer))

    async def _run(self, consumer: PullConsumer) -> None:
        last_at = committed_at = time.monotonic()
        while True:
            try:
                for message in await consumer.pull(wait_s=PULL_WAIT_S):
                    self._inbox.put(message.topic, message.body, partial(self._face, message))
                last_at = time.monotonic()
                if last_at - committed_at >= COMMIT_S:
                    await consumer.commit()
                    committed_at = last_at
            except GantryError as error:
                # A nameserver that was restarted knows no topic until the broker has registered again.
                if error.code not in RETRIED or time.monotonic() - last_at > READY_S:
                    self._inbox.problem(str(error))
                    return
                await asyncio.sleep(RECONNECT_S)

    @staticmethod
    def _face(message: ReceivedMessage) -> Lines:
        lines = {
            "topic": message.topic,
            "tag": message.tag,
            "queue": f"{message.broker}/{message.queue_id}",
            "offset": str(message.queue_offset),
            "message id": message.message_id,
        }
        if message.keys:
            lines["keys"] = message.keys
        return lines | own(message.property_map())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                self._inbox.problem(repr(error))
        if self._consumer is not None:
            await self._consumer.close()
