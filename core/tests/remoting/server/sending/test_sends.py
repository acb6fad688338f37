"""Sends over a door on a real store: what is stored, what is answered, what is refused and how."""

import re
import shutil
import socket
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.topics import TopicConfig
from gantrymq.broker.transactions.half_messages import HALF_TOPIC
from gantrymq.model import names
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import Command, encode
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.server.sending.batches import BATCH_STEP, BATCHES_MAX, items_of
from gantrymq.remoting.server.sending.specials import value_of
from gantrymq.store.log import record
from tests.remoting.bench import Bench, answers, ask, request, send, send_frame


def stored(bench: Bench, topic: str = "T", queue: int = 0) -> list[Message]:
    units = bench.store.units(topic, queue, 0, 1000)
    found = bench.store.get_many([(at, size) for at, size, _ in units])
    return [message for message in found if message is not None]


@pytest.mark.parametrize("binary", [False, True])
def test_send_is_stored_and_answered(bench: Bench, binary: bool) -> None:
    link = bench.connect("10.1.2.3:4567")
    text = "UNIQ_KEY\x01ABC\x02KEYS\x01k1 k2\x02TAGS\x01red\x02own\x01x\x02"
    answer = send(link, b"hello", text, e="2", h="5", binary=binary)
    assert answer.code == 0, answer.remark
    message = stored(bench, queue=2)[0]
    assert answer.fields == {
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "queueId": "2", "queueOffset": "0",
        "msgId": f"7F00000100002A9F{message.physical_offset:016X}",
    }  # fmt: skip
    assert (message.body, message.tag, message.flag, message.born_ms) == (b"hello", "red", 5, 1_700_000_000_000)
    assert message.property_map() == {
        "UNIQ_KEY": "ABC", "KEYS": "k1 k2", "TAGS": "red", "own": "x", "CLUSTER": "DefaultCluster",
    }  # fmt: skip
    assert message.born_host == bytes([10, 1, 2, 3]) + (4567).to_bytes(4, "big")
    assert message.store_host == bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
    for key in ("ABC", "k1", "k2"):
        assert len(bench.store.query("T", key, 10, 0, 1 << 60)) == 1


def test_sends_of_one_read_are_one_append_and_one_write(bench: Bench) -> None:
    link = bench.connect()
    before = bench.store.written_position
    sizes: list[int] = []
    append = bench.store.append
    bench.store.append = lambda batch, lights: (sizes.append(len(batch)), append(batch, lights))[1]  # type: ignore[method-assign]
    frames = b"".join(send_frame(b"m%d" % i, opaque=i) for i in range(1, 51))
    link.feed(send_frame(b"first", opaque=0))  # makes the topic
    sizes.clear()
    writes = link.writes
    found = answers(link.feed(frames))
    assert [answer.opaque for answer in found] == list(range(1, 51))
    assert [answer.fields["queueOffset"] for answer in found] == [str(i) for i in range(1, 51)]
    assert sizes == [50]
    assert link.writes == writes + 1
    assert bench.store.written_position > before


def test_ipv6_peer(bench: Bench) -> None:
    assert send(bench.connect("[::1]:99")).code == 0
    assert stored(bench)[0].born_host == bytes(15) + b"\x01" + (99).to_bytes(4, "big")


def test_missing_unique_key_is_made(bench: Bench) -> None:
    link = bench.connect()
    send(link, b"a")
    send(link, b"b", "TAGS\x01x")
    keys = [message.property("UNIQ_KEY") for message in stored(bench)]
    assert len(set(keys)) == 2
    assert all(len(key) == 32 and int(key, 16) for key in keys)
    assert stored(bench)[1].tag == "x"


def test_messages_have_a_region_where_there_are_traces(bench: Bench) -> None:
    """Consumers that trace leave out messages without one."""
    link = bench.connect()

    def regions() -> list[tuple[str, str]]:
        """Of messages sent like the ones before them, and not."""
        before = len(stored(bench))
        for number in range(4):
            assert send(link, b"x", f"UNIQ_KEY\x01{number:032}\x02TAGS\x01t\x02", e="0").code == 0
        assert send(link, b"x", "", e="0").code == 0
        found = stored(bench)[before:]
        assert [message.property("CLUSTER") for message in found] == ["DefaultCluster"] * 5
        return [(message.property("MSG_REGION"), message.property("TRACE_ON")) for message in found]

    assert regions() == [("", "")] * 5
    bench.broker.topics.create(TopicConfig(names.TRACE_TOPIC, 1, 1))
    assert regions() == [("DefaultRegion", "true")] * 5
    bench.broker.delete_topic(names.TRACE_TOPIC)
    assert regions() == [("", "")] * 5


