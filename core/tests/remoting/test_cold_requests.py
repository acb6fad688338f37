"""Every request on a disk that is cold at each read: the same answers, the same records and the same state as on a warm one, nothing done twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, Outcome, Route, Start
from gantrymq.broker.transactions.half_messages import GIVEN_UP_TOPIC
from gantrymq.model.message import Message
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.overview_codes import OVERVIEW
from gantrymq.remoting.server.broker_door import BrokerConnection
from gantrymq.store.cold import ColdReads
from gantrymq.store.files import OsFileSystem
from gantrymq.store.log import record
from tests.broker.test_cold_reads import ColdDisk
from tests.remoting.bench import PULL, Bench, answers, ask, request, send
from tests.remoting.pop_client import GROUP, pop_frame, popped
from tests.remoting.server.sending.test_recalls import timer
from tests.remoting.server.sending.test_transactions import half
from tests.remoting.test_requests import beat

READERS = {
    Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.QUERY_MESSAGE, Code.QUERY_CONSUMER_OFFSET, Code.SEARCH_OFFSET_BY_TIMESTAMP,
    Code.GET_EARLIEST_MSG_STORETIME, Code.VIEW_MESSAGE_BY_ID, Code.CONSUMER_SEND_MSG_BACK, Code.END_TRANSACTION,
    Code.GET_TOPIC_STATS_INFO, Code.GET_CONSUME_STATS, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.QUERY_CONSUME_TIME_SPAN,
    Code.CONSUME_MESSAGE_DIRECTLY, Code.QUERY_CONSUME_QUEUE, Code.RESUME_CHECK_HALF_MESSAGE, Code.RECALL_MESSAGE,
    Code.GET_BROKER_RUNTIME_INFO, Code.GET_BROKER_CONSUME_STATS, Code.POP_MESSAGE, Code.PEEK_MESSAGE,
}  # fmt: skip
"""Requests that read records or units."""
DESTRUCTIVE = {Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_SUBSCRIPTIONGROUP, Code.CLEAN_UNUSED_TOPIC}
TIMED = {OVERVIEW, Code.GET_BROKER_RUNTIME_INFO, Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG}


class Run:
    """A broker on a directory with something of everything, started anew; with `cold`, nothing of it is ever in memory."""

    def __init__(self, root: Path, cold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.facts: dict[str, Any] = {}
        filled = Bench(root)
        self._fill(filled)
        filled.close()
        if cold:
            monkeypatch.setattr("tests.remoting.bench.Files", ColdDisk)
        self.bench = Bench(root)
        self.posted: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self.reads: ColdReads | None = None
        if cold:
            self.reads = ColdReads(self.bench.store.files, lambda callback, value: self.posted.put((callback, value)))
            self.bench.store.read_without_waiting(self.reads)
        self.link, self.consumer = self.bench.connect(), self.bench.connect("127.0.0.1:50001")
        self.consumer.feed(request(Code.HEART_BEAT, beat("c1", GROUP, producer="PG")))
        self.consumer.take()
        self.read: set[int] = set()
        """Codes that came upon cold data."""

    def _fill(self, bench: Bench) -> None:
        link = bench.connect()
        facts = self.facts
        for number in range(40):
            facts["sent"] = send(
                link, b"body %d" % number, f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number}\x02TAGS\x01{'ab'[number % 2]}\x02", e=0
            )  # fmt: skip
        facts["position"] = int(facts["sent"].fields["msgId"][16:], 16)
        facts["halves"] = [half(link, f"h{number}") for number in range(3)]
        port = LocalBrokerPort(bench.broker)
        quarantine = Message(
            GIVEN_UP_TOPIC,
            b"x",
            b"UNIQ_KEY\x01gone\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02PGROUP\x01PG\x02",
            queue_id=0,
        )
        port.submit([quarantine], None, lambda token, result: None)
        facts["recall"] = timer(link, b"later", 600_000, "R1").fields["recallHandle"]
        ask(link, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": GROUP}).encode())
        ask(link, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="old", topic="T", queueId=0, commitOffset=7)
        bench.turn.run_until_quiet()
        facts["given_up"] = f"{facts['sent'].fields['msgId'][:16]}{quarantine.physical_offset:016X}"

    def arrive(self, done: Callable[[], Any]) -> Any:
        """What `done` gives, after as many reads of the disk as it takes."""
        for _ in range(2000):
            found = done()
            if found:
                return found
            if self.reads is None or not (self.reads.queued or not self.posted.empty()):
                break
            callback, value = self.posted.get(timeout=30)
            callback(value)
            self.bench.turn.run_until_quiet()
        return done()

    def ask(self, code: int, body: bytes = b"", **fields: Any) -> list[Command]:
        """Answers to one request."""
        before = self.reads.fetched if self.reads is not None else 0
        collected = bytearray(self.link.feed(request(code, body, **fields)))

        def take() -> bytes:
            collected.extend(self.link.take())
            return bytes(collected)

        data = self.arrive(take)
        if self.reads is not None and self.reads.fetched > before:
            self.read.add(code)
        return [answer for answer in answers(data) if answer.is_response]

    def call(self, port: LocalBrokerPort, method: str, *args: Any) -> Any:
        """The result of a gateway's call."""
        box: list[Any] = []
        getattr(port, method)(*args, None, lambda token, result: box.append((result,)))
        self.bench.turn.run_until_quiet()
        return self.arrive(lambda: box)[0][0]

    def state(self) -> dict[str, Any]:
        """All that the broker keeps, and its log."""
        bench = self.bench
        broker = bench.broker
        for _ in range(3):
            bench.wheel.advance(1_000)
            bench.turn.run_until_quiet()
            while self.reads is not None and self.reads.queued:
                callback, value = self.posted.get(timeout=30)
                callback(value)
                bench.turn.run_until_quiet()
        windows = {
            (cursor.queue, cursor.group): (
                cursor.window.floor, cursor.window.next_offset, sorted(cursor.window.inflight), list(cursor.window.returned),
                cursor.window.marked,
            )
            for cursor in broker.cursors.views()
        }  # fmt: skip
        offsets = {
            (group, topic): broker.offsets.all_of(group, topic)
            for topic in list(broker.offsets.by_topic())
            for group in broker.offsets.groups_of(topic)
        }
        cold, bench.store.cold = bench.store.cold, None
        bench.store.read_without_waiting(None)
        data, records, at = bench.store._log.read(0, bench.store.written_position), [], 0
        while at < len(data):
            message = record.decode(data, at)
            records.append((message.topic, message.queue_id, message.properties, message.body))
            at += message.size
        bench.store.read_without_waiting(cold)
        return {
            "windows": windows, "offsets": offsets, "topics": sorted(broker.topics.topics), "log": sorted(records),
            "leases": broker.pops.leases.entries, "pending": broker.transactions.pending, "retries": bench.doors.sends.retries.value,
        }  # fmt: skip

    def close(self) -> None:
        if self.reads is not None:
            self.reads.stop()
        self.bench.store.read_without_waiting(None)
        self.bench.close()


