"""Producer, pull consumer and administration against a nameserver and brokers in memory."""

import asyncio
from collections.abc import Iterator

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.client import (
    Admin,
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    Client,
    MessageQueue,
    OutMessage,
    PartialSendError,
    Producer,
    PullConsumer,
)
from gantrymq.client.connecting import routes
from gantrymq.client.connecting.nameservers import parse_nameservers
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode, ResponseCode


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster(brokers=2)
    cluster.topics["orders"] = {"broker-a": 2, "broker-b": 2}
    yield cluster
    cluster.close()


@pytest.fixture
def one() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.topics["orders"] = {"broker-a": 2}
    yield cluster
    cluster.close()


def test_send_and_pull_back(one: FakeCluster) -> None:
    with BlockingProducer(one.nameserver) as producer, BlockingPullConsumer(one.nameserver, group="g") as consumer:
        sent = producer.send(
            "orders", b"\x00body", tag="new", keys=["k1", "k2"], properties={"colour": "grün"}, sharding_key="s"
        )
        consumer.assign("orders")
        (message,) = consumer.pull(wait_s=30)
        assert (message.body, message.tag, message.keys) == (b"\x00body", "new", "k1 k2")
        assert message.property("colour") == "grün"
        assert message.message_id == sent.message_id
        assert len(sent.message_id) == 32
        assert message.offset_message_id == sent.offset_message_id
        assert (message.queue_id, message.queue_offset) == (sent.queue.queue_id, sent.queue_offset)
        assert consumer.pull(wait_s=0) == []


def test_messages_are_spread_over_queues_and_a_sharding_key_stays_with_one(cluster: FakeCluster) -> None:
    with BlockingProducer(cluster.nameserver) as producer:
        spread = producer.send_many([OutMessage("orders", b"x") for _ in range(8)])
        assert len({result.queue for result in spread}) == 4
        kept = producer.send_many([OutMessage("orders", bytes([n]), sharding_key="key") for n in range(20)], window=4)
        assert len({result.queue for result in kept}) == 1
        assert [result.queue_offset for result in kept] == sorted(result.queue_offset for result in kept)


def test_a_busy_broker_is_tried_again_on_the_other_one(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.fail_next = [ResponseCode.SYSTEM_BUSY]
    with BlockingProducer(cluster.nameserver) as producer:
        producer.send("orders", b"x")
    sends = [c.fields["n"] for b in cluster.brokers.values() for c in b.seen if c.code == RequestCode.SEND_MESSAGE_V2]
    assert len(sends) == 3
    assert set(sends) == {"broker-a", "broker-b"}


def test_a_broker_that_is_down_costs_no_message(cluster: FakeCluster) -> None:
    with BlockingProducer(cluster.nameserver) as producer:
        producer.send("orders", b"first")
        cluster.stop("broker-b")
        results = producer.send_many([OutMessage("orders", b"%d" % n) for n in range(10)])
        assert {result.queue.broker for result in results} == {"broker-a"}


def test_retries_end_and_name_the_reason(one: FakeCluster) -> None:
    one.broker().fail_next = [ResponseCode.SYSTEM_ERROR] * 3
    with BlockingProducer(one.nameserver) as producer:
        with pytest.raises(GantryError, match=r"orders/broker-a/\d.*SYSTEM_ERROR \(1\): told to fail"):
            producer.send("orders", b"x")
        one.broker().fail_next = [ResponseCode.MESSAGE_ILLEGAL]  # not worth a second attempt
        with pytest.raises(PartialSendError, match="1 of 3 messages were not stored; number 0") as caught:
            producer.send_many([OutMessage("orders", b"x") for _ in range(3)])
        assert [isinstance(result, GantryError) for result in caught.value.results] == [True, False, False]


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE])
def test_stored_but_not_flushed_is_not_sent_again(one: FakeCluster, code: int) -> None:
    broker = one.broker()
    answer = broker.on_send_message_v2

    with BlockingProducer(one.nameserver) as producer:
        assert producer.send("orders", b"x").durable
        broker.on_send_message_v2 = lambda c, t: _recode(answer(c, t), code)
        assert not producer.send("orders", b"x").durable
    assert sum(queue.end for queue in broker.queues.values()) == 2


