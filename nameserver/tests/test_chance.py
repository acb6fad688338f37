"""Requests by chance for the nameserver: each is answered, nothing is raised, and what brokers registered goes with them."""

import json
import random
import struct
import zlib
from typing import Any

import pytest

from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq_nameserver.door import TABLE
from nameserver.tests.test_door import Server

CODES = sorted(int(code) for code in TABLE)
NUMBERS = ["0", "1", "-1", "4", "2147483648", "9223372036854775807", "9223372036854775808", "9" * 30, "1.5", "", "x"]
NAMES = ["a", "b", "", "x" * 300, "a b", "ä", "%RETRY%a", "rmq_sys_gantry_topic", "\x00", "../a", "T", "U"]
ADDRESSES = ["h:1", "h:2", "h:", ":1", "h:99999999", "[::1]:5", "", "h:1\n"]
TRUTH = ["true", "false", "TRUE", "", "1", "x"]
KINDS = {"brokerId": NUMBERS, "brokerAddr": ADDRESSES, "haServerAddr": ADDRESSES, "heartbeatTimeoutMillis": NUMBERS,
         "heartbeatTimeoutMills": NUMBERS, "enableActingMaster": TRUTH, "compressed": TRUTH, "bodyCrc32": ["0", "0", "1", "-1", "x"],
         "acceptStandardJsonOnly": TRUTH, "gantryCompleteTable": TRUTH, "gantrySince": NUMBERS}  # fmt: skip
TEXTS = ["brokerName", "clusterName", "topic", "namespace", "key", "value", "cluster"]
VALUES: list[Any] = [
    0,
    1,
    4,
    -1,
    2**31,
    2**63,
    2**64,
    10**30,
    1.5,
    True,
    None,
    "4",
    "",
    [],
    {},
    ["a"],
    {"a": 1},
    "SINGLE_TAG",
]


class Chance:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = Server()
        self.opaque = 0

    def choose(self, usual: list[Any], others: list[Any]) -> Any:
        return self.random.choice(usual if self.random.random() < 0.85 else others)

    def fields(self) -> dict[str, str]:
        found = {name: self.choose(NAMES[:2], NAMES) for name in TEXTS}
        found |= {name: self.choose(values[:2], values) for name, values in KINDS.items()}
        if self.random.random() < 0.8:
            found["compressed"] = found["acceptStandardJsonOnly"] = "false"
            found.pop("gantrySince")
            found["bodyCrc32"] = "0"
        for name in self.random.sample(sorted(found), self.random.choice([0, 0, 0, 1, 3])):
            del found[name]
        return found

    def version(self) -> dict[str, Any]:
        return {name: self.choose([0, 1, 2, 3], VALUES) for name in ("counter", "stateVersion", "timestamp")}

    def config(self, topic: str) -> dict[str, Any]:
        names = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag", "order", "attributes", "topicFilterType")
        found: dict[str, Any] = {name: self.choose([1, 4, 6], VALUES) for name in names[:4]}
        found |= {name: self.random.choice(VALUES) for name in names[4:] if self.random.random() < 0.1}
        return {"topicName": topic, **found}

    def body(self) -> bytes:
        kind = self.random.randrange(8)
        if kind == 0:
            return self.random.choice(
                [b"", b"{", b"null", b"[]", b"\xff", b"{0:1}", b"[" * 3000, b"a=b\n", b"orderMessageEnable=true"]
            )
        topics = [self.choose(NAMES[:2] + NAMES[-2:], NAMES) for _ in range(self.random.randrange(4))]
        if kind < 5:
            table = {topic: self.config(topic) for topic in topics}
            wrapper = {"topicConfigTable": table, "dataVersion": self.version()}
            return json.dumps(
                {"topicConfigSerializeWrapper": wrapper, "filterServerList": [], "gantryGone": topics[:1]}
            ).encode()
        if kind == 5:
            return json.dumps(self.version()).encode()
        if kind == 6:
            queues = [{"brokerName": self.choose(["a", "b"], NAMES), "readQueueNums": self.choose([4], VALUES),
                       "writeQueueNums": self.choose([4], VALUES), "perm": self.choose([6], VALUES), "topicSysFlag": 0}]  # fmt: skip
            return json.dumps({"queueDatas": queues, "brokerDatas": []}).encode()
        parts = [json.dumps(self.version()).encode()]
        data = struct.pack(">i", len(parts[0])) + parts[0] + struct.pack(">i", len(topics))
        for topic in topics:
            line = f"{topic} {self.random.choice(NUMBERS)} 4 6 SINGLE_TAG {{}}".encode()
            data += struct.pack(">i", len(line) if self.random.random() < 0.9 else -1) + line
        return zlib.compress(data + struct.pack(">i", 2) + b"[]")

    def request(self, link: FakeLink) -> None:
        self.opaque += 1
        code = self.random.choice([*CODES, *[int(Code.REGISTER_BROKER)] * 8, int(Code.GET_ROUTEINFO_BY_TOPIC)])
        fields = {name: value.encode("utf-8", "replace").decode() for name, value in self.fields().items()}
        command = Command(code, fields, self.body(), self.opaque, version=self.random.choice([395, 479, 0]))
        try:
            frame = encode(command, self.random.random() < 0.3)
        except ValueError:
            frame = encode(command)
        before = len(self.server.saves)
        answers = FrameReader().feed(link.feed(frame))
        for saved in self.server.saves[before:]:
            saved("")
            answers += FrameReader().feed(link.feed(b""))
        assert link.closed_by is None, (code, fields, command.body)
        assert [answer.opaque for answer in answers] == [self.opaque], (code, fields)

    def check(self) -> None:
        routes = self.server.state.routes
        known = set(routes.groups)
        for topic, queues in routes.topics.items():
            assert queues, topic
            assert queues.keys() <= known, topic
            for name, data in queues.items():
                assert 0 <= data.perm < 8
                assert topic in routes._topics_of[name]
        assert {name for names in routes.clusters.values() for name in names} == known
        for group in routes.groups.values():
            assert group.broker_addrs


@pytest.mark.parametrize("seed", range(8))
def test_requests_by_chance(seed: int) -> None:
    chance = Chance(seed)
    links = [chance.server.connect() for _ in range(3)]
    for number in range(400):
        chance.request(chance.random.choice(links))
        if number % 20 == 0:
            chance.check()
        if chance.random.random() < 0.02:
            links.pop(0).lose()
            links.append(chance.server.connect())
        if chance.random.random() < 0.02:
            chance.server.wheel.advance(30_000)
            chance.server.state.routes.expire(chance.server.wheel.now_ms())
            links = [link if link.closed_by is None else chance.server.connect() for link in links]
    for link in links:
        link.lose()
    routes = chance.server.state.routes
    assert (routes.groups, routes.topics, routes.clusters) == ({}, {}, {})
    assert (routes._live, routes._owned, routes._topics_of, routes._wiped) == ({}, {}, {}, {})
