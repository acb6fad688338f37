"""A gateway in a process of its own, when its broker goes and comes back, and when it goes itself: nothing is lost, all doors work again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from interop_tests.cloudevents_sinks import Sink
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S, until

pytestmark = [
    pytest.mark.crash,
    # pika leaves the sockets of connections that were cut to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
EVENT = {"ce-source": "/loss", "ce-type": "a.b", "ce-specversion": "1.0", "content-type": "text/plain"}


@pytest.fixture
def gantry(tmp_path: Path) -> Iterator[Gantry]:
    gantry = Gantry(tmp_path, "separated", ("cloudevents.retry_first_ms=100",))
    try:
        yield gantry.start()
    finally:
        gantry.stop()
    gc.collect()


def amqp(gantry: Gantry) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters(*gantry.address("amqp")))


def post(gantry: Gantry, identity: str) -> int:
    host, port = gantry.address("cloudevents")
    return httpx.post(
        f"http://{host}:{port}/topics/loss",
        headers={**EVENT, "ce-id": identity},
        content=identity.encode(),
        timeout=LIMIT_S,
    ).status_code


class Doors:
    """State at every door: a durable queue, a persistent session, a retained message, a webhook subscription; `sent` since the last check."""

    def __init__(self, gantry: Gantry, sink: Sink) -> None:
        self.gantry = gantry
        self.sink = sink
        self.sent: list[str] = []
        self.ever: set[str] = set()
        channel = amqp(gantry).channel()
        channel.exchange_declare("loss", "topic", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "loss", "#")
        sub = Paho(gantry, "keeper", False).start()
        sub.subscribe(("loss/#", 1))
        sub.stop()
        pub = Paho(gantry).start()
        pub.publish("kept", "retained", retain=True)
        pub.stop()
        host, port = gantry.address("cloudevents")
        body = {"sink": sink.url, "protocol": "HTTP", "config": {"topic": "loss"}}
        assert httpx.post(f"http://{host}:{port}/subscriptions", json=body, timeout=LIMIT_S).status_code == 201

    def publish(self, label: str) -> None:
        """One message through each door."""
        pub = Paho(self.gantry).start()
        pub.publish("loss/a/b", f"{label} mqtt")
        pub.stop()
        connection = amqp(self.gantry)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("loss", "a.b", f"{label} amqp".encode(), pika.BasicProperties(delivery_mode=2))
        connection.close()
        assert post(self.gantry, f"{label} event") == 202
        self.sent += [f"{label} mqtt", f"{label} amqp", f"{label} event"]

    def check(self) -> None:
        """Everything sent is in the queue and in the session, once, and at the sink, and nothing else."""
        connection = amqp(self.gantry)
        channel = connection.channel()
        got = [channel.basic_get("q", auto_ack=True)[2].decode() for _ in self.sent]
        assert got == self.sent
        assert channel.basic_get("q", auto_ack=True)[0] is None
        connection.close()
        sub = Paho(self.gantry, "keeper", False).start()
        assert sub.present
        assert [body.decode() for _, body in sub.receive(len(self.sent))] == self.sent
        sub.subscribe(("kept", 1))
        assert sub.receive(1) == [("kept", b"retained")]
        sub.client.unsubscribe("kept")
        sub.event("unsubscribe")
        sub.stop()
        self.ever.update(self.sent)
        # At least once: what arrived when the gateway was killed comes again.
        hooks = self.sink.wait(lambda hooks: self.ever <= {hook.body.decode() for hook in hooks})
        assert {hook.body.decode() for hook in hooks} == self.ever
        self.sent.clear()


def test_broker_lost_and_back(gantry: Gantry) -> None:
    broker, gateway = gantry.process("broker"), gantry.process("gateway")
    with Sink() as sink:
        doors = Doors(gantry, sink)
        doors.publish("before")
        for round_ in range(2):
            watcher = Paho(gantry).start()
            watcher.client.reconnect_delay_set(1, 1)
            idle = amqp(gantry)
            broker.kill()
            watcher.event("disconnect")
            watcher.client.loop_stop()
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
                idle.process_data_events(LIMIT_S)
            until(lambda: refused(gantry))
            assert gateway.process is not None
            assert gateway.process.poll() is None
            broker.start()
            back = f"back {round_}"
            until(lambda back=back: post(gantry, back) == 202, ignored=(httpx.TransportError,))
            doors.sent.append(back)
            until(lambda: Paho(gantry).start().stop() or True, ignored=(AssertionError, OSError))
            until(lambda: amqp(gantry).close() or True, ignored=(pika.exceptions.AMQPConnectionError, OSError))
            doors.publish(f"after {round_}")
            doors.check()
    for name in ("mqtt", "amqp", "cloudevents"):
        for said in (f"{name}: the broker is lost: ", f"{name}: the broker is back: open again"):
            until(lambda said=said: gateway.log().count(said) >= 2)
    log = gateway.log()
    assert "Traceback" not in log
    assert " ERROR " not in log, log


def refused(gantry: Gantry) -> bool:
    """Every door refuses connections."""
    for name in ("mqtt", "amqp", "cloudevents"):
        host, port = gantry.address(name)
        try:
            httpx.get(f"http://{host}:{port}/", timeout=LIMIT_S)
        except httpx.ConnectError:
            continue
        except httpx.TransportError:
            return False
        return False
    return True


def test_stop_while_the_broker_is_away(gantry: Gantry) -> None:
    gateway = gantry.process("gateway")
    gantry.process("broker").kill()
    until(lambda: gateway.log().count("the broker is lost") == 3)
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log()


def test_gateway_killed_and_back(gantry: Gantry) -> None:
    gateway = gantry.process("gateway")
    with Sink() as sink:
        doors = Doors(gantry, sink)
        for round_ in range(2):
            doors.publish(f"round {round_}")
            gateway.kill()
            gateway.start()
            doors.check()


def test_an_auto_delete_queue_goes_with_its_killed_gateway(gantry: Gantry) -> None:
    lost = amqp(gantry)
    channel = lost.channel()
    for name, auto_delete in (("loss-auto", True), ("loss-kept", False)):
        channel.queue_declare(name, durable=True, auto_delete=auto_delete)
        channel.basic_consume(name, lambda *_: None)
    gantry.process("gateway").kill()
    with pytest.raises(pika.exceptions.AMQPError):
        lost.process_data_events(LIMIT_S)
    gantry.process("gateway").start()
    connection = amqp(gantry)

    def there(name: str) -> bool:
        probe = connection.channel()
        try:
            probe.queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return int(error.reply_code) != 404
        probe.close()
        return True

    until(lambda: not there("loss-auto"))
    assert there("loss-kept")
    connection.close()
