"""Pop consumers over real sockets: kill -9 in the middle of pops and acknowledgements, and the official Java client."""

from __future__ import annotations

import base64
import itertools
import json
import random
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode
from gantrymq.store.log import record
from interop_tests.java import official
from interop_tests.real_broker import SIZES, RealBroker
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S

TOPIC, GROUP = "popped", "pop-group"
QUEUES = 2


class Consumer:
    """A connection that pops, acknowledges and sends, one request at a time."""

    def __init__(self, server: Gantry | RealBroker) -> None:
        address = ("127.0.0.1", server.port) if isinstance(server, RealBroker) else server.address("broker")
        self.socket = socket.create_connection(address, LIMIT_S)
        self.reader = FrameReader()
        self.opaque = itertools.count(1)
        self.answers: dict[int, Command] = {}

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def post(self, code: int, body: bytes = b"", **fields: Any) -> int:
        number = next(self.opaque)
        text = {name: str(value) for name, value in fields.items()}
        self.socket.sendall(encode(Command(code, text, body, number, language=0)))
        return number

    def answer(self, number: int) -> Command:
        while number not in self.answers:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("closed")
            self.answers.update({found.opaque: found for found in self.reader.feed(data)})
        return self.answers.pop(number)

    def ask(self, code: int, body: bytes = b"", **fields: Any) -> Command:
        return self.answer(self.post(code, body, **fields))

    def create(self) -> None:
        made = self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=TOPIC, readQueueNums=QUEUES, writeQueueNums=QUEUES,
                        perm=6, defaultTopic="TBW102", topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false")  # fmt: skip
        assert made.code == 0, made.remark

    def send(self, body: bytes, queue: int) -> None:
        sent = self.ask(RequestCode.SEND_MESSAGE_V2, body, a="PG", b=TOPIC, c="TBW102", d=4, e=queue, f=0, g=1, h=0, j=0,
                        k="false", m="false")  # fmt: skip
        assert sent.code == 0, sent.remark

    def post_pop(self, poll_ms: int = 0, invisible_ms: int = 60_000) -> int:
        return self.post(RequestCode.POP_MESSAGE, consumerGroup=GROUP, topic=TOPIC, queueId=-1, maxMsgNums=8,
                         invisibleTime=invisible_ms, pollTime=poll_ms, bornTime=int(time.time() * 1000), initMode=0)  # fmt: skip

    def pop(self, poll_ms: int = 0, invisible_ms: int = 60_000) -> tuple[Command, list[Any]]:
        answer = self.answer(self.post_pop(poll_ms, invisible_ms))
        assert answer.code in (0, 210), answer
        messages, at = [], 0
        while at < len(answer.body):
            messages.append(record.decode(answer.body, at))
            at += messages[-1].size
        return answer, messages

    def post_ack(self, answer: Command, messages: list[Any]) -> int:
        fields = answer.fields
        starts = {part.split(" ")[1]: int(part.split(" ")[2]) for part in fields["startOffsetInfo"].split(";")}
        bits: Counter[int] = Counter()
        for message in messages:
            bits[message.queue_id] += 1 << (message.queue_offset - starts[str(message.queue_id)])
        acks = [
            {"c": GROUP, "t": TOPIC, "r": "0", "so": starts[str(queue)], "q": queue, "rq": 0, "pt": int(fields["popTime"]),
             "it": int(fields["invisibleTime"]), "b": base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "little")).decode()}
            for queue, number in bits.items()
        ]  # fmt: skip
        return self.post(RequestCode.BATCH_ACK_MESSAGE, json.dumps({"acks": acks}).encode())

    def acknowledge(self, answer: Command, message: Any) -> None:
        """One message by its receipt, which a message of a retry topic brings along."""
        fields = answer.fields
        receipt = message.property("POP_CK")
        if not receipt:
            starts = {part.split(" ")[1]: part.split(" ")[2] for part in fields["startOffsetInfo"].split(";")}
            queue = str(message.queue_id)
            receipt = (
                f"{starts[queue]} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 broker-a {queue} "
                f"{message.queue_offset}"
            )
        parts = receipt.split(" ")
        topic = TOPIC if parts[4] == "0" else f"%RETRY%{GROUP}_{TOPIC}"
        done = self.ask(RequestCode.ACK_MESSAGE, consumerGroup=GROUP, topic=topic, queueId=parts[6], extraInfo=receipt,
                        offset=parts[7])  # fmt: skip
        assert done.code == 0, done.remark

    def pop_all(self, wanted: set[bytes], acknowledged: set[bytes], invisible_ms: int = 600_000) -> dict[bytes, int]:
        """Pop until all of `wanted` came; acknowledge some. None comes twice but what is not acknowledged, when its time is over. Reconsume
        times of the first delivery by body."""
        found: dict[bytes, int] = {}
        free_s: dict[bytes, float] = {}
        end = time.monotonic() + 2 * LIMIT_S
        while set(found) < wanted and time.monotonic() < end:
            asked_s = time.monotonic()
            answer, messages = self.pop(2_000, invisible_ms)
            for message in messages:
                assert message.body not in acknowledged & found.keys()
                assert free_s.get(message.body, 0.0) <= time.monotonic()
                free_s[message.body] = asked_s + invisible_ms / 1000
                found.setdefault(message.body, message.reconsume_times)
                if message.body in acknowledged:
                    self.acknowledge(answer, message)
        assert set(found) == wanted
        return found


