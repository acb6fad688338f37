"""kill -9 of `gantry up` again and again while a producer sends half messages and decides on them: each has one fate (invariant I8)."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from pathlib import Path

import pytest

from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.remoting.overview_codes import LIST_TRANSACTIONS
from interop_tests.bench import remoting_wire
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.crash

TOPIC = "fates"
COMMIT, ROLLBACK = 8, 12
WINDOW = 40
SMALL = ("store.commitlog_file_size=262144", "store.consumequeue_file_size=4000", "store.checkpoint_interval_ms=200",
         "transactions.check_interval_ms=86400000", "broker.pending_ms_max=60000")  # fmt: skip


class Decider(threading.Thread):
    """Half messages in windows; most are decided on while the next ones are on their way, some twice and differently."""

    def __init__(self, address: str, names: list[str], seed: int) -> None:
        super().__init__(daemon=True)
        self.names = names
        self.lot = random.Random(seed)
        self.sock = remoting_wire.connect(address)
        self.sock.settimeout(LIMIT_S)
        self.places: dict[str, tuple[int, int]] = {}
        """Half messages whose answer came: offset and position."""
        self.asked: dict[str, set[int]] = {}
        self.answered: dict[str, int] = {}
        self.failure: BaseException | None = None

    def half(self, opaque: int, name: str) -> bytes:
        text = f"TRAN_MSG\x01true\x02PGROUP\x01killers\x02UNIQ_KEY\x01{name}\x02"
        fields = {
            "a": "killers", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "4", "g": "1700000000000", "h": "0", "i": text, "j": "0",
            "k": "false", "m": "false", "n": "broker-a",
        }  # fmt: skip
        return remoting_wire.encode(310, opaque, fields, name.encode())

    def run(self) -> None:
        try:
            while self.names:
                self.window()
        except OSError:
            return  # killed
        except BaseException as error:
            self.failure = error
        finally:
            self.sock.close()

    def window(self) -> None:
        fresh, self.names = self.names[:WINDOW], self.names[WINDOW:]
        frames = [self.half(number, name) for number, name in enumerate(fresh)]
        waiting = {number: (name, 0) for number, name in enumerate(fresh)}
        known = [name for name in self.places if name not in self.answered]
        for number, name in enumerate(self.lot.sample(known, min(len(known), WINDOW)), WINDOW):
            kind = self.lot.choice((COMMIT, COMMIT, ROLLBACK))
            self.asked.setdefault(name, set()).add(kind)
            waiting[number] = (name, kind)
            frames.append(end_frame(number, *self.places[name], kind))
        self.lot.shuffle(frames)
        self.sock.sendall(b"".join(frames))
        data = bytearray()
        while waiting:
            part = self.sock.recv(1 << 18)
            if not part:
                raise ConnectionError("closed")
            data += part
            at = 0
            while len(data) - at >= 4 and len(data) - at >= 4 + (size := int.from_bytes(data[at : at + 4], "big")):
                code, opaque, fields, remark, _ = remoting_wire.decode(bytes(data[at + 4 : at + 4 + size]))
                at += 4 + size
                self.answer(*waiting.pop(opaque), code, fields, remark)
            del data[:at]

    def answer(self, name: str, kind: int, code: int, fields: dict[str, str], remark: str) -> None:
        if kind == 0:
            assert code == 0, remark
            self.places[name] = (int(fields["queueOffset"]), int(fields["msgId"][16:], 16))
        elif code == 0:
            assert self.answered.setdefault(name, kind) == kind
        else:
            assert "decided already" in remark, remark


def end_frame(opaque: int, offset: int, position: int, kind: int) -> bytes:
    fields = {
        "producerGroup": "killers", "tranStateTableOffset": str(offset), "commitLogOffset": str(position),
        "commitOrRollback": str(kind), "fromTransactionCheck": "true",
    }  # fmt: skip
    return remoting_wire.encode(37, opaque, fields)


def visible(nameserver: str) -> list[str]:
    async def read() -> list[str]:
        found: list[str] = []
        async with PullConsumer(nameserver, group="lookers") as consumer:
            for queue in await consumer.queues(TOPIC):
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull_queue(queue, offset, 32)
                    found += [message.body.decode() for message in result.messages]
                    offset = result.next_offset
        return found

    return asyncio.run(read())


def undecided(sock: socket.socket) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    start = 0
    while start >= 0:
        code, _, _, remark, body = remoting_wire.call(sock, LIST_TRANSACTIONS, {"start": str(start)})
        assert code == 0, remark
        page = json.loads(body)
        found.update({row["transactionId"]: (row["offset"], row["position"]) for row in page["transactions"]})
        start = page["next"]
    return found


def check(server: Gantry, decider: Decider, before: list[str], lot: random.Random) -> list[str]:
    """What I8 says after a kill, then every open transaction is decided."""
    nameserver, address = server.doors["nameserver"], server.doors["broker"]
    seen = visible(nameserver)
    assert seen[: len(before)] == before
    new = seen[len(before) :]
    assert len(set(seen)) == len(seen), "visible twice"
    with remoting_wire.connect(address) as sock:
        open_ = undecided(sock)
        assert not open_.keys() & set(seen), "visible and undecided"
        assert not open_.keys() & decider.answered.keys(), "an answered decision is forgotten"
        for name in new:
            assert COMMIT in decider.asked.get(name, ()), f"{name} is visible without a commit"
        for name, kind in decider.answered.items():
            assert (name in new) is (kind == COMMIT), f"{name}: {kind}"
        for name, place in decider.places.items():
            if name not in open_ and name not in decider.asked:
                raise AssertionError(f"{name} is lost")
            if name not in open_:  # decided: nothing else can be said any more
                other = ROLLBACK if name in new else COMMIT
                remark = remoting_wire.call(sock, *call_of(place, other))[3]
                assert "decided already" in remark, remark
        wanted = set(new)
        for name, place in open_.items():
            kind = lot.choice((COMMIT, ROLLBACK))
            assert remoting_wire.call(sock, *call_of(place, kind))[0] == 0
            wanted |= {name} if kind == COMMIT else set()
        assert undecided(sock) == {}
    final = visible(nameserver)
    assert sorted(final[len(before) :]) == sorted(wanted)
    return final


def call_of(place: tuple[int, int], kind: int) -> tuple[int, dict[str, str]]:
    frame = end_frame(1, *place, kind)
    return 37, remoting_wire.decode(frame[4:])[2]


def kills(directory: Path, cycles: int, seed: int) -> None:
    lot = random.Random(seed)
    server = Gantry(directory, settings=SMALL)
    try:
        server.start()
        with remoting_wire.connect(server.doors["broker"]) as sock:
            remoting_wire.create_topic(sock, TOPIC, 1)
        before: list[str] = []
        for cycle in range(cycles):
            decider = Decider(server.doors["broker"], [f"{cycle}-{number}" for number in range(40_000)], seed + cycle)
            decider.start()
            enough = lot.randrange(1, 2_000)
            until(lambda: len(decider.answered) >= enough or not decider.is_alive())  # noqa: B023 (called at once)
            server.process("up").kill()
            decider.join(LIMIT_S)
            assert not decider.is_alive()
            assert decider.failure is None, repr(decider.failure)
            assert decider.answered
            server.process("up").start()
            before = check(server, decider, before, lot)
        server.stop()
    finally:
        for process in server.processes:
            process.kill()


@pytest.mark.timeout(120)
def test_one_fate_through_kills(tmp_path: Path) -> None:
    kills(tmp_path, 3, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_fate_through_many_kills(tmp_path: Path) -> None:
    kills(tmp_path, 25, 100)