def told(found: list[Command]) -> list[Any]:
    return [(answer.code, answer.remark, answer.fields, answer.body) for answer in found]


def every_request(run: Run) -> list[Any]:
    """Each code once at least, with something to read where it reads; what they answered."""
    facts, heard = run.facts, []

    def go(code: int, body: bytes = b"", **fields: Any) -> list[Command]:
        found = run.ask(code, body, **fields)
        if code not in TIMED:
            heard.append((code, told(found)))
        return found

    queue = {"topic": "T", "queueId": 0}
    for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
        go(code, **PULL | {"sysFlag": 5, "commitOffset": 5})
        go(code, **PULL | {"subscription": "a || c", "consumerGroup": "tags"})
        go(code, **PULL | {"subscription": "TAGS = 'b'", "expressionType": "SQL92", "consumerGroup": "sql"})
    go(Code.QUERY_MESSAGE, topic="T", key="k3", maxNum=9, beginTimestamp=0, endTimestamp=1 << 60)
    go(Code.QUERY_CONSUMER_OFFSET, consumerGroup="new", setZeroIfNotFound=True, **queue)
    go(Code.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1, **queue)
    go(Code.GET_EARLIEST_MSG_STORETIME, **queue)
    go(Code.VIEW_MESSAGE_BY_ID, offset=facts["position"])
    for delay in (0, -1):
        go(Code.CONSUMER_SEND_MSG_BACK, offset=facts["position"], group=GROUP, delayLevel=delay)
    for sent, fate in zip(facts["halves"], (8, 12, 8), strict=True):
        fields = {
            "producerGroup": "PG", "tranStateTableOffset": sent.fields["queueOffset"], "commitOrRollback": fate,
            "commitLogOffset": int(sent.fields["msgId"][16:], 16), "fromTransactionCheck": False, "transactionId": "", "msgId": "",
        }  # fmt: skip
        for _ in range(2):
            go(Code.END_TRANSACTION, **fields)
    for _ in range(2):
        go(Code.RESUME_CHECK_HALF_MESSAGE, msgId=facts["given_up"], topic=GIVEN_UP_TOPIC)
        go(Code.RECALL_MESSAGE, producerGroup="PG", topic="T", recallHandle=facts["recall"])
    go(Code.GET_TOPIC_STATS_INFO, topic="T")
    go(Code.GET_CONSUME_STATS, consumerGroup="old", topic="T")
    go(Code.QUERY_CONSUME_TIME_SPAN, group="old", topic="T")
    go(Code.GET_BROKER_CONSUME_STATS, isOrder=False)
    go(Code.GET_BROKER_RUNTIME_INFO)
    go(Code.QUERY_CONSUME_QUEUE, index=3, count=9, **queue)
    go(
        Code.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup=GROUP,
        clientId="c1",
        msgId=facts["sent"].fields["msgId"],
        topic="T",
    )
    heard.append(told(answers(run.arrive(run.consumer.take))))
    go(Code.PEEK_MESSAGE, consumerGroup=GROUP, topic="T", queueId=0, maxMsgNums=3)
    taken = []
    for _ in range(2):
        pop = dict(answers(pop_frame(maxMsgNums=4))[0].fields)
        pop["queueId"] = "0"
        taken += popped(go(Code.POP_MESSAGE, **pop)[0])
        ordered = {"consumerGroup": "ordered", "order": True, "attemptId": "one", "initMode": 0}
        go(Code.POP_MESSAGE, **pop | ordered)
    assert len(taken) == 8
    one = {"consumerGroup": GROUP, "extraInfo": taken[0].receipt, "offset": taken[0].offset, **queue}
    go(Code.ACK_MESSAGE, **one)
    go(Code.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group=GROUP, timestamp=1, isForce=True)
    missing = sorted(
        set(run.bench.doors.table) - {code for code, *_ in heard if isinstance(code, int)} - DESTRUCTIVE - TIMED
    )
    for code in [*missing, *sorted(DESTRUCTIVE)]:
        go(code)
    return heard


