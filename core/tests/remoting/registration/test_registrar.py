"""Registration with real nameserver doors over sockets on free ports."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gantrymq.auth.members.key import ClusterKey, parse_key
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.topics import TopicConfig
from gantrymq.net.testing import FakeLink, ManualClock, ManualWheel
from gantrymq.remoting.codec import Command, FrameReader
from gantrymq.remoting.registration import registrar as module
from gantrymq.remoting.registration.registrar import Registrar, advertised_address
from gantrymq_nameserver.door import NameserverDoor, State
from tests.remoting.bench import Bench, answers, request
from tests.remoting.test_requests import beat

WAIT_S = 30.0
CREATE = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}


class Nameserver:
    """A nameserver's door behind an asyncio server."""

    def __init__(self, key: ClusterKey | None = None) -> None:
        self.wheel = ManualWheel(ManualClock())
        self.state = State(self.wheel, False, lambda done: done(""), key)
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.refuse = b""
        self.hang = False
        self.may_answer = asyncio.Event()
        """Cleared by a test: it answers late."""
        self.may_answer.set()
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()
        self.codes: list[int] = []

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = FakeLink(self.wheel).attach(NameserverDoor(self.state))
        self.writers.append(writer)
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                self.codes += [command.code for command in frames.feed(data)]
                self.asked.set()
                await self.may_answer.wait()
                if not self.hang:
                    writer.write(self.refuse or link.feed(data))
                self.asked.set()
        except ConnectionError:
            pass
        finally:
            link.lose()
            writer.close()
            self.ended.set()

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self.server.wait_closed()

    def topics(self) -> set[str]:
        return set(self.state.routes.topics)


