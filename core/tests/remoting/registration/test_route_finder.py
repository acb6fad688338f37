"""Queues of other brokers, asked of real nameserver doors over sockets on free ports; assignments over all brokers of a topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gantrymq.broker.topics import TopicConfig
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.codec import Command, encode
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.headers import RegisterBrokerHeader, fields_of
from gantrymq.remoting.registration import route_finder as module
from gantrymq.remoting.registration.route_finder import Queues, RouteFinder
from tests.remoting.bench import TOPIC, Bench, answers, ask, request
from tests.remoting.pop_client import GROUP
from tests.remoting.registration.test_registrar import WAIT_S, Nameserver, until
from tests.remoting.server.pop.test_modes import heartbeat


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test does not say otherwise, an answer may take its time and is young for ever."""
    monkeypatch.setattr(module, "ANSWER_S", WAIT_S)
    monkeypatch.setattr(module, "FRESH_S", 1_000.0)


def registration(broker: str, topics: dict[str, tuple[int, int]]) -> tuple[dict[str, str], bytes]:
    """Fields and body of REGISTER_BROKER: topics with their read queues and permission."""
    header = RegisterBrokerHeader(broker, f"127.0.0.1:{20_000 + len(broker)}", "C", "127.0.0.1:1", 0, compressed=False)
    fields = fields_of(header)
    del fields["bodyCrc32"]
    table = {name: TopicConfig(name, queues, queues, perm) for name, (queues, perm) in topics.items()}
    rows = {
        name: {"topicName": name, "readQueueNums": config.read_queues, "writeQueueNums": config.write_queues, "perm": config.perm}
        for name, config in table.items()
    }  # fmt: skip
    body = {
        "topicConfigSerializeWrapper": {"topicConfigTable": rows, "dataVersion": {"counter": 1}},
        "filterServerList": [],
    }
    return fields, bodies.encode(body)