@pytest.mark.crash
def test_kill_in_the_middle_of_acknowledgements(own_server: Gantry) -> None:
    """What was acknowledged never comes again; everything else does, counted as delivered where it was."""
    lot = random.Random(5)
    numbers = itertools.count()
    acknowledged: set[bytes] = set()
    maybe: set[bytes] = set()
    delivered: Counter[bytes] = Counter()
    sent: set[bytes] = set()

    def note(messages: list[Any]) -> None:
        for message in messages:
            assert message.body not in acknowledged
            assert (message.reconsume_times > 0) >= (delivered[message.body] > 0), message.body
            delivered[message.body] += 1

    for round_number in range(3):
        with Consumer(own_server) as consumer:
            if not round_number:
                consumer.create()
            for number in itertools.islice(numbers, 60):
                consumer.send(b"%d" % number, number % QUEUES)
                sent.add(b"%d" % number)
            for _ in range(6):
                answer, messages = consumer.pop()
                note(messages)
                chosen = [message for message in messages if lot.random() < 0.6]
                if chosen:
                    assert consumer.answer(consumer.post_ack(answer, chosen)).code == 0
                    acknowledged |= {message.body for message in chosen}
            answer, messages = consumer.pop()
            note(messages)
            consumer.post_pop()  # their answers are never read
            if messages:
                consumer.post_ack(answer, messages)
                maybe |= {message.body for message in messages}
            own_server.kill_and_restart()
    left: set[bytes] = set()
    with Consumer(own_server) as consumer:
        empty = 0
        while not empty or not sent - acknowledged - maybe <= left:
            assert empty < 30, sent - acknowledged - maybe - left
            answer, messages = consumer.pop(2_000 if empty else 0)
            if not messages:
                empty += 1
                continue
            note(messages)
            left |= {message.body for message in messages}
            assert consumer.answer(consumer.post_ack(answer, messages)).code == 0
        place = [consumer.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=queue)
                 for queue in range(QUEUES)]  # fmt: skip
    assert sent - acknowledged - maybe <= left <= sent - acknowledged
    assert [answer.fields["offset"] for answer in place] == [str(len(sent) // QUEUES)] * QUEUES


def test_long_poll_and_redelivery(own_server: Gantry) -> None:
    with Consumer(own_server) as consumer, Consumer(own_server) as producer:
        producer.create()
        waiting = consumer.post_pop(15_000, 300)
        producer.send(b"one", 1)
        assert record.decode(consumer.answer(waiting).body).body == b"one"
        answer, messages = consumer.pop(15_000, 60_000)
        assert [(message.body, message.reconsume_times) for message in messages] == [(b"one", 1)]
        assert consumer.answer(consumer.post_ack(answer, messages)).code == 0


REAL = [
    "any FOUND [m0/0/0/0/60000/any/0broker-a00, m1/0/1/0/60000/any/0broker-a01] rest 4[]",
    "rest FOUND [m2/0/2/2/60000/any/0broker-a02, m3/0/3/2/60000/any/0broker-a03, "
    "m4/0/4/2/60000/any/0broker-a04, m5/0/5/2/60000/any/0broker-a05] rest 0[]",
    "empty POLLING_NOT_FOUND [] rest 0[]",
    "ack m2 OK",
    "ack m3 OK",
    "ack m4 OK",
    "ack m5 OK",
    "tags FOUND [m0/0/0/0/60000/any/0broker-a00, m2/0/2/0/60000/any/0broker-a02, m4/0/4/0/60000/any/0broker-a04] rest 0[]",
    "change OK",
    "back m0 times 1 others 4 topic true",
    "stale ack OK",
    "new ack OK",
    "ordered FOUND [m0/0/0/0/10000/order/0broker-a00, m1/0/1/0/10000/order/0broker-a01] rest 4[]",
    "blocked POLLING_NOT_FOUND [] rest 0[]",
    "same attempt FOUND [m0/0/0/0/10000/order/0broker-a00, m1/0/1/0/10000/order/0broker-a01] rest 4[]",
    "ordered again FOUND [m0/1/0/0/10000/order/0broker-a00, m1/1/1/0/10000/order/0broker-a01] rest 4[]",
    "ordered next FOUND [m2/0/2/2/10000/order/0broker-a02, m3/0/3/2/10000/order/0broker-a03] rest 2[]",
    "waits true",
    "woken FOUND [late/0/0/0/60000/any/0broker-a10][]",
    "failed one again, times 1",
    "assigned [POP -1]",
    "pushed 40 repeated 0",
]
"""What the same program printed with the real RocketMQ 5.3.3 (`interop_tests/bench/peers/rocketmq.sh`)."""


@pytest.mark.slow
@pytest.mark.java
def test_java_client_sees_what_it_sees_with_rocketmq(own_server: Gantry, tmp_path: Path) -> None:
    doors = own_server.doors
    assert official.printed("Pop", tmp_path, doors["nameserver"], doors["broker"], "jpop", "40") == REAL


@pytest.mark.slow
@pytest.mark.java
def test_unacknowledged_pops_on_one_directory_of_two_brokers(tmp_path: Path) -> None:
    """RocketMQ, ours, RocketMQ: what was popped and not acknowledged at the one is delivered by the next, and nothing else again."""
    if official.missing():
        pytest.skip(official.missing())
    real = RealBroker(tmp_path / "data")
    real.extra = "reviveQueueNum=1"  # every checkpoint follows those before it
    gantry = Gantry(tmp_path, settings=SIZES)
    first = {b"%d" % number for number in range(8)}
    try:
        real.start()
        with Consumer(real) as consumer:
            consumer.create()
            for number in range(8):
                consumer.send(b"%d" % number, 0)
            assert set(consumer.pop_all(first, {b"0", b"1", b"4"}, 10_000).values()) == {0}
        real.stop()
        gantry.start()
        with Consumer(gantry) as consumer:
            found = consumer.pop_all(first - {b"0", b"1", b"4"}, {b"2", b"3"})
            assert set(found.values()) == {1}
            for number in (8, 9):
                consumer.send(b"%d" % number, 0)
            assert consumer.pop_all({b"8", b"9"}, {b"8"}) == {b"8": 0, b"9": 0}
        gantry.stop()
        real.start()
        with Consumer(real) as consumer:
            left = {b"5", b"6", b"7", b"9"}
            assert consumer.pop_all(left, left - {b"9"}, 10_000)[b"9"] == 0
            # Its checkpoint is the first one behind those that ours worked off.
            assert consumer.pop_all({b"9"}, {b"9"}) == {b"9": 1}
    finally:
        real.kill()
        for process in gantry.processes:
            process.kill()
