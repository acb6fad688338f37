"""`gantry store check` on what `gantry up` leaves when it is killed under load of every kind: all doors, delays, timers, transactions, pops and
light queues. What becomes of the messages is asked elsewhere (test_kill_cycles, test_transaction_kills, test_delays); here
it is the files."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from interop_tests.bench import remoting_wire
from interop_tests.crash.raw_load import (
    QUEUES,
    TOPIC,
    AmqpPublisher,
    MqttPublisher,
    Publisher,
    QueueReader,
    RemotingPublisher,
    SessionReader,
)
from interop_tests.crash.test_kill_cycles import SMALL_FILES, store_is_sound
from interop_tests.raw_peers import ANSWER_S
from interop_tests.running import Gantry
from interop_tests.waiting import until

KILLS = 2
ENOUGH = 80
"""Acknowledgements of each publisher before a kill..."""
POPS = 3
"""...and pops that brought something."""
KINDS = (
    "DELAY\x011\x02",
    "TIMER_DELAY_MS\x01700\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01kinds\x02",
    "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02",
)
PLAIN, DELAY, TIMER, HALF, LIGHT = range(5)
COMMIT, ROLLBACK = 8, 12
DECISIONS = 1 << 20
"""Opaques from here on are those of decisions on half messages."""
POP, ACK, INVISIBLE = 200050, 200051, 200053


class KindsPublisher(RemotingPublisher):
    """Sends of every kind; each half message is decided on when its answer is here, every seventh is left alone."""

    who = "kinds"

    def __init__(self, server: Gantry, numbers: Iterator[int]) -> None:
        self.stored: Counter[int] = Counter()
        self.decided = 0
        self._decisions: list[bytes] = []
        super().__init__(server, numbers)

    def encode(self, tag: int, number: int) -> bytes:
        kind = number % 5
        text = f"UNIQ_KEY\x01K{number}\x02KEYS\x01k{number % 50}\x02" + (KINDS[kind - 1] if kind else "")
        fields = {
            "a": "kinds", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "4" if kind == HALF else "0",
            "g": "1700000000000", "h": "0", "i": text, "j": "0", "k": "false", "m": "false", "n": "broker",
        }  # fmt: skip
        frames = [*self._decisions, remoting_wire.encode(310, tag, fields, f"{self.who} {number}".encode())]
        self._decisions = []
        return b"".join(frames)

    def received(self, data: bytearray) -> int:
        at = 0
        while len(data) - at >= 4 and len(data) - at >= (size := 4 + int.from_bytes(data[at : at + 4], "big")):
            code, opaque, fields, remark, _ = remoting_wire.decode(bytes(data[at + 4 : at + size]))
            at += size
            assert code == 0, f"{code} {remark}"
            if opaque >= DECISIONS:
                self.decided += 1
                continue
            number = self.open[opaque][1]
            self.stored[number % 5] += 1
            if number % 5 == HALF and number % 7:
                self._decisions.append(self.decision(number, fields))
            self.done(opaque)
        return at

    def every_kind(self) -> bool:
        """Some of each are stored, and some decided on."""
        return self.decided > 0 and all(self.stored[kind] for kind in (PLAIN, DELAY, TIMER, HALF, LIGHT))

    @staticmethod
    def decision(number: int, fields: dict[str, str]) -> bytes:
        return remoting_wire.encode(37, DECISIONS + number, {
            "producerGroup": "kinds", "tranStateTableOffset": fields["queueOffset"], "fromTransactionCheck": "false",
            "commitLogOffset": str(int(fields["msgId"][16:], 16)), "commitOrRollback": str(COMMIT if number % 3 else ROLLBACK),
        })  # fmt: skip


class EventPublisher(Publisher):
    """CloudEvents over HTTP/1.1, pipelined."""

    who = "event"

    def connect(self, server: Gantry) -> socket.socket:
        return socket.create_connection(server.address("cloudevents"), ANSWER_S)

    def encode(self, tag: int, number: int) -> bytes:
        body = f"{self.who} {number}".encode()
        self._tags.append(tag)
        return (
            f"POST /topics/{TOPIC} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nce-specversion: 1.0\r\nce-id: {number}\r\n"
            f"ce-source: /load\r\nce-type: t.{number % 3}\r\n\r\n"
        ).encode() + body

    def __init__(self, server: Gantry, numbers: Iterator[int]) -> None:
        self._tags: list[int] = []
        super().__init__(server, numbers)

    def received(self, data: bytearray) -> int:
        at = 0
        while (end := data.find(b"\r\n\r\n", at)) >= 0:
            head = bytes(data[at:end]).lower()
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
            if end + 4 + length > len(data):
                break
            assert head.startswith(b"http/1.1 202"), head
            at = end + 4 + length
            self.done(self._tags.pop(0))
        return at


class Popper(threading.Thread):
    """Pops; a third of what comes is acknowledged, a third gets another invisible time, the rest comes back by itself."""

    def __init__(self, server: Gantry) -> None:
        super().__init__(daemon=True)
        self.sock = remoting_wire.connect(server.doors["broker"])
        self.sock.settimeout(ANSWER_S)
        self.pops = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for queue in itertools.cycle(range(QUEUES)):
                self.pop(queue)
        except OSError:
            return  # killed
        except BaseException as error:
            self.failure = error
        finally:
            self.sock.close()

    def pop(self, queue: int) -> None:
        code, _, fields, remark, _ = remoting_wire.call(self.sock, POP, {
            "consumerGroup": "poppers", "topic": TOPIC, "queueId": str(queue), "maxMsgNums": "16", "invisibleTime": "1000",
            "pollTime": "0", "bornTime": str(int(time.time() * 1000)), "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
        })  # fmt: skip
        if code != 0:
            assert code in (19, 20, 209, 210), (code, remark)
            return
        self.pops += 1
        starts = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in fields["startOffsetInfo"].split(";")}
        frames = []
        for part in fields["msgOffsetInfo"].split(";"):
            mark, queue_id, offsets = part.split(" ")
            for number, offset in enumerate(offsets.split(",")):
                head = f"{starts[mark, queue_id]} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {mark} broker {queue_id}"
                where = {
                    "consumerGroup": "poppers",
                    "topic": TOPIC,
                    "queueId": queue_id,
                    "offset": offset,
                    "extraInfo": f"{head} {offset}",
                }
                if number % 3 == 0:
                    frames.append(remoting_wire.encode(ACK, number, where))
                elif number % 3 == 1:
                    frames.append(remoting_wire.encode(INVISIBLE, number, {**where, "invisibleTime": "60000"}))
        self.sock.sendall(b"".join(frames))
        data = bytearray()
        while frames:
            part_of_answers = self.sock.recv(1 << 18)
            if not part_of_answers:
                raise ConnectionError("closed")
            data += part_of_answers
            while frames and len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
                code, _, _, remark, _ = remoting_wire.decode(bytes(data[4:size]))
                assert code == 0, (code, remark)
                del data[:size]
                frames.pop()


def enough(publishers: list[Publisher], kinds: KindsPublisher, popper: Popper) -> bool:
    """What a kill may fall into; also if somebody failed, which is told later."""
    return not all(one.is_alive() for one in (*publishers, popper)) or (
        all(len(one.ledger.acknowledged) >= ENOUGH for one in publishers) and kinds.every_kind() and popper.pops >= POPS
    )


def light_end(server: Gantry, name: str) -> int:
    with remoting_wire.connect(server.doors["broker"]) as sock:
        return int(remoting_wire.call(sock, 30, {"topic": name, "queueId": "0"})[2]["offset"])


@pytest.mark.crash
@pytest.mark.timeout(240)
def test_a_killed_server_leaves_no_damage(tmp_path: Path) -> None:
    server = Gantry(tmp_path, "combined", SMALL_FILES)
    numbers: dict[type[Publisher], Iterator[int]] = {
        kind: itertools.count()
        for kind in (RemotingPublisher, AmqpPublisher, MqttPublisher, EventPublisher, KindsPublisher)
    }
    try:
        server.start()
        with remoting_wire.connect(server.doors["broker"]) as sock:
            remoting_wire.create_topic(sock, TOPIC, QUEUES)
        queue = QueueReader(server, TOPIC)
        queue.declare(TOPIC)
        queue.raw.sock.close()
        session = SessionReader(server)
        session.subscribe(TOPIC.encode() + b"/#")
        session.take(0)
        for _ in range(KILLS):
            publishers = [kind(server, numbers[kind]) for kind in numbers]
            poppers = [Popper(server)]
            for thread in (*publishers, *poppers):
                thread.start()
            kinds = publishers[-1]
            assert isinstance(kinds, KindsPublisher)
            until(partial(enough, publishers, kinds, poppers[0]), 120)
            server.process("up").kill()
            for thread in (*publishers, *poppers):
                thread.join(2 * ANSWER_S)
                assert not thread.is_alive()
                assert thread.failure is None, repr(thread.failure)
            assert all(len(one.ledger.acknowledged) >= ENOUGH for one in publishers)
            assert poppers[0].pops
            assert kinds.every_kind()
            store_is_sound(tmp_path / "data" / "store")
            server.process("up").start()
        assert light_end(server, "%LMQ%a") == light_end(server, "%LMQ%b") > 0
    finally:
        server.stop()
