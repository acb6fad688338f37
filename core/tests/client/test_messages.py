"""Ids, properties, route data."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.connecting.routes import MessageQueue, loads, parse_route
from gantrymq.client.messages import (
    OutMessage,
    UniqueIds,
    encode_properties,
    parse_offset_message_id,
)
from gantrymq.client.producing.checks import check_message
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError

HOUR_MS = 3_600_000


def test_unique_ids() -> None:
    ids = UniqueIds(b"\x0a\0\0\1")
    made = [ids.next(1_700_000_000_000 + n // 1000) for n in range(50_000)]
    assert len(set(made)) == 50_000
    assert all(len(one) == 32 and one.startswith("0A000001") and one == one.upper() for one in made)
    assert UniqueIds(b"\x0a\0\0\1").next(0)[:20] != UniqueIds(b"\x0a\0\0\1").next(0)[:20]


@given(st.integers(1_600_000_000_000, 1_900_000_000_000))
def test_unique_ids_hold_the_time_since_the_month_began(now_ms: int) -> None:
    ids = UniqueIds(b"\x0a\0\0\1")
    passed = int(ids.next(now_ms)[20:28], 16)
    assert 0 <= passed < 31 * 24 * HOUR_MS + HOUR_MS
    again = int(ids.next(now_ms + 40 * 24 * HOUR_MS)[20:28], 16)
    assert 0 <= again < 31 * 24 * HOUR_MS + HOUR_MS


def test_offset_message_ids() -> None:
    assert parse_offset_message_id("0A000001" + "00002A9F" + "00000000000000FF") == ("10.0.0.1:10911", 255)
    v6 = "00" * 15 + "01" + "00002A9F" + "00000000000000FF"
    assert parse_offset_message_id(v6) == ("[::1]:10911", 255)
    for bad in ("", "xyz", "0A", "0" * 33):
        with pytest.raises(GantryError) as caught:
            parse_offset_message_id(bad)
        assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT
    for of_a_producer in ("7F0000016325856C032870A4876E0001", "7F0000010000000000002870A4876E01"):
        with pytest.raises(GantryError, match="give the topic too"):
            parse_offset_message_id(of_a_producer)


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=10)


@given(st.dictionaries(TEXT, TEXT, max_size=5), TEXT, TEXT)
def test_properties_come_back(pairs: dict[str, str], tag: str, keys: str) -> None:
    pairs = {name: value for name, value in pairs.items() if name not in props.SYSTEM_NAMES}
    text = encode_properties(OutMessage("t", b"", tag, keys, pairs), "id")
    wanted = {**pairs, "UNIQ_KEY": "id", "TAGS": tag, "KEYS": keys}
    assert props.decode(text.encode()) == {name: value for name, value in wanted.items() if name and value}


def test_json_of_a_java_server() -> None:
    assert loads(b'{"a":{0:"x", -1 :"y"},"b":"{1:2,3:4}"}') == {"a": {"0": "x", "-1": "y"}, "b": "{1:2,3:4}"}
    assert loads(b'{"quoted \\" , 5:":{7:1}}') == {'quoted " , 5:': {"7": 1}}
    with pytest.raises(GantryError, match="not JSON"):
        loads(b"{nothing")


def test_routes() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"a:1",1:"a:2"},"brokerName":"a","cluster":"c"},'
        b'{"brokerAddrs":{2:"b:2",1:"b:1"},"brokerName":"b","cluster":"c"}],"filterServerTable":{},"queueDatas":['
        b'{"brokerName":"a","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":1},'
        b'{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1},'
        b'{"brokerName":"r","perm":4,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    route = parse_route("t", body)
    assert [str(queue) for queue in route.read_queues()] == ["t/a/0", "t/a/1", "t/b/0", "t/r/0"]
    assert route.write_queues() == [MessageQueue("t", "a", 0)]  # b has no master, r cannot be written
    assert route.address("a") == "a:1"
    assert route.address("b") == "b:1"
    with pytest.raises(GantryError, match="knows a master of broker 'b'"):
        route.address("b", master_only=True)
    with pytest.raises(GantryError, match="knows a broker 'x'"):
        route.address("x")
    with pytest.raises(GantryError, match="route of topic 't'"):
        parse_route("t", b'{"queueDatas":[{}]}')


@pytest.mark.parametrize(("body", "kind"), [("text", "str 'text'"), (None, "None"), ({"a": 1}, "dict {'a': 1}")])
def test_a_body_that_is_no_bytes_is_named(body: object, kind: str) -> None:
    with pytest.raises(GantryError, match=re.escape(f"body is {kind}: it must be bytes")) as caught:
        check_message(OutMessage("t", body))  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT
    for fine in (b"", b"x", bytearray(b"x"), memoryview(b"x")):
        check_message(OutMessage("t", fine))
