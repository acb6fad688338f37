"""Holes that other brokers had (their advisories by class, C1 to C18 in docs/operations/security.md), tried on a server of ours that has users."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pika.exceptions
import pytest

from gantrymq.auth.signatures import ACCESS_KEY, SIGNATURE, sign
from gantrymq.client import Producer
from gantrymq.client.client import Client
from gantrymq.client.pushing.push import PushConsumer
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import GantryError
from gantrymq.remoting.constants import RequestCode
from interop_tests import raw_peers
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.bench import remoting_wire
from interop_tests.raw_peers import Raw, ended
from interop_tests.running import GANTRY
from interop_tests.waiting import until_async

SECRET = "a-secret-that-nobody-may-read"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=("auth.scram=true",))
    gantry.program = GANTRY  # so that its command line is what a user's is
    try:
        gantry.start()
        gantry.add_user("alice", SECRET, ("topic:t", "pub,sub"), ("group:g", "sub"), ("mqtt:%u/#", "pub,sub"))
        yield gantry
    finally:
        gantry.stop()


def signed(code: int, fields: dict[str, str], body: bytes = b"", user: str = ADMIN, password: str = PASSWORD) -> bytes:
    named = {**fields, ACCESS_KEY: user}
    return remoting_wire.encode(code, 1, {**named, SIGNATURE: sign(password, named, body)}, body)


def answer_to(server: Guarded, request: bytes) -> tuple[int, dict[str, str], str, bytes]:
    with Raw(server, "broker") as raw:
        raw.send(request)
        code, _, fields, remark, body = remoting_wire.decode(raw.exactly(int.from_bytes(raw.exactly(4), "big")))
    return code, fields, remark, body


def amqp_as(server: Guarded, user: str, password: str) -> pika.BlockingConnection:
    host, port = server.address("amqp")
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials))


NAMES = ("../../../../escaped", "..", "/etc/escaped", "a/../../escaped", "escaped\\..\\..", "escaped\0x")


@pytest.mark.parametrize("name", NAMES)
def test_c2_no_name_is_a_path(server: Guarded, name: str) -> None:
    """RocketMQ CVE-2019-17572, RabbitMQ CVE-2026-67224: a topic's name made directories outside the store."""
    before = {path for path in server.directory.parent.rglob("*") if "data/" not in f"{path}/"}
    send = {"b": name, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "a": "p", "i": "", "j": "0"}
    for code, fields in (
        (RequestCode.SEND_MESSAGE_V2, send), (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": name, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}), (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name}),
    ):  # fmt: skip
        answer_to(server, signed(code, fields, b"x"))
    auth = (ADMIN, PASSWORD)
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())
    url = "http://{}:{}/topics/{}".format(*server.address("cloudevents"), quoted)
    httpx.post(url, headers=event, content=b"x", auth=auth, timeout=20)
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name.replace("\0", ""), reconnect_on_failure=False)
    client.username_pw_set(*auth)
    client.connect(*server.address("mqtt"))
    client.loop_start()
    client.publish(name.replace("\0", ""), b"x", 1)
    client.disconnect()
    client.loop_stop()
    with amqp_as(server, *auth) as amqp:
        for declare in (lambda ch: ch.queue_declare(name), lambda ch: ch.exchange_declare(name, "fanout")):
            try:
                declare(amqp.channel())
            except pika.exceptions.AMQPChannelError:
                continue
    after = {path for path in server.directory.parent.rglob("*") if "data/" not in f"{path}/"}
    assert after == before
    made = [path for path in (server.directory / "data").rglob("*") if "escaped" in path.name]
    # What is a file's name is escaped, and lies where the names of its kind do.
    assert all((server.directory / "data").resolve() in path.resolve().parents for path in made)
    assert not Path("/etc/escaped").exists()
    assert not Path("/escaped").exists()


