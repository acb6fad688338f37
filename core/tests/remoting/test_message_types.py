"""Message types of topics (TopicMessageType): kept, and compared where a setting or a tool says so."""

from pathlib import Path

import pytest

from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from tests.remoting.bench import Bench, ask, send


def create_typed(link: FakeLink, name: str, kind: str) -> Command:
    return ask(
        link, Code.UPDATE_AND_CREATE_TOPIC, topic=name, readQueueNums=1, writeQueueNums=1, perm=6, defaultTopic="TBW102",
        topicFilterType="SINGLE_TAG", attributes=f"+message.type={kind}",
    )  # fmt: skip


TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
OF_TYPE = {
    "NORMAL": "TAGS\x01a\x02", "FIFO": "__SHARDINGKEY\x01k\x02", "DELAY": "DELAY\x011\x02",
    "TRANSACTION": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02__SHARDINGKEY\x01k\x02",
}  # fmt: skip


def test_message_type_of_a_topic(bench: Bench) -> None:
    """As RocketMQ's broker: kept, and not compared."""
    link = bench.connect()
    for kind in TYPES:
        assert create_typed(link, "Typed", kind).code == 0
        assert send(link, properties="__SHARDINGKEY\x01k\x02", b="Typed").code == 0
    answer = create_typed(link, "Typed", "ODD")
    assert answer.code != 0
    assert "message.type" in (answer.remark or "")


@pytest.mark.parametrize("kind", TYPES)
def test_message_types_compared(tmp_path: Path, kind: str) -> None:
    """As RocketMQ's proxy: DefaultTopicMessageTypeValidator."""
    bench = Bench(tmp_path, check_message_type=True)
    link = bench.connect()
    assert create_typed(link, "Typed", kind).code == 0
    for found, properties in OF_TYPE.items():
        answer = send(link, properties=properties, b="Typed")
        assert (answer.code == 0) == (kind in (found, "MIXED")), (kind, found, answer)
        if answer.code:
            assert answer.code == 13
            assert f"the expected type is {kind}, but actual type is {found}" in (answer.remark or "")
        assert send(link, properties=properties + "TRANSFER_FLAG\x011\x02", b="Typed").code == 0
    answer = ask(link, Code.RECALL_MESSAGE, producerGroup="PG", topic="Typed", recallHandle="no handle")
    assert (answer.code == 13) == (kind not in ("DELAY", "MIXED"))
    bench.close()


def test_message_types_are_compared_from_when_a_tool_says_so(bench: Bench) -> None:
    link = bench.connect()
    assert create_typed(link, "Typed", "FIFO").code == 0
    assert send(link, b="Typed").code == 0
    assert send(link, properties=OF_TYPE["DELAY"]).code == 0
    assert ask(link, Code.UPDATE_BROKER_CONFIG, b"enableTopicMessageTypeCheck=true").code == 0
    assert send(link, b="Typed").code == 13
    assert send(link, properties=OF_TYPE["DELAY"]).code == 13  # a topic without the attribute is NORMAL
    assert send(link, properties=OF_TYPE["DELAY"], b="%RETRY%CG").code == 0
    assert create_typed(link, "Typed", "NORMAL").code == 0
    assert send(link, b="Typed").code == 0
    assert ask(link, Code.UPDATE_BROKER_CONFIG, b"enableTopicMessageTypeCheck=false").code == 0
    assert send(link, properties=OF_TYPE["DELAY"], b="Typed").code == 0
