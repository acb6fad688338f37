"""`./run bench forward`: what a record costs that another broker group's queues want, and what groups cost that have nothing to do.

usage: bench forward [--quick] [--only record idle interest] [--profile FILE] [--json FILE]

Broker groups in this process, on disks of this machine, joined by the frames of the gateway protocol without sockets; time is played, millisecond by
millisecond, so a rate is exact and nothing waits. CPU is this process's: of both groups, the publisher's submit included; the same records without anybody
who wants them elsewhere are measured, too. Records are as applications send them: 12 tags, a key, three properties with values of their own, bodies of 32 to
512 bytes, 128 on average, 8 topics with 4 queues each, half of them for each of two queues of the other group. Lowest of the rounds.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import random
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.broker.routing.router import load_route_sets, route_to_bytes
from gantrymq.cluster.forward.peers import OtherPort, Peers
from gantrymq.cluster.forward.pulls import Pulls
from gantrymq.cluster.slots.keeping import SlotKeeper
from gantrymq.cluster.wire.client import RemoteBrokerPort
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.remoting.codec import FrameReader
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from interop_tests.bench.servers import wide_console

KEEPER: Final = "a"
FLUSH_MS: Final = 500
TOPICS: Final = 8
TAGS: Final = 12
AT_ONCE: Final = 256
"""Records of one submit at full rate."""
HELLO_MS: Final = 1_000
"""As a process says hello to those that it is connected to."""
ROUNDED_MS: Final = 1e-3
WRITE_MS: Final = 50
SETTLE_MS: Final = 4_000
"""Until groups know each other's routes."""
ROUTES: Final = 20_000
RECORD_US: Final = 12
IDLE_GROUPS: Final = 64


class Cable:
    """A connection: frames on their way, and the two ends. It is among `busy` while there are some."""

    def __init__(self, target: Group, busy: dict[Cable, None]) -> None:
        self.port = RemoteBrokerPort(self._asked, self._marked)
        self._busy = busy
        self._answers: list[bytes] = []
        self._questions: list[bytes] = []
        self._reader = FrameReader()
        self._session = GatewaySession(target.broker, "bench", self._answered)
        self.frames = 0

    def _marked(self) -> None:
        self._busy[self] = None

    def _asked(self, frame: bytes) -> None:
        self._questions.append(frame)
        self._busy[self] = None

    def _answered(self, frame: bytes) -> None:
        self._answers.append(frame)
        self._busy[self] = None

    def hello(self) -> None:
        """A sign of life."""
        self.port.hello(None, lambda token, result: None)

    def step(self) -> None:
        """What waits arrives."""
        self.port.flush()
        if self._questions:
            data = b"".join(self._questions)
            self.frames += len(self._questions)
            self._questions.clear()
            for command in self._reader.feed(data):
                self._session.handle(command)
        if self._answers:
            data = b"".join(self._answers)
            self.frames += len(self._answers)
            self._answers.clear()
            self.port.received(data)


class Group:
    """A broker on a disk."""

    def __init__(self, name: str, directory: Path, clock: ManualClock) -> None:
        self.name = name
        self.clock = clock
        self.turn = ManualTurn()
        self.wheel = ManualWheel(clock)
        self.store = MessageStore(OsFileSystem(), directory / name, StoreConfig(), clock)
        self.store.load()
        self.broker = Broker(
            self.store, clock, self.turn, self.wheel, load_route_sets(), BrokerConfig(name=name, metadata_group=KEEPER),
            TopicsConfig(), GatewayConfig(), False,
        )  # fmt: skip
        self.broker.open()
        self.port = LocalBrokerPort(self.broker)

    def fire(self) -> None:
        """Deadlines that have passed."""
        self.wheel.advance(0)

    def flush(self) -> None:
        """As the flusher does."""
        self.broker.gate.advance(self.store.flush())
        self.turn.run_until_quiet()


