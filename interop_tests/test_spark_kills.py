"""A query from topic to topic, exactly once, killed at random: its driver, Python processes of its tasks and of its source, the server. Each message of the
source's queues is in the sink's topic once, and nothing else is.

GANTRY_SPARK_KILLS says how often (else `KILLS`), GANTRY_SPARK_SEED which choice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from gantrymq.client import BlockingAdmin, BlockingProducer, BlockingPullConsumer, OutMessage
from interop_tests import guard
from interop_tests.bench.proc_cpu import stat
from interop_tests.cloudevents_sinks import assigned
from interop_tests.running import Gantry
from interop_tests.waiting import until

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(14_400)]

KILLS = 6
JOB = Path(__file__).with_name("spark_kills_job.py")
SOURCE, SINK = "spark-kills", "spark-killed"
QUEUES = 3
BATCH = 120
"""Offsets of a micro-batch: three queues, one or two tasks each."""
WHAT = ("driver", "server", "python", "python", "python")
"""Several times: more often. A driver takes longest to come back."""
ADVANCES_S = 240.0
MOMENT_MAX_S = 1.5
"""Between a batch that is done and the next kill: some batches."""


class Job:
    """The driver, with its JVM and their Python processes."""

    def __init__(self, gantry: Gantry, folder: Path) -> None:
        self.folder = folder
        self.over = folder / "over"
        self.checkpoint = folder / "checkpoint"
        (folder / "scratch").mkdir(parents=True)
        self._given = {
            "nameserver": gantry.doors["nameserver"], "source": SOURCE, "sink": SINK, "batch": str(BATCH), "over": str(self.over),
            "checkpoint": str(self.checkpoint), "scratch": str(folder / "scratch"),
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "job.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), json.dumps(self._given)], stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.folder / "scratch"), **guard.mark()},
            )  # fmt: skip

    def below(self) -> dict[int, str]:
        """Its descendants and their programs."""
        assert self.process is not None
        stats = {int(name): found for name in os.listdir("/proc") if name.isdigit() and (found := stat(int(name)))}
        mine = {self.process.pid}
        while new := {pid for pid, (parent, _) in stats.items() if parent in mine} - mine:
            mine |= new
        found = {}
        for pid in sorted(mine - {self.process.pid}):
            try:
                found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
        return found

    def pythons(self) -> list[int]:
        """Workers of tasks, of the source and of the sink's commit, and the processes that fork them."""
        return [pid for pid, program in self.below().items() if program.startswith("python")]

    def kill(self) -> None:
        """All of it, at once."""
        if self.process is None:
            return
        for pid in [self.process.pid, *self.below()]:
            kill(pid)
        self.process.wait()
        self.process = None

    def batches(self) -> int:
        """Micro-batches that Spark has noted as done; it keeps the notes of the newest hundred."""
        return 1 + max([int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*")], default=-1)

    def end(self) -> int:
        """Have it do what is left and end; its exit code. Where it was killed often that is much: each batch has its time, not all of them."""
        self.over.touch()
        process = self.process
        assert process is not None
        while process.poll() is None:
            before = self.batches()
            until(lambda before=before: process.poll() is not None or self.batches() > before, ADVANCES_S)
        return process.wait()

    def log(self) -> str:
        path = self.folder / "job.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def publish(gantry: Gantry, first: int, count: int) -> int:
    """The next number."""
    messages = [OutMessage(SOURCE, b"%d" % number, keys=f"k{number}") for number in range(first, first + count)]
    with BlockingProducer(gantry.doors["nameserver"]) as producer:
        producer.send_many(messages)
    return first + count


def rows_of(gantry: Gantry, topic: str) -> list[tuple[int, int, bytes]]:
    """Queue, offset and body of every message."""
    found = []
    with BlockingPullConsumer(gantry.doors["nameserver"], group=f"check-{topic}") as consumer:
        assigned(consumer, topic)
        while messages := consumer.pull(wait_s=5):
            found += [(message.queue_id, message.queue_offset, message.body) for message in messages]
    return found


class Kills:
    """What is killed, and that the query goes on after each."""

    def __init__(self, gantry: Gantry, job: Job, seed: int) -> None:
        self.gantry = gantry
        self.job = job
        self.lot = random.Random(seed)
        self.sent = 0
        self.done: Counter[str] = Counter()

    def advance(self) -> None:
        """The query has done a batch more than it has now."""
        before = self.job.batches()
        self.sent = publish(self.gantry, self.sent, BATCH)
        until(lambda: self.job.batches() > before, ADVANCES_S)

    def once(self) -> None:
        self.sent = publish(self.gantry, self.sent, 4 * BATCH)
        moment = time.monotonic() + self.lot.uniform(0, MOMENT_MAX_S)  # in the middle of whatever is under way by then
        until(lambda: time.monotonic() > moment)
        what = self.lot.choice(WHAT)
        if what == "driver":
            self.job.kill()
            self.job.start()
        elif what == "server":
            self.gantry.kill_and_restart()
        else:
            pythons = self.job.pythons()
            if pythons:
                kill(self.lot.choice(pythons))
        self.done[what] += 1
        self.advance()


def check(gantry: Gantry) -> int:
    """Every message of the source is in the sink once, by its queue and offset; how many there are."""
    source = rows_of(gantry, SOURCE)
    wanted = {f"{queue}:{offset}:{body.decode()}" for queue, offset, body in source}
    ends = Counter(queue for queue, _, _ in source)
    assert {(queue, offset) for queue, offset, _ in source} == {
        (queue, offset) for queue, end in ends.items() for offset in range(end)
    }
    written = Counter(body.decode() for _, _, body in rows_of(gantry, SINK))
    twice = {name: count for name, count in written.items() if count > 1}
    assert not twice, f"{len(twice)} rows are there more than once, as {sorted(twice.items())[:5]}"
    missing = wanted - written.keys()
    assert not missing, f"{len(missing)} of {len(wanted)} rows are missing, as {sorted(missing)[:5]}"
    assert written.keys() == wanted
    return len(wanted)


def test_offsets_add_up_whatever_is_killed(own_server: Gantry, tmp_path: Path) -> None:
    count = int(os.environ.get("GANTRY_SPARK_KILLS", str(KILLS)))
    seed = int(os.environ.get("GANTRY_SPARK_SEED", "0")) or random.randrange(1, 1 << 31)
    with BlockingAdmin(own_server.doors["nameserver"]) as admin:
        for topic in (SOURCE, SINK):
            admin.create_topic(topic, queues=QUEUES)
    job = Job(own_server, tmp_path / "job")
    kills = Kills(own_server, job, seed)
    job.start()
    try:
        kills.advance()
        for number in range(count):
            kills.once()
            print(f"seed {seed}, kill {number + 1} of {count}: {dict(kills.done)}, {job.batches()} batches", flush=True)
        assert job.end() == 0
    except BaseException:
        print(f"seed {seed}, {dict(kills.done)}\n{job.log()}", flush=True)
        raise
    finally:
        job.kill()
    assert sum(kills.done.values()) == count
    assert check(own_server) >= count * 5 * BATCH
