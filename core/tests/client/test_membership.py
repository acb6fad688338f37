"""What brokers hear of a client and ask it, connections that are half open, and brokers that are avoided: against brokers in memory."""

import asyncio
from collections.abc import Iterator

import pytest

from core.tests.client.client_runs import run, until
from core.tests.client.fake_cluster import FakeCluster, make_record
from gantrymq.client import Fate, OutMessage, Producer, PullConsumer, ReceivedMessage, membership
from gantrymq.client.connecting.faults import FAILED_MS, BrokerFaults
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster(brokers=2)
    cluster.topics["orders"] = {"broker-a": 2, "broker-b": 2}
    cluster.topics["alone"] = {"broker-a": 2}
    yield cluster
    cluster.close()


def codes(cluster: FakeCluster, broker: str = "broker-a") -> list[int]:
    return [command.code for command in cluster.broker(broker).seen]


def test_the_first_word_on_a_new_connection_is_a_heartbeat(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with Producer(cluster.nameserver, group="payers") as producer:
            await producer.send("alone", b"1")
            cluster.broker().seen.clear()
            await asyncio.to_thread(cluster.drop_connections, "broker-a")
            await producer.send("alone", b"2")
            assert codes(cluster)[0] == RequestCode.HEART_BEAT
            assert cluster.broker().beats[-1]["producerDataSet"] == [{"groupName": "payers"}]
            client_id = producer.client.members.client_id
            assert cluster.broker().beats[-1]["clientID"] == client_id
        left = [command.fields for command in cluster.broker().seen if command.code == RequestCode.UNREGISTER_CLIENT]
        assert left == [{"clientID": client_id, "producerGroup": "payers"}]

    run(main())


def test_heartbeats_go_on(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "HEARTBEAT_S", 0.02)

    async def main() -> None:
        async with Producer(cluster.nameserver) as producer:
            await producer.send("orders", b"1")
            await until(lambda: all(len(broker.beats) > 3 for broker in cluster.brokers.values()))

    run(main())


def test_a_group_lasts_as_long_as_its_last_producer(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with Producer(cluster.nameserver, group="g") as first:
            await first.send("alone", b"1")
            async with Producer(client=first.client, group="g") as second:
                await second.send("alone", b"2")
            assert RequestCode.UNREGISTER_CLIENT not in codes(cluster)
        assert codes(cluster).count(RequestCode.UNREGISTER_CLIENT) == 1

    run(main())


def half_message(group: str) -> bytes:
    pairs = {props.PRODUCER_GROUP: group, props.REAL_TOPIC: "orders", props.UNIQ_KEY: "ID1"}
    return make_record("RMQ_SYS_TRANS_HALF_TOPIC", 0, 7, b"half", props.encode(pairs), physical=4711)


@pytest.mark.parametrize("fate", Fate)
def test_a_transaction_check_is_answered(cluster: FakeCluster, fate: Fate) -> None:
    seen: list[bytes] = []

    async def check(message: ReceivedMessage) -> Fate:
        seen.append(message.body)
        return fate

    async def main() -> None:
        async with Producer(cluster.nameserver, group="payers", check=check) as producer:
            await producer.send("alone", b"1")
            fields = {"tranStateTableOffset": "7", "commitLogOffset": "4711", "msgId": "X", "transactionId": "ID1"}
            question = Command(RequestCode.CHECK_TRANSACTION_STATE, fields, half_message("payers"), flag=2)
            await asyncio.to_thread(cluster.push, "broker-a", question)
            (ended,) = await until(lambda: cluster.broker().ended)
            assert ended.is_oneway
            assert ended.fields == {
                "producerGroup": "payers", "topic": "orders", "tranStateTableOffset": "7", "commitLogOffset": "4711",
                "commitOrRollback": str(int(fate)), "fromTransactionCheck": "true", "msgId": "ID1",
                "transactionId": "ID1",
            }  # fmt: skip

    run(main())
    assert seen == [b"half"]


def test_checks_that_cannot_be_answered_are_not(cluster: FakeCluster) -> None:
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> Fate:
        asked.append(message.body)
        raise ValueError("the database is away")

    async def main() -> None:
        async with Producer(cluster.nameserver, group="payers", check=check) as producer:
            await producer.send("alone", b"1")
            for group in ("payers", "others"):
                question = Command(RequestCode.CHECK_TRANSACTION_STATE, {}, half_message(group), flag=2)
                await asyncio.to_thread(cluster.push, "broker-a", question)
            await until(lambda: asked)
            await producer.send("alone", b"2")
        assert cluster.broker().ended == []

    run(main())


def test_a_check_whose_record_is_damaged_does_not_break_the_connection(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Producer(cluster.nameserver, group="payers", check=lambda message: Fate.COMMIT) as producer:
            await producer.send("alone", b"1")
            (link,) = [one for one in producer.client.links.open_links() if one.address == cluster.broker().address]
            for body in (b"nonsense", half_message("payers").replace(b"\xda\xa3\x20\xa7", b"abcd", 1)):
                question = Command(RequestCode.CHECK_TRANSACTION_STATE, {}, body, flag=2)
                await asyncio.to_thread(cluster.push, "broker-a", question)
            await until(lambda: "queue offset 7" in caplog.text)
            await producer.send("alone", b"2")
            assert link.is_open

    run(main())
    assert "is no record" in caplog.text


def test_a_local_transaction_that_raises_leaves_the_fate_to_the_check(cluster: FakeCluster) -> None:
    async def local(message: OutMessage, transaction_id: str) -> Fate:
        raise ValueError("no")

    async def main() -> None:
        async with Producer(cluster.nameserver) as producer:
            with pytest.raises(ValueError, match="no"):
                await producer.send_transaction(OutMessage("alone", b"1"), local)
        assert cluster.broker().ended == []

    run(main())


def test_a_half_open_connection_is_replaced(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with Producer(cluster.nameserver) as producer:
            hasty = Producer(client=producer.client, timeout_s=0.2, retries=0)
            await producer.send("alone", b"1")
            link = producer.client.links.open_link(cluster.broker().address)
            assert link is not None
            cluster.broker().mute = {RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT}
            with pytest.raises(GantryError) as caught:
                await hasty.send("alone", b"2")
            assert caught.value.code is ErrorCode.UNAVAILABLE
            await until(lambda: not link.is_open)
            cluster.broker().mute = set()
            await producer.send("alone", b"3")

    run(main())


def test_a_slow_answer_among_others_closes_nothing(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with Producer(cluster.nameserver) as producer, PullConsumer(client=producer.client) as consumer:
            await producer.send("alone", b"1")
            link = producer.client.links.open_link(cluster.broker().address)
            assert link is not None
            cluster.broker().mute = {RequestCode.GET_MIN_OFFSET}
            slow = asyncio.ensure_future(link.request(Command(RequestCode.GET_MIN_OFFSET), 1.0))
            while not slow.done():
                await producer.send("alone", b"2")
            with pytest.raises(GantryError):
                await slow
            assert link.is_open
            assert await consumer.queues("alone")

    run(main())


def test_a_broker_that_failed_is_avoided(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # The failure alone counts, and long enough: not what the machine does to one that is well.
    monkeypatch.setattr("gantrymq.client.connecting.faults.LEVELS", ((FAILED_MS, 600_000),))

    async def main() -> None:
        async with Producer(cluster.nameserver) as producer:
            cluster.broker("broker-a").fail_next = [1]
            while cluster.broker("broker-a").fail_next:
                await producer.send("orders", b"1")
            brokers = [(await producer.send("orders", b"2")).queue.broker for _ in range(8)]
            assert set(brokers) == {"broker-b"}
            cluster.broker("broker-b").fail_next = [1]
            brokers = [(await producer.send("orders", b"3")).queue.broker for _ in range(8)]
            assert set(brokers) == {"broker-a"}  # well again since it took what broker-b refused
            for name in cluster.brokers:
                producer._sender.faults.failed(name, asyncio.get_running_loop().time() * 1000)
            await producer.send("orders", b"4")  # where all are avoided, all may be chosen

    run(main())


def test_a_slow_broker_is_avoided(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.connecting.faults.LEVELS", ((550, 600_000),))

    async def main() -> None:
        async with Producer(cluster.nameserver) as producer:
            await asyncio.gather(*[producer.send("orders", b"0") for _ in range(4)])
            cluster.broker("broker-a").delay_s = 0.6
            await asyncio.gather(*[producer.send("orders", b"1") for _ in range(4)])
            monkeypatch.setattr("gantrymq.client.connecting.faults.LEVELS", ())
            producer._sender.faults.sent("broker-b", 0, 0)  # well, whatever the machine did to it meanwhile, or does
            brokers = [(await producer.send("orders", b"2")).queue.broker for _ in range(4)]
            assert set(brokers) == {"broker-b"}

    run(main())


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(0, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000)],
)
def test_how_long_a_broker_is_avoided(latency_ms: int, avoided_ms: int) -> None:
    faults = BrokerFaults()
    faults.sent("b", latency_ms, 1000)
    assert faults.is_available("b", 1000 + avoided_ms)
    assert not avoided_ms or not faults.is_available("b", 999 + avoided_ms)
    faults.sent("b", 1, 1000)
    assert faults.is_available("b", 1000)


def test_remembered_brokers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.connecting.faults.BROKERS_MAX", 2)
    faults = BrokerFaults()
    for name in "abc":
        faults.failed(name, 0)
    assert [faults.is_available(name, 1) for name in "abc"] == [True, False, False]