class Site:
    """Groups that follow each other, by one clock."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.clock = ManualClock()
        self.groups = {name: Group(name, directory, self.clock) for name in names}
        self.cables: list[Cable] = []
        self._busy: dict[Cable, None] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        chance = random.Random(0)
        for name, group in self.groups.items():
            link = None if name == KEEPER else self.connect(KEEPER)[0]
            SlotKeeper(group.broker, link, chance.getrandbits).start()
            self.run()
            pulls = Pulls(lambda: self.clock.mono_ms / 1000, self._call_later)
            Peers(group.broker, name, self.connect, pulls).start()
        self.play(SETTLE_MS)

    def connect(self, name: str) -> tuple[Any, Callable[[], None]]:
        """A way to a group, for one that follows it."""
        cable = Cable(self.groups[name], self._busy)
        self.cables.append(cable)
        cable.port.connected(None, lambda token, result: cable.port.ready())
        port: OtherPort = cable.port
        return port, lambda: None

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        heappush(self._due, (self.clock.mono_ms + delay_s * 1000 - ROUNDED_MS, len(self._due), call))

    def run(self) -> None:
        """Until nothing moves."""
        groups, busy = list(self.groups.values()), self._busy
        while True:
            waiting = [group for group in groups if group.turn.pending]
            for group in waiting:
                group.turn.run_until_quiet()
            if not busy and not waiting:
                return
            cables = list(busy)
            busy.clear()
            for cable in cables:
                cable.step()

    def play(self, ms: int, step_ms: int = 1, each: Callable[[], None] = lambda: None) -> None:
        """Time goes on; `each()` happens at every step."""
        for _ in range(0, ms, step_ms):
            before = self.clock.mono_ms
            self.clock.advance(step_ms)
            each()
            while self._due and self._due[0][0] <= self.clock.mono_ms:
                heappop(self._due)[2]()
            for group in self.groups.values():
                group.fire()
            if self.clock.mono_ms // HELLO_MS != before // HELLO_MS:
                for cable in self.cables:
                    cable.hello()
            self.run()
            if self.clock.mono_ms // FLUSH_MS != before // FLUSH_MS:
                for group in self.groups.values():
                    group.flush()
                self.run()

    def ask(self, name: str, method: str, *args: Any) -> Any:
        """A call of a group's port, and its answer."""
        box: list[Any] = []
        getattr(self.groups[name].port, method)(*args, None, lambda token, result: box.append(result))
        for _ in range(SETTLE_MS):
            if box:
                return box[0]
            self.play(1)
        raise SystemExit(f"{method} was not answered")

    def close(self) -> None:
        """Close the files."""
        for group in self.groups.values():
            group.broker.close()
            group.store.close()


@contextmanager
def site(*names: str) -> Iterator[Site]:
    """Groups on disks of their own, which go."""
    directory = Path(tempfile.mkdtemp(prefix="gantry-bench-"))
    made = Site(directory, *names)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(directory, ignore_errors=True)


def tag_of(number: int) -> str:
    return f"orders.{number % TAGS}"


def mixed(chance: random.Random, count: int) -> list[Message]:
    """Records as applications send them."""
    made = []
    for number in range(count):
        tag, unique, key = tag_of(chance.randrange(TAGS)), f"{chance.getrandbits(128):032X}", f"order-{number}"
        properties = (
            f"UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02TAGS\x01{tag}\x02KEYS\x01{key}\x02traceparent\x0100-{unique.lower()}-01\x02"
            f"tenant\x01t{chance.randrange(500)}\x02region\x01{chance.choice(('north', 'south-2', 'west'))}\x02"
        )
        body = chance.randbytes(int(128 * 0.36 * 11 ** chance.random()))
        made.append(
            Message(
                f"topic{chance.randrange(TOPICS)}", body, properties.encode(), tag, (unique, key), chance.randrange(4)
            )
        )
    return made


def bind(site: Site, name: str) -> list[int]:
    """Two queues of a group, which get half of the tags each; their cursors."""
    cursors = []
    for half in range(2):
        light = site.ask(name, "create_light")
        cursors.append(site.ask(name, "open_cursor", f"~{light}", "bench", EARLIEST).cursor)
        for topic in range(TOPICS):
            for tag in range(half, TAGS, 2):
                words = json.dumps(tag_of(tag).split("."))
                route = Route(f"r{topic}.{tag}", "mqtt", f"topic{topic}", words, light)
                if (refused := site.ask(name, "add_route", route)) is not None:
                    raise SystemExit(str(refused))
    return cursors


def cpu_us(run: Callable[[], object], count: int) -> float:
    """CPU of this process for each."""
    begin = time.process_time()
    run()
    return (time.process_time() - begin) / count * 1e6


