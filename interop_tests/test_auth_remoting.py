"""Users and rights at the Remoting door: signed requests, refusals, and rights that go while somebody is connected."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.tests.cli.tab import press_tab
from gantrymq.auth.signatures import ACCESS_KEY, SIGNATURE, sign
from gantrymq.client.accounts import Accounts
from gantrymq.client.client import Client
from gantrymq.client.producing.producer import Producer
from gantrymq.client.pushing.push import PushConsumer
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode, ResponseCode
from interop_tests import commands
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.running import free_port
from interop_tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"))
    try:
        gantry.start()
        gantry.add_user("alice", "alice-pass", ("topic:orders", "pub,sub"), ("group:readers*", "sub"))
        gantry.add_user("bob", "bob-pass", ("topic:*", "pub"), ("topic:orders", "!pub"))
        yield gantry
    finally:
        gantry.stop()


async def send(server: Guarded, user: str, password: str, topic: str) -> None:
    async with Client(server.nameserver, user, password) as client, Producer(client=client) as producer:
        await producer.send(topic, b"hello")


@pytest.mark.parametrize(
    ("user", "password", "topic", "refused"),
    [
        ("alice", "alice-pass", "orders", ""),
        ("alice", "alice-pass", "other", "no permission pub on topic:other"),
        ("alice", "wrong", "orders", "signature of AccessKey 'alice' is wrong"),
        ("nobody", "x", "orders", "signature of AccessKey 'nobody' is wrong"),
        ("", "", "orders", "not signed"),
        ("bob", "bob-pass", "orders", "no permission pub on topic:orders"),
        ("bob", "bob-pass", "others", ""),
        ("root", PASSWORD, "anything", ""),
    ],
)
def test_sending(server: Guarded, user: str, password: str, topic: str, refused: str) -> None:
    if not refused:
        asyncio.run(send(server, user, password, topic))
        return
    with pytest.raises(GantryError) as caught:
        asyncio.run(send(server, user, password, topic))
    assert caught.value.code is ErrorCode.NO_PERMISSION
    assert refused in str(caught.value)


def test_consuming(server: Guarded) -> None:
    async def consume() -> list[bytes]:
        got: list[bytes] = []
        done = asyncio.Event()
        async with Client(server.nameserver, "alice", "alice-pass") as client:
            consumer = PushConsumer(client=client, group="readers-1", start="earliest")

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)
                done.set()

            consumer.subscribe("orders", handle)
            async with consumer, Producer(client=client) as producer:
                await producer.send("orders", b"for readers")
                async with asyncio.timeout(30):
                    await done.wait()
        return got

    assert asyncio.run(consume())


def test_administration_is_for_administrators(server: Guarded) -> None:
    async def work(accounts: Accounts) -> None:
        await accounts.create_user("mallory", password="m")

    with pytest.raises(GantryError, match="no administrator"):
        server.accounts(work, "alice", "alice-pass")
    found = server.accounts(lambda accounts: accounts.users())
    assert {user["username"] for user in found} >= {"root", "alice", "bob"}
    assert "pass" not in str([user["password"] for user in found])


def test_what_decides_is_explained(server: Guarded) -> None:
    async def work(accounts: Accounts) -> list[dict[str, object]]:
        return [
            await accounts.explain(user="bob", action="pub", resource="topic:orders"),
            await accounts.explain(user="bob", action="pub", resource="topic:x"),
            await accounts.explain(user="alice", action="sub", resource="group:readers-7"),
        ]

    assert server.accounts(work) == [
        {"allowed": False, "rule": "user:bob: deny pub on topic:orders"},
        {"allowed": True, "rule": "user:bob: allow pub on topic:*"},
        {"allowed": True, "rule": "user:alice: allow sub on group:readers*"},
    ]


def test_users_outlive_a_restart(tmp_path: Path) -> None:
    gantry = Guarded(tmp_path)
    try:
        gantry.start()
        gantry.add_user("carol", "carol-pass", ("topic:t", "pub"))
        gantry.kill_and_restart()
        asyncio.run(send(gantry, "carol", "carol-pass", "t"))
        assert "carol-pass" not in gantry.log()
        assert PASSWORD not in gantry.log()
    finally:
        gantry.stop()


def ask(server: Guarded, code: int, fields: dict[str, str], body: bytes = b"", user: str = "alice") -> Command:
    """A signed request, as any client can make it, and its answer."""
    secret = PASSWORD if user == ADMIN else f"{user}-pass"
    signed = {ACCESS_KEY: user, **fields}
    signed[SIGNATURE] = sign(secret, signed, body)
    frames = FrameReader()
    with socket.create_connection(server.address("broker"), 30) as connection:
        connection.sendall(encode(Command(code, signed, body, 7)))
        while not (answers := frames.feed(connection.recv(65536))):
            pass
    return answers[0]


def send_fields(topic: str, properties: str = "", flags: int = 0) -> dict[str, str]:
    return {
        "a": "g",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": str(flags),
        "g": "0",
        "h": "0",
        "i": properties,
    }


OTHERS = b'"groupName":"others","subscriptionDataSet":[]'
ACK = b'"c":"others","t":"secrets","so":0,"q":0,"pt":0,"it":1,"b":""'


@pytest.mark.parametrize("dialect", [b"", b"0:1,"], ids=["standard", "dialect"])
@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b'"topicConfigList":[{"topicName":"stolen"}]'),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b'"groupConfigList":[{"groupName":"stolen"}]'),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'"groupName":"stolen"'),
        (RequestCode.HEART_BEAT, b'"clientID":"c","consumerDataSet":[{%b}]' % OTHERS),
        (RequestCode.LOCK_BATCH_MQ, b'"consumerGroup":"others","clientId":"c","mqSet":[]'),
        (RequestCode.BATCH_ACK_MESSAGE, b'"acks":[{%b}]' % ACK),
        (RequestCode.CHECK_CLIENT_CONFIG, b'"clientId":"c","group":"others"'),
        (RequestCode.QUERY_ASSIGNMENT, b'"topic":"orders","consumerGroup":"others","clientId":"c"'),
        (RequestCode.SET_MESSAGE_REQUEST_MODE, b'"topic":"orders","consumerGroup":"others","mode":"POP"'),
    ],
)
def test_rights_on_what_a_body_names(server: Guarded, code: RequestCode, body: bytes, dialect: bytes) -> None:
    """Asked for by what the request's handler understands, fastjson's dialect included, and not by fields that it does not read."""
    fields = {"topic": "orders", "consumerGroup": "readers-1", "group": "readers-1"}
    answer = ask(server, code, fields, b"{%b%b}" % (dialect, body))
    assert answer.code == ResponseCode.NO_PERMISSION, answer
    assert "alice has no permission" in (answer.remark or "")


def test_an_assignment_needs_no_right_but_those_of_its_body(server: Guarded) -> None:
    body = b'{"topic":"orders","consumerGroup":"readers-1","clientId":"c"}'
    assert ask(server, RequestCode.QUERY_ASSIGNMENT, {}, body).code == ResponseCode.SUCCESS


def test_places_in_the_log_give_no_right(server: Guarded) -> None:
    """A request that names a message by its place needs the right on its topic: places can be guessed."""
    stored = ask(server, RequestCode.SEND_MESSAGE_V2, send_fields("secrets"), b"secret", ADMIN)
    position = int(stored.fields["msgId"][-16:], 16)
    back = {
        "group": "readers-1",
        "offset": str(position),
        "delayLevel": "1",
        "originMsgId": "",
        "originTopic": "orders",
    }
    answer = ask(server, RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert (answer.code, "sub on topic:secrets" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
    own = ask(server, RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"mine")
    back["offset"] = str(int(own.fields["msgId"][-16:], 16))
    assert ask(server, RequestCode.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SUCCESS

    assert gantry(server, "policy", "add", "user:alice", "group:readers*", "update").returncode == 0
    direct = {"consumerGroup": "readers-1", "clientId": "c", "msgId": stored.fields["msgId"], "topic": "orders"}
    answer = ask(server, RequestCode.CONSUME_MESSAGE_DIRECTLY, direct)
    assert (answer.code, "sub|get on topic:secrets" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)


def test_a_half_message_is_decided_by_who_may_send_it(server: Guarded) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01A1\x02"
    half = ask(server, RequestCode.SEND_MESSAGE_V2, send_fields("secrets", properties, 4), b"pay", ADMIN)
    assert half.code == ResponseCode.SUCCESS, half
    decision = {
        "producerGroup": "payers", "tranStateTableOffset": half.fields["queueOffset"], "msgId": "A1", "transactionId": "A1",
        "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)), "commitOrRollback": "12", "fromTransactionCheck": "false",
    }  # fmt: skip
    for named in ({}, {"topic": "orders"}):
        answer = ask(server, RequestCode.END_TRANSACTION, {**decision, **named})
        assert (answer.code, "pub on topic:secrets" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
    assert ask(server, RequestCode.END_TRANSACTION, decision, user=ADMIN).code == ResponseCode.SUCCESS


def test_light_queues_that_a_sender_names_need_their_right(server: Guarded) -> None:
    properties = "UNIQ_KEY\x01A2\x02INNER_MULTI_DISPATCH\x01%LMQ%mine,%LMQ%theirs\x02"
    assert ask(server, RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"x").code == ResponseCode.SUCCESS
    answer = ask(server, RequestCode.SEND_MESSAGE_V2, send_fields("orders", properties), b"x")
    assert (answer.code, "pub on topic:%LMQ%mine" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
    text = properties.encode()
    row = b"\0\0\0\0" * 3 + b"\0\0\0\0" + (1).to_bytes(4, "big") + b"x" + len(text).to_bytes(2, "big") + text
    row = (len(row) + 4).to_bytes(4, "big") + row[4:]
    answer = ask(server, RequestCode.SEND_BATCH_MESSAGE, {**send_fields("orders"), "m": "true"}, row)
    assert answer.code == ResponseCode.NO_PERMISSION, answer
    assert gantry(server, "policy", "add", "user:alice", "topic:%LMQ%*", "pub").returncode == 0
    assert (
        ask(server, RequestCode.SEND_MESSAGE_V2, send_fields("orders", properties), b"x").code == ResponseCode.SUCCESS
    )


def gantry(server: Guarded, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A command as the administrator, whose password is in the environment."""
    account = {"GANTRY_USER": ADMIN, "GANTRY_PASSWORD": PASSWORD}
    return commands.gantry(*words, "--nameserver", server.nameserver, given=given, **account)


