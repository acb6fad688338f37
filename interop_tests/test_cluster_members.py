"""Nameservers, brokers and gateways that come and go while clients work: nothing is lost, and nobody has to be restarted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import paho.mqtt.client as mqtt
import pika.exceptions
import pytest

from gantrymq.client import BlockingProducer, BlockingPullConsumer
from interop_tests.bench import remoting_wire
from interop_tests.cloudevents_sinks import assigned
from interop_tests.running import Cluster, Gantry, Process
from interop_tests.slots import are_shared, forget
from interop_tests.test_amqp_crash import connect
from interop_tests.test_cluster import by_topic, groups_of, publish
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [pytest.mark.timeout(120)]


class AddressPage:
    """RocketMQ's address server: a page that names the nameservers."""

    def __init__(self) -> None:
        self.text = ""
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(page.text.encode() + b"\n")

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/rocketmq/nsaddr"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


@pytest.fixture
def page() -> Iterator[AddressPage]:
    found = AddressPage()
    yield found
    found.server.shutdown()
    found.server.server_close()


class PagedCluster(Cluster):
    """Brokers and gateways find the nameservers by a page."""

    page: AddressPage

    def _where(self) -> list[str]:
        self.page.text = self.nameservers
        return [f"--set=server.nameserver={self.page.url}"]


def flow(pub: Paho, sub: Paho, top: str, start: int) -> None:
    """Two messages per topic arrive, in order."""
    sent = publish(pub, top, 24, start)
    assert by_topic(sub.receive(24)) == sent


@pytest.mark.slow
def test_members_come_and_go(tmp_path: Path, page: AddressPage) -> None:
    cluster = PagedCluster(tmp_path, nameservers=2, brokers=2, gateways=2)
    cluster.page = page
    try:
        cluster.start()
        sub, pub = Paho(cluster.at("gateway1")).start(), Paho(cluster.at("gateway0")).start()
        sub.subscribe(("+/x", 1))
        keeper = Paho(cluster.at("gateway0"), "keeper", False).start()
        keeper.subscribe(("+/x", 1))
        keeper.stop()
        flow(pub, sub, "two", 0)

        cluster.process("ns0").kill()  # a lost nameserver costs nobody a message
        flow(pub, sub, "two", 24)
        with BlockingProducer(page.url, group="p") as producer:
            assert producer.send("two0", b"native", tag="x").queue.broker in ("broker-0", "broker-1")
        assert sub.receive(1)[0][1] == b"native"

        third = cluster.add_broker(2)  # registers with the one that is left
        for number in range(2):
            gateway = cluster.process(f"gateway{number}")
            # Each of its three doors uses the new group; messages go on meanwhile.
            until(lambda found=gateway: found.log().count("broker group broker-2 is in use") >= 3)
        start = 48
        tops = iter(range(1000))

        def spread() -> bool:
            nonlocal start
            top = f"three{next(tops)}"
            flow(pub, sub, top, start)
            start += 24
            return "broker-2" in groups_of(cluster, top)

        until(spread)
        draining = subprocess.Popen(
            [sys.executable, "-m", "gantrymq", "broker", "drain", "broker-2", "--yes", "--nameserver", page.url],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        flow(pub, sub, "three0", start)  # its topics go elsewhere
        start += 24
        keeper = Paho(cluster.at("gateway1"), "keeper", False).start()
        assert keeper.present
        wanted = {b"native", *(b"%d" % number for number in range(start))}
        got: set[bytes] = set()
        until(lambda: got.update([body for _, body in keeper.receive(1)]) or got >= wanted, 120)
        assert got == wanted, "nothing was invented"
        said, _ = draining.communicate(timeout=120)
        assert draining.returncode == 0, said
        assert "may be stopped" in said
        assert stop_and_leave(cluster, third) == 0
        flow(pub, sub, "three0", start)
        assert len(keeper.receive(24)) == 24
        for client in (sub, pub, keeper):
            client.stop()
        cluster.process("ns0").start()
        until(lambda: brokers_at(cluster.process("ns0")) == {"broker-0", "broker-1"})
    finally:
        cluster.stop()
    assert "Traceback" not in cluster.log()


def stop_and_leave(cluster: Cluster, process: Process) -> int:
    """Stop a broker for good; returns its exit code when the nameservers have dropped it."""
    code = process.stop()
    until(lambda: "broker-2" not in brokers_at(cluster.process("ns1")))
    return code


def brokers_at(nameserver: Process) -> set[str]:
    """Names of the brokers that a nameserver knows."""
    with remoting_wire.connect(nameserver.doors["nameserver"]) as sock:
        code, _, _, remark, body = remoting_wire.call(sock, 106, {})
    assert code == 0, remark
    return {f"broker-{number}" for number in range(5) if f'"broker-{number}"'.encode() in body}


def test_a_broker_killed_under_load_comes_back_with_everything(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nameservers=1, brokers=2, gateways=2)
    try:
        cluster.start()
        keeper = Paho(cluster.at("gateway1"), "keeper", False).start()
        keeper.subscribe(("+/x", 1))
        pub = Paho(cluster.at("gateway0"), "sender", False).start()  # sends again what was not acknowledged
        pub.client.reconnect_delay_set(1, 1)
        publish(pub, "load", 24)
        infos: list[mqtt.MQTTMessageInfo] = []
        sent = [b"%d" % number for number in range(24, 400)]
        for number, body in enumerate(sent):
            infos.append(pub.client.publish(f"load{number % 12}/x", body, 1))
            if number == 150:
                cluster.process("broker1").kill()
            if number == 300:
                cluster.process("broker1").start()
        until(lambda: all(info.is_published() for info in infos), 120)
        got: set[bytes] = set()
        until(lambda: got.update([body for _, body in keeper.receive(1)]) or got >= set(sent), 120)
        with BlockingPullConsumer(cluster.nameservers, group="check") as consumer:
            assert {queue.broker for n in range(12) for queue in assigned(consumer, f"load{n}")} == {
                "broker-0",
                "broker-1",
            }
        pub.stop()
        keeper.stop()
    finally:
        cluster.stop()
    assert "Traceback" not in cluster.log()


@pytest.mark.slow
def test_a_broker_that_hangs_is_given_up_and_comes_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nameservers=1, brokers=2, gateways=1)
    try:
        cluster.start()
        gateway = cluster.at("gateway0")
        keeper = Paho(gateway, "keeper", False).start()
        keeper.client.reconnect_delay_set(1, 1)
        keeper.subscribe(("+/x", 1))
        pub = Paho(gateway, "sender", False).start()
        pub.client.reconnect_delay_set(1, 1)
        publish(pub, "hang", 24)
        os.kill(cluster.process("broker1").pid, signal.SIGSTOP)
        infos = [pub.client.publish(f"hang{number % 12}/x", b"%d" % number, 1) for number in range(24, 72)]
        until(lambda: all(info.is_published() for info in infos), 120)
        os.kill(cluster.process("broker1").pid, signal.SIGCONT)
        got: set[int] = set()
        until(lambda: got.update([int(body) for _, body in keeper.receive(1)]) or got >= set(range(72)), 120)
        log = cluster.process("gateway0").log
        until(lambda: log().count("broker group broker-1 is in use") >= 6)
        for client in (pub, keeper):
            client.stop()
    finally:
        cluster.stop()
    assert "Traceback" not in cluster.log()


