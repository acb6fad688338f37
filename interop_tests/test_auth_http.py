"""Users whom an operator's HTTP service knows, at every door that takes passwords, with clients nobody here wrote."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import httpx
import paho.mqtt.client as paho
import pika
import pika.exceptions
import pytest

from gantrymq.client.accounts import Accounts
from gantrymq.client.client import Client
from gantrymq.client.producing.producer import Producer
from gantrymq.model.errors import GantryError
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.test_auth_rates import EVENT
from interop_tests.test_auth_tokens import amqp, mqtt
from interop_tests.waiting import until
from tests.auth.outside.service import Service, ok

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # paho's sockets

RULES = [
    {"resource": "topic:jobs*", "actions": ["all"]},
    {"resource": "queue:jobs*", "actions": ["all"]},
    {"resource": "mqtt:plant/%u/#", "actions": ["pub", "sub"]},
]


class Operator(Service):
    """Its users have the password NAME-pass; `closed`: it answers nonsense; `gone`: users whom it takes no more."""

    closed = False

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.rules = RULES
        super().__init__(self._decide)

    def _decide(self, head: bytes, body: bytes) -> bytes:
        if self.closed:
            return b"HTTP/1.1 503 Service Unavailable\r\n\r\n"
        said: dict[str, str] = {name: each[0] for name, each in parse_qs(body.decode()).items()}
        right = "refresh" in said or said.get("password") == f"{said['username']}-pass"
        if b"\r\nX-Key: s3kret\r\n" not in head or not right or said["username"] in self.gone:
            return ok(b"deny")
        return ok(json.dumps({"result": "allow", "rules": self.rules}).encode())


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    made = Operator()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("gantry")
    (directory / "header").write_text("X-Key: s3kret\n")
    settings = (f"auth.http_url={operator.url}", f"auth.http_header_file={directory}/header", "auth.http_cache_ms=0",
                "auth.http_refresh_ms=1000")  # fmt: skip
    gantry = Guarded(directory, settings=settings)
    try:
        gantry.start()
        yield gantry
    finally:
        gantry.stop()
        gc.collect()
        assert "Traceback" not in gantry.log()
        assert "s3kret" not in gantry.log()
        assert "alice-pass" not in gantry.log()


def post(server: Guarded, user: str, password: str, topic: str = "jobs") -> int:
    url = "http://{}:{}/topics/{}".format(*server.address("cloudevents"), topic)
    return httpx.post(url, headers=EVENT, auth=(user, password), content=b"x", timeout=20).status_code


def explain(server: Guarded, user: str, action: str, resource: str, **more: str) -> dict[str, Any]:
    async def work(accounts: Accounts) -> dict[str, Any]:
        found: dict[str, Any] = await accounts.explain(user=user, action=action, resource=resource, **more)
        return found

    found: dict[str, Any] = server.accounts(work)
    return found


def test_mqtt(server: Guarded) -> None:
    said, client, _ = mqtt(server, "alice", "alice-pass")
    assert said == "Success"
    got: list[bytes] = []
    granted: list[str] = []
    client.on_message = lambda c, data, message: got.append(message.payload)
    client.on_subscribe = lambda c, data, mid, codes, more: granted.extend([str(code) for code in codes])
    client.subscribe([("plant/alice/#", 1), ("plant/bob/#", 1)])
    until(lambda: granted)
    assert granted == ["Granted QoS 1", "Not authorized"]
    client.publish("plant/alice/x", b"hello", 1).wait_for_publish(20)
    until(lambda: got == [b"hello"])
    client.disconnect()
    client.loop_stop()
    for version in (paho.MQTTv5, paho.MQTTv311):
        said, client, _ = mqtt(server, "alice", "wrong", version)
        assert said != "Success"
        client.loop_stop()


def test_amqp(server: Guarded) -> None:
    connection = amqp(server, "alice-pass", "alice")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("jobs", durable=True)
    channel.basic_publish("", "jobs", b"work")
    assert channel.basic_get("jobs", auto_ack=True)[2] == b"work"
    with pytest.raises(
        pika.exceptions.ChannelClosedByBroker, match=r"queue 'other' in vhost '/' refused for user 'alice'"
    ):
        channel.queue_declare("other")
    connection.close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        amqp(server, "wrong", "alice")


def test_cloudevents(server: Guarded) -> None:
    assert post(server, "alice", "alice-pass") == 202
    assert post(server, "alice", "alice-pass", "other") == 403
    assert post(server, "alice", "wrong") == 401


def test_remoting_signs_and_has_accounts_of_its_own(server: Guarded) -> None:
    async def send() -> None:
        async with Client(server.nameserver, "alice", "alice-pass") as client, Producer(client=client) as producer:
            await producer.send("jobs", b"hello")

    with pytest.raises(GantryError, match="signature of AccessKey 'alice' is wrong"):
        asyncio.run(send())


def test_the_service_is_said_to_have_decided(server: Guarded) -> None:
    assert post(server, "carol", "carol-pass") == 202
    rule = "HTTP back end for user carol: allow all on topic:jobs*"
    assert explain(server, "carol", "pub", "topic:jobs1") == {"allowed": True, "rule": rule}
    assert explain(server, "carol", "pub", "topic:x") == {"allowed": False, "rule": "no rule"}
    assert not explain(server, "nobody", "pub", "topic:jobs1")["allowed"]


def test_nobody_comes_in_while_it_is_away_but_those_with_an_account_here(server: Guarded, operator: Operator) -> None:
    operator.closed = True
    try:
        server.mark_log()
        assert post(server, "alice", "alice-pass") == 503
        said, client, _ = mqtt(server, "alice", "alice-pass")
        assert said == "Server busy"
        client.loop_stop()
        with pytest.raises(pika.exceptions.AMQPError):
            amqp(server, "alice-pass", "alice")
        assert post(server, ADMIN, PASSWORD) == 202
        lines = [line for line in server.new_log().splitlines() if "auth.http_url" in line]
        assert len(lines) == 1, lines
        assert "it answered with status 503; nobody without an account here comes in" in lines[0]
    finally:
        operator.closed = False
    assert post(server, "alice", "alice-pass") == 202
    page = httpx.get("http://{}:{}/metrics".format(*server.address("metrics"))).text
    assert 'gantry_auth_http_logins_total{result="failed"} 3' in page


def test_an_account_of_the_name_that_is_disabled_shows_it_out(server: Guarded) -> None:
    connection = amqp(server, "dave-pass", "dave")
    server.add_user("dave", "other", userStatus="disable")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="dave was deleted or disabled"):
        connection.process_data_events(20)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        amqp(server, "dave-pass", "dave")


def test_open_connections_end_when_it_takes_their_users_no_more(server: Guarded, operator: Operator) -> None:
    connection = amqp(server, "eve-pass", "eve")
    said, client, _ = mqtt(server, "eve", "eve-pass")
    assert said == "Success"
    ended: list[str] = []
    client.on_disconnect = lambda c, data, flags, reason, more: ended.append(str(reason))
    other = amqp(server, "frank-pass", "frank")
    operator.gone.add("eve")
    try:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="the login of user eve was withdrawn"):
            connection.process_data_events(20)
        until(lambda: ended)
        assert ended[0] == "Not authorized"
    finally:
        client.loop_stop()
    other.process_data_events(0)
    other.close()


def test_a_consumer_whose_right_it_takes_back_is_cancelled(server: Guarded, operator: Operator) -> None:
    connection = amqp(server, "gina-pass", "gina")
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume("jobs", lambda *_: None)
    operator.rules = RULES[2:]
    try:
        until(lambda: connection.process_data_events(0.1) or cancelled)
        assert cancelled == [tag]
    finally:
        operator.rules = RULES
    connection.close()
