"""`./run bench admin`: what many topics, groups, connections and clients cost, and what tools wait for.

usage: bench admin [--topics N] [--only STEP ...] [--markdown FILE]

Steps: start, scrape, tools, slices, delete, visible, idle, heartbeat, route. A server with `ulimit -n 4096` gets N topics x 4 queues, a
message in each queue, and a group with offsets per topic. Processor time is the server's, all threads; a slice is the processor time of
one callback of its loop (slices.py).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parent))

from remoting_wire import ServerClock, call, connect, encode

QUEUES: Final = 4
FILES_MAX: Final = 4096
TOPICS_PER_REQUEST: Final = 5_000
WINDOW: Final = 256
READY_S: Final = 120.0
STOP_S: Final = 300.0
QUIET_S: Final = 3.0
"""Background work after a start, and the flush of offsets, are over by then."""
ROUTE_TOPICS: Final = 100_000
IDLE: Final = 5_000
CLIENTS: Final = 1_000
BEAT_EVERY_S: Final = 30.0
"""RocketMQ's heartbeatBrokerInterval."""


class Server:
    """A `gantry up` on free ports over a directory that stays."""

    def __init__(self, directory: Path, slices: bool = False, files: int = FILES_MAX) -> None:
        self.directory = directory
        ready = directory / "ready.json"
        ready.unlink(missing_ok=True)
        self.slices_path = directory / "slices.json"
        command = [
            sys.executable, *([str(Path(__file__).parent / "slices.py")] if slices else ["-m", "gantrymq"]), "up", "--free-ports",
            "--data", str(directory / "data"), "--ready-file", str(ready),
        ]  # fmt: skip
        with (directory / "log").open("ab") as log:
            begun = time.monotonic()
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "GANTRY_SLICES": str(self.slices_path)},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
            )  # fmt: skip
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > begun + READY_S:
                raise SystemExit(f"gantry up did not start:\n{(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.01)
        self.ready_s = time.monotonic() - begun
        self.clock = ServerClock([self.process.pid])
        self.ready_cpu_s = self.clock.seconds()
        self.doors: dict[str, str] = json.loads(ready.read_text())

    def anon_mib(self) -> float:
        """RssAnon."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    def longest_ms(self) -> tuple[float, str]:
        """The longest slice since the last time, and what the longest ones were."""
        self.slices_path.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        while not self.slices_path.exists():
            time.sleep(0.01)
        found = json.loads(self.slices_path.read_text())
        return (found[0][0], "; ".join([f"{ms} {what}" for ms, what in found[:3]])) if found else (0.0, "")

    def end(self, number: int = signal.SIGTERM) -> None:
        """Stop it."""
        self.process.send_signal(number)
        self.process.wait(STOP_S)

    def scrape(self) -> str:
        """The page of metrics."""
        with urlopen(f"http://{self.doors['metrics']}/metrics", timeout=60) as page:
            text: str = page.read().decode()
        return text


def number_of(page: str, name: str) -> float:
    """A number without labels, or with any."""
    return next(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] == name
    )


@contextmanager
def serving(directory: Path, slices: bool = False, files: int = FILES_MAX) -> Iterator[Server]:
    """A server for a block."""
    server = Server(directory, slices, files)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end()


def pipeline(address: str, frames: Iterable[bytes]) -> None:
    """Send requests, `WINDOW` at a time on their way; all must succeed."""
    sock = connect(address)
    received = bytearray()
    waiting = 0

    def take(least: int) -> None:
        nonlocal waiting
        while waiting > least:
            part = sock.recv(1 << 20)
            if not part:
                raise SystemExit("the server closed the connection")
            received.extend(part)
            at = 0
            while len(received) - at >= 4 and len(received) - at - 4 >= (
                size := int.from_bytes(received[at : at + 4], "big")
            ):
                if b'"code":0,' not in received[at : at + 4 + size]:
                    raise SystemExit(f"refused: {bytes(received[at : at + 400])!r}")
                at += 4 + size
                waiting -= 1
            del received[:at]

    block: list[bytes] = []
    for frame in frames:
        block.append(frame)
        if len(block) >= WINDOW:
            sock.sendall(b"".join(block))
            waiting += len(block)
            block = []
            take(WINDOW)
    sock.sendall(b"".join(block))
    waiting += len(block)
    take(0)
    sock.close()


def ask(address: str, code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    """One request on a connection of its own; its answer's body."""
    with connect(address) as sock:
        sock.settimeout(120)
        answer, _, _, remark, found = call(sock, code, fields, body)
    if answer:
        raise SystemExit(f"request {code} failed: {answer} {remark}")
    return found


def topic_name(number: int) -> str:
    """Names as people give them."""
    return f"orders-of-shop-{number:05d}"


def send_frame(opaque: int, topic: str, queue: int) -> bytes:
    """SEND_MESSAGE_V2 of 100 bytes."""
    fields = {
        "a": "bench", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": "0", "g": str(int(time.time() * 1000)),
        "h": "0", "i": f"UNIQ_KEY\x017F0000010BAD2A139A55{opaque:010d}", "j": "0", "k": "false", "m": "false", "n": "broker",
    }  # fmt: skip
    return encode(310, opaque, fields, b"x" * 100)


def commit_frame(opaque: int, group: str, topic: str, queue: int, offset: int) -> bytes:
    """UPDATE_CONSUMER_OFFSET."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
    return encode(15, opaque, fields)


def fill(server: Server, topics: int) -> None:
    """Topics, a message in each of their queues, and a group with offsets per topic, every second one behind."""
    broker = server.doors["broker"]
    for first in range(0, topics, TOPICS_PER_REQUEST):
        configs = [
            {"topicName": topic_name(number), "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6}
            for number in range(first, min(first + TOPICS_PER_REQUEST, topics))
        ]
        ask(broker, 18, {}, json.dumps({"topicConfigList": configs}).encode())
    places = [(topic_name(number), queue, number) for number in range(topics) for queue in range(QUEUES)]
    pipeline(broker, [send_frame(opaque, topic, queue) for opaque, (topic, queue, _) in enumerate(places)])
    pipeline(
        broker,
        [commit_frame(opaque, f"group-{number:05d}", topic, queue, number % 2) for opaque, (topic, queue, number) in enumerate(places)],
    )  # fmt: skip


Figures = list[tuple[str, str, str]]
"""What, how much, and what it has to be."""


def start(directory: Path, topics: int) -> Figures:
    """Clean stop, and kill -9."""
    rows: Figures = []
    for how, number in (("after a clean stop", signal.SIGTERM), ("after kill -9", signal.SIGKILL)):
        server = Server(directory)
        server.end(number)
        server = Server(directory)
        rows.append((f"start {how}", f"{server.ready_s:.1f} s ({server.ready_cpu_s:.1f} s CPU)", "5 s"))
        time.sleep(QUIET_S)
        rows.append((f"RssAnon after it, {how}", f"{server.anon_mib():.0f} MiB", "300 MiB"))
        server.end()
    return rows


def scrape(directory: Path, topics: int) -> Figures:
    """After a start, and when every topic was used: then all lags are known."""
    with serving(directory) as server:
        first = [_scraped_ms(server) for _ in range(3)]
        # GET_TOPIC_STATS_INFO opens the queues.
        pipeline(
            server.doors["broker"], [encode(202, number, {"topic": topic_name(number)}) for number in range(topics)]
        )
        _scraped_ms(server)
        spent = [_scraped_ms(server) for _ in range(5)]
        size, anon = len(server.scrape()), server.anon_mib()
    return [
        ("scrape", f"{statistics.median(spent):.1f} ms CPU", "50 ms"),
        ("first scrapes after a start", ", ".join([f"{each:.1f}" for each in first]) + " ms CPU", ""),
        ("length of the text", f"{size / 1024:.0f} KiB", ""),
        ("RssAnon with every topic used", f"{anon:.0f} MiB", "300 MiB"),
    ]


def _scraped_ms(server: Server) -> float:
    """What a scrape took: the page after it tells, a second later."""
    time.sleep(1.05)
    server.scrape()
    time.sleep(1.05)
    return number_of(server.scrape(), "gantry_scrape_seconds") * 1000


COMMANDS: Final = (("topic", "list"), ("group", "list"), ("top", "--once"), ("broker", "list"))


def tools(directory: Path, topics: int) -> Figures:
    """Commands of people, as processes of their own."""
    rows: Figures = []
    with serving(directory) as server:
        for words in COMMANDS:
            for more in ((), ("--json",)):
                cpu, begun, own = server.clock.seconds(), time.monotonic(), _children_s()
                done = subprocess.run(
                    [sys.executable, "-m", "gantrymq", *words, *more, "--nameserver", server.doors["nameserver"]],
                    capture_output=True, text=True, check=False, timeout=600,
                )  # fmt: skip
                spent, cpu, own = time.monotonic() - begun, server.clock.seconds() - cpu, _children_s() - own
                what = f"gantry {' '.join([*words, *more])}"
                if done.returncode:
                    rows.append((what, f"failed: {done.stderr.strip()[-100:]}", ""))
                else:
                    rows.append(
                        (what, f"{spent:.1f} s ({own:.1f} s CPU), {cpu * 1000:.0f} ms CPU of the server", "3 s")
                    )
    return rows


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def slices(directory: Path, topics: int) -> Figures:
    """The longest slice of each request that is about everything."""
    rows: Figures = []
    with serving(directory, slices=True) as server:
        broker = server.doors["broker"]
        time.sleep(QUIET_S)
        rows.append(("longest slice of the start", _slice(server), ""))
        requests: tuple[tuple[str, Callable[[], object]], ...] = (
            ("scrape", server.scrape),
            ("second scrape", lambda: (time.sleep(1.1), server.scrape())),
            ("GET_ALL_TOPIC_CONFIG", lambda: ask(broker, 21, {})),
            ("GET_ALL_CONSUMER_OFFSET", lambda: ask(broker, 43, {})),
            ("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", lambda: ask(broker, 201, {})),
            ("overview of gantry top", lambda: ask(broker, 60120, {})),
            ("GET_ALL_TOPIC_LIST_FROM_NAMESERVER", lambda: ask(server.doors["nameserver"], 206, {})),
            ("create a topic", lambda: create(broker, "slices-one")),
            ("a minute's samples and exports", lambda: time.sleep(12)),
        )
        for what, request in requests:
            _slice(server)
            request()
            rows.append((f"slice: {what}", _slice(server), "2 ms"))
    return rows


def _slice(server: Server) -> str:
    longest, what = server.longest_ms()
    return f"{longest:.1f} ms" + (f" ({what})" if longest > 2 else "")


def create(broker: str, topic: str) -> None:
    """UPDATE_AND_CREATE_TOPIC."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    ask(broker, 17, fields)


def delete(directory: Path, topics: int) -> Figures:
    """A group with offsets of every topic, and a topic with as many groups."""
    rows: Figures = []
    with serving(directory, slices=True) as server:
        broker = server.doors["broker"]
        pipeline(broker, [commit_frame(number, "wide", topic_name(number), 0, 1) for number in range(topics)])
        create(broker, "popular")
        pipeline(broker, [send_frame(number, "popular", number % QUEUES) for number in range(8)])
        pipeline(broker, [commit_frame(number, f"reader-{number}", "popular", 0, 1) for number in range(topics)])
        time.sleep(QUIET_S * 3)
        for what, code, fields in (
            (f"delete a group of {topics:,} topics", 207, {"groupName": "wide", "cleanOffset": "true"}),
            (f"delete a topic of {topics:,} groups", 215, {"topic": "popular"}),
        ):
            _slice(server)
            cpu, begun = server.clock.seconds(), time.monotonic()
            ask(broker, code, fields)
            spent = time.monotonic() - begun
            time.sleep(QUIET_S)
            rows.append((what, f"{spent:.2f} s, {(server.clock.seconds() - cpu) * 1000:.0f} ms CPU", ""))
            rows.append((f"slice: {what}", _slice(server), "2 ms"))
    return rows


def visible(directory: Path, topics: int) -> Figures:
    """A topic's route asked for the moment its creation was answered."""
    missing, spent = 0, []
    rounds = 50
    with (
        serving(directory) as server,
        connect(server.doors["broker"]) as broker,
        connect(server.doors["nameserver"]) as nameserver,
    ):
        for number in range(rounds):
            topic = f"visible-{number}"
            fields = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            begun = time.monotonic()
            call(broker, 17, fields)
            spent.append(time.monotonic() - begun)
            missing += call(nameserver, 105, {"topic": topic})[0] != 0
        still = 0
        for number in range(rounds):
            call(broker, 215, {"topic": f"visible-{number}"})
            still += call(nameserver, 105, {"topic": f"visible-{number}"})[0] == 0
    return [
        ("created topics that the nameserver did not know", f"{missing} of {rounds}", "0"),
        ("deleted topics that it still knew", f"{still} of {rounds}", "0"),
        ("creation of a topic", f"{statistics.median(spent) * 1000:.1f} ms, at most {max(spent) * 1000:.0f} ms", ""),
    ]


def idle(directory: Path, topics: int) -> Figures:
    """Connections that say nothing after their heartbeat."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    place = directory / "idle"
    place.mkdir()
    with serving(place, files=hard) as server:
        time.sleep(QUIET_S)
        before = server.anon_mib()
        socks = [connect(server.doors["broker"]) for _ in range(IDLE)]
        time.sleep(QUIET_S)
        after = server.anon_mib()
        cpu = server.clock.seconds()
        time.sleep(5)
        percent = (server.clock.seconds() - cpu) / 5 * 100
        for sock in socks:
            sock.sendall(encode(105, 1, {"topic": "nothing"}))
            sock.recv(4096)
        time.sleep(QUIET_S)
        spoken = server.anon_mib()
        for sock in socks:
            sock.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [
        (f"{IDLE:,} idle connections", f"{after - before:.1f} MiB", "40 MiB"),
        ("after a request of each", f"{spoken - before:.1f} MiB", "40 MiB"),
        ("processor time meanwhile", f"{percent:.1f} %", ""),
    ]


def beat(number: int) -> bytes:
    """A push consumer of three topics and its retry topic, which sends, too."""
    group = f"service-{number // 10}"
    wanted = [
        {"topic": f"events-{(number // 10 * 3 + each) % 100}", "subString": "a || b || c", "tagsSet": ["a", "b", "c"],
         "codeSet": [97, 98, 99], "subVersion": 1700000000000, "expressionType": "TAG", "classFilterMode": False}
        for each in range(3)
    ]  # fmt: skip
    wanted.append(
        {
            "topic": f"%RETRY%{group}",
            "subString": "*",
            "tagsSet": [],
            "codeSet": [],
            "subVersion": 1,
            "expressionType": "TAG",
        }
    )
    body = {
        "clientID": f"10.0.0.{number % 250}@{number}#1234567890", "heartbeatFingerprint": 0, "isWithoutSub": False,
        "producerDataSet": [{"groupName": f"producers-{number % 20}"}, {"groupName": "CLIENT_INNER_PRODUCER"}],
        "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": wanted, "unitMode": False,
        }],
    }  # fmt: skip
    return encode(34, 7, {}, json.dumps(body).encode())


def heartbeat(directory: Path, topics: int) -> Figures:
    """CPU of a heartbeat, times what so many clients send a second."""
    place = directory / "beats"
    place.mkdir()
    rounds = 5
    with serving(place) as server:
        socks = [connect(server.doors["broker"]) for _ in range(CLIENTS)]
        frames = [beat(number) for number in range(CLIENTS)]

        def all_beat() -> None:
            for sock, frame in zip(socks, frames, strict=True):
                sock.sendall(frame)
                # What came before was said of new members of the group.
                while b'"opaque":7,' not in sock.recv(65536):
                    pass

        all_beat()
        time.sleep(QUIET_S)
        cpu = server.clock.seconds()
        for _ in range(rounds):
            all_beat()
        each_us = (server.clock.seconds() - cpu) / (rounds * CLIENTS) * 1e6
        for sock in socks:
            sock.close()
    return [
        ("a heartbeat", f"{each_us:.0f} us CPU", ""),
        (f"heartbeats of {CLIENTS:,} clients", f"{each_us * CLIENTS / BEAT_EVERY_S / 1e4:.2f} % of a core", "2 %"),
    ]


def route(directory: Path, topics: int) -> Figures:
    """A nameserver that a broker told of 100,000 topics."""
    place = directory / "routes"
    place.mkdir()
    count = 20_000
    with serving(place) as server, connect(server.doors["nameserver"]) as broker:
        nameserver = server.doors["nameserver"]
        broker.settimeout(60)
        table = {
            topic_name(number): {"topicName": topic_name(number), "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
            for number in range(ROUTE_TOPICS)
        }
        version = {"stateVersion": 0, "timestamp": 1, "counter": 1}
        body = {
            "topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": version},
            "filterServerList": [],
        }
        fields = {
            "brokerName": "many", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "haServerAddr": "10.0.0.1:10912",
            "brokerId": "0", "compressed": "false",
        }  # fmt: skip
        code = call(broker, 103, fields, json.dumps(body).encode())[0]
        if code:
            raise SystemExit(f"registration failed: {code}")
        names = [topic_name(number * 7919 % ROUTE_TOPICS) for number in range(count)]
        cpu = server.clock.seconds()
        pipeline(nameserver, [encode(105, opaque, {"topic": name}) for opaque, name in enumerate(names)])
        each_us = (server.clock.seconds() - cpu) / count * 1e6
        one = encode(105, 1, {"topic": names[0]})
        with connect(nameserver) as sock:
            cpu = server.clock.seconds()
            for name in names[:5000]:
                sock.sendall(encode(105, 1, {"topic": name}))
                sock.recv(4096)
            alone_us = (server.clock.seconds() - cpu) / 5000 * 1e6
        assert one
    return [
        (f"route query among {ROUTE_TOPICS:,} topics", f"{each_us:.1f} us CPU", "50 us"),
        ("the same, one at a time", f"{alone_us:.1f} us CPU, system calls included", "50 us + 2 calls"),
    ]


STEPS: Final[dict[str, Callable[[Path, int], Figures]]] = {
    "start": start, "scrape": scrape, "tools": tools, "slices": slices, "delete": delete, "visible": visible, "idle": idle,
    "heartbeat": heartbeat, "route": route,
}  # fmt: skip
ALONE: Final = frozenset({"idle", "heartbeat", "route"})
"""Steps with a directory of their own."""


def main(arguments: list[str]) -> int:
    """The table."""
    parser = argparse.ArgumentParser(
        prog="bench admin", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--only", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--directory", type=Path, help="keep the topics here, and take them from here where they are")
    args = parser.parse_args(arguments)
    directory = args.directory or Path(tempfile.mkdtemp(prefix="gantry-admin-"))
    rows: Figures = []
    try:
        directory.mkdir(exist_ok=True)
        if set(args.only) - ALONE and not (directory / "data").exists():
            with serving(directory) as server:
                begun = time.monotonic()
                fill(server, args.topics)
                print(
                    f"{args.topics:,} topics x {QUEUES} queues filled in {time.monotonic() - begun:.0f} s", flush=True
                )
                time.sleep(QUIET_S)
        for name in args.only:
            for row in STEPS[name](directory, args.topics):
                rows.append(row)
                print(f"{row[0]:<55} {row[1]:<40} {row[2] and 'to reach: ' + row[2]}", flush=True)
    finally:
        if args.directory is None:
            shutil.rmtree(directory, ignore_errors=True)
    if args.markdown:
        lines = ["| what | measured | to reach |", "|---|---|---|", *[f"| {' | '.join(row)} |" for row in rows]]
        args.markdown.write_text("\n".join(lines) + "\n")
    return 0
