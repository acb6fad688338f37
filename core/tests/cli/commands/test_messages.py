"""Dead letters that are sent again, and traces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from core.tests.client.fake_cluster import FakeBroker, FakeCluster
from gantrymq.cli.app import run_app
from gantrymq.cli.commands import messages
from gantrymq.cli.commands.messages import decode_trace, letter
from gantrymq.client.admin import Admin
from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.client.messages import OutMessage
from gantrymq.client.producing.producer import Producer
from gantrymq.client.records import ReceivedMessage
from gantrymq.launch.exit_codes import EXIT_USAGE
from gantrymq.model.errors import ErrorCode, GantryError

DEAD = "%DLQ%g"
REDRIVEN = "gantry_redrive_g"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


def fill(cluster: FakeCluster, *numbers: int) -> FakeBroker:
    """Dead letters: so many in each queue."""
    broker = cluster.broker()
    cluster.topics[DEAD] = {broker.name: len(numbers)}
    for queue, number in enumerate(numbers):
        for n in range(number):
            broker.append(DEAD, queue, b"%d" % n, b"RETRY_TOPIC\x01orders\x02")
    return broker


def redrive(cluster: FakeCluster, most: int = 1_000_000, again: bool = False) -> None:
    async def main() -> None:
        async with Admin(cluster.nameserver) as admin:
            await messages.do_redrive(admin, "g", "", most, again, dry_run=False)

    asyncio.run(asyncio.wait_for(main(), 150))


def sent(cluster: FakeCluster) -> int:
    return sum(len(queue.entries) for (topic, _), queue in cluster.broker().queues.items() if topic == "orders")


def kept(broker: FakeBroker, queue: int) -> int | None:
    """How far the letters of a queue count as sent."""
    return broker.offsets.get((REDRIVEN, DEAD, queue))


def dead(**pairs: str) -> Any:
    return SimpleNamespace(
        topic="%DLQ%g",
        broker="b",
        queue_id=0,
        queue_offset=7,
        tag="t",
        keys="k1 k2",
        body=b"x",
        property_map=lambda: pairs,
    )


def test_a_dead_letter_goes_back_as_it_was_sent() -> None:
    made = letter(dead(RETRY_TOPIC="orders", UNIQ_KEY="u", RECONSUME_TIME="16", colour="red", __SHARDINGKEY="s"), "")
    assert (made.topic, made.body, made.tag, made.keys) == ("orders", b"x", "t", ["k1", "k2"])
    assert made.properties is not None
    assert made.properties["colour"] == "red"
    assert not {"RETRY_TOPIC", "UNIQ_KEY", "RECONSUME_TIME"} & set(made.properties)
    assert letter(dead(RETRY_TOPIC="orders", DLQ_ORIGIN_TOPIC="first"), "").topic == "first"
    assert letter(dead(RETRY_TOPIC="orders"), "elsewhere").topic == "elsewhere"
    alone = letter(dead(DLQ_ORIGIN_TOPIC="orders", RECONSUME_TIME="16", colour="red"), "", "g")
    assert (alone.topic, alone.properties) == ("%RETRY%g", {"colour": "red", "RETRY_TOPIC": "orders"})
    with pytest.raises(GantryError, match="--to TOPIC") as caught:
        letter(dead(), "")
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_traces_of_rocketmqs_clients() -> None:
    sent = [
        "Pub",
        "1700",
        "region",
        "producers",
        "orders",
        "ID",
        "tag",
        "k1",
        "host",
        "5",
        "12",
        "0",
        "offid",
        "true",
        "1.2.3.4",
    ]
    before = ["SubBefore", "1800", "region", "readers", "req", "ID", "2", "k1", "client"]
    after = ["SubAfter", "req", "ID", "33", "false", "k1", "1", "1900", "readers"]
    text = "".join(["\x01".join(record) + "\x02" for record in (sent, before, after, ["Pub", "x"], ["Unknown", "1"])])
    rows = list(decode_trace(text))
    assert [row["what"] for row in rows] == ["sent", "delivered again (2)", "consumed"]
    assert [row["time"] for row in rows] == [1700, 1800, 1900]
    assert [(row["took"], row["ok"]) for row in rows] == [(12, True), (None, None), (33, False)]
    assert {row["id"] for row in rows} == {"ID"}
    assert rows[0]["topic"] == "orders"


def test_letters_that_fail_again_meanwhile_are_left_for_the_next_redrive(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = fill(cluster, 150)
    send_many = Producer.send_many

    async def fail_again(self: Producer, out: Sequence[OutMessage]) -> Any:
        for message in out:
            broker.append(DEAD, 0, message.body, b"RETRY_TOPIC\x01orders\x02")
        return await send_many(self, out)

    monkeypatch.setattr(Producer, "send_many", fail_again)
    redrive(cluster)
    assert (sent(cluster), kept(broker, 0)) == (150, 150)
    redrive(cluster)
    assert (sent(cluster), kept(broker, 0)) == (300, 300)


def test_again_forgets_nothing_that_was_sent_before(cluster: FakeCluster) -> None:
    broker = fill(cluster, 8, 8)
    redrive(cluster)
    assert [kept(broker, queue) for queue in (0, 1)] == [8, 8]
    redrive(cluster, most=3, again=True)
    assert [kept(broker, queue) for queue in (0, 1)] == [8, 8]
    assert sent(cluster) == 16 + 3
    redrive(cluster)
    assert sent(cluster) == 16 + 3


class SlowPulls:
    """`PullConsumer.pull` that gives nothing some times in turn; each time takes two seconds of a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, empty: Iterator[bool]) -> None:
        self.now_s = 0.0
        pull = PullConsumer.pull

        async def pulled(consumer: PullConsumer, max_messages: int, wait_s: float) -> list[ReceivedMessage]:
            self.now_s += 2
            return [] if next(empty) else await pull(consumer, max_messages, 30)

        monkeypatch.setattr(PullConsumer, "pull", pulled)
        monkeypatch.setattr(messages, "monotonic", lambda: self.now_s)