@pytest.mark.slow
def test_a_broker_that_is_gone_with_its_disk_is_forgotten(tmp_path: Path) -> None:
    """Its queues can be deleted and declared anew, the others go on, and another broker of its name takes part again."""
    cluster = Cluster(tmp_path, nameservers=1, brokers=2, gateways=1)
    names = [f"q{number}" for number in range(8)]
    try:
        cluster.start()
        until(lambda: are_shared(cluster, 2))
        gateway = cluster.at("gateway0")
        connection = connect(gateway)
        channel = connection.channel()
        for name in names:
            channel.queue_declare(name, durable=True)
        connection.close()
        assert cluster.process("broker1").stop() == 0
        shutil.rmtree(tmp_path / "broker1.data")
        found = {name: bind(gateway, name) for name in names}
        lost = [name for name in names if found[name]]
        assert 0 < len(lost) < len(names), "queues of the broker that is away cannot be bound"
        forget(cluster, "broker-1")
        until(lambda: not any("is not connected" in bind(gateway, name) for name in lost))
        connection = connect(gateway)
        for name in lost:
            connection.channel().queue_delete(name)
            connection.channel().queue_declare(name, durable=True)
        connection.close()
        assert [bind(gateway, name) for name in names] == [""] * len(names)
        connection = connect(gateway)
        channel = connection.channel()
        channel.confirm_delivery()
        for name in names:
            channel.basic_publish("amq.topic", name, name.encode(), mandatory=True)
            assert channel.basic_get(name, auto_ack=True)[2] == name.encode()
        connection.close()
        cluster.process("broker1").start()
        until(lambda: are_shared(cluster, 2), 60)
    finally:
        cluster.stop()


def bind(gateway: Gantry, name: str) -> str:
    """Bind that queue; what the server says against it."""
    connection = connect(gateway)
    try:
        connection.channel().queue_bind(name, "amq.topic", name)
    except pika.exceptions.AMQPError as error:
        return str(error)
    finally:
        if connection.is_open:
            connection.close()
    return ""
