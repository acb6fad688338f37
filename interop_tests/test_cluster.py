"""Several nameservers, brokers and gateways as processes: clients of every protocol see one broker, whichever gateway they use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from gantrymq.client import BlockingPullConsumer
from interop_tests.bench import remoting_wire
from interop_tests.cloudevents_sinks import Sink, assigned
from interop_tests.running import Cluster, Gantry
from interop_tests.test_amqp_clients import connect, unique
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import until

pytestmark = [
    # pika leaves the sockets of connections that were cut to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(120),
]
TOPICS = 12
"""Enough that each of two groups is home of some."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"), nameservers=2, settings=("cloudevents.retry_first_ms=100",))
    try:
        yield found.start()
    finally:
        found.stop()
        assert "Traceback" not in found.log()


@pytest.fixture
def one(cluster: Cluster) -> Gantry:
    return cluster.at("gateway0")


@pytest.fixture
def other(cluster: Cluster) -> Gantry:
    return cluster.at("gateway1")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


def publish(pub: Paho, top: str, count: int, start: int = 0) -> dict[str, list[bytes]]:
    """`count` messages in turn to `TOPICS` topics; bodies by topic, in order."""
    sent: dict[str, list[bytes]] = {}
    infos = []
    for number in range(start, start + count):
        topic = f"{top}{number % TOPICS}/x"
        sent.setdefault(topic, []).append(b"%d" % number)
        infos.append(pub.client.publish(topic, b"%d" % number, 1))
    for info in infos:
        info.wait_for_publish(WAIT_S)
        assert info.is_published()
    return sent