def test_a_slow_broker_is_waited_for(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = fill(cluster, 250)
    clock = SlowPulls(monkeypatch, (n % 11 != 10 for n in count()))  # 20 s without a letter, three times
    redrive(cluster)
    assert (sent(cluster), kept(broker, 0)) == (250, 250)
    assert clock.now_s > messages.REDRIVE_WAIT_S


def test_a_broker_that_is_too_slow_is_no_end(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = fill(cluster, 250)
    clock = SlowPulls(monkeypatch, (n > 0 for n in count()))
    with pytest.raises(GantryError, match=r"broker-a for 30 s, left: 150; run the command again") as caught:
        redrive(cluster)
    assert caught.value.code is ErrorCode.BUSY
    assert clock.now_s > messages.REDRIVE_WAIT_S
    assert (sent(cluster), kept(broker, 0)) == (100, 100)


@pytest.mark.parametrize("group", ["", "bad group!", "g" * 256])
def test_a_group_that_cannot_be_is_refused_before_anything_is_shown(
    cluster: FakeCluster, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.topics["orders"] = {"broker-a": 1}
    cluster.broker().append("orders", 0, b"paid")
    for words in (
        ["pull", "orders", "--group", group],
        ["group", "create", group],
        ["offset", "reset", group, "--topic", "orders", "--to", "earliest", "--yes"],
        ["offset", "clone", "g", group],
    ):
        assert run_app([*words, "--nameserver", cluster.nameserver]) == EXIT_USAGE, words
        out, err = capsys.readouterr()
        assert (out, "allowed are 1 to 255 of" in err, "answered" in err) == ("", True, False), words
    assert run_app(["pull", "orders", "--nameserver", cluster.nameserver]) == 0
    assert "paid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--key", ""), "keys: ''"),
        (("--key", "a b"), "keys: 'a b'"),
        (("--property", "TAGS=1"), "use --tag"),
        (("--property", "KEYS=1"), "use --key"),
        (("--property", "__SHARDINGKEY=1"), "use --sharding-key"),
    ],
)
def test_what_send_does_not_take_is_said_before_anybody_is_asked(
    words: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["send", "orders", "x", *words, "--nameserver", "127.0.0.1:1"]) == EXIT_USAGE
    assert said in capsys.readouterr().err