class Brokers:
    """Brokers at nameservers, each until its connection is closed."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []

    async def register(self, server: Nameserver, broker: str, topics: dict[str, tuple[int, int]]) -> None:
        fields, body = registration(broker, topics)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        self.writers.append(writer)
        writer.write(encode(Command(RequestCode.REGISTER_BROKER, fields, body)))
        await until([server], lambda: set(topics) <= server.topics())

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            await writer.wait_closed()


async def find(finder: RouteFinder, topic: str) -> Queues | None:
    found: asyncio.Future[Queues | None] = asyncio.get_running_loop().create_future()
    finder.find(topic, found.set_result)
    async with asyncio.timeout(WAIT_S):
        return await found


Body = Callable[[list[Nameserver], RouteFinder, Brokers], Awaitable[None]]


def with_nameservers(count: int, body: Body) -> None:
    async def main() -> None:
        servers = [Nameserver() for _ in range(count)]
        for server in servers:
            await server.start()
        brokers = Brokers()
        finder = RouteFinder(lambda: [f"127.0.0.1:{server.port}" for server in servers])
        try:
            await body(servers, finder, brokers)
        finally:
            await brokers.close()
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_queues_of_every_broker_that_can_be_read() -> None:
    async def body(servers: list[Nameserver], finder: RouteFinder, brokers: Brokers) -> None:
        await brokers.register(servers[0], "b", {"T": (3, 6), "X": (1, 6)})
        await brokers.register(servers[0], "bb", {"T": (2, 4), "Y": (1, 6)})
        await brokers.register(servers[0], "bbb", {"T": (5, 2), "Z": (1, 6)})
        assert await find(finder, "T") == {"b": 3, "bb": 2}
        assert await find(finder, "nowhere") == {}

    with_nameservers(1, body)


def test_an_answer_serves_all_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(servers: list[Nameserver], finder: RouteFinder, brokers: Brokers) -> None:
        await brokers.register(servers[0], "b", {"T": (3, 6)})
        found = await asyncio.gather(*[find(finder, "T") for _ in range(50)], find(finder, "U"))
        assert found == [{"b": 3}] * 50 + [{}]
        asked = servers[0].codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        assert asked == 2, "one question for each topic"
        assert await find(finder, "T") == {"b": 3}
        assert servers[0].codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == asked
        monkeypatch.setattr(module, "FRESH_S", 0.0)
        assert await find(finder, "T") == {"b": 3}
        assert servers[0].codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == asked + 1

    with_nameservers(1, body)


def test_a_nameserver_that_hangs_or_is_gone_is_not_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    monkeypatch.setattr(module, "REST_S", 0.0)

    async def body(servers: list[Nameserver], finder: RouteFinder, brokers: Brokers) -> None:
        await brokers.register(servers[2], "b", {"T": (3, 6)})
        servers[0].hang = True
        await servers[1].stop()
        # On a machine that is busy with other things the last one may be late once, too.
        async with asyncio.timeout(WAIT_S):
            while await find(finder, "T") != {"b": 3}:
                pass
        servers[2].hang = True
        assert await find(finder, "T") == {"b": 3}, "the last answer holds"
        assert await find(finder, "U") is None

    with_nameservers(3, body)


def test_nobody_waits_for_nameservers_that_were_silent_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    monkeypatch.setattr(module, "REST_S", 1000.0)

    async def body(servers: list[Nameserver], finder: RouteFinder, brokers: Brokers) -> None:
        servers[0].hang = True
        assert await asyncio.gather(*[find(finder, f"T{number}") for number in range(20)]) == [None] * 20
        at_once: list[Queues | None] = []
        finder.find("T", at_once.append)
        assert at_once == [None]

    with_nameservers(1, body)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    monkeypatch.setattr(module, "TOPICS_MAX", 2)

    async def body(servers: list[Nameserver], finder: RouteFinder, brokers: Brokers) -> None:
        found = await asyncio.gather(*[find(finder, f"T{number}") for number in range(5)])
        assert found == [{}, {}, {}, None, None]
        assert len(finder._known) == 2
        assert await find(finder, "T9") == {}, "there is room again"

    with_nameservers(1, body)


def test_without_nameservers_nothing_is_known() -> None:
    at_once: list[Queues | None] = []
    RouteFinder(list).find("T", at_once.append)
    assert at_once == [None]


def assigned(body: bytes) -> list[tuple[str, int]]:
    rows: list[dict[str, Any]] = json.loads(body)["messageQueueAssignments"]
    return [(row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"]) for row in rows]


def test_an_assignment_is_over_all_brokers(bench: Bench) -> None:
    """As two clients of a group ask any broker, they get all queues between them, and none twice."""

    async def body(servers: list[Nameserver], finder: RouteFinder, brokers: Brokers) -> None:
        await brokers.register(servers[0], "zz", {TOPIC: (3, 6)})
        bench.doors.identity.nameservers = [f"127.0.0.1:{servers[0].port}"]
        bench.broker.topics.create(TopicConfig(TOPIC, 2, 2))
        name = bench.broker.config.name
        links = [bench.connect(), bench.connect()]
        wanted = {"topic": TOPIC, "consumerGroup": GROUP, "strategyName": "AVG", "messageModel": "CLUSTERING"}
        got: list[tuple[str, int]] = []
        for link, client in zip(links, "ab", strict=True):
            ask(link, RequestCode.HEART_BEAT, heartbeat(client))
        for link, client in zip(links, "ab", strict=True):
            question = json.dumps({**wanted, "clientId": client}).encode()
            link.take()  # notices of members that came
            data = link.feed(request(RequestCode.QUERY_ASSIGNMENT, question, opaque=7))
            async with asyncio.timeout(WAIT_S):
                while not data:
                    await asyncio.sleep(0)
                    data = link.feed(b"")
            (answer,) = answers(data)
            got += assigned(answer.body)
        assert got == [(name, 0), (name, 1), ("zz", 0), ("zz", 1), ("zz", 2)]

    with_nameservers(1, body)
