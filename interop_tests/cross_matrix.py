"""The doors of the cross matrix: ways in (`SOURCES`) and ways out (`Exits`), each a client that its protocol's users have.

One line of what went in is a `Said`, one of what came out a `Heard`; `test_cross_matrix.py` holds the table of names and what is expected.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import aiormq
import httpx
import pamqp.commands
import pika
from cloudevents.core.bindings.http import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from gantrymq.client import BlockingProducer, BlockingPullConsumer, OutMessage
from interop_tests.bench import remoting_wire
from interop_tests.cloudevents_sinks import Sink, assigned
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S, until

OCTETS = "application/octet-stream"


@dataclass(frozen=True)
class Said:
    """`name`: as the source's door spells it; `number`: unique in a test, part of ids and keys."""

    name: tuple[str, str]
    body: bytes
    number: int


@dataclass
class Heard:
    """`name`: as the exit's door spells it. `facts`: what else its protocol shows."""

    name: tuple[str, ...]
    body: bytes
    facts: dict[str, Any] = field(default_factory=dict)


# Ways in. Each is a function (server, lines); it returns when all lines are acknowledged.


def by_paho(server: Gantry, lines: list[Said]) -> None:
    pub = Paho(server).start()
    waiting = [pub.client.publish(line.name[0], line.body, 1) for line in lines]
    for info in waiting:
        info.wait_for_publish(LIMIT_S)
        assert info.is_published()
    pub.stop()


def amqp_properties(line: Said) -> dict[str, Any]:
    return {
        "content_type": OCTETS,
        "headers": {"device": f"d{line.number}", "CE_x": "no event", "TAGS": "no tag"},
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": f"c{line.number}",
        "reply_to": "answers",
        "message_id": f"m{line.number}",
    }


def by_pika(server: Gantry, lines: list[Said]) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp")))
    channel = connection.channel()
    channel.confirm_delivery()
    for line in lines:
        channel.basic_publish(*line.name, line.body, pika.BasicProperties(**amqp_properties(line)), mandatory=True)
    connection.close()


def by_aiormq(server: Gantry, lines: list[Said]) -> None:
    async def publish() -> None:
        host, port = server.address("amqp")
        connection = await aiormq.connect(f"amqp://guest:guest@{host}:{port}/")
        channel = await connection.channel()
        for line in lines:
            properties = pamqp.commands.Basic.Properties(**amqp_properties(line))
            await channel.basic_publish(
                line.body, exchange=line.name[0], routing_key=line.name[1], properties=properties
            )
        await connection.close()

    asyncio.run(publish())


def event_of(line: Said) -> CloudEvent:
    attributes = {
        "id": f"e{line.number}",
        "source": "/matrix/%C3%BC",
        "type": line.name[1],
        "specversion": "1.0",
        "subject": "sub ject",
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "datacontenttype": OCTETS,
        "device": f"d{line.number}",
    }
    return CloudEvent(attributes, line.body)


def post(http: httpx.Client, server: Gantry, topic: str, headers: dict[str, Any], body: bytes | None) -> None:
    host, port = server.address("cloudevents")
    answer = http.post(f"http://{host}:{port}/topics/{quote(topic, safe='')}", headers=headers, content=body)
    assert answer.status_code == 202, answer.text


def by_binary_event(server: Gantry, lines: list[Said]) -> None:
    with httpx.Client(timeout=LIMIT_S) as http:
        for line in lines:
            message = to_binary(event_of(line), JSONFormat())
            post(http, server, line.name[0], message.headers, line.body)


def by_structured_event(server: Gantry, lines: list[Said]) -> None:
    with httpx.Client(timeout=LIMIT_S) as http:
        for line in lines:
            message = to_structured(event_of(line), JSONFormat())
            post(http, server, line.name[0], message.headers, message.body)


def by_batched_events(server: Gantry, lines: list[Said]) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        event = json.loads(to_structured(event_of(line), JSONFormat()).body)
        topics.setdefault(line.name[0], []).append(event)
    headers = {"content-type": "application/cloudevents-batch+json"}
    with httpx.Client(timeout=LIMIT_S) as http:
        for topic, events in topics.items():
            post(http, server, topic, headers, json.dumps(events).encode())


def by_producer(server: Gantry, lines: list[Said]) -> None:
    with BlockingProducer(server.doors["nameserver"], timeout_s=LIMIT_S) as producer:
        for line in lines:
            properties = {"device": f"d{line.number}"}
            message = OutMessage(line.name[0], line.body, line.name[1], [f"k{line.number}", "all"], properties, "one")
            producer.send(message)


def by_remoting(server: Gantry, lines: list[Said]) -> None:
    """Frames made by hand, as a RocketMQ 4 client would send them: bodies above 4 KiB compressed, keys as text."""
    with remoting_wire.connect(server.doors["broker"]) as broker:
        for line in lines:
            topic, tag = line.name
            pairs = {"TAGS": tag, "KEYS": f"k{line.number} all", "UNIQ_KEY": f"{line.number:032X}"}
            pairs["device"] = f"d{line.number}"
            large = len(line.body) > 4096
            body = zlib.compress(line.body) if large else line.body
            now_ms = str(int(time.time() * 1000))
            fields = {
                "a": "matrix", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(int(large)), "g": now_ms, "h": "0",
                "i": "".join([f"{name}\x01{value}\x02" for name, value in pairs.items() if value]), "j": "0", "k": "false",
            }  # fmt: skip
            code, _, _, remark, _ = remoting_wire.call(broker, 310, fields, body)
            assert code == 0, remark