def _recode(frame: bytes, code: int) -> bytes:
    from gantrymq.remoting.codec import FrameReader, encode

    (command,) = FrameReader().feed(frame)
    command.code = code
    return encode(command)


def test_an_unknown_topic_is_created_by_the_first_send(one: FakeCluster) -> None:
    with BlockingProducer(one.nameserver) as producer:
        assert producer.send("fresh", b"x").queue_offset == 0
    one.auto_create = False
    with BlockingProducer(one.nameserver) as producer:
        with pytest.raises(GantryError) as caught:
            producer.send("other", b"x")
        assert caught.value.code is ErrorCode.TOPIC_NOT_FOUND


def test_bad_messages_are_refused_before_they_are_sent(one: FakeCluster) -> None:
    with BlockingProducer(one.nameserver) as producer:
        for bad, code in (
            (OutMessage("bad topic", b""), ErrorCode.NAME_INVALID),
            (OutMessage("orders", b"", properties={"a": "b\x01"}), ErrorCode.ILLEGAL_ARGUMENT),
            (OutMessage("orders", b"", properties={"INNER_MULTI_DISPATCH": "%LMQ%x"}), ErrorCode.ILLEGAL_ARGUMENT),
            (OutMessage("orders", b"", properties={"a": "b" * 40_000}), ErrorCode.PROPERTIES_TOO_LARGE),
            (OutMessage("orders", b"", tag="t" * 5000), ErrorCode.NAME_INVALID),
        ):
            with pytest.raises(GantryError) as caught:
                producer.send(bad)
            assert caught.value.code is code
    assert not one.broker().queues


def test_one_way(one: FakeCluster) -> None:
    with BlockingProducer(one.nameserver) as producer, BlockingPullConsumer(one.nameserver) as consumer:
        consumer.assign("orders")
        message_id = producer.send_one_way(OutMessage("orders", b"x"))
        (message,) = consumer.pull(wait_s=30)
        assert message.message_id == message_id


def test_tags_are_checked_exactly(one: FakeCluster) -> None:
    one.broker().append("orders", 0, b"wanted", b"TAGS\x01Aa\x02")
    one.broker().append("orders", 0, b"same hash", b"TAGS\x01BB\x02")
    one.broker().append("orders", 0, b"other", b"TAGS\x01c\x02")
    with BlockingPullConsumer(one.nameserver, tags="Aa || zz") as consumer:
        (queue, _) = consumer.assign("orders")
        assert [message.body for message in consumer.pull(wait_s=30)] == [b"wanted"]
        assert consumer.position(queue) == 3


def test_long_poll_gives_what_comes_later(one: FakeCluster) -> None:
    async def main() -> list[bytes]:
        async with Client(one.nameserver) as client:
            consumer = PullConsumer(group="g", client=client)
            producer = Producer(client=client)
            await consumer.assign("orders")
            pulling = asyncio.ensure_future(consumer.pull(wait_s=30))
            while not one.broker().waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await producer.send("orders", b"late")
            bodies = [message.body for message in await pulling]
            await consumer.close()
            return bodies

    assert asyncio.run(main()) == [b"late"]


def test_positions_seek_and_commit(one: FakeCluster) -> None:
    for number in range(10):
        one.broker().append("orders", 0, b"%d" % number, store_ms=1000 + number)
    queue = MessageQueue("orders", "broker-a", 0)
    with BlockingPullConsumer(one.nameserver, group="g") as consumer:
        assert consumer.committed(queue) is None
        consumer.assign([queue])
        assert [m.body for m in consumer.pull(3)] == [b"0", b"1", b"2"]
        consumer.commit()
        assert consumer.committed(queue) == 3
        assert consumer.seek(queue, "latest") == 10
        assert consumer.pull(wait_s=0) == []
        assert consumer.seek_to_time(queue, 1007) == 7
        assert [m.queue_offset for m in consumer.pull()] == [7, 8, 9]
        assert consumer.seek(queue, "earliest") == 0
        assert consumer.seek(queue, 5) == 5
        assert len(consumer.pull()) == 5
        consumer.commit({queue: 4})
    with BlockingPullConsumer(one.nameserver, group="g") as consumer:
        consumer.assign([queue])
        assert consumer.position(queue) == 4
    with BlockingPullConsumer(one.nameserver, group="new", start="latest") as consumer:
        consumer.assign([queue])
        assert consumer.position(queue) == 10


