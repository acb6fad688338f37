"""Locks of orderly consumers, as RocketMQ's RebalanceLockManager keeps them."""

from __future__ import annotations

import json

import pytest

from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.json_bodies import QueueName, encode
from gantrymq.remoting.server.clients import locks as module
from gantrymq.remoting.server.clients.locks import LOCK_MS, QueueLocks
from tests.remoting.bench import Bench, ask

A, B, C = (QueueName("T", "broker-a", number) for number in range(3))


@pytest.fixture
def locks() -> QueueLocks:
    return QueueLocks()


def test_first_come_first_served(locks: QueueLocks) -> None:
    assert locks.lock("g", "one", [A, B], 0) == [A, B]
    assert locks.lock("g", "two", [A, B, C], 1) == [C]
    assert locks.lock("other", "two", [A], 1) == [A]
    assert len(locks) == 4


def test_each_queue_is_answered_once(locks: QueueLocks) -> None:
    assert locks.lock("g", "one", [A, A, B], 0) == [A, B]
    assert len(locks) == 2


def test_expiry_and_renewal(locks: QueueLocks) -> None:
    locks.lock("g", "one", [A, B], 0)
    assert locks.lock("g", "one", [A], LOCK_MS) == [A]  # renewed, B is not
    assert locks.lock("g", "two", [A, B], LOCK_MS) == []  # exactly at the limit both still hold
    assert locks.lock("g", "two", [A, B], LOCK_MS + 1) == [B]
    assert locks.lock("g", "one", [B], LOCK_MS + 2) == []
    assert locks.lock("g", "two", [A], 2 * LOCK_MS + 1) == [A]


def test_holder_may_come_back_after_its_lock_expired(locks: QueueLocks) -> None:
    locks.lock("g", "one", [A], 0)
    assert locks.lock("g", "one", [A], 5 * LOCK_MS) == [A]


def test_unlock_gives_back_only_what_is_ones_own(locks: QueueLocks) -> None:
    locks.lock("g", "one", [A], 0)
    locks.lock("g", "two", [B], 0)
    locks.unlock("g", "two", [A, B, C])
    locks.unlock("unknown", "two", [A])
    assert locks.lock("g", "three", [A, B], 1) == [B]
    locks.unlock("g", "one", [A])
    locks.unlock("g", "three", [B])
    assert len(locks) == 0


def test_any_held(locks: QueueLocks) -> None:
    assert not locks.any_held("g", 0)
    locks.lock("g", "one", [A, B], 0)
    assert locks.any_held("g", LOCK_MS)
    assert not locks.any_held("g", LOCK_MS + 1)
    assert not locks.any_held("h", 0)


def test_limit(locks: QueueLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCKS_MAX", 2)
    assert locks.lock("g", "one", [A, B, C], 0) == [A, B]
    assert locks.lock("g", "one", [A, B, C], 1) == [A, B]
    assert locks.lock("h", "two", [C], LOCK_MS + 2) == [C]  # expired ones make room
    assert len(locks) == 1


def test_over_the_wire(bench: Bench) -> None:
    """Bodies as the Java client writes them; `onlyThisBroker` changes nothing for a broker without replicas."""
    one, two = bench.connect(), bench.connect("127.0.0.1:50001")

    def body(client: str, *queues: QueueName, only: bool = True) -> bytes:
        request = {"clientId": client, "consumerGroup": "g", "mqSet": list(queues), "onlyThisBroker": only}
        return encode(request)

    def held(answer: bytes) -> list[int]:
        return sorted(queue["queueId"] for queue in json.loads(answer)["lockOKMQSet"])

    assert held(ask(one, Code.LOCK_BATCH_MQ, body("one", A, B)).body) == [0, 1]
    assert held(ask(two, Code.LOCK_BATCH_MQ, body("two", A, C, only=False)).body) == [2]
    bench.clock.advance(LOCK_MS + 1)
    assert held(ask(two, Code.LOCK_BATCH_MQ, body("two", A, C)).body) == [0, 2]
    assert held(ask(one, Code.LOCK_BATCH_MQ, body("one", A, B)).body) == [1]
    assert ask(two, Code.UNLOCK_BATCH_MQ, body("two", A, B)).code == 0
    assert held(ask(one, Code.LOCK_BATCH_MQ, body("one", A, B)).body) == [0, 1]


def test_too_many_queues_in_one_request(bench: Bench) -> None:
    queues = [QueueName("T", "broker-a", number) for number in range(10_001)]
    body = encode({"clientId": "one", "consumerGroup": "g", "mqSet": queues})
    answer = ask(bench.connect(), Code.LOCK_BATCH_MQ, body)
    assert (answer.code, "at most 10000" in (answer.remark or "")) == (1, True)
    assert len(bench.doors.locks) == 0
