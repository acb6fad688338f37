"""RocketMQ's dialect of JSON, read and written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.dialect import standard
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.json_bodies import BodyError, QueueName, TopicOffset, decode

# name, dialect, standard
DIALECT = {
    "integer keys": (b'{0:"a",1:"b"}', {"0": "a", "1": "b"}),
    "negative key and spaces": (b'{ -1 : {"x" : [1, 2] } }', {"-1": {"x": [1, 2]}}),
    "object key": (b'{{"q":1}:{"min":0}}', {'{"q":1}': {"min": 0}}),
    "object keys, nested": (b'{"t":{{"q":1}:2,{"q":{"z":3}}:4}}', {"t": {'{"q":1}': 2, '{"q":{"z":3}}': 4}}),
    "quotes inside": (b'{{"q":"a\\"}{"}:2}', {'{"q":"a\\"}{"}': 2}),
    "standard stays": (b'{"a":[1,-2.5e3,null,true,"x:{"]}', {"a": [1, -2500.0, None, True, "x:{"]}),
}


@pytest.mark.parametrize("name", DIALECT)
def test_dialect_to_standard(name: str) -> None:
    data, value = DIALECT[name]
    assert json.loads(standard(data)) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=20,
)


@given(JSON)
def test_standard_json_is_left_alone(value: object) -> None:
    assert json.loads(standard(json.dumps(value).encode())) == value


@given(st.binary(max_size=60) | st.text('{}[]:,"01a ', max_size=40).map(str.encode))
def test_fuzz(data: bytes) -> None:
    try:
        decode(data, dict)
    except BodyError:
        pass


def test_depth_is_limited() -> None:
    with pytest.raises(BodyError, match="deeper than 64"):
        standard(b"[" * 65)
    assert standard(b"[" * 64) == b"[" * 64


def test_route_of_an_old_server() -> None:
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}],"queueDatas":[],"filterServerTable":{}}'
    route = decode(body, bodies.ReadTopicRoute)
    assert route.broker_datas[0].broker_addrs == {0: "h:1"}


def test_wrong_shape_is_named() -> None:
    with pytest.raises(BodyError, match=r"Heartbeat.*clientID"):
        decode(b"{}", bodies.Heartbeat)


def test_numbers_in_quotes() -> None:
    body = (
        b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T",'
        b'"subString":"A || C","tagsSet":["A","C"],"codeSet":["65","67"],"subVersion":1,"expressionType":"TAG"}]}]}'
    )
    (consumer,) = decode(body, bodies.Heartbeat).consumer_data_set
    assert consumer.subscription_data_set[0].code_set == [65, 67]
    with pytest.raises(BodyError):
        decode(body.replace(b'"65"', b'"A"'), bodies.Heartbeat)


def test_topic_stats_has_object_keys() -> None:
    body = bodies.topic_stats([(QueueName("T", "b", 1), TopicOffset(2, 3, 4))])
    assert body == (
        b'{"offsetTable":{{"topic":"T","brokerName":"b","queueId":1}:{"minOffset":2,"maxOffset":3,"lastUpdateTimestamp":4}}}'
    )
    assert json.loads(standard(body))


def test_dialect_map() -> None:
    assert bytes(bodies.dialect_map({0: 'a"', 3: "b"})) == b'{0:"a\\"",3:"b"}'
