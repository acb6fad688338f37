"""Every argument of a queue that RabbitMQ's clients use, by pika over real sockets: each test fails without its argument."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.running import Gantry
from interop_tests.test_amqp_clients import connect, unique
from interop_tests.test_amqp_routing import bodies
from interop_tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def channel(server: Gantry) -> Iterator[Any]:
    connection = connect(server)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def declare(channel: Any, durable: bool = False, exclusive: bool = True, **arguments: Any) -> str:
    """`message_ttl=5` is `x-message-ttl`."""
    named = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    name: str = channel.queue_declare(
        unique("queue"), durable=durable, exclusive=exclusive, arguments=named
    ).method.queue
    return name


def send(channel: Any, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def ready(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def get(channel: Any, queue: str) -> Any:
    """(method, properties, body) of the next message, waited for."""
    found: list[Any] = []

    def arrived() -> bool:
        taken = channel.basic_get(queue, auto_ack=True)
        if taken[0] is not None:
            found.append(taken)
        return bool(found)

    until(arrived)
    return found[0]


def test_message_ttl(channel: Any) -> None:
    queue = declare(channel, message_ttl=150)
    send(channel, queue, b"1", b"2")
    assert ready(channel, queue) == 2
    until(lambda: ready(channel, queue) == 0)


def test_expiration_is_exact_behind_the_head(channel: Any) -> None:
    queue = declare(channel, max_length=100)
    send(channel, queue, b"1")
    send(channel, queue, b"2", expiration="100")
    send(channel, queue, b"3")
    until(lambda: ready(channel, queue) == 2)
    assert bodies(channel, queue) == [b"1", b"3"]


def test_expires(server: Gantry, channel: Any) -> None:
    queue = declare(channel, exclusive=False, expires=400)
    channel.queue_bind(queue, "amq.direct", "left")
    connection = connect(server)
    other = connection.channel()
    seen: list[str] = []
    other.add_on_cancel_callback(lambda frame: seen.append("cancelled"))
    tag = other.basic_consume(queue, lambda *delivery: None)
    begin = time.monotonic()
    while time.monotonic() < begin + 0.8:  # in use
        connection.process_data_events(0.05)
    assert seen == []
    other.basic_cancel(tag)
    connection.close()

    def gone() -> bool:
        probe = channel.connection.channel()
        try:
            probe.queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return int(error.reply_code) == 404
        probe.close()
        return False

    until(gone)
    channel.queue_declare(queue, exclusive=True)
    channel.basic_publish("amq.direct", "left", b"not bound any more")
    assert bodies(channel, queue) == []


def test_max_length_drops_the_head(channel: Any) -> None:
    queue = declare(channel, max_length=2)
    send(channel, queue, b"1", b"2", b"3", b"4")
    assert ready(channel, queue) == 2
    assert bodies(channel, queue) == [b"3", b"4"]


def test_max_length_bytes(channel: Any) -> None:
    queue = declare(channel, max_length_bytes=10)
    send(channel, queue, b"12345", b"67890", b"abc")
    assert bodies(channel, queue) == [b"67890", b"abc"]


def test_overflow_reject_publish(channel: Any) -> None:
    queue = declare(channel, max_length=1, overflow="reject-publish")
    send(channel, queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        send(channel, queue, b"2")
    assert bodies(channel, queue) == [b"1"]
    send(channel, queue, b"3")
    assert bodies(channel, queue) == [b"3"]


def test_overflow_without_confirms_is_silent(server: Gantry, channel: Any) -> None:
    queue = declare(channel, exclusive=False, expires=60_000, max_length=1, overflow="reject-publish")
    plain = channel.connection.channel()
    send(plain, queue, b"1", b"2")
    assert ready(plain, queue) == 1
    channel.queue_delete(queue)


def test_overflow_to_the_dead_letters(channel: Any) -> None:
    sink = declare(channel)
    queue = declare(
        channel, max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key=sink
    )
    send(channel, queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        send(channel, queue, b"2")
    assert get(channel, sink)[2] == b"2"


def test_dead_letters_say_where_they_come_from(channel: Any) -> None:
    exchange, sink = unique("dlx"), declare(channel)
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(sink, exchange)
    queue = declare(channel, dead_letter_exchange=exchange, message_ttl=10_000)
    send(channel, queue, b"1", headers={"a": 1}, content_type="text/plain", expiration="9000", user_id="guest")
    taken = channel.basic_get(queue)
    channel.basic_reject(taken[0].delivery_tag, requeue=False)
    method, properties, body = get(channel, sink)
    assert (method.exchange, method.routing_key, body, properties.content_type) == (exchange, queue, b"1", "text/plain")
    assert properties.expiration is None
    (death,) = properties.headers["x-death"]
    assert time.time() - death.pop("time").timestamp() < 60
    assert death == {
        "original-expiration": "9000", "count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue],
    }  # fmt: skip
    rest = {name: value for name, value in properties.headers.items() if name != "x-death"}
    assert rest == {
        "a": 1,
        "x-first-death-reason": "rejected", "x-first-death-queue": queue, "x-first-death-exchange": "",
        "x-last-death-reason": "rejected", "x-last-death-queue": queue, "x-last-death-exchange": "",
    }  # fmt: skip
    channel.exchange_delete(exchange)


def test_a_retry_queue_counts(channel: Any) -> None:
    """The usual pattern: work rejects into `wait`, whose messages expire back into `work`."""
    work, wait = unique("work"), unique("wait")
    for name, other, more in ((work, wait, {}), (wait, work, {"x-message-ttl": 50})):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other, **more}
        channel.queue_declare(name, durable=True, arguments=arguments)
    send(channel, work, b"job")
    for round_ in range(1, 4):
        taken: list[Any] = []

        def arrived(taken: list[Any] = taken) -> bool:
            found = channel.basic_get(work)
            if found[0] is not None:
                taken.append(found)
            return bool(taken)

        until(arrived)
        method, properties, _ = taken[0]
        deaths = (properties.headers or {}).get("x-death", [])
        assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == (
            [] if round_ == 1 else [(wait, "expired", round_ - 1), (work, "rejected", round_ - 1)]
        )
        channel.basic_nack(method.delivery_tag, requeue=False)
    for name in (work, wait):
        channel.queue_delete(name)


def test_what_nobody_rejects_does_not_go_round(channel: Any) -> None:
    queue = unique("loop")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-message-ttl": 50}
    channel.queue_declare(queue, exclusive=True, arguments=arguments)
    send(channel, queue, b"1")
    until(lambda: ready(channel, queue) == 0)
    assert bodies(channel, queue) == []


def test_consumer_timeout(server: Gantry, channel: Any) -> None:
    queue = declare(channel, exclusive=False, expires=60_000, consumer_timeout=500)
    send(channel, queue, b"slow")
    connection = connect(server)
    slow = connection.channel()
    slow.basic_consume(queue, lambda *delivery: None)

    def ended() -> bool:
        connection.process_data_events(0.05)
        return bool(slow.is_closed)

    until(ended)
    method, _, body = get(channel, queue)
    assert (body, method.redelivered) == (b"slow", True)
    connection.close()
    channel.queue_delete(queue)


def test_dead_letters_at_least_once(channel: Any) -> None:
    exchange = unique("dlx")
    channel.exchange_declare(exchange, "fanout")
    queue = declare(
        channel, dead_letter_exchange=exchange, overflow="reject-publish", dead_letter_strategy="at-least-once"
    )
    send(channel, queue, b"kept")
    channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    assert ready(channel, queue) == 0
    sink = declare(channel)
    channel.queue_bind(sink, exchange)
    _, properties, body = get(channel, sink)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"kept", "rejected")
    channel.exchange_delete(exchange)


def test_max_priority(channel: Any) -> None:
    queue = declare(channel, max_priority=5)
    for priority, body in ((None, b"a"), (3, b"b"), (9, b"c"), (3, b"d"), (0, b"e"), (5, b"f")):
        send(channel, queue, body, priority=priority)
    assert ready(channel, queue) == 6
    taken = channel.basic_get(queue)
    channel.basic_nack(taken[0].delivery_tag, requeue=True)
    assert bodies(channel, queue) == [b"c", b"f", b"b", b"d", b"a", b"e"]


def test_one_active_consumer_at_a_time(server: Gantry, channel: Any) -> None:
    queue = declare(channel, exclusive=False, expires=60_000, single_active_consumer=True)
    taken: list[tuple[str, bytes]] = []
    others = [connect(server) for _ in range(2)]
    for name, connection in zip(("first", "second"), others, strict=True):
        connection.channel().basic_consume(queue, consumer(name, taken), auto_ack=False)

    def deliver(count: int) -> None:
        def arrived() -> bool:
            for connection in others:
                if connection.is_open:
                    connection.process_data_events(0.01)
            return len(taken) >= count

        until(arrived)

    send(channel, queue, b"1", b"2")
    deliver(2)
    assert taken == [("first", b"1"), ("first", b"2")]
    others[0].close()  # not acknowledged: they come back, and before what is newer
    send(channel, queue, b"3")
    deliver(5)
    assert taken[2:] == [("second", b"1"), ("second", b"2"), ("second", b"3")]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in exclusive use"):
        others[1].channel().basic_consume(queue, consumer("third", taken), exclusive=True)
    others[1].close()
    channel.queue_delete(queue)


def consumer(name: str, taken: list[tuple[str, bytes]]) -> Any:
    return lambda channel, method, properties, body: taken.append((name, body))


def test_the_higher_priority_is_served_first(server: Gantry, channel: Any) -> None:
    queue = declare(channel, exclusive=False, expires=60_000)
    taken: list[tuple[str, bytes]] = []
    connections = []
    for name, priority, prefetch in (("low", -1, 1), ("high", 10, 2), ("middle", 0, 1)):
        connections.append(connect(server))
        consuming = connections[-1].channel()
        consuming.basic_qos(prefetch_count=prefetch)
        consuming.basic_consume(queue, consumer(name, taken), arguments={"x-priority": priority})
    send(channel, queue, b"1", b"2", b"3", b"4", b"5")

    def arrived() -> bool:
        for connection in connections:
            connection.process_data_events(0.01)
        return len(taken) >= 4

    until(arrived)
    assert sorted(taken) == [("high", b"1"), ("high", b"2"), ("low", b"4"), ("middle", b"3")]
    for connection in connections:
        connection.close()
    channel.queue_delete(queue)


def test_quorum_counts_deliveries_and_takes_out_poison(channel: Any) -> None:
    sink = declare(channel)
    queue = declare(
        channel, durable=True, exclusive=False, queue_type="quorum", delivery_limit=2,
        dead_letter_exchange="", dead_letter_routing_key=sink,
    )  # fmt: skip
    send(channel, queue, b"poison")
    counts = []
    for _ in range(3):
        method, properties, _ = channel.basic_get(queue)
        counts.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_nack(method.delivery_tag, requeue=True)
    assert counts == [None, 1, 2]
    _, properties, body = get(channel, sink)
    assert body == b"poison"
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"
    channel.queue_delete(queue)


def test_dead_letters_of_a_queue_that_survive_a_crash_come_once(server: Gantry, channel: Any) -> None:
    """Many at once; every one arrives."""
    sink = declare(channel)
    queue = declare(channel, message_ttl=100, dead_letter_exchange="", dead_letter_routing_key=sink)
    plain = channel.connection.channel()
    send(plain, queue, *[b"%d" % number for number in range(500)])
    until(lambda: ready(channel, sink) == 500)
    assert bodies(channel, sink) == [b"%d" % number for number in range(500)]


WITHOUT_EFFECT: dict[str, Any] = {
    "x-queue-mode": "lazy", "x-queue-version": 2, "x-queue-master-locator": "min-masters", "x-queue-leader-locator": "balanced",
    "x-quorum-initial-group-size": 3, "x-quorum-target-group-size": 3, "x-max-in-memory-length": 10, "x-max-in-memory-bytes": 10,
    "x-whatever": "y", "foo": "y",
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_arguments_without_effect_are_taken(channel: Any, name: str) -> None:
    queue = declare(channel)
    channel.queue_delete(queue)
    channel.queue_declare(queue, exclusive=True, arguments={name: WITHOUT_EFFECT[name]})
    send(channel, queue, *[b"%d" % number for number in range(20)])
    assert bodies(channel, queue) == [b"%d" % number for number in range(20)]


def test_declared_again(channel: Any) -> None:
    queue = declare(channel, message_ttl=1000, dead_letter_exchange="")
    same = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-whatever": True, "x-queue-type": "classic"}
    channel.queue_declare(queue, exclusive=True, arguments=same)
    for other, text in (
        ({**same, "x-message-ttl": 2000}, "received '2000' but current is '1000'"),
        ({**same, "x-expires": 5}, "'x-expires' for queue .* received the value '5' of type 'signedint' but current is none"),
        ({"x-message-ttl": 1000}, "'x-dead-letter-exchange' for queue .* received none but current is the value ''"),
    ):  # fmt: skip
        probe = channel.connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=text):
            probe.queue_declare(queue, exclusive=True, arguments=other)


def test_message_deduplication(channel: Any) -> None:
    queue = declare(channel, durable=True, exclusive=False, message_deduplication=True)
    for body, key in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "")):
        send(channel, queue, body, headers={"x-deduplication-header": key} if key else {})
    assert ready(channel, queue) == 3
    method, _, body = channel.basic_get(queue)
    assert body == b"1"
    send(channel, queue, b"5", headers={"x-deduplication-header": "a"})
    channel.basic_ack(method.delivery_tag)
    send(channel, queue, b"6", headers={"x-deduplication-header": "a"})
    assert bodies(channel, queue) == [b"2", b"4", b"6"]


@pytest.mark.crash
def test_message_deduplication_survives_kill(own_server: Gantry) -> None:
    connection = connect(own_server)
    channel = connection.channel()
    channel.confirm_delivery()
    queue = declare(channel, durable=True, exclusive=False, message_deduplication=True)
    for number in range(200):
        send(channel, queue, b"%d" % number, headers={"x-deduplication-header": str(number)})
    own_server.kill_and_restart()
    connection = connect(own_server)
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(201):
        send(channel, queue, b"again", headers={"x-deduplication-header": str(number)})
    assert ready(channel, queue) == 201
    connection.close()


def test_durable_queues_count_by_themselves_and_are_refused_with_the_settings_name(tmp_path: Path) -> None:
    server = Gantry(tmp_path, settings=("topics.auto_create_max=0", "topics.queue_topics_max=2")).start()
    try:
        connection = connect(server)
        channel = connection.channel()
        channel.confirm_delivery()
        for name in ("one", "two", "one"):
            channel.queue_declare(name, durable=True)
        channel.queue_declare("passing", durable=False)  # no topic of its own
        send(channel, "two", b"x")
        assert get(channel, "two")[2] == b"x"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.queue_declare("three", durable=True)
        assert refused.value.reply_code == 406
        assert refused.value.reply_text.startswith("PRECONDITION_FAILED - ")
        assert "topics.queue_topics_max" in refused.value.reply_text
        connection.close()
    finally:
        server.stop()


@pytest.mark.parametrize("how", ["nack multiple", "nack each, backwards", "channel closed"])
def test_ten_thousand_unacknowledged_come_back_in_order(channel: Any, how: str) -> None:
    queue = declare(channel, durable=True, exclusive=False)
    count = 10_000
    quick = channel.connection.channel()
    for number in range(count):
        quick.basic_publish("", queue, str(number).encode())
    taker = channel.connection.channel()
    tags = []
    for method, _, body in taker.consume(queue):
        assert (body, method.redelivered) == (str(len(tags)).encode(), False)
        tags.append(method.delivery_tag)
        if len(tags) == count:
            break
    if how == "channel closed":
        taker.close()
    else:
        taker.cancel()  # pika's own gives back what it has not handed out: nothing
        for tag in [0] if how == "nack multiple" else reversed(tags):
            taker.basic_nack(tag, multiple=how == "nack multiple", requeue=True)
    until(lambda: ready(channel, queue) == count)
    again = channel.connection.channel()
    found = []
    for method, _, body in again.consume(queue, auto_ack=True):
        assert method.redelivered
        found.append(int(body))
        if len(found) == count:
            break
    assert found == list(range(count))
    channel.queue_delete(queue)