class Load:
    """Publishes at one group what another one gets. `wanted`: somebody does."""

    def __init__(self, site: Site, count: int, wanted: bool) -> None:
        self._site = site
        self._count = count
        self._chance = random.Random(1)
        self._wanted = wanted
        self._taken = site.groups["b"].broker.receiving
        for topic in range(TOPICS):
            site.ask("a", "ensure_topic", f"topic{topic}", True)
        self.cursors = bind(site, "b") if wanted else []
        site.play(SETTLE_MS)

    def _publish(self, records: Iterator[Message], count: int) -> None:
        batch = [record for _, record in zip(range(count), records, strict=False)]
        self._site.groups["a"].port.submit(batch, None, lambda token, result: None)

    def round(self, per_ms: int) -> float:
        """Microseconds a record at so many thousand a second; 0: as fast as it goes."""
        made = mixed(self._chance, self._count)
        for message in made:
            message.born_ms = self._site.clock.now_ms()
        records, site, before = iter(made), self._site, self._taken.taken
        gc.collect()
        gc.freeze()

        def run() -> None:
            if per_ms:
                site.play(self._count // per_ms, each=partial(self._publish, records, per_ms))
            else:
                site.play(self._count // AT_ONCE + 1, each=partial(self._publish, records, AT_ONCE))
            site.play(2 * FLUSH_MS, WRITE_MS)  # what was put off: index, files of queues, settlements

        cost = cpu_us(run, self._count)
        taken = self._taken.taken - before
        if taken != (self._count if self._wanted else 0):
            raise SystemExit(f"{taken} of {self._count} records were forwarded")
        if behind := site.groups["a"].broker.sending.behind(site.groups["a"].broker.sending.peers["b"]):
            raise SystemExit(f"{behind} records wait still")
        self._consume()
        return cost

    def _consume(self) -> None:
        for cursor in self.cursors:
            while found := self._site.ask("b", "acquire", cursor, 1, 1_000, 1 << 20):
                self._site.groups["b"].port.settle([(cursor, each.offset, Outcome.ACK) for each in found])
                self._site.run()


RATES: Final = {"1,000/s": 1, "4,000/s": 4, "16,000/s": 16, "full rate": 0}


def measure_record(count: int, rounds: int, profile: cProfile.Profile | None) -> dict[str, Any]:
    """By rate: with and without another group that wants the record."""
    found: dict[str, Any] = {}
    for wanted in (False, True):
        with site("a", "b") as made:
            load = Load(made, count, wanted)
            load.round(0)
            for name, per_ms in RATES.items():
                if profile is not None and wanted:
                    profile.enable()
                costs = [load.round(per_ms) for _ in range(rounds)]
                if profile is not None:
                    profile.disable()
                found.setdefault(name, {})["forwarded_us" if wanted else "stored_us"] = round(min(costs), 2)
    return found


def measure_idle(groups: int) -> dict[str, Any]:
    """Groups that follow each other and nothing else: percent of a processor that one of them takes."""
    with site(*[KEEPER, *[f"g{number}" for number in range(1, groups)]]) as made:
        made.play(SETTLE_MS, 50)
        frames, seconds = sum([cable.frames for cable in made.cables]), 10
        cost_us = min(cpu_us(lambda: made.play(seconds * 1_000, 50), seconds * groups) for _ in range(2))
        frames = sum([cable.frames for cable in made.cables]) - frames
    return {"percent": round(cost_us / 1e4, 2), "frames_per_s": round(frames / 2 / seconds / groups)}


def measure_interest(kind: str) -> dict[str, Any]:
    """Bytes that a source takes for each route of another group, of `ROUTES`: filters of a fleet, `exact` or with a wildcard each."""
    with site("a", "b") as made:
        sending = made.groups["a"].broker.sending
        gc.collect()
        tracemalloc.start()
        for number in range(1, ROUTES + 1):
            words = ["fleet", f"device{number:07}", "temperature" if kind == "exact" else "+"]
            route = Route(f"mqtt/{1_000 + number}", "mqtt", "site1", json.dumps(words), 1_000 + number)
            sending.learn("b", route.route_id, route_to_bytes(route))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return {"bytes": round(taken / ROUTES)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench forward", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer records, rounds and groups")
    parser.add_argument(
        "--only", nargs="+", default=["record", "idle", "interest"], choices=["record", "idle", "interest"]
    )
    parser.add_argument("--profile", type=Path, help="write what a profiler saw of forwarded records here")
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    table = Table(title="groups in one process, without sockets")
    for column in ("row", "figure", "without another group", "to reach"):
        table.add_column(column, justify="left" if column == "row" else "right")
    if "record" in args.only:
        profile = cProfile.Profile() if args.profile else None
        found["record"] = measure_record(4_000 if args.quick else 16_000, 2 if args.quick else 5, profile)
        if profile is not None:
            profile.dump_stats(args.profile)
        for name, row in found["record"].items():
            table.add_row(f"forwarded record, {name}", f"{row['forwarded_us']} us", f"{row['stored_us']} us",
                          f"<= {RECORD_US} us")  # fmt: skip
    if "idle" in args.only:
        count = 16 if args.quick else IDLE_GROUPS
        found["idle"] = row = measure_idle(count)
        table.add_row(f"{count} idle groups, each", f"{row['percent']} % of a core, {row['frames_per_s']} frames/s", "",
                      "< 2 %")  # fmt: skip
    if "interest" in args.only:
        for kind, most in (("exact", 16), ("wildcard", 400)):
            found[kind] = row = measure_interest(kind)
            table.add_row(f"foreign {kind} filter", f"{row['bytes']} B", "", f"{most} B")
    wide_console().print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))
    return 0