def test_seek_does_not_wait_for_a_poll_of_the_place_before(one: FakeCluster) -> None:
    async def main() -> list[bytes]:
        for number in range(3):
            one.broker().append("orders", 1, b"%d" % number)
        first, second = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
        async with (
            PullConsumer(one.nameserver, group="g", start="latest") as consumer,
            Producer(one.nameserver) as producer,
        ):
            await consumer.assign([first, second])
            pulling = asyncio.ensure_future(consumer.pull(wait_s=30))
            while len(one.broker().waiting) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await producer.send(OutMessage("orders", b"late", queue=first))
            assert [message.body for message in await pulling] == [b"late"]
            await consumer.seek(second, "earliest")
            return [message.body for message in await consumer.pull(wait_s=30)]

    assert asyncio.run(main()) == [b"0", b"1", b"2"]


def test_more_than_asked_for_is_given_later(one: FakeCluster) -> None:
    for number in range(5):
        one.broker().append("orders", 0, b"%d" % number)
        one.broker().append("orders", 1, b"%d" % number)
    with BlockingPullConsumer(one.nameserver) as consumer:
        consumer.assign("orders")
        first = consumer.pull(4)
        seen = [(m.queue_id, m.body) for m in first]
        while len(seen) < 10:
            messages = consumer.pull(2, wait_s=30)
            assert 0 < len(messages) <= 2
            seen += [(m.queue_id, m.body) for m in messages]
        assert sorted(seen) == sorted((q, b"%d" % n) for q in range(2) for n in range(5))


