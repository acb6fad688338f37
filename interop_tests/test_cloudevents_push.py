"""Webhook subscriptions against real receivers: order, retries, dead letters, isolation, restart."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import httpx
import paho.mqtt.client as mqtt
import pika
import pytest

from gantrymq.client import BlockingProducer, BlockingPullConsumer, OutMessage
from interop_tests.cloudevents_sinks import Sink, assigned
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

PACE_S = 0.005
"""Between two events of a publisher: they must not be quicker than what delivers them."""
EVENT = {"ce-source": "/push", "ce-type": "a.b", "ce-specversion": "1.0", "content-type": "text/plain"}


class Door:
    """The HTTP face of one installation."""

    def __init__(self, server):
        host, port = server.address("cloudevents")
        self.url = f"http://{host}:{port}"
        self.http = httpx.Client(timeout=LIMIT_S)

    def subscribe(self, sink, topic, **more):
        config = {"topic": topic, **more.pop("config", {})}
        answer = self.http.post(
            f"{self.url}/subscriptions", json={"sink": sink.url, "protocol": "HTTP", "config": config, **more}
        )
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"] == f"/subscriptions/{answer.json()['id']}"
        return answer.json()["id"]

    def post(self, topic, identity, body=b"x", **headers):
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(
            f"{self.url}/topics/{topic}", headers={**EVENT, "ce-id": identity, **more}, content=body
        ).status_code


@pytest.fixture
def door(server):
    door = Door(server)
    yield door
    door.http.close()


def test_order_per_key(door):
    with Sink() as sink:
        door.subscribe(sink, "order")
        for number in range(30):
            assert door.post("order", f"{number % 3}-{number:03}", ce_partitionkey=f"key {number % 3}") == 202
        sink.wait(lambda hooks: len(hooks) == 30)
        for key in "012":
            mine = [identity for identity in sink.ids() if identity.startswith(key)]
            assert mine == sorted(mine)


def test_beginning(door):
    before = datetime.now(UTC).isoformat()
    for number in range(10):
        assert door.post("beginning", str(number)) == 202
    with Sink() as earliest, Sink() as by_time, Sink() as end:
        door.subscribe(earliest, "beginning", config={"from": "earliest"})
        door.subscribe(by_time, "beginning", config={"from": before})
        door.subscribe(end, "beginning")
        door.post("beginning", "10")
        for sink in (earliest, by_time):
            sink.wait(lambda hooks: len(hooks) == 11)
            assert sink.ids() == [str(number) for number in range(11)]
        end.wait(len)
        assert end.ids() == ["10"]


def test_types_and_filters(door):
    with Sink() as sink:
        door.subscribe(
            sink, "filters", types=["a.b"], filters=[{"not": {"suffix": {"id": "no"}}}, {"prefix": {"source": "/p"}}]
        )
        door.post("filters", "1-no")
        door.post("filters", "2", ce_type="other")
        door.post("filters", "3")
        sink.wait(len)
        door.post("filters", "4")
        sink.wait(lambda hooks: len(hooks) == 2)
        assert sink.ids() == ["3", "4"]


def test_messages_of_native_producers(server, door):
    with Sink() as sink:
        door.subscribe(sink, "native")
        with BlockingProducer(server.doors["nameserver"]) as producer:
            producer.send(OutMessage("native", b"\x00\xff", tag="line1.temp"))
        (hook,) = sink.wait(len)
        assert (hook.body, hook.headers["ce-type"], hook.headers["ce-source"]) == (
            b"\x00\xff",
            "line1.temp",
            "//gantrymq",
        )


def test_messages_of_mqtt_and_amqp(server, door):
    with Sink() as sink:
        door.subscribe(sink, "doors", types=["line1.temp"], filters=[{"prefix": {"subject": "doors/"}}])
        door.subscribe(sink, "doors", filters=[{"exact": {"subject": "line1.temp"}}])
        host, port = server.address("mqtt")
        device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="ce-interop")
        device.connect(host, port)
        device.loop_start()
        device.publish("doors/line1/temp", b"21.5", qos=1).wait_for_publish(LIMIT_S)
        device.disconnect()
        device.loop_stop()
        (hook,) = sink.wait(len)
        assert (hook.body, hook.headers["ce-type"], hook.headers["ce-subject"]) == (
            b"21.5",
            "line1.temp",
            "doors/line1/temp",
        )
        host, port = server.address("amqp")
        with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.exchange_declare("doors", "topic", durable=True)
            channel.basic_publish("doors", "line1.temp", b"\x00", pika.BasicProperties(content_type="image/png"))
        hook = sink.wait(lambda hooks: len(hooks) == 2)[1]
        assert (hook.body, hook.headers["ce-subject"], hook.headers["content-type"]) == (
            b"\x00",
            "line1.temp",
            "image/png",
        )


def test_a_slow_sink_holds_up_nobody(door):
    free = threading.Event()
    with Sink(lambda hook: 204 if free.wait(2 * LIMIT_S) else 500) as slow, Sink() as quick:
        door.subscribe(slow, "isolation")
        door.subscribe(quick, "isolation")
        for number in range(40):
            door.post("isolation", str(number), ce_type=f"k{number}")
        quick.wait(lambda hooks: len(hooks) >= 40)
        assert slow.hooks == []
        free.set()
        slow.wait(lambda hooks: {hook.headers["ce-id"] for hook in hooks} == {str(number) for number in range(40)})


def test_retry_then_success_and_the_next_follows(door):
    failures = iter([503, (429, {"retry-after": "1"}), 500])
    with Sink(lambda hook: next(failures, 204)) as sink:
        door.subscribe(sink, "retry")
        door.post("retry", "1")
        door.post("retry", "2")
        hooks = sink.wait(lambda hooks: len(hooks) == 5)
        assert sink.ids() == ["1", "1", "1", "1", "2"]
        assert [hook.headers["gantry-attempt"] for hook in hooks] == ["1", "2", "3", "4", "1"]


def test_a_sink_of_two_a_second_loses_nothing(door):
    """It refuses what is more, each time with Retry-After: no event's attempts are used up, and few requests are wasted."""
    taken, refused, lock = [], [0], threading.Lock()

    def answer(hook):
        with lock:
            now = time.monotonic()
            if len(taken) >= 2 and now - taken[-2] < 1:
                refused[0] += 1
                return 429, {"retry-after": "1"}
            taken.append(now)
            return 204

    with Sink(answer) as sink:
        subscription = door.subscribe(sink, "limited", config={"maxattempts": 1})
        for number in range(10):
            assert door.post("limited", str(number), ce_partitionkey=str(number)) == 202
        until(lambda: len(taken) == 10)
        shown = until(
            lambda: (
                (found := door.http.get(f"{door.url}/subscriptions/{subscription}").json()["delivery"])["lag"] == 0
                and found
            )
        )
        assert shown["laststatus"] == 204
        assert refused[0] <= 3 * 10 + 2 * 16


