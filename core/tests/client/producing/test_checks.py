"""What a producer refuses before anything is sent: each error names the parameter and what to do."""

from typing import Any

import pytest

from core.tests.client.client_runs import run
from core.tests.client.fake_cluster import FakeCluster
from gantrymq.client import MessageQueue, OutMessage, PartialSendError, Producer
from gantrymq.client.producing.checks import check_message
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"topic": None}, "topic is None", "the topic's name"),
    ({"topic": 3}, "topic is int 3", "must be a str"),
    ({"topic": ""}, "topic name is empty", "allowed are"),
    ({"topic": "a b"}, "topic name 'a b'", "outside"),
    ({"body": "text"}, "body is str 'text'", "encode it"),
    ({"body": None}, "body is None", "encode it"),
    ({"tag": 3}, "tag is int 3", "must be a str"),
    ({"tag": None}, "tag is None", "must be a str"),
    ({"tag": b"x"}, "tag is bytes b'x'", "must be a str"),
    ({"tag": "a || b"}, "tag 'a || b'", "a message has one tag"),
    ({"tag": "a\x01b"}, r"tag 'a\x01b'", "U+0001, which separates properties"),
    ({"keys": 7}, "keys is int 7", "several in a list"),
    ({"keys": b"k"}, "keys is bytes b'k'", "several in a list"),
    ({"keys": None}, "keys is None", "several in a list"),
    ({"keys": ["k", 1]}, "keys is int 1", "must be a str"),
    ({"keys": ["a b"]}, "keys: 'a b'", "replace it"),
    ({"keys": [""]}, "keys: ''", "is empty"),
    ({"keys": "a\x02"}, r"keys 'a\x02'", "U+0002"),
    ({"properties": {"a": 1}}, "properties['a'] is int 1", 'must be a str: "1"'),
    ({"properties": {"a": None}}, "properties['a'] is None", "must be a str"),
    ({"properties": {1: "a"}}, "properties: the name 1 is int 1", "must be a str"),
    ({"properties": {"a\x01": "b"}}, r"the name 'a\x01'", "U+0001"),
    ({"properties": {"a": "\x02"}}, r"properties['a'] '\x02'", "U+0002"),
    ({"properties": [("a", "b")]}, "properties is list", "dict of texts"),
    ({"properties": {"INNER_MULTI_DISPATCH": "x"}}, "property 'INNER_MULTI_DISPATCH'", "cannot be sent"),
    ({"sharding_key": 5}, "sharding_key is int 5", "must be a str"),
    ({"sharding_key": "\x01"}, "sharding_key", "U+0001"),
    ({"flag": "x"}, "flag is str 'x'", "must be an int"),
    ({"priority": None}, "priority is None", "must be an int"),
    ({"deliver_at_ms": 1.5}, "deliver_at_ms is float 1.5", "must be an int"),
    ({"deliver_after_s": "1"}, "deliver_after_s is str '1'", "number of seconds"),
    ({"delay_level": 19}, "delay_level, deliver_at_ms, deliver_after_s (19, 0, 0.0)", "a level of 1 to 18"),
    ({"delay_level": 1, "deliver_after_s": 2}, "(1, 0, 2)", "one of them"),
    ({"deliver_after_s": -1}, "(0, 0, -1)", "one of them"),
    ({"queue": "t/b/0"}, "queue is str 't/b/0'", "must be a MessageQueue"),
    ({"queue": MessageQueue("other", "b", 0)}, "queue other/b/0", "of another topic"),
]


def made(given: dict[str, Any]) -> OutMessage:
    return OutMessage(**{"topic": "t", "body": b"", **given})


@pytest.mark.parametrize(("given", "what", "fix"), BAD, ids=[repr(given) for given, _, _ in BAD])
def test_what_cannot_be_sent_is_named_with_what_to_do(given: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(GantryError) as caught:
        check_message(made(given))
    assert caught.value.code in (ErrorCode.ILLEGAL_ARGUMENT, ErrorCode.NAME_INVALID)
    assert what in caught.value.text
    assert fix in caught.value.text


def test_something_else_than_a_message_is_named() -> None:
    with pytest.raises(GantryError, match=r"message is tuple .*OutMessage"):
        check_message(("t", b"x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {}, {"tag": "a|b"}, {"keys": "a b"}, {"keys": ("a", "b")}, {"properties": {"a": "", "": "b"}}, {"delay_level": 18},
        {"deliver_after_s": 0.5}, {"queue": MessageQueue("t", "b", 0)}, {"properties": {"é": "ü"}},
    ],
)  # fmt: skip
def test_what_is_fine_is_let_through(given: dict[str, Any]) -> None:
    check_message(made(given))


def test_keys_of_an_iterator_are_there_for_every_attempt() -> None:
    message = OutMessage("t", b"", keys=iter(["a", "b"]))
    check_message(message)
    assert message.keys == ("a", "b")


@pytest.fixture
def cluster() -> Any:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


def test_every_way_of_sending_refuses_before_it_sends(cluster: FakeCluster) -> None:
    broker = cluster.broker()
    cluster.topics["t"] = {broker.name: 1}
    bad = OutMessage("t", b"", tag="a || b")

    async def main() -> None:
        async with Producer(cluster.nameserver) as producer, Producer(cluster.nameserver, accumulate=True) as gathering:
            posted: list[Any] = []
            producer.post(bad, posted.append)
            assert isinstance(posted[0], GantryError)
            for sending in (
                producer.send(bad), producer.send("t", b"", tag="a || b"), producer.send_batch([bad]), producer.send_one_way(bad),
                producer.send_transaction(bad, lambda message, id_: None), gathering.send(bad), producer.request(bad),
            ):  # fmt: skip
                with pytest.raises(GantryError, match="a message has one tag"):
                    await sending
            with pytest.raises(PartialSendError, match="number 1: tag"):
                await producer.send_many([OutMessage("t", b""), bad])
            with pytest.raises(GantryError, match="an OutMessage says everything itself"):
                await producer.send(OutMessage("t", b""), tag="x")

    run(main())
    sends = [command for command in broker.seen if command.code == RequestCode.SEND_MESSAGE_V2]
    assert len(sends) == 1, "the one that is fine"


def test_send_takes_the_delays_of_a_message(cluster: FakeCluster) -> None:
    broker = cluster.broker()
    cluster.topics["t"] = {broker.name: 1}

    async def main() -> None:
        async with Producer(cluster.nameserver) as producer:
            await producer.send("t", b"", delay_level=3)
            await producer.send("t", b"", deliver_at_ms=1_900_000_000_000)
            await producer.send("t", b"", deliver_after_s=5)

    run(main())
    pairs = [command.fields["i"] for command in broker.seen if command.code == RequestCode.SEND_MESSAGE_V2]
    assert "DELAY\x013\x02" in pairs[0]
    assert "TIMER_DELIVER_MS\x011900000000000\x02" in pairs[1]
    assert "TIMER_DELIVER_MS\x01" in pairs[2]
