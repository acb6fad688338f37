"""A whole door on a port in memory, with sinks that are played by the test."""

from __future__ import annotations

import itertools
import json
import random

from gantrymq.net.host_names import HostNames
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel
from gantrymq_gateways.cloudevents.door import EventDoor
from gantrymq_gateways.cloudevents.long_topics import LongTopics
from gantrymq_gateways.cloudevents.publish import Publisher
from gantrymq_gateways.cloudevents.push.delivery import DeliveryConfig, PushHost
from gantrymq_gateways.cloudevents.push.retry import RetryPolicy
from gantrymq_gateways.cloudevents.registry import Registry
from gantrymq_gateways.cloudevents.routes import EventRoutes
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard
from gantrymq_gateways.cloudevents.surroundings import Surroundings
from gantrymq_gateways.cloudevents.wire.client_connection import Answer
from tests.fakeport import FakePort

LOOPBACK = SinkGuard(loopback=True, http=True)
POLICY = RetryPolicy(first_ms=1_000, longest_ms=8_000, retry_after_max_ms=60_000)


class Sent:
    """One attempt as a sink sees it."""

    def __init__(self, sender, sink, headers, body, on_answer):
        self.sender = sender
        self.sink = sink
        self.headers = dict(headers)
        self.body = body
        self.on_answer = on_answer
        self.cancelled = False

    @property
    def id(self):
        return self.headers[b"ce-id"].decode()

    @property
    def attempt(self):
        return int(self.headers[b"gantry-attempt"])

    def cancel(self):
        self.cancelled = True
        self.sender.open.remove(self)

    def answer(self, status, retry_after=None, failure="", unsent=False):
        self.sender.open.remove(self)
        self.on_answer(Answer(status, retry_after, failure, unsent))


class FakeSender:
    """`open`: attempts without an answer; `all`: every attempt ever."""

    def __init__(self):
        self.open = []
        self.all = []

    def send(self, sink, headers, body, on_answer):
        sent = Sent(self, sink, headers, body, on_answer)
        self.open.append(sent)
        self.all.append(sent)
        return sent


class Rig:
    def __init__(self, port=None, mode="immediate", seed=0, clock=None, anonymous=False, authority=None, **limits):
        self.port = port or FakePort(seed, mode, {"events": EventRoutes})
        self.clock = clock or ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.turn = ManualTurn()
        self.sender = FakeSender()
        self.chance = random.Random(seed).random
        around = Surroundings(self.clock, self.turn, self.wheel, lambda: self.chance())
        self.topics = LongTopics(self.port)
        self.topics.start()
        self.host = PushHost(self.port, self.topics, self.sender, around, DeliveryConfig("//test", POLICY, **limits))
        numbers = itertools.count(1)
        self.registry = Registry(self.host, LOOPBACK, lambda: f"id{next(numbers)}s{seed}", 20)
        self.registry.start()
        self.publisher = Publisher(self.port, self.topics, around, lambda: 1 << 20)
        names = HostNames("127.0.0.1", ("h",))
        self.link = FakeLink(self.wheel, self.turn)
        self.link.attach(EventDoor(self.publisher, self.registry, names, anonymous, authority))
        self.run()

    def run(self):
        """Until nothing moves without time or a sink."""
        while self.port.step() or self.turn.pending:
            self.turn.run_until_quiet()

    def advance(self, ms):
        """Time goes on in small steps, and everything that follows from it happens."""
        while ms > 0:
            self.wheel.advance(min(ms, 50))
            ms -= 50
            self.run()

    def request(self, method, path, body=b"", **headers):
        """(status, headers, body) of one request."""
        lines = [f"{method} {path} HTTP/1.1", "host: h", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        out = self.link.feed("\r\n".join([*lines, "", ""]).encode() + body)
        self.run()
        self.turn.run_until_quiet()
        return parse(out + self.link.feed(b""))

    def post(self, topic="t", identity="1", type_="a.b", data=b"", **more):
        headers = {"ce_specversion": "1.0", "ce_id": identity, "ce_source": "/s", "ce_type": type_, **more}
        return self.request("POST", f"/topics/{topic}", data, **headers)

    def subscribe(self, topic="t", sink="http://127.0.0.1:9/hook", config=None, **members):
        document = {"sink": sink, "protocol": "HTTP", "config": {"topic": topic, **(config or {})}, **members}
        status, headers, body = self.request(
            "POST", "/subscriptions", json.dumps(document).encode(), content_type="application/json"
        )
        assert status == 201, body
        assert headers["location"] == f"/subscriptions/{body['id']}"
        return body["id"]

    def open_ids(self):
        return [sent.id for sent in self.sender.open]

    def answer_all(self, status=204, rounds=1000):
        """Every attempt, and what follows, gets this status; ids in the order of the attempts."""
        ids = []
        while self.sender.open and rounds:
            rounds -= 1
            sent = self.sender.open[0]
            ids.append(sent.id)
            sent.answer(status)
            self.run()
        return ids

    def dead(self, subscription):
        """Messages of the dead-letter topic."""
        return [message for message in self.port.log if message.topic == f"%DLQ%{subscription}"]


def parse(out):
    assert out, "no answer"
    head, _, body = out.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    headers = dict(item.split(": ", 1) for item in lines)
    status = int(line.split()[1])
    if headers.get("content-type", "").endswith("json"):
        return status, headers, json.loads(body)
    return status, headers, body