def test_dead_letters(server, door):
    with Sink(lambda hook: 400 if hook.headers["ce-id"] == "bad" else 204) as sink:
        name = door.subscribe(sink, "dead")
        door.post("dead", "bad", b"\x00body")
        door.post("dead", "good")
        sink.wait(lambda hooks: len(hooks) == 2)
        with BlockingPullConsumer(server.doors["nameserver"], group="dead") as consumer:
            letters = []
            for queue in assigned(consumer, f"%DLQ%{name}"):
                consumer.seek(queue, "earliest")
            while not letters:
                letters = consumer.pull(wait_s=1.0)
        assert [letter.body for letter in letters] == [b"\x00body"]
        assert letters[0].property("GANTRY_DLQ_STATUS") == "400"
        assert letters[0].property("CE_id") == "bad"


def test_gone_and_deleted(door):
    with Sink(lambda hook: 410) as sink:
        name = door.subscribe(sink, "gone")
        door.post("gone", "1")
        sink.wait(len)
        until(lambda: door.http.get(f"{door.url}/subscriptions/{name}").json()["status"] == "disabled")
        assert door.http.delete(f"{door.url}/subscriptions/{name}").status_code == 204
        assert door.http.get(f"{door.url}/subscriptions/{name}").status_code == 404


def ids(hooks):
    """Different events: what was on its way at a kill comes again."""
    return {hook.headers["ce-id"] for hook in hooks}


@pytest.mark.parametrize("shape", ["combined", "separated"])
@pytest.mark.crash
@pytest.mark.timeout(240)
def test_kill_nine(tmp_path, shape):
    """Events and subscriptions survive kill -9 in the middle of publishing and delivering; nothing acknowledged is missing."""
    server = Gantry(tmp_path, shape, ("cloudevents.retry_first_ms=100",))
    server.start()
    stop = threading.Event()
    acknowledged = []

    def publish(worker):
        with httpx.Client(timeout=LIMIT_S) as http:
            number = 0
            while not stop.wait(PACE_S):
                identity = f"{worker}-{number}"
                headers = {**EVENT, "ce-id": identity, "ce-type": f"w{worker}.k{number % 4}"}
                try:
                    if http.post(f"{door.url}/topics/crash", headers=headers, content=b"x").status_code == 202:
                        acknowledged.append(identity)
                except httpx.HTTPError:
                    pass
                number += 1

    try:
        door = Door(server)
        with Sink() as sink:
            name = door.subscribe(sink, "crash")
            workers = [threading.Thread(target=publish, args=(worker,)) for worker in range(3)]
            for worker in workers:
                worker.start()
            for round_ in range(1, 3):
                count = len(acknowledged) + 150
                sink.wait(lambda hooks, count=count: len(ids(hooks)) >= count)
                server.kill_and_restart()
                assert [item["id"] for item in door.http.get(f"{door.url}/subscriptions").json()] == [name], round_
            more = len(acknowledged) + 100
            sink.wait(lambda hooks: len(ids(hooks)) >= more)
            stop.set()
            for worker in workers:
                worker.join()
            wanted = set(acknowledged)
            sink.wait(lambda hooks: wanted <= ids(hooks))
        assert len(wanted) == len(acknowledged) > 300
        door.http.close()
    finally:
        stop.set()
        server.stop()