def test_oneway_send_is_stored_and_not_answered(bench: Bench) -> None:
    link = bench.connect()
    assert link.feed(send_frame(flag=2)) == b""
    assert len(stored(bench)) == 1


def test_old_send_code_with_long_names(bench: Bench) -> None:
    fields = {
        "producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
        "sysFlag": "0", "bornTimestamp": "5", "flag": "0", "properties": "TAGS\x01old\x02",
    }  # fmt: skip
    (answer,) = answers(bench.connect().feed(encode(Command(Code.SEND_MESSAGE, fields, b"x"))))
    assert answer.code == 0, answer.remark
    assert stored(bench, queue=1)[0].tag == "old"


def test_negative_queue_goes_by_sharding_key_or_tag(bench: Bench) -> None:
    link = bench.connect()
    queues = {send(link, properties="__SHARDINGKEY\x01k\x02", e="-1").fields["queueId"] for _ in range(5)}
    assert len(queues) == 1


def test_topic_is_created_with_the_queues_asked_for(bench: Bench) -> None:
    link = bench.connect()
    assert send(link, b="Few", d="2").code == 0
    topic = bench.broker.topics.get("Few")
    assert topic is not None
    assert topic.write_queues == 2
    assert send(link, b="Many", d="99").code == 0
    many = bench.broker.topics.get("Many")
    assert many is not None
    assert many.write_queues == bench.broker.settings.topics_config.default_queues