def by_topic(messages: list[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for topic, body in messages:
        found.setdefault(topic, []).append(body)
    return found


def groups_of(cluster: Cluster, top: str) -> set[str]:
    """Groups that hold topics that begin with `top`."""
    with BlockingPullConsumer(cluster.nameservers, group="check") as consumer:
        return {queue.broker for number in range(TOPICS) for queue in assigned(consumer, f"{top}{number}")}


def test_sessions_get_topics_of_all_groups_in_order(cluster: Cluster, one: Gantry, other: Gantry) -> None:
    keeper = Paho(other, "keeper", False).start()
    keeper.subscribe(("+/x", 1))
    clean = Paho(other).start()
    clean.subscribe(("+/x", 1))
    pub = Paho(one).start()
    sent = publish(pub, "spread", 240)
    assert by_topic(clean.receive(240)) == sent
    assert by_topic(keeper.receive(240)) == sent
    assert groups_of(cluster, "spread") == {"broker-0", "broker-1"}
    keeper.stop()
    more = publish(pub, "spread", 120, 240)
    keeper = Paho(one, "keeper", False).start()  # at another gateway than before
    assert keeper.present
    assert by_topic(keeper.receive(120)) == more
    keeper.client.unsubscribe("+/x")
    keeper.event("unsubscribe")
    for client in (keeper, clean, pub):
        client.stop()


def test_a_session_is_taken_over_at_another_gateway(one: Gantry, other: Gantry) -> None:
    first = Paho(one, "mover", False).start()
    first.subscribe(("moved/#", 1))
    first.client.reconnect_delay_set(600, 600)  # or it would take the session back
    second = Paho(other, "mover", False).start()
    assert second.present
    first.event("disconnect")
    first.client.loop_stop()
    pub = Paho(one).start()
    pub.publish("moved/a", "1")
    assert second.receive(1) == [("moved/a", b"1")]
    second.stop()
    pub.stop()


def test_retained_messages_are_seen_at_every_gateway(one: Gantry, other: Gantry) -> None:
    pub = Paho(one).start()
    for number in range(TOPICS):
        pub.publish(f"kept{number}/r", str(number), retain=True)
    sub = Paho(other).start()
    sub.subscribe(("+/r", 1))
    assert sorted(sub.receive(TOPICS)) == sorted((f"kept{n}/r", b"%d" % n) for n in range(TOPICS))
    pub.publish("kept0/r", "", retain=True)
    assert sub.receive(1) == [("kept0/r", b"")]
    late = Paho(other).start()
    late.subscribe(("+/r", 1))
    assert len({topic for topic, _ in late.receive(TOPICS - 1)}) == TOPICS - 1
    for client in (pub, sub, late):
        client.stop()


def gets(channel: Any, queue: str, count: int) -> list[bytes]:
    found: list[bytes] = []

    def get() -> bool:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append(body)
        return len(found) == count

    until(get)
    assert channel.basic_get(queue, auto_ack=True)[0] is None
    return found


def test_queues_declared_here_are_consumed_there(cluster: Cluster, one: Gantry, other: Gantry) -> None:
    here, there = connect(one), connect(other)
    channel = here.channel()
    channel.confirm_delivery()
    queue, top = unique("q"), unique("ex")
    channel.queue_declare(queue, durable=True)
    for number in range(TOPICS):
        channel.exchange_declare(f"{top}{number}", "topic", durable=True)
        channel.queue_bind(queue, f"{top}{number}", "#")
    for number in range(120):
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish(f"{top}{number % TOPICS}", "k", b"%d" % number, properties, mandatory=True)
    consumer = there.channel()
    assert consumer.queue_declare(queue, passive=True).method.message_count == 120
    got = gets(consumer, queue, 120)
    for number in range(TOPICS):
        assert [body for body in got if int(body) % TOPICS == number] == [b"%d" % n for n in range(number, 120, TOPICS)]
    assert groups_of(cluster, top) == {"broker-0", "broker-1"}
    channel.queue_unbind(queue, f"{top}0", "#")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(f"{top}0", "k", b"x", mandatory=True)
    for number in range(20):  # the default exchange; confirmed, so it is in the queue
        channel.basic_publish("", queue, b"%d" % number, mandatory=True)
    assert gets(consumer, queue, 20) == [b"%d" % number for number in range(20)]
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", unique("nobody"), b"x", mandatory=True)
    consumer.queue_delete(queue)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare(queue, passive=True)
    here.close()
    there.close()


def test_exclusive_and_auto_delete_queues(one: Gantry, other: Gantry) -> None:
    here, there = connect(one), connect(other)
    channel = here.channel()
    mine, short = unique("mine"), unique("short")
    channel.queue_declare(mine, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="405"):
        there.channel().queue_declare(mine, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="405"):
        there.channel().basic_get(mine)
    channel.queue_declare(short, auto_delete=True)
    consumer = there.channel()
    tag = consumer.basic_consume(short, lambda *args: None)
    consumer.basic_cancel(tag)
    here.close()  # exclusive queues go with their connection, and are free elsewhere

    def free(queue: str) -> bool:
        try:
            there.channel().queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        return False

    until(lambda: free(mine))
    until(lambda: free(short))
    there.close()


def test_consumers_of_all_gateways_are_known(one: Gantry, other: Gantry) -> None:
    here, there = connect(one), connect(other)
    queue, alone, single = unique("shared"), unique("alone"), unique("single")
    channel, elsewhere = here.channel(), there.channel()
    channel.queue_declare(queue, auto_delete=True)
    channel.queue_declare(alone, durable=True)
    channel.queue_declare(single, durable=True, arguments={"x-single-active-consumer": True})
    tag = channel.basic_consume(queue, lambda *args: None)
    elsewhere.basic_consume(queue, lambda *args: None)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 2
    channel.basic_cancel(tag)
    assert elsewhere.queue_declare(queue, passive=True).method.consumer_count == 1
    channel.basic_consume(alone, lambda *args: None, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in exclusive use"):
        there.channel().basic_consume(alone, lambda *args: None)
    taken: list[tuple[str, bytes]] = []
    channel.basic_consume(single, lambda channel, method, properties, body: taken.append(("here", body)))
    elsewhere.basic_consume(single, lambda channel, method, properties, body: taken.append(("there", body)))

    def arrived(count: int) -> bool:
        for connection in (here, there):
            if connection.is_open:
                connection.process_data_events(0.01)
        return len(taken) >= count

    publisher = there.channel()
    for body in (b"1", b"2"):
        publisher.basic_publish("", single, body)
    until(lambda: arrived(2))
    assert taken == [("here", b"1"), ("here", b"2")]
    here.close()
    publisher.basic_publish("", single, b"3")
    until(lambda: arrived(5))
    assert sorted(taken[2:]) == [("there", b"1"), ("there", b"2"), ("there", b"3")]
    for name in (alone, single):
        publisher.queue_delete(name)
    there.close()


def test_cloudevents_subscriptions_see_every_group(cluster: Cluster, one: Gantry, other: Gantry) -> None:
    pub = Paho(one).start()
    top = unique("ev")
    publish(pub, top, TOPICS)  # the topics are there, in both groups
    assert groups_of(cluster, top) == {"broker-0", "broker-1"}
    host, port = other.address("cloudevents")
    with Sink() as sink:
        made = []
        for number in range(TOPICS):
            body = {"sink": sink.url, "protocol": "HTTP", "config": {"topic": f"{top}{number}"}}
            answer = httpx.post(f"http://{host}:{port}/subscriptions", json=body, timeout=WAIT_S)
            assert answer.status_code == 201, answer.text
            made.append(answer.json()["id"])
        publish(pub, top, 5 * TOPICS, TOPICS)
        hooks = sink.wait(lambda hooks: len(hooks) >= 5 * TOPICS)
        assert sorted(int(hook.body) for hook in hooks) == list(range(TOPICS, 6 * TOPICS))
        for hook in hooks:  # RocketMQ's offset message id: 4 bytes address, 4 bytes port, 8 bytes position
            identity = hook.headers["ce-id"]
            assert len(identity) != 32 or int(identity[16:], 16) < 1 << 40, identity
        for identity in made:
            assert httpx.delete(f"http://{host}:{port}/subscriptions/{identity}", timeout=WAIT_S).status_code in (
                200,
                204,
            )
    pub.stop()


def test_a_topic_made_natively_in_both_groups(cluster: Cluster, one: Gantry, other: Gantry) -> None:
    """Subscription to a topic whose queues lie in both groups: nobody chose where a native producer writes."""
    top = unique("both")
    for number in range(2):
        with remoting_wire.connect(cluster.process(f"broker{number}").doors["broker"]) as sock:
            remoting_wire.create_topic(sock, top, 4)
    host, port = other.address("cloudevents")
    with Sink() as sink:

        def subscribe() -> Any:
            body = {"sink": sink.url, "protocol": "HTTP", "config": {"topic": top}}
            return httpx.post(f"http://{host}:{port}/subscriptions", json=body, timeout=WAIT_S).status_code == 201

        until(subscribe)
        for number in range(2):
            with remoting_wire.connect(cluster.process(f"broker{number}").doors["broker"]) as sock:
                for count in range(20):
                    fields = {
                        "a": "pg", "b": top, "c": "TBW102", "d": "4", "e": str(count % 4), "f": "0", "g": "1700000000000", "h": "0",
                        "i": "TAGS\x01t\x02", "j": "0", "k": "false", "m": "false",
                    }  # fmt: skip
                    code, _, _, remark, _ = remoting_wire.call(sock, 310, fields, b"%d" % (number * 20 + count))
                    assert code == 0, remark
        hooks = sink.wait(lambda hooks: len(hooks) >= 40)
        assert sorted(int(hook.body) for hook in hooks) == list(range(40))
    wanted = {(f"broker-{broker}", queue) for broker in range(2) for queue in range(4)}
    with BlockingPullConsumer(cluster.nameservers, group="check") as consumer:
        until(lambda: {(q.broker, q.queue_id) for q in assigned(consumer, top)} == wanted)