def test_the_command_line(server: Guarded) -> None:
    made = gantry(server, "user", "add", "dora", "--group", "devices", "--password-file", "-", given="dora-pass\n")
    assert (made.returncode, made.stdout) == (0, "user dora was made\n"), made.stderr
    assert "exists already" in gantry(server, "user", "add", "dora", "--no-password").stderr
    assert gantry(server, "policy", "add", "group:devices", "topic:dev*", "pub").returncode == 0
    assert "action fly: there are pub" in gantry(server, "policy", "add", "group:devices", "topic:dev*", "fly").stderr
    listed = gantry(server, "user", "list", "dor", "--json")
    assert json.loads(listed.stdout)["groups"] == ["devices"], listed.stderr
    explained = gantry(server, "auth", "explain", "dora", "pub", "topic:dev7")
    assert (explained.returncode, explained.stdout) == (0, "allowed: group:devices: allow pub on topic:dev*\n")
    for words in (
        ("dev7", "--door", "remoting"),
        ("dev7/a/b", "--door", "mqtt"),
        ("mqtt:dev7/a",),
        ("x/y", "--door", "mqtt", "--topic", "dev7"),
    ):
        assert gantry(server, "auth", "explain", "dora", "pub", *words).stdout == explained.stdout, words
    for words in (("other", "--door", "cloudevents"), ("other/dev7", "--door", "mqtt"), ("+/dev7", "--door", "mqtt")):
        assert gantry(server, "auth", "explain", "dora", "pub", *words).stdout == "refused: no rule\n", words
    asyncio.run(send(server, "dora", "dora-pass", "dev7"))
    assert gantry(server, "user", "set", "dora", "--disable").returncode == 0
    with pytest.raises(GantryError, match="signature"):
        asyncio.run(send(server, "dora", "dora-pass", "dev7"))
    assert "dev" in gantry(server, "policy", "list", "devices").stdout
    assert gantry(server, "policy", "delete", "group:devices", "--yes").returncode == 0
    assert gantry(server, "user", "delete", "dora", "--yes").returncode == 0
    assert gantry(server, "auth", "explain", "dora", "pub", "topic:dev7").returncode == 1


