"""Half messages and what becomes of them, against the records that a real RocketMQ 5.3.3 wrote."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_PROPERTIES,
    OP_TOPIC,
    Half,
    committed,
    given_up,
    lights_of,
    op_offsets,
    resumed,
    to_half,
)
from gantrymq.model import properties as props
from gantrymq.model.message import DECIDED, Message
from gantrymq.store.log.record import tag_of
from tests.store.rocketmq_fixture import unpack

ADDED = ("REAL_TOPIC", "REAL_QID", "__transactionId__", "TRANSACTION_CHECK_TIMES")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return unpack("clean", tmp_path_factory.mktemp("rocketmq"))


def of_topic(rows: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["topic"] == topic]


def message_of(row: dict[str, Any]) -> Message:
    """The record as our decoder gives it."""
    properties = row["propertiesString"].encode()
    message = Message(
        row["topic"], row["body"], properties, tag_of(properties), (), row["queueId"], row["bornTimestamp"]
    )
    message.sys_flag, message.flag, message.reconsume_times = row["sysFlag"], row["flag"], row["reconsumeTimes"]
    message.born_host = bytes.fromhex(row["bornHost"])
    message.queue_offset, message.physical_offset = row["queueOffset"], row["commitLogOffset"]
    message.store_ms, message.size = row["storeTimestamp"], row["storeSize"]
    return message


def same(message: Message, row: dict[str, Any]) -> bool:
    return (
        message.topic, message.queue_id, message.body, message.properties, message.sys_flag, message.flag, message.born_ms,
        message.born_host, message.reconsume_times,
    ) == (
        row["topic"], row["queueId"], row["body"], row["propertiesString"].encode(), row["sysFlag"], row["flag"],
        row["bornTimestamp"], bytes.fromhex(row["bornHost"]), row["reconsumeTimes"],
    )  # fmt: skip


def test_a_committed_message_is_the_one_that_rocketmq_wrote(rows: list[dict[str, Any]]) -> None:
    half = message_of(of_topic(rows, HALF_TOPIC)[0])
    (row,) = of_topic(rows, "Decided")
    message = committed(half, Half.read(half, half.physical_offset))
    assert same(message, row)
    assert message.prepared_offset == row["preparedTransactionOffset"]
    assert message.keys == (row["properties"]["UNIQ_KEY"], "COMMIT_MESSAGE")
    assert (message.tag, message.kind) == ("t", DECIDED)


def test_a_message_that_was_put_aside_is_the_one_that_rocketmq_wrote(rows: list[dict[str, Any]]) -> None:
    half = message_of(of_topic(rows, HALF_TOPIC)[-1])
    (row,) = of_topic(rows, GIVEN_UP_TOPIC)
    read = Half.read(half, half.physical_offset)
    assert (read.checks, read.copy) == (2, True)
    message = given_up(half, read)
    assert same(message, row)
    again = resumed(message)
    assert (again.topic, again.queue_id) == ("Decided", 0)
    assert again.property_map() == {name: text for name, text in row["properties"].items() if name not in ADDED}


def test_a_half_message_is_the_one_that_rocketmq_wrote(rows: list[dict[str, Any]]) -> None:
    row = of_topic(rows, HALF_TOPIC)[0]
    sent = {name: text for name, text in row["properties"].items() if name not in ADDED}
    message = Message("Decided", row["body"], props.encode(sent), "t", (sent["UNIQ_KEY"],), 0, row["bornTimestamp"])
    message.sys_flag = 4
    to_half(message, sent["UNIQ_KEY"])
    assert (message.topic, message.queue_id, message.sys_flag) == (HALF_TOPIC, 0, row["sysFlag"])
    assert message.property_map() == row["properties"]
    message.properties = b"TRAN_MSG\x01true"  # without its end
    to_half(message, "u")
    assert message.property("TRAN_MSG") == "true"


def test_an_op_record_is_like_rocketmqs(rows: list[dict[str, Any]]) -> None:
    (row,) = of_topic(rows, OP_TOPIC)
    assert row["propertiesString"].encode() == OP_PROPERTIES
    assert op_offsets(row["body"]) == [0, 1]


def test_light_queues_of_the_client() -> None:
    young = Message("t", b"", b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02X\x01y\x02")
    read = Message("t", b"", b"X\x01y\x02")
    read.dispatch = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%~7\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02"
    assert lights_of(young) == ("%LMQ%a", "%LMQ%b")
    assert lights_of(read) == ("%LMQ%a",)  # those of the broker itself are chosen anew
    assert lights_of(Message("t", b"", b"X\x01INNER_MULTI_DISPATCH\x02")) == ()
    half = Half("g", "u", "orders", 1, b"")
    for message in (young, read):
        made = committed(message, half)
        assert made.lmq == lights_of(message)
        assert made.properties == b"X\x01y\x02"
        quarantine = given_up(message, half)
        assert props.find(quarantine.properties, props.MULTI_DISPATCH).split(",") == list(lights_of(message))
        assert lights_of(resumed(quarantine)) == lights_of(message)