def test_expired_offsets_are_passed_over(one: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        one.broker().append("orders", 0, b"%d" % number)
    one.broker().expire("orders", 0, 3)
    queue = MessageQueue("orders", "broker-a", 0)
    with BlockingPullConsumer(one.nameserver) as consumer:
        consumer.assign([queue])
        consumer.seek(queue, 1)
        assert [m.queue_offset for m in consumer.pull(wait_s=30)] == [3, 4]
        result = consumer.pull_queue(queue, 1)
        assert result.moved
        assert (result.next_offset, result.min_offset, result.max_offset) == (3, 3, 5)
    assert "orders/broker-a/0: offset 1 is gone" in caplog.text


def test_routes_outlive_the_nameservers(one: FakeCluster, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BlockingProducer(f"{refused};{one.nameserver}") as producer:
        producer.send("orders", b"1")
        one.stop("ns")
        monkeypatch.setattr(routes, "ASK_TIMEOUT_S", 0.3)
        monkeypatch.setattr(routes, "REFRESH_TIMEOUT_S", 0.3)
        one.broker().fail_next = [ResponseCode.SYSTEM_BUSY]  # makes it ask for the route again
        producer.send("orders", b"2")
        with pytest.raises(GantryError, match="no nameserver answers") as caught:
            producer.send("unheard", b"3")
        assert caught.value.code is ErrorCode.UNAVAILABLE


def test_a_lost_connection_is_opened_again(one: FakeCluster) -> None:
    with BlockingProducer(one.nameserver) as producer:
        producer.send("orders", b"1")
        one.drop_connections("broker-a")
        producer.send("orders", b"2")
        one.stop("broker-a")
        one.start_broker("broker-a")
        producer.send("orders", b"3")


def test_a_broker_that_is_silent_times_out(one: FakeCluster) -> None:
    async def main() -> None:
        async with Producer(one.nameserver) as producer:
            await producer.send("orders", b"x")  # connects, however long that takes
            one.broker().mute = {RequestCode.SEND_MESSAGE_V2}
            async with Producer(client=producer.client, timeout_s=0.1, retries=0) as hasty:
                with pytest.raises(GantryError, match="did not answer in time"):
                    await hasty.send("orders", b"x")

    asyncio.run(main())


def test_admin(cluster: FakeCluster) -> None:
    with BlockingAdmin(cluster.nameserver) as admin, BlockingProducer(cluster.nameserver) as producer:
        info = admin.cluster()
        assert info.clusters == {"C": ["broker-a", "broker-b"]}
        assert set(info.masters()) == {"broker-a", "broker-b"}
        with pytest.raises(GantryError, match="no cluster 'D'; known: C"):
            info.masters("D")
        assert admin.create_topic("made", queues=3, broker="broker-b") == ["broker-b"]
        assert admin.topics() == ["made", "orders"]
        assert "TBW102" in admin.topics(system=True)
        assert [queue.queue_id for queue in admin.route("made").read_queues()] == [0, 1, 2]
        sent = producer.send("made", b"x", keys="some-key other")
        producer.send("made", b"y", keys="some-key-too")
        stats = admin.topic_stats("made")
        assert sum(entry.messages for entry in stats) == 2
        assert [m.body for m in admin.query_by_key("made", "some-key")] == [b"x"]
        assert admin.query_by_key("made", "nothing") == []
        assert admin.view(sent.offset_message_id).body == b"x"
        assert admin.view(sent.message_id, "made").message_id == sent.message_id
        with pytest.raises(GantryError, match="has no message with id"):
            admin.view("unknown", "made")
        with pytest.raises(GantryError, match="give the topic too"):
            admin.view("unknown")
        admin.delete_topic("made")
        assert admin.topics() == ["orders"]
        with pytest.raises(GantryError) as caught:
            admin.delete_topic("made")
        assert caught.value.code is ErrorCode.TOPIC_NOT_FOUND


def test_async_face(one: FakeCluster) -> None:
    async def main() -> None:
        async with Client(one.nameserver) as client, Admin(client=client) as admin:
            await admin.create_topic("made", queues=1)
            producer = Producer(client=client)
            results = await asyncio.gather(*[producer.send("made", b"%d" % n) for n in range(50)])
            assert sorted(result.queue_offset for result in results) == list(range(50))
            assert len({result.message_id for result in results}) == 50

    asyncio.run(main())


def test_bad_settings(one: FakeCluster) -> None:
    for text in ("", ";", "host", "host:", "host:0", "host:99999"):
        with pytest.raises(GantryError) as caught:
            parse_nameservers(text)
        assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT
    assert parse_nameservers(" a:1; [::1]:2 ;") == ["a:1", "[::1]:2"]
    with pytest.raises(GantryError, match="allowed are earliest and latest"):
        BlockingPullConsumer(one.nameserver, start="middle")
    with pytest.raises(GantryError, match=r"allowed is a \|\| b"):
        BlockingPullConsumer(one.nameserver, tags="a || || b")
    with (
        BlockingPullConsumer(one.nameserver) as consumer,
        pytest.raises(GantryError, match="no queue is assigned"),
    ):
        consumer.pull()


def test_a_closed_client_says_so(one: FakeCluster) -> None:
    producer = BlockingProducer(one.nameserver)
    producer.close()
    producer.close()
    with pytest.raises(GantryError, match="closed"):
        producer.send("orders", b"x")


def test_without_waiting_every_queue_is_asked_once(one: FakeCluster) -> None:
    one.broker().append("orders", 1, b"there")
    with BlockingPullConsumer(one.nameserver) as consumer:
        consumer.assign("orders")
        assert [message.body for message in consumer.pull(wait_s=0)] == [b"there"]
        pulls = len(one.broker().seen)
        assert consumer.pull(wait_s=0) == []
        assert len(one.broker().seen) - pulls == 2
        assert consumer.pull(wait_s=0.05) == []  # leaves requests behind that the next call does not wait for
        one.broker().append("orders", 0, b"later")
        assert [message.body for message in consumer.pull(wait_s=30)] == [b"later"]


def test_a_broker_that_moved_is_found(one: FakeCluster) -> None:
    with BlockingPullConsumer(one.nameserver) as consumer:
        consumer.assign("orders")
        one.stop("broker-a")
        one.broker().port = 0
        one.start_broker("broker-a")
        one.broker().append("orders", 0, b"x")
        consumer.pull(wait_s=0)
        assert consumer.position(consumer.queues("orders")[0]) == 1