def test_c3_no_answer_log_or_file_holds_a_secret(server: Guarded) -> None:
    """RocketMQ CVE-2024-23321, NATS CVE-2026-33247, RabbitMQ CVE-2025-50200."""
    seen = []
    codes = [
        (RequestCode.GET_BROKER_CONFIG, {}), (RequestCode.GET_BROKER_RUNTIME_INFO, {}), (RequestCode.AUTH_LIST_USER, {}),
        (RequestCode.AUTH_GET_USER, {"username": "alice"}), (RequestCode.AUTH_LIST_ACL, {}),
    ]  # fmt: skip
    for code, fields in codes:
        answered, more, remark, body = answer_to(server, signed(code, fields))
        assert answered == 0, remark
        seen.append(f"{more} {remark}".encode() + body)
    user = seen[3]
    for word in (b"$argon2id$", b"SCRAM-SHA-256$", SECRET.encode()):
        assert word not in user
    host, port = server.address("cloudevents")
    httpx.get(f"http://{host}:{port}/subscriptions", auth=("alice", SECRET), timeout=20)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        amqp_as(server, "alice", SECRET + "x")
    seen.append(server.log().encode())
    seen.append(Path(f"/proc/{server.process('up').pid}/cmdline").read_bytes())
    seen.append(httpx.get("http://{}:{}/metrics".format(*server.address("metrics")), timeout=20).content)
    seen += [path.read_bytes() for path in (server.directory / "data").rglob("*") if path.is_file()]
    for text in seen:
        assert SECRET.encode() not in text
        assert PASSWORD.encode() not in text


def test_c10_names_are_texts_and_nothing_else(server: Guarded) -> None:
    """Mosquitto CVE-2017-7650: a user or client called `#` read everything. NATS 2026-22: a line break in a filter was a command."""

    async def make(name: str) -> str:
        async with Client(server.nameserver, ADMIN, PASSWORD) as client:
            from gantrymq.client.accounts import Accounts
            from gantrymq.client.admin import Admin

            try:
                await Accounts(Admin(client=client)).create_user(name, hash="$6$c2FsdA==$AAAA")
            except GantryError as error:
                return str(error)
        return ""

    for name in ("#", "+", "a/b", "a\r\nb", "a\x01b", "a\x02b", "*", "user:x", " a", "", "x" * 300):
        assert asyncio.run(make(name)), repr(name)
    for text in (b"a\r\nSUB #\r\n", b"\x01TAGS\x02", b"x\x01y\x02z"):
        packet = raw_peers.mqtt_text(b"MQTT") + b"\x04\xc2\x00\x00" + raw_peers.mqtt_text(text)
        packet += raw_peers.mqtt_text(text) + raw_peers.mqtt_text(text)
        answer = ended(server, "mqtt", b"\x10" + bytes([len(packet)]) + packet).answer
        assert answer in (b"", b"\x20\x02\x00\x04", b"\x20\x02\x00\x05"), text


def test_c17_a_busy_consumer_gets_nothing_after_it_lost_its_right(server: Guarded) -> None:
    """RabbitMQ CVE-2026-57218: a consumer outlived the right to its queue. When it has the right again, it goes on where it was."""
    got: list[bytes] = []

    async def main() -> None:
        async with (
            Client(server.nameserver, ADMIN, PASSWORD) as admin,
            Client(server.nameserver, "alice", SECRET) as client,
        ):
            from gantrymq.client.accounts import Accounts
            from gantrymq.client.admin import Admin

            accounts = Accounts(Admin(client=admin))

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)

            consumer = PushConsumer(client=client, group="g", start="earliest")
            consumer.subscribe("t", handle)
            async with Producer(client=admin) as producer, consumer:
                for number in range(20):
                    await producer.send("t", b"before %d" % number)
                await until_async(lambda: len(got) == 20)
                await accounts.delete_rules("user:alice")
                await until_async(lambda: "its user lost a right" in server.log())
                for number in range(20):
                    await producer.send("t", b"after %d" % number)
                assert [body for body in got if body.startswith(b"after")] == []
                rules: list[dict[str, Any]] = [
                    {"resource": "topic:t", "actions": ["pub", "sub"]}, {"resource": "group:g", "actions": ["sub"]},
                ]  # fmt: skip
                await accounts.add_rules("user:alice", rules)
                await until_async(lambda: len({*got}) == 40)

    asyncio.run(main())


def test_a_hidden_topic_is_asked_too(server: Guarded) -> None:
    """A send says its topic in `b`; a `topic` beside it, that its user may publish to, is no pass."""
    send = {"c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "a": "p", "i": "", "j": "0"}
    for fields in ({"topic": "t", "b": "secret"}, {"topic": "secret", "b": "t"}):
        code, _, remark, _ = answer_to(
            server, signed(RequestCode.SEND_MESSAGE_V2, {**send, **fields}, b"x", "alice", SECRET)
        )
        assert code == 16
        assert "no permission pub on topic:secret" in remark