def test_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for cold in (False, True):
        run = Run(tmp_path / str(cold), cold, monkeypatch)
        heard = every_request(run)
        results.append((heard, run.state()))
        assert not cold or run.read >= READERS, READERS - run.read
        run.close()
    (warm, warm_state), (cold_heard, cold_state) = results
    for one, other in zip(warm, cold_heard, strict=True):
        assert one == other
    for key, value in warm_state.items():
        assert value == cold_state[key]


def every_call(run: Run) -> list[Any]:
    """Gateways' calls that read."""
    port = LocalBrokerPort(run.bench.broker)
    light = run.call(port, "create_light")
    run.call(port, "add_route", Route("r", "prefix", None, "", light))
    units = []
    heard: list[Any] = []

    def bodies(found: list[Any]) -> list[Any]:
        return [(item.offset, item.count, item.message.body) for item in found]

    for start in (EARLIEST, Start("time", 1), Start("end"), EARLIEST):
        cursor = run.call(port, "open_cursor", "T/0", f"g{start.kind}", start).cursor
        heard.append(run.call(port, "stats", [cursor]))
        found = run.call(port, "acquire", cursor, 1, 5, 1 << 20)
        heard.append(bodies(found))
        if found:
            port.settle([(cursor, found[0].offset, Outcome.ACK), (cursor, found[1].offset, Outcome.REQUEUE)])
            heard.append(bodies(run.call(port, "acquire", cursor, 1, 2, 1 << 20)))
            units += [(found[2].message.physical_offset, found[2].message.size)]
    heard.append([message.body for message in run.call(port, "read", units)])
    port.release(1)
    return heard


def test_every_call_of_a_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for cold in (False, True):
        run = Run(tmp_path / str(cold), cold, monkeypatch)
        heard = every_call(run)
        results.append((heard, run.state()))
        assert not cold or (run.reads is not None and run.reads.fetched > 5)
        run.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("deferred", [False, True])
def test_the_offset_of_a_pull_is_committed_when_the_pull_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    """Whether it waits for the disk or for its peer: what was committed meanwhile is newer."""
    run = Run(tmp_path, True, monkeypatch)
    full = deferred
    monkeypatch.setattr(BrokerConnection, "full", lambda door: full)
    place = {"consumerGroup": GROUP, "topic": "T", "queueId": 0}
    assert run.link.feed(request(Code.PULL_MESSAGE, **PULL | {"sysFlag": 5, "commitOffset": 5})) == b""
    seen = [run.bench.broker.offsets.query(GROUP, "T", 0)]
    assert ask(run.consumer, Code.UPDATE_CONSUMER_OFFSET, commitOffset=12, **place).code == 0
    full = False
    run.link.door.writable()
    data = run.arrive(run.link.take)
    assert answers(data)[0].code == 0
    seen.append(run.bench.broker.offsets.query(GROUP, "T", 0))
    assert seen == [5, 12]
    run.close()


def test_a_handler_that_reads_outside_of_its_reading_part_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, True, monkeypatch)
    calls: list[int] = []

    def wrong(command: Command, reply: object, services: object) -> None:
        calls.append(1)
        run.bench.broker.store.units("T", 0, 0, 1)

    table = run.bench.doors.table
    monkeypatch.setitem(table, Code.GET_MIN_OFFSET, table[Code.GET_MIN_OFFSET]._replace(handler=wrong))
    (answer,) = answers(run.link.feed(request(Code.GET_MIN_OFFSET)))
    assert (answer.code, calls) == (1, [1])
    assert "outside of its reading part" in caplog.text
    run.close()


def test_the_disk_of_these_tests_is_cold() -> None:
    assert ColdDisk.pread_now is not OsFileSystem.pread_now