REFUSED = {
    "closed topic": ({"b": "SCHEDULE_TOPIC_XXXX"}, "", Answer.NO_PERMISSION, "forbidden"),
    "template topic": ({"b": "TBW102"}, "", Answer.NO_PERMISSION, "forbidden"),
    "own system topic": ({"b": "rmq_sys_gantry_ack"}, "", Answer.NO_PERMISSION, "belongs to the broker"),
    "topic name": ({"b": "a b"}, "", Answer.INVALID_PARAMETER, "outside"),
    "topic length": ({"b": "x" * 128}, "", Answer.INVALID_PARAMETER, "128 characters"),
    "unknown template": ({"b": "New", "c": "Other"}, "", Answer.TOPIC_NOT_EXIST, "apply first"),
    "queue": ({"e": "4"}, "", Answer.INVALID_PARAMETER, r"queueId\[4\]"),
    "transaction flag": ({"f": "4"}, "", Answer.MESSAGE_ILLEGAL, "marks a transaction"),
    "commit flag": ({"f": "8"}, "", Answer.MESSAGE_ILLEGAL, "marks a transaction"),
    "no light queue": ({}, "INNER_MULTI_DISPATCH\x01%LMQ%a,T\x02", Answer.MESSAGE_ILLEGAL, "'T'"),
    "light queue's name": ({}, "INNER_MULTI_DISPATCH\x01%LMQ%a b\x02", Answer.INVALID_PARAMETER, "outside"),
    "properties": ({}, "p\x01" + "x" * 32760 + "\x02", Answer.MESSAGE_ILLEGAL, "properties"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("binary", [False, True])
def test_refused(bench: Bench, name: str, binary: bool) -> None:
    fields, text, code, remark = REFUSED[name]
    link = bench.connect()
    send(link)
    before = bench.store.written_position
    answer = send(link, b"x", text, binary=binary, **fields)
    assert answer.code == code
    assert re.search(remark, answer.remark or ""), answer.remark
    assert bench.store.written_position == before
    assert send(link).code == 0


def test_body_over_the_limit(bench: Bench) -> None:
    link = bench.connect()
    answer = send(link, bytes(2 << 20))  # the segments of this bench hold 1 MiB
    assert (answer.code, "body has" in (answer.remark or "")) == (Answer.MESSAGE_ILLEGAL, True)


def test_lookalike_properties_are_no_properties(bench: Bench) -> None:
    link = bench.connect()
    text = "X_DELAY\x013\x02MYTAGS\x01no\x02note\x01TAGS\x02TRAN_MSG\x01false\x02DELAY\x010\x02UNIQ_KEY\x01u\x02"
    assert send(link, properties=text).code == 0
    assert stored(bench)[0].tag == ""


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_a_name_that_ends_in_that_of_the_unique_key_is_none(bench: Bench, half: bool, binary: bool) -> None:
    link = bench.connect()
    more = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02" if half else ""
    for number in range(5):
        assert send(link, b"", f"{more}MYUNIQ_KEY\x017F0000{number}\x02", binary=binary).code == 0
    messages = stored(bench, HALF_TOPIC if half else "T")
    assert [message.property("MYUNIQ_KEY") for message in messages] == [f"7F0000{number}" for number in range(5)]
    assert len({message.property("UNIQ_KEY") for message in messages} - {""}) == 5


def test_without_automatic_creation(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create=False)
    assert send(bench.connect()).code == Answer.TOPIC_NOT_EXIST
    bench.close()


@pytest.mark.parametrize(("name", "queues"), [("DefaultCluster", 16), ("broker-a", 1)])
def test_topics_of_cluster_and_broker_are_there_anyway(tmp_path: Path, name: str, queues: int) -> None:
    """RocketMQ: TopicConfigManager.init (clusterTopicEnable, brokerTopicEnable)."""
    bench = Bench(tmp_path, auto_create=False)
    assert send(bench.connect(), b=name, e="0").code == 0
    config = bench.broker.topics.topics[name].config
    assert (config.read_queues, config.write_queues, config.perm) == (queues, queues, 7)
    assert bench.store.max_offset(name, 0) == 1
    bench.close()


def test_a_new_topic_takes_the_queues_of_its_pattern(bench: Bench) -> None:
    """RocketMQ: TopicConfigManager.createTopicInSendMessageMethod."""
    link = bench.connect()
    assert send(link, b="New", c="broker-a", d="8", e="0").code == 0
    assert bench.broker.topics.topics["New"].config.write_queues == 1
    assert send(link, b="Wide", c="DefaultCluster", d="8", e="7").code == 0
    assert bench.broker.topics.topics["Wide"].config.write_queues == 8
    assert send(link, b="None", c="T", d="8", e="0").code == Answer.TOPIC_NOT_EXIST


def test_missing_field_of_a_typed_send_is_named(bench: Bench) -> None:
    answer = ask(bench.connect(), Code.SEND_MESSAGE_V2, b"x", b="T", e="0")
    assert answer.code == Answer.SYSTEM_ERROR
    assert "missing" in (answer.remark or "")


def test_store_full_is_told_to_every_producer(bench: Bench) -> None:
    link = bench.connect()
    send(link)
    bench.files.full = True
    found = answers(link.feed(send_frame(opaque=1) + send_frame(opaque=2)))
    assert [answer.code for answer in found] == [Answer.SERVICE_NOT_AVAILABLE] * 2
    assert "no space" in (found[0].remark or "")


def test_synchronous_flush_answers_when_flushed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    assert link.feed(send_frame(opaque=1) + send_frame(opaque=2)) == b""
    bench.broker.gate.advance(bench.store.written_position)
    assert [answer.opaque for answer in answers(link.feed(b""))] == [1, 2]
    bench.broker.gate.advance(bench.store.written_position)
    bench.close()


def test_shutdown_waits_for_open_sends(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link, idle = bench.connect(), bench.connect()
    link.feed(send_frame())
    for each in (link, idle):
        assert each.door is not None
        each.door.shutdown()
    assert (link.closed_by, idle.closed_by, link.reading) == (None, "close", False)
    bench.broker.gate.advance(bench.store.written_position)
    (answer,) = answers(link.feed(b""))
    assert (answer.code, link.closed_by) == (0, "close")
    bench.close()


def test_answers_for_a_lost_connection_are_dropped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    link.feed(send_frame())
    link.lose()
    bench.broker.gate.advance(bench.store.written_position)
    assert link.feed(b"") == b""
    bench.close()


# Properties with a meaning


@pytest.mark.parametrize(
    ("value", "queue"), [("0", "0"), ("2", "2"), ("9", "3"), ("-1", "1"), ("high", "1"), (str(1 << 40), "3")]
)
def test_priority_chooses_the_queue(bench: Bench, value: str, queue: str) -> None:
    answer = send(bench.connect(), properties=f"UNIQ_KEY\x01u\x02_SYS_MSG_PRIORITY_\x01{value}\x02", e="1")
    assert (answer.code, answer.fields["queueId"]) == (0, queue)


def test_receipts_of_earlier_deliveries_are_taken_out(bench: Bench) -> None:
    send(bench.connect(), properties="POP_CK\x010 1 2\x02UNIQ_KEY\x01u\x02MY_POP_CK\x01x\x02POP_CK\x01again")
    assert stored(bench)[0].property_map() == {"UNIQ_KEY": "u", "MY_POP_CK": "x", "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize(
    "text", ["UNIQ_KEY\x01a_b\x02", "a_b\x01c\x02", "__SHARDINGKEY\x01k\x02", "UNIQ_KEY\x01u\x02x\x01DELAYED\x02"]
)
def test_underscores_are_looked_at_and_nothing_else_happens(bench: Bench, text: str) -> None:
    assert send(bench.connect(), properties=text).code == 0
    found = stored(bench)[0]
    assert found.properties.decode().startswith(text)
    assert found.kind == 0


def test_old_send_code_with_a_batch(bench: Bench) -> None:
    fields = {
        "producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
        "sysFlag": "0", "bornTimestamp": "5", "flag": "0", "batch": "true",
    }  # fmt: skip
    body = batch_body((b"one", ""), (b"two", ""))
    (answer,) = answers(bench.connect().feed(encode(Command(Code.SEND_MESSAGE, fields, body))))
    assert answer.code == 0, answer.remark
    assert [message.body for message in stored(bench, queue=1)] == [b"one", b"two"]


def test_a_message_that_does_not_wait_for_the_flush(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    (answer,) = answers(link.feed(send_frame(properties="WAIT\x01false\x02", opaque=1)))
    assert answer.opaque == 1
    assert link.feed(send_frame(properties="WAIT\x01true\x02", opaque=2)) == b""
    # A retry stands for a message whose offset is committed next: it waits, whatever it says.
    assert link.feed(send_frame(properties="WAIT\x01false\x02", opaque=3, b="%RETRY%g")) == b""
    bench.broker.gate.advance(bench.store.written_position)
    assert [answer.opaque for answer in answers(link.feed(b""))] == [2, 3]
    bench.close()


def test_compressed_bodies_are_stored_as_they_came(bench: Bench) -> None:
    link = bench.connect()
    for kind in (0, 0x100, 0x200, 0x300):
        send(link, b"packed", f=str(1 | kind))
    assert [(message.body, message.sys_flag) for message in stored(bench)] == [
        (b"packed", 1 | kind) for kind in (0, 0x100, 0x200, 0x300)
    ]


@pytest.mark.parametrize("born", ["10.1.2.3:4567", "[2001:db8::2]:99"])
def test_a_broker_under_an_ipv6_address(tmp_path: Path, born: str) -> None:
    bench = Bench(tmp_path / "a")
    bench.doors.set_address("[2001:db8::1]:10911")
    link = bench.connect(born)
    host = bytes.fromhex("20010db8" + "00" * 11 + "01") + (10911).to_bytes(4, "big")
    answer = send(link, b"hello", "TAGS\x01red\x02")
    message = stored(bench)[0]
    assert answer.fields["msgId"] == f"{host.hex().upper()}{message.physical_offset:016X}"
    assert (message.store_host, message.body, message.tag) == (host, b"hello", "red")
    assert message.sys_flag == 0x20 | (0x10 if "[" in born else 0)
    assert len(message.property("UNIQ_KEY")) == 56
    seen = ask(link, Code.VIEW_MESSAGE_BY_ID, offset=message.physical_offset)
    assert record.decode(seen.body).store_host == host
    batch = send(link, batch_body((b"x", ""), (b"y", "")), code=320)
    assert [len(part) for part in batch.fields["msgId"].split(",")] == [56, 56]
    units = bench.store.units("T", 0, 0, 9)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # as kill -9 leaves it
    bench.close()
    again = Bench(tmp_path / "b")  # under an IPv4 address
    assert again.store.units("T", 0, 0, 9) == units
    assert stored(again)[0].store_host == host
    link = again.connect()
    message.queue_id = 0
    again.broker.submit([message], None, lambda token, result: None)
    again.turn.run_until_quiet()
    assert (stored(again)[-1].sys_flag & 0x20, len(stored(again)[-1].store_host)) == (0, 8)
    again.close()


def test_a_name_is_resolved_and_prefers_ipv4(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def places(*families: tuple[socket.AddressFamily, str]) -> None:
        found = [(family, 1, 6, "", (address, 0)) for family, address in families]
        monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: found)

    places((socket.AF_INET6, "2001:db8::7"), (socket.AF_INET, "10.0.0.7"))
    bench.doors.set_address("broker.example:10911")
    assert bench.doors.responses.host.startswith("0A000007")
    places((socket.AF_INET6, "2001:db8::7"))
    bench.doors.set_address("broker.example:10911")
    assert bench.doors.responses.host.startswith("20010DB8")
    places()
    bench.doors.set_address("broker.example:10911")
    assert bench.doors.responses.host.startswith("7F000001")


# Batches


def batch_body(*items: tuple[bytes, str]) -> bytes:
    parts = []
    for body, text in items:
        data = text.encode()
        parts.append(struct.pack(">iiiii", 22 + len(body) + len(data), 0, zlib.crc32(body) & 0x7FFFFFFF, 3, len(body)))
        parts.append(body + struct.pack(">H", len(data)) + data)
    return b"".join(parts)


def test_batch(bench: Bench) -> None:
    link = bench.connect()
    body = batch_body((b"one", "UNIQ_KEY\x01U1\x02TAGS\x01a\x02"), (b"two", "UNIQ_KEY\x01U2"))
    answer = send(link, body, "UNIQ_KEY\x01BATCH\x02WAIT\x01true\x02", code=320, m="true", e="-1")
    assert answer.code == 0, answer.remark
    queue = int(answer.fields["queueId"])
    one, two = stored(bench, queue=queue)
    assert answer.fields["msgId"] == ",".join(f"7F00000100002A9F{m.physical_offset:016X}" for m in (one, two))
    assert (one.body, one.tag, one.flag, two.body) == (b"one", "a", 3, b"two")
    # Each message keeps the key that its producer got back.
    assert [one.property("UNIQ_KEY"), two.property("UNIQ_KEY")] == ["U1", "U2"]
    assert [answer.fields["queueOffset"], str(two.queue_offset)] == ["0", "1"]
    assert one.property("WAIT") == "true"


@pytest.mark.parametrize(
    "body",
    [b"", b"short", batch_body((b"one", ""))[:-1], struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
     batch_body((b"ok", ""), (b"late", "DELAY\x011\x02")), batch_body((b"ok", ""), (b"half", "TRAN_MSG\x01true\x02")),
     batch_body((b"ok", ""), (b"x", "p\x01" + "y" * 32760 + "\x02"))],
)  # fmt: skip
def test_bad_batch_is_refused_whole(bench: Bench, body: bytes) -> None:
    link = bench.connect()
    send(link, b="T")
    before = bench.store.written_position
    answer = send(link, body, code=320, m="true")
    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert bench.store.written_position == before


def test_a_batch_of_too_many_is_refused(bench: Bench) -> None:
    bench.doors.batches.messages_max = 3
    link = bench.connect()
    assert send(link, batch_body(*[(b"x", "")] * 3), code=320).code == Answer.SUCCESS
    answer = send(link, batch_body(*[(b"x", "")] * 4) + b"what follows was never looked at", code=320)
    assert (answer.code, answer.remark) == (Answer.MESSAGE_ILLEGAL, "a batch has at most 3 messages")


LARGE = 3 * BATCH_STEP + 5


def begin_large(link: FakeLink, *more: tuple[bytes, str]) -> None:
    """The first slice of a large batch is done."""
    assert link.door is not None
    link.door.received(
        send_frame(batch_body(*[(b"%d" % number, "") for number in range(LARGE)], *more), code=320, m="true")
    )


def test_a_large_batch_is_taken_apart_in_slices_and_stored_in_one_go(bench: Bench) -> None:
    link, other = bench.connect(), bench.connect()
    send(other)
    begin_large(link)
    assert other.door is not None
    other.door.received(send_frame(b"between"))
    turns = bench.turn.run_until_quiet()
    assert turns >= LARGE // BATCH_STEP
    (answer,) = answers(link.take())
    assert (answer.code, answer.fields["queueOffset"]) == (0, "2"), "others go on meanwhile"
    assert len(answer.fields["msgId"].split(",")) == LARGE
    assert [message.body for message in stored(bench)][1:] == [b"between"] + [b"%d" % number for number in range(LARGE)]


def test_a_large_batch_that_is_refused_in_its_last_slice_leaves_nothing(bench: Bench) -> None:
    link = bench.connect()
    send(link)
    begin_large(link, (b"late", "DELAY\x011\x02"))
    bench.turn.run_until_quiet()
    (answer,) = answers(link.take())
    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert len(stored(bench)) == 1
    assert send(link).code == 0


@pytest.mark.parametrize("stops", [True, False])
def test_a_large_batch_whose_connection_ends_meanwhile(bench: Bench, stops: bool) -> None:
    link = bench.connect()
    send(link)
    begin_large(link)
    assert link.door is not None
    if stops:
        link.door.shutdown()
        assert link.closed_by is None, "it is answered first"
    else:
        link.door.closed("gone")
    bench.turn.run_until_quiet()
    assert len(stored(bench)) == (LARGE + 1 if stops else 1)
    assert (link.closed_by == "close") is stops
    assert bench.doors.batches.open == 0


def test_only_so_many_large_batches_at_once(bench: Bench) -> None:
    links = [bench.connect() for _ in range(BATCHES_MAX + 1)]
    send(links[0])
    for link in links:
        begin_large(link)
    bench.turn.run_until_quiet()
    codes = [answers(link.take())[0].code for link in links]
    assert codes == [0] * BATCHES_MAX + [Answer.SYSTEM_BUSY]


def test_batch_to_a_retry_topic(bench: Bench) -> None:
    assert send(bench.connect(), batch_body((b"x", "")), code=320, b="%RETRY%g").code == Answer.MESSAGE_ILLEGAL


@given(st.lists(st.tuples(st.binary(max_size=20), st.text("abc\x01\x02", max_size=20)), max_size=5))
def test_batch_round_trip(items: list[tuple[bytes, str]]) -> None:
    assert [(body, text) for _, body, text in items_of(batch_body(*items), 10)] == items


@given(st.binary(max_size=80))
def test_batch_fuzz(data: bytes) -> None:
    try:
        list(items_of(data, 10))
    except GantryError:
        pass


@given(st.lists(st.tuples(st.sampled_from(["TAGS", "XTAGS", "TAG", "A"]), st.text("TAGS=a", max_size=6)), max_size=6))
def test_value_of_agrees_with_the_decoder(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    expected = [value for name, value in pairs if name == "TAGS"]
    assert value_of(text, "TAGS\x01") == (expected[-1] if expected else "")


def test_broken_stream_after_sends(bench: Bench) -> None:
    link = bench.connect()
    found = answers(link.feed(send_frame(opaque=1) + b"\xff\xff\xff\xff\xff\xff\xff\xff"))
    assert sorted(answer.code for answer in found) == [0, Answer.SYSTEM_ERROR]
    assert link.closed_by == "close"
    assert len(stored(bench)) == 1


def test_responses_of_the_peer_are_ignored(bench: Bench) -> None:
    link = bench.connect()
    assert link.feed(send_frame(flag=1) + request(0, flag=1)) == b""
    assert bench.store.max_offset("T", 0) == 0


def test_random_requests_never_break_the_door(bench: Bench) -> None:
    link = bench.connect()
    for code in [*Code, 9999, -5]:
        for body in (b"", b"{}", b"[]", b"\xff", b'{"groupName":""}'):
            for fields in ({}, {"topic": "\x00", "queueId": "-1"}, {"topic": "T", "queueId": "99999999999"}):
                assert link.closed_by is None, code
                link.feed(encode(Command(int(code), fields, body)))
    assert send(link).code == 0


def test_long_tag_is_refused(bench: Bench) -> None:
    link = bench.connect()
    assert send(link, b"", "TAGS\x01" + "x" * 4096 + "\x02").code == 0
    for tag in ("x" * 4097, "ü" * 2049):
        answer = send(link, b"", f"TAGS\x01{tag}\x02")
        assert (answer.code, answer.remark) == (13, "the message is illegal: its tag has over 4096 bytes")


def test_an_inner_batch_is_refused_and_says_why(bench: Bench) -> None:
    link = bench.connect()
    for answer in (send(link, f="128"), send(link, properties="UNIQ_KEY\x01u\x02INNER_NUM\x012\x02")):
        assert (answer.code, "BatchCQ" in (answer.remark or "")) == (Answer.MESSAGE_ILLEGAL, True)
    assert send(link, properties="UNIQ_KEY\x01u\x02MY_INNER_NUM\x012\x02").code == 0


def test_static_topics_are_refused_and_say_why(bench: Bench) -> None:
    answer = ask(bench.connect(), Code.UPDATE_AND_CREATE_STATIC_TOPIC, b"{}", topic="S", readQueueNums=1)
    assert (answer.code, "static topics" in (answer.remark or "")) == (Answer.REQUEST_CODE_NOT_SUPPORTED, True)
    assert bench.broker.topics.get("S") is None
