"""kill -9 of `gantry up` again and again while Remoting, AMQP and MQTT publish pipelined: after each, what is stored keeps every promise
that an acknowledgement made, in the log, in an AMQP queue and in an MQTT session."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest

from interop_tests.bench import remoting_wire
from interop_tests.crash.promises import Ledger, check_order, check_queues, compare
from interop_tests.crash.raw_load import PUBLISHERS, QUEUES, TOPIC, LogReader, QueueReader, SessionReader
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.crash

SMALL_FILES = (
    "store.commitlog_file_size=1048576",
    "store.consumequeue_file_size=40000",
    "store.checkpoint_interval_ms=200",
    "broker.pending_ms_max=60000",
)
"""Segments roll and checkpoints are made within a cycle. A disk or a processor that is busy elsewhere may stand still for three seconds, the
default: nobody is refused for that here."""


class Cycles:
    """The server, its publishers and everything that they know."""

    def __init__(self, directory: Path, settings: tuple[str, ...], seed: int) -> None:
        self.directory = directory
        self.server = Gantry(directory, "combined", settings)
        self.lot = random.Random(seed)
        self.numbers = {kind: itertools.count() for kind in PUBLISHERS}
        self.ledger = Ledger()
        self.log = LogReader()

    def prepare(self) -> None:
        self.server.start()
        with remoting_wire.connect(self.server.doors["broker"]) as sock:
            remoting_wire.create_topic(sock, TOPIC, QUEUES)
        queue = QueueReader(self.server, "kill")
        queue.declare(TOPIC)
        queue.raw.sock.close()
        session = SessionReader(self.server)
        session.subscribe(TOPIC.encode() + b"/#")
        session.take(0)

    def cycle(self) -> None:
        publishers = [kind(self.server, self.numbers[kind]) for kind in PUBLISHERS]
        for publisher in publishers:
            publisher.start()
        enough = self.lot.randrange(20, 250)
        until(lambda: all(len(one.ledger.acknowledged) >= enough or not one.is_alive() for one in publishers))
        self.server.process("up").kill()
        known = Ledger()
        for publisher in publishers:
            publisher.join(LIMIT_S)
            assert not publisher.is_alive()
            assert publisher.failure is None
            assert len(publisher.ledger.acknowledged) >= enough, "the server was gone before it was killed"
            known.add(publisher.ledger)
        self.ledger.add(known)
        self.between()
        self.server.process("up").start()
        self.check(known)

    def between(self) -> None:
        """What happens to the files while nobody has them open."""

    def check(self, known: Ledger) -> None:
        fresh = self.log.read(self.server)
        findings = compare(known.acknowledged, known.sent, fresh, "the log")
        for name, got in (
            ("queue", QueueReader(self.server, "kill").take(len(fresh))),
            ("session", SessionReader(self.server).take(len(fresh))),
        ):
            findings += compare(set(fresh), set(fresh), got, name)
            findings += check_order(got, name)
        assert not findings, findings[:10]

    def finish(self) -> None:
        everything = LogReader()
        everything.read(self.server)
        assert everything.queues == self.log.queues, "what was read once is not what is there now"
        findings = check_queues(self.ledger, everything.queues)
        assert not findings, findings[:10]


def run(directory: Path, cycles: int, settings: tuple[str, ...], seed: int) -> None:
    work = Cycles(directory, (*SMALL_FILES, *settings), seed)
    try:
        work.prepare()
        for _ in range(cycles):
            work.cycle()
        work.finish()
        work.server.process("up").kill()
        store_is_sound(directory / "data" / "store")
        work.server.process("up").start()
    finally:
        work.server.stop()


def store_is_sound(directory: Path) -> None:
    """`gantry store check` on what the killed process left."""
    command = [sys.executable, "-m", "gantrymq", "store", "check", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ten_kills(tmp_path: Path) -> None:
    run(tmp_path, 10, (), 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_hundred_kills(tmp_path: Path) -> None:
    run(tmp_path, 90, (), 2)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("buffered", ["false", "true"])
def test_kills_with_synchronous_flush(tmp_path: Path, buffered: str) -> None:
    run(tmp_path, 6, ("store.flush=sync", f"store.transient_pool={buffered}"), 3)