def test_groups_and_policies_by_name(server: Guarded) -> None:
    for name in ("gina", "gus"):
        assert gantry(server, "user", "add", name, "--no-password", "--group", "others").returncode == 0
    shown = gantry(server, "policy", "show", "group:crew")
    assert (shown.returncode, shown.stdout) == (3, "there is no such policy\n")
    assert gantry(server, "auth", "group", "show", "crew").returncode == 3
    assert gantry(server, "policy", "add", "group:crew", "topic:deck*", "pub,sub").returncode == 0
    assert gantry(server, "policy", "add", "group:crew2", "topic:x", "pub").returncode == 0
    added = gantry(server, "auth", "group", "add", "crew", "gina", "gus")
    assert (added.returncode, added.stdout) == (0, "in group crew: gina, gus\n"), added.stderr
    assert gantry(server, "auth", "group", "add", "crew", "nobody").returncode == 3
    shown = gantry(server, "policy", "show", "group:crew")
    assert "users in it: gina, gus" in shown.stdout
    assert "topic:deck*" in shown.stdout
    assert "topic:x" not in shown.stdout, "of group:crew2"
    rules = gantry(server, "policy", "show", "group:crew", "--json").stdout.splitlines()
    wanted = {"subject": "group:crew", "decision": "Allow", "resource": "topic:deck*"}
    assert [json.loads(line) | wanted == json.loads(line) for line in rules] == [True]
    listed = [json.loads(line) for line in gantry(server, "auth", "group", "list", "--json").stdout.splitlines()]
    assert {"group": "crew", "users": ["gina", "gus"]} in listed
    assert {"group": "crew2", "users": []} in listed
    assert gantry(server, "auth", "explain", "gus", "pub", "topic:deck1").returncode == 0
    shown = gantry(server, "user", "show", "gus")
    assert "topic:deck" in shown.stdout, "what its group may do is told with the user"
    assert gantry(server, "auth", "group", "delete", "crew", "gus", "--yes").returncode == 0
    assert gantry(server, "auth", "explain", "gus", "pub", "topic:deck1").returncode == 1
    assert gantry(server, "auth", "explain", "gina", "pub", "topic:deck1").returncode == 0
    assert gantry(server, "auth", "group", "delete", "crew", "--yes").returncode == 0
    assert gantry(server, "auth", "group", "delete", "crew", "--yes").returncode == 3
    assert gantry(server, "policy", "show", "group:crew").returncode == 3
    assert json.loads(gantry(server, "user", "list", "gina", "--json").stdout)["groups"] == ["others"]