async def until(servers: list[Nameserver], condition: Callable[[], bool]) -> None:
    """Wait for a condition that a request to one of the nameservers makes true."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            waits = [asyncio.ensure_future(server.asked.wait()) for server in servers]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for server, wait in zip(servers, waits, strict=True):
                wait.cancel()
                server.asked.clear()


@dataclass
class Context:
    nameservers: list[str]
    config: BrokerConfig
    clock: ManualClock
    shared: dict[str, Any] = field(default_factory=dict)


def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: Callable[[Bench, Registrar, list[Nameserver]], Awaitable[None]],
    key: ClusterKey | None = None,
    theirs: Sequence[ClusterKey | None] = (None, None),
) -> None:
    """`key`: the broker's; `theirs`: the nameservers'."""
    for name, value in (("SOON_S", 0.01), ("BACKOFF_FIRST_S", 0.01), ("BACKOFF_MAX_S", 0.02), ("FIRST_TRY_S", WAIT_S)):
        monkeypatch.setattr(module, name, value)

    async def main() -> None:
        servers = [Nameserver(each) for each in theirs]
        for server in servers:
            await server.start()
        bench = Bench(tmp_path)
        broker = bench.broker
        context = Context([f"127.0.0.1:{server.port}" for server in servers], broker.config, bench.clock)
        registrar = Registrar(broker.topics, broker.settings, context, ("127.0.0.1", 10911), key)  # type: ignore[arg-type]
        try:
            await body(bench, registrar, servers)
        finally:
            await registrar.stop(1.0)
            for server in servers:
                await server.stop()
            bench.close()

    asyncio.run(main())


def test_registered_everywhere_and_changes_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        bench.broker.topics.create(TopicConfig("T", 2, 3))
        await registrar.start()
        for server in servers:
            found = server.state.routes.route("T")
            assert found is not None
            queues, groups = found
            assert (queues[0].read_queue_nums, queues[0].write_queue_nums, queues[0].perm) == (2, 3, 6)
            assert groups[0].broker_addrs == {0: "127.0.0.1:10911"}
            template = server.state.routes.route("TBW102")
            assert template is not None
            assert template[0][0].perm == 7
            for name, count in (("DefaultCluster", 16), ("broker-a", 1)):
                given = server.state.routes.route(name)
                assert given is not None
                queue = given[0][0]
                assert (queue.read_queue_nums, queue.write_queue_nums, queue.perm) == (count, count, 7)
            assert not any(topic.startswith("rmq_sys_gantry") for topic in server.topics())
        bench.broker.topics.create(TopicConfig("U"))
        for server in servers:
            await until(servers, lambda server=server: "U" in server.topics())  # type: ignore[misc]
        bench.broker.delete_topic("U")
        for server in servers:
            await until(servers, lambda server=server: "U" not in server.topics())  # type: ignore[misc]
        await registrar.stop(WAIT_S)
        assert [server.topics() for server in servers] == [set(), set()]

    run(tmp_path, monkeypatch, body)


def test_who_changes_a_topic_waits_until_all_nameservers_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        monkeypatch.setattr(module, "SOON_S", WAIT_S)  # nobody waits for the pause between registrations
        monkeypatch.setattr(module, "KNOWN_S", WAIT_S)
        await registrar.start()
        known = asyncio.Event()

        def when_known(done: Callable[[], None]) -> None:
            registrar.when_known(lambda: (done(), known.set())[0])

        bench.doors.identity.when_known = when_known
        link = bench.connect()
        for number in range(5):
            topic = f"T{number}"
            assert not link.feed(request(17, topic=topic, readQueueNums=4, writeQueueNums=4, perm=6, **CREATE))
            async with asyncio.timeout(WAIT_S):
                await known.wait()
            known.clear()
            assert answers(link.feed(b""))[0].code == 0
            assert all(topic in server.topics() for server in servers)
        assert not registrar._waiting

    run(tmp_path, monkeypatch, body)


def told(data: bytes) -> list[Command]:
    return [command for command in answers(data) if command.is_response]


def test_a_heartbeat_that_makes_a_retry_topic_waits_for_a_nameserver_that_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        monkeypatch.setattr(module, "KNOWN_S", WAIT_S)
        await registrar.start()
        known = asyncio.Event()
        bench.doors.identity.when_known = lambda done: registrar.when_known(lambda: (done(), known.set())[0])
        link = bench.connect()
        late = servers[1]
        late.may_answer.clear()
        asked = len(late.codes)
        another = bench.connect()
        assert told(link.feed(request(34, beat("c1", "CG")))) == []
        assert told(another.feed(request(34, beat("c2", "CG")))) == [], (
            "the topic is made, the nameservers do not know it yet"
        )
        await until(servers, lambda: "%RETRY%CG" in servers[0].topics() and len(late.codes) > asked)
        assert not known.is_set()
        late.may_answer.set()
        await until(servers, lambda: "%RETRY%CG" in late.topics())
        async with asyncio.timeout(WAIT_S):
            await known.wait()
        (answer,) = told(link.feed(b""))
        assert (answer.code, answer.fields["IS_SUB_CHANGE"]) == (0, "true")
        assert [one.code for one in told(another.feed(b""))] == [0]
        assert [again.code for again in told(link.feed(request(34, beat("c1", "CG"))))] == [0], (
            "nothing was made: at once"
        )

    run(tmp_path, monkeypatch, body)


def test_a_nameserver_that_hangs_or_is_away_does_not_keep_tools_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        await registrar.start()
        link = registrar.links[1]
        known: list[str] = []
        done = asyncio.Event()

        def note(what: str) -> None:
            known.append(what)
            done.set()

        servers[1].hang = True
        monkeypatch.setattr(module, "KNOWN_S", 0.05)
        bench.broker.topics.create(TopicConfig("T"))
        registrar.when_known(lambda: note("hangs"))
        async with asyncio.timeout(WAIT_S):
            await done.wait()
        await until(servers, lambda: "T" in servers[0].topics())
        assert link.registered.is_set()
        monkeypatch.setattr(module, "KNOWN_S", WAIT_S)
        done.clear()
        bench.broker.topics.create(TopicConfig("U"))
        registrar.when_known(lambda: note("gone"))
        await servers[1].stop()
        async with asyncio.timeout(WAIT_S):
            await done.wait()
        assert "U" in servers[0].topics()
        assert not link.registered.is_set()
        monkeypatch.setattr(module, "WAITING_MAX", 0)
        bench.broker.topics.create(TopicConfig("V"))
        registrar.when_known(lambda: note("too many"))
        assert known == ["hangs", "gone", "too many"]

    run(tmp_path, monkeypatch, body)


def test_a_nameserver_that_comes_back_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        await registrar.start()
        await servers[0].stop()
        bench.broker.topics.create(TopicConfig("T"))
        await until(servers, lambda: "T" in servers[1].topics())
        servers[0].writers.clear()
        await servers[0].start()
        await until(servers, lambda: "T" in servers[0].topics())

    run(tmp_path, monkeypatch, body)


def test_the_list_of_nameservers_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        monkeypatch.setattr(module, "FOLLOW_S", 0.01)
        first, second = list(registrar._context.nameservers)
        registrar._context.nameservers[:] = [first]
        await registrar.start()
        assert "TBW102" in servers[0].topics()
        assert not servers[1].topics()
        registrar._context.nameservers[:] = [second]
        await until(servers, lambda: "TBW102" in servers[1].topics())
        assert [link.address for link in registrar.links] == [second]
        async with asyncio.timeout(WAIT_S):
            await servers[0].ended.wait()
        assert not servers[0].topics(), "the connection that is closed takes the broker with it"

    run(tmp_path, monkeypatch, body)


def test_unchanged_topics_are_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        monkeypatch.setattr(module, "EVERY_S", 0.01)
        bench.broker.topics.create(TopicConfig("T"))
        await registrar.start()
        registered = list(servers[0].codes)
        servers[0].codes.clear()
        await until(servers, lambda: len(servers[0].codes) >= 5)
        assert set(servers[0].codes) == {322}
        assert 103 in registered
        # What the nameserver has lost comes back with the next question.
        routes = servers[0].state.routes
        routes.unregister("DefaultCluster", "broker-a", 0, "127.0.0.1:10911")
        await until(servers, lambda: "T" in servers[0].topics())

    run(tmp_path, monkeypatch, body)


def test_start_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        monkeypatch.setattr(module, "FIRST_TRY_S", 0.3)
        servers[1].refuse = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with caplog.at_level(logging.WARNING):
            await registrar.start()
        await until(servers, lambda: "TBW102" in servers[0].topics())
        with caplog.at_level(logging.WARNING):
            await until(servers, lambda: "registration failed" in caplog.text)
            tries = len(servers[1].codes)
            await until(servers, lambda: len(servers[1].codes) >= tries + 3)
        text = caplog.text
        assert "not registered yet" in text
        assert text.count("registration failed") == 1  # once per outage, not once per try

    run(tmp_path, monkeypatch, body)


def test_advertised_address(caplog: pytest.LogCaptureFixture) -> None:
    assert advertised_address("", ("127.0.0.1", 5)) == "127.0.0.1:5"
    assert advertised_address("broker.example", ("0.0.0.0", 5)) == "broker.example:5"
    assert advertised_address("", ("::1", 5)) == "[::1]:5"
    assert not caplog.records
    host = advertised_address("", ("0.0.0.0", 5))
    assert host not in ("0.0.0.0:5", "")
    assert "broker.advertised_host" in caplog.text


KEY = parse_key("0123456789abcdef" * 4)
OTHER = parse_key("fedcba9876543210" * 4)


def test_a_broker_shows_the_clusters_key_on_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        await registrar.start()
        for server in servers:
            assert server.state.routes.groups
            for writer in server.writers:
                writer.transport.abort()
            await until(servers, lambda server=server: len(server.writers) > 1 and server.state.routes.groups)  # type: ignore[misc]
        bench.broker.topics.create(TopicConfig("T"))
        for server in servers:
            await until(servers, lambda server=server: "T" in server.topics())  # type: ignore[misc]

    run(tmp_path, monkeypatch, body, KEY, (KEY, KEY))


@pytest.mark.parametrize(
    ("own", "theirs", "said"),
    [
        (KEY, OTHER, "broker broker-a has another cluster key"),
        (KEY, None, "has no cluster key"),
        (None, KEY, "auth.cluster_key_file"),
    ],
)
def test_a_nameserver_of_another_cluster_is_said_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    own: ClusterKey | None,
    theirs: ClusterKey | None,
    said: str,
) -> None:
    async def body(bench: Bench, registrar: Registrar, servers: list[Nameserver]) -> None:
        monkeypatch.setattr(module, "FIRST_TRY_S", 0.01)
        await registrar.start()
        good, other = servers
        await until(servers, lambda: bool(good.state.routes.groups) and len(other.codes) > 5)
        assert not other.state.routes.groups
        lines = [record.getMessage() for record in caplog.records if record.name == module.__name__]
        warned = [line for line in lines if f"127.0.0.1:{other.port}: registration failed" in line]
        assert len(warned) == 1
        assert said in warned[0]

    run(tmp_path, monkeypatch, body, own, (own, theirs))
