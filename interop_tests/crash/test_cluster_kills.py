"""Three nameservers, three brokers and two gateways as processes: kill -9 and restart of each under load from MQTT, AMQP and Remoting.

Every acknowledged message is in a log, in an AMQP queue and in an MQTT session, wherever these lie, and what one broker stored is there
in queue order.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.client import BlockingPullConsumer
from interop_tests.bench import remoting_wire
from interop_tests.cloudevents_sinks import assigned
from interop_tests.crash.promises import Id, Ledger, check_order, compare
from interop_tests.crash.raw_load import (
    QUEUES,
    TOPIC,
    AmqpPublisher,
    LogReader,
    MqttPublisher,
    Publisher,
    QueueReader,
    RemotingPublisher,
    SessionReader,
)
from interop_tests.running import Cluster, Gantry
from interop_tests.waiting import LIMIT_S, until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(120),
    # Sockets whose other end was killed while a client logged in are left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
BROKERS = 3
DOORS = 3
"""Of a gateway; each uses every group by itself."""
ENOUGH = 20
"""Acknowledgements of every publisher between two kills."""
PACE_S = 0.006


class Amqp(AmqpPublisher):
    """Takes a basic.nack, too: the group went before it stored the message, or after."""

    def answered(self, payload: bytes) -> None:
        if payload[:4] in (b"\x00\x0a\x00\x32", b"\x00\x14\x00\x28"):  # connection.close, channel.close
            raise ConnectionResetError
        assert payload[:4] in (b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"), payload  # basic.ack, basic.nack
        for one in self.meant(payload):
            if payload[3] == 0x50:
                self.done(one)
            else:
                del self.open[one]


class Remoting(RemotingPublisher):
    """A refusal is no promise."""

    def refused(self, tag: int, code: int, remark: str) -> None:
        del self.open[tag]


def paced(over: threading.Event) -> Iterator[int]:
    """Numbers at a pace that leaves the machine time for everything else: some 150 a second at most."""
    for number in itertools.count():
        over.wait(PACE_S)
        yield number


class Load(threading.Thread):
    """One publisher after another over `places`, whatever happens to them, until `over` is set and what is open then is answered."""

    def __init__(self, kind: type[Publisher], places: list[Gantry]) -> None:
        super().__init__(name=f"{kind.who} load", daemon=True)
        self.kind = kind
        self.places = itertools.cycle(places)
        self.ledger = Ledger()
        self.over = threading.Event()
        self.numbers = paced(self.over)
        self.present: Publisher | None = None
        self.failure: BaseException | None = None

    def acknowledged(self) -> int:
        present = self.present
        return len(self.ledger.acknowledged) + (len(present.ledger.acknowledged) if present is not None else 0)

    def run(self) -> None:
        while not self.over.is_set() and self.failure is None:
            try:
                publisher = self.kind(next(self.places), self.numbers)
            except (OSError, AssertionError):  # refused, or closed while it logged in
                self.over.wait(0.05)
                continue
            self.present = publisher
            publisher.start()
            while publisher.is_alive():
                publisher.join(0.1)
                if self.over.is_set():
                    publisher.last.set()  # nothing may be on its way when the logs are read
            self.failure = publisher.failure
            self.present = None
            self.ledger.add(publisher.ledger)


class Site:
    """The cluster, its load, and what they know."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        gateways = [cluster.at("gateway0"), cluster.at("gateway1")]
        brokers = [cluster.at(f"broker{number}") for number in range(BROKERS)]
        self.loads = [Load(MqttPublisher, gateways), Load(Amqp, gateways[::-1]), Load(Remoting, brokers)]

    def prepare(self) -> None:
        for number in range(BROKERS):
            with remoting_wire.connect(self.cluster.process(f"broker{number}").doors["broker"]) as sock:
                remoting_wire.create_topic(sock, TOPIC, QUEUES)
        queue = QueueReader(self.cluster.at("gateway0"), "kill")
        queue.declare(TOPIC)
        queue.raw.sock.close()
        session = SessionReader(self.cluster.at("gateway1"))
        session.subscribe(TOPIC.encode() + b"/#")
        session.take(0)
        for load in self.loads:
            load.start()

    def progress(self) -> None:
        """Every publisher got acknowledgements since."""
        before = [load.acknowledged() for load in self.loads]

        def went_on() -> bool:
            for load in self.loads:
                assert load.failure is None, load.failure
            return all(load.acknowledged() >= one + ENOUGH for load, one in zip(self.loads, before, strict=True))

        until(went_on, 120)

    def kill(self, name: str) -> None:
        self.cluster.process(name).kill()
        self.progress()  # without it: each has somewhere else to go
        self.cluster.process(name).start()

    def finish(self) -> Ledger:
        ledger = Ledger()
        for load in self.loads:
            load.over.set()
        for load in self.loads:
            load.join(2 * LIMIT_S)
            assert not load.is_alive()
            assert load.failure is None
            ledger.add(load.ledger)
        return ledger

    def check(self, ledger: Ledger) -> None:
        findings: list[Any] = []
        where: dict[Id, int] = {}
        records = 0
        for number in range(BROKERS):
            log = LogReader()
            log.read(self.cluster.at(f"broker{number}"))
            for (_, queue_id), rows in log.queues.items():
                assert [offset for offset, _ in rows] == list(range(len(rows)))
                records += len(rows)
                findings += check_order([one for _, one in rows], f"broker {number} queue {queue_id}")
                where.update({one: number for _, one in rows})
        stored = set(where)
        findings += compare(ledger.acknowledged, ledger.sent, stored, "the logs")
        self.groups_in_use()
        got = QueueReader(self.cluster.at("gateway1"), "kill").take(records)
        findings += self.seen(stored, where, got, "the queue")
        got = SessionReader(self.cluster.at("gateway0")).take(len(stored))
        findings += self.seen(stored, where, got, "the session")
        assert not findings, findings[:10]
        assert set(where.values()) == set(range(BROKERS)), "every broker had some"

    def groups_in_use(self) -> None:
        """Each gateway's doors have every broker again."""
        for number in range(2):
            process = self.cluster.process(f"gateway{number}")

            def ready(log: Any = process.log) -> bool:
                present = log().rpartition(", data in ")[2]  # since its last start
                return bool(present.count("is in use") - present.count("is gone; its queues wait") >= DOORS * BROKERS)

            until(ready)

    @staticmethod
    def seen(stored: set[Id], where: dict[Id, int], got: list[Id], name: str) -> list[Any]:
        """Everything at least once, and what came first of what each broker stored in its order."""
        findings = list(compare(stored, stored, set(got), name))
        first = list(dict.fromkeys(got))
        for number in range(BROKERS):
            findings += check_order([one for one in first if where.get(one) == number], f"{name}, broker {number}")
        return findings


def run(directory: Path, rounds: int, settings: tuple[str, ...]) -> None:
    cluster = Cluster(directory, 3, BROKERS, 2, settings)
    try:
        site = Site(cluster.start())
        site.prepare()
        site.progress()
        for _ in range(rounds):
            for name in [process.name for process in cluster.processes]:
                site.kill(name)
                site.progress()
        site.check(site.finish())
        with BlockingPullConsumer(cluster.nameservers, group="check") as consumer:
            assert len(assigned(consumer, TOPIC)) == BROKERS * QUEUES
    finally:
        cluster.stop()
        gc.collect()
    assert "Traceback" not in cluster.log()


def test_each_process_is_killed_under_load(tmp_path: Path) -> None:
    run(tmp_path, 1, ())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_process_is_killed_three_times_with_small_files(tmp_path: Path) -> None:
    settings = (
        "store.commitlog_file_size=4194304",
        "store.consumequeue_file_size=40000",
        "store.checkpoint_interval_ms=200",
    )
    run(tmp_path, 3, settings)