def test_names_of_people_are_completed_for_an_administrator(server: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANTRY_USER", ADMIN)
    monkeypatch.setenv("GANTRY_PASSWORD", PASSWORD)
    assert gantry(server, "user", "add", "tabea", "--no-password", "--group", "tabbers").returncode == 0
    token = json.loads(gantry(server, "token", "add", "tabea", "--json").stdout)["id"]
    for line, wanted in (
        ("gantry user show tabe", "tabea"),
        ("gantry user add x --group tabb", "tabbers"),
        ("gantry auth group show tabb", "tabbers"),
        ("gantry auth explain tabe", "tabea"),
        ("gantry token list tabe", "tabea"),
        (f"gantry token delete {token[:8]}", token),
    ):
        until(lambda line=line, wanted=wanted: press_tab(line, server.nameserver) == [wanted])
    until(lambda: "group:tabbers" in press_tab("gantry policy show ", server.nameserver))
    monkeypatch.setenv("GANTRY_PASSWORD", "wrong")
    assert press_tab("gantry user show tabe", server.nameserver) == []


def test_who_cannot_sign_has_a_listener_of_his_own(tmp_path: Path) -> None:
    port = free_port(-2)
    listeners = f"tcp://127.0.0.1:{free_port(-2)},tcp://127.0.0.1:{port}?user=legacy"
    server = Guarded(tmp_path, settings=(f"broker.listeners={listeners}",))
    try:
        server.start()
        assert gantry(server, "user", "add", "legacy", "--no-password").returncode == 0
        assert gantry(server, "policy", "add", "user:legacy", "topic:old", "pub").returncode == 0

        def send_unsigned(address: tuple[str, int], topic: str) -> int:
            frames = FrameReader()
            fields = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
            with socket.create_connection(address, 30) as connection:
                connection.sendall(encode(Command(RequestCode.SEND_MESSAGE_V2, fields, b"x", 7)))
                while not (answers := frames.feed(connection.recv(65536))):
                    pass
            return answers[0].code

        assert send_unsigned(("127.0.0.1", port), "old") == 0
        assert send_unsigned(("127.0.0.1", port), "new") == ResponseCode.NO_PERMISSION
        assert send_unsigned(server.address("broker"), "old") == ResponseCode.NO_PERMISSION
    finally:
        server.stop()