SOURCES: dict[str, Callable[[Gantry, list[Said]], None]] = {
    "paho": by_paho,
    "pika": by_pika,
    "aiormq": by_aiormq,
    "binary events": by_binary_event,
    "structured events": by_structured_event,
    "batched events": by_batched_events,
    "producer": by_producer,
    "remoting": by_remoting,
}
KIND = {"paho": "mqtt", "pika": "amqp", "aiormq": "amqp", "producer": "native", "remoting": "native"}
"""Door of a source; the others are `event`."""

AIORMQ_EXCHANGE = re.compile(r"[A-Za-z0-9_.:@#,/><-]{1,127}")
"""pamqp lets its users write no other exchange names (the letter of the specification; RabbitMQ and pika take any)."""


def can_say(source: str, line: Said) -> bool:
    return source != "aiormq" or AIORMQ_EXCHANGE.fullmatch(line.name[0]) is not None


# Ways out. All are open before anything is published; `collect` waits for a number of messages.


class Exits:
    """Every way out of some topics. `firsts`: first levels, which are AMQP's exchanges; `topics`: their native names."""

    def __init__(self, server: Gantry, label: str, firsts: list[str], topics: list[str]) -> None:
        self.server = server
        self.topics = topics
        self.label = label
        self.http = httpx.Client(timeout=LIMIT_S)
        self.subscriptions: list[str] = []
        self.sinks = {"binary": Sink(), "structured": Sink()}
        self.clean = Paho(server).start()
        self.filters = [(f"{first}/#", 1) for first in firsts]
        self.clean.subscribe(*self.filters)
        session = Paho(server, f"s-{label}", False).start()
        session.subscribe(*self.filters)
        session.stop()
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp"), heartbeat=0))
        self.channel = self.connection.channel()
        self.channel.queue_declare(label, durable=True)
        for first in firsts:
            if first:  # the default exchange cannot be bound to
                self.channel.exchange_declare(first, "topic", durable=True)
                self.channel.queue_bind(label, first, "#")
        for topic in topics:
            for mode, sink in self.sinks.items():
                self._subscribe(topic, mode, sink)

    def _subscribe(self, topic: str, mode: str, sink: Sink) -> None:
        host, port = self.server.address("cloudevents")
        body = {"sink": sink.url, "protocol": "HTTP", "config": {"topic": topic, "contentmode": mode}}
        answer = self.http.post(f"http://{host}:{port}/subscriptions", json=body)
        assert answer.status_code == 201, answer.text
        self.subscriptions.append(f"http://{host}:{port}/subscriptions/{answer.json()['id']}")

    def close(self) -> None:
        for url in self.subscriptions:
            assert self.http.delete(url).status_code == 204
        self.clean.stop()
        self.connection.close()
        self.http.close()
        for sink in self.sinks.values():
            sink.__exit__()

    def collect(self, door: str, count: int) -> list[Heard]:
        """`count` messages out of a door, and none more."""
        heard = getattr(self, f"_from_{door}")(count)
        assert len(heard) == count, [(line.name, len(line.body)) for line in heard]
        return list(heard)

    def _from_clean(self, count: int) -> list[Heard]:
        return self._from_paho(self.clean, count)

    def _from_session(self, count: int) -> list[Heard]:
        client = Paho(self.server, f"s-{self.label}", False).start()
        assert client.present
        heard = self._from_paho(client, count)
        client.stop()
        return heard

    def _from_paho(self, client: Paho, count: int) -> list[Heard]:
        got = [client.messages.get(timeout=LIMIT_S) for _ in range(count)]
        assert client.messages.empty()
        return [Heard((message.topic,), message.payload, {"qos": message.qos}) for message in got]

    def _from_amqp(self, count: int) -> list[Heard]:
        got: list[Heard] = []

        def take() -> bool:
            method, properties, body = self.channel.basic_get(self.label, auto_ack=True)
            if method is not None:
                got.append(Heard((method.exchange, method.routing_key), body, vars(properties)))
                assert not method.redelivered
            return len(got) >= count and method is None

        until(take)
        return got

    def _from_binary(self, count: int) -> list[Heard]:
        hooks = self.sinks["binary"].wait(lambda hooks: len(hooks) >= count)
        heard = []
        for hook in hooks:
            facts: dict[str, Any] = {
                name: unquote(value) for name, value in hook.headers.items() if name.startswith("ce-")
            }
            facts["content-type"] = hook.headers.get("content-type")
            heard.append(Heard((facts["ce-type"],), hook.body, facts))
        return heard

    def _from_structured(self, count: int) -> list[Heard]:
        hooks = self.sinks["structured"].wait(lambda hooks: len(hooks) >= count)
        heard = []
        for hook in hooks:
            assert hook.headers["content-type"].startswith("application/cloudevents+json")
            event = json.loads(hook.body)
            body = base64.b64decode(event.pop("data_base64", ""))
            assert "data" not in event, event
            heard.append(Heard((event["type"],), body, event))
        return heard

    def _from_pull(self, count: int) -> list[Heard]:
        heard = []
        for topic in self.topics:
            with BlockingPullConsumer(self.server.doors["nameserver"], group=f"g-{self.label}") as consumer:
                queues = until(lambda topic=topic, consumer=consumer: assigned(consumer, topic))
                for queue in queues:
                    end = consumer.pull_queue(queue, 0).max_offset
                    offset = 0
                    while offset < end:
                        result = consumer.pull_queue(queue, offset)
                        offset = result.next_offset
                        heard += [
                            Heard((message.topic, message.tag), message.body, dict(message.property_map()))
                            for message in result.messages
                            if self.label in topic + message.tag  # topic `%00` belongs to all tests
                        ]
        return heard


EXITS = ("clean", "session", "amqp", "binary", "structured", "pull")
