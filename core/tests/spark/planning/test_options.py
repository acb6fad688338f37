from typing import Any

import pytest

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.spark.planning.offsets import OptionError
from gantrymq.spark.planning.options import for_batch, for_sink, for_stream, parse
from gantrymq.spark.schema import SchemaError, check_projection, check_sink


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    options = for_stream(parse({"TOPIC": " a, b,a "}))
    assert options.topics == ("a", "b")
    assert options.nameservers == ["127.0.0.1:9876"]
    assert (options.starting, options.ending, options.tags) == (None, None, ())
    assert options.fail_on_data_loss
    assert options.rows_per_trigger == 1_000_000
    monkeypatch.setenv("NAMESRV_ADDR", "one:1;two:2")
    assert parse({"topic": "a"}).nameservers == ["one:1", "two:2"]


def test_values() -> None:
    options = parse(
        {
            "nameserver": "n:1",
            "topic": "a",
            "startingOffsets": '{"a": {"b": {"0": 3}}}',
            "tags": "y || x",
            "failOnDataLoss": "FALSE",
            "maxOffsetsPerTrigger": "0",
        }
    )
    assert options.starting is not None
    assert options.starting.offsets == {MessageQueue("a", "b", 0): 3}
    assert options.tags == ("x", "y")
    assert not options.fail_on_data_loss
    assert options.rows_per_trigger == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "set the option 'topic'"),
        ({"topic": "bad topic"}, "topic: topic name 'bad topic'"),
        ({"topic": "a", "nameserver": "nowhere"}, "nameserver: address 'nowhere'"),
        ({"topic": "a", "tags": "x || "}, "tags: tag expression"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe': allowed are true and false"),
        ({"topic": "a", "maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger is '-1': allowed is a number"),
        ({"topic": "a", "startingOffsets": "latest"}, "startingOffsets is 'latest'"),
        ({"topic": "a", "endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
    ],
)
def test_bad_options_name_the_key_and_what_is_allowed(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        for_batch(parse(options))


def test_each_use_has_its_own_rules() -> None:
    with pytest.raises(OptionError, match="endingOffsets has no meaning for a stream"):
        for_stream(parse({"topic": "a", "endingOffsets": "latest"}))
    with pytest.raises(OptionError, match="the sink takes one"):
        for_sink(parse({"topic": "a,b"}))
    assert for_sink(parse({})).topics == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOffset", "did you mean startingOffsets?"),
        ("STARTINGOFFSET", "did you mean startingOffsets?"),
        ("tag", "did you mean tags?"),
        ("partitions", "minPartitions"),
        ("xyzzy", "known are nameserver, topic, "),
        ("kafka.bootstrap.servers", "set nameserver to HOST:PORT"),
        ("kafka.security.protocol", "leave it out: there is no Kafka client here"),
        ("fetchOffset.numRetries", "leave it out: servers that are away are asked again for 30 s"),
    ],
)
def test_unknown_options_are_errors(name: str, hint: str) -> None:
    for use in (for_batch, for_stream, for_sink):
        with pytest.raises(OptionError) as caught:
            use(parse({"topic": "a", name: "latest"}))
        assert str(caught.value).startswith(f"there is no option {name.lower()!r}")
        assert hint in str(caught.value)


def test_sparks_own_options_are_let_through_and_a_path_is_not() -> None:
    for_stream(parse({"topic": "a", "checkpointLocation": "/x", "queryName": "q", "outputMode": "append"}))
    for name in ("path", "paths"):
        with pytest.raises(OptionError, match="messages have no path; name the topic with the option 'topic'"):
            parse({"topic": "a", name: "x"})


@pytest.mark.parametrize(
    ("use", "name", "text"),
    [
        (for_batch, "maxOffsetsPerTrigger", "has no meaning for a batch"),
        (for_stream, "endingOffsets", "has no meaning for a stream"),
        (for_sink, "startingOffsets", "has no meaning for writing: leave it out; allowed are nameserver, topic"),
        (for_sink, "tags", "has no meaning for writing"),
        (for_batch, "minOffsetsPerTrigger", "has no meaning for a batch"),
        (for_stream, "endingTimestamp", "has no meaning for a stream"),
        (for_stream, "pushFilters", "has no meaning for a stream"),
        (for_sink, "consumerGroup", "has no meaning for writing"),
    ],
)
def test_options_of_another_use_are_errors(use: Any, name: str, text: str) -> None:
    values = {
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "maxOffsetsPerTrigger": "5",
        "minOffsetsPerTrigger": "5",
        "endingTimestamp": "5",
        "pushFilters": "true",
    }
    with pytest.raises(OptionError, match=f"{name} {text}"):
        use(parse({"topic": "a", name.upper(): values.get(name, "x")}))


def test_schemas() -> None:
    check_projection([("properties", "map<string,string>"), ("offset", "bigint"), ("bornTimestamp", "timestamp")])
    for fields, text in (
        ([("nothing", "string")], "no column 'nothing'; the source has topic, broker"),
        ([("body", "string")], "column 'body' is BINARY, the schema says STRING"),
        ([("tag", "string"), ("tag", "string")], "stands twice"),
    ):
        with pytest.raises(SchemaError, match=text):
            check_projection(fields)
    check_sink([("body", "string"), ("properties", "map<string,string>")], has_topic=True)
    for fields, text in (
        ([("topic", "string")], "'body' .* is missing"),
        ([("body", "binary")], "set the option 'topic'"),
        ([("body", "int")], "column 'body' is int; allowed is binary or string"),
        ([("body", "binary"), ("value", "int")], "column 'value' cannot be written"),
    ):
        with pytest.raises(SchemaError, match=text):
            check_sink(fields, has_topic=False)


def test_schemas_of_shapes() -> None:
    check_sink([("body", "binary"), ("mqttTopic", "string"), ("expiresAt", "timestamp")], False, "mqtt")
    check_sink(
        [("value", "string"), ("partition", "int"), ("headers", "array<struct<key:string,value:binary>>")],
        True,
        "kafka",
    )
    for shape, fields, text in (
        ("mqtt", [("mqttTopic", "string")], r"'body' \(binary or string\) is missing"),
        ("mqtt", [("body", "string")], "set the option 'topic', or give each row its own in a column 'mqttTopic'"),
        ("mqtt", [("body", "string"), ("retain", "int")], "'retain' is int; allowed is boolean"),
        ("amqp", [("body", "string"), ("retain", "boolean")], "'retain' cannot be written; allowed are"),
        ("amqp", [("body", "string"), ("priority", "bigint")], "'priority' is bigint; allowed is int"),
        ("cloudevents", [("data", "string"), ("id", "string"), ("type", "string")], "'source' .* is missing"),
        ("kafka", [("value", "string"), ("partition", "bigint")], "'partition' is bigint; allowed is int"),
        ("kafka", [("value", "string"), ("offset", "bigint")], "'offset' cannot be written; allowed are value, key,"),
    ):
        with pytest.raises(SchemaError, match=text):
            check_sink(fields, False, shape)


def test_kafkas_names() -> None:
    options = for_stream(parse({"subscribe": "a,b", "kafka.group.id": "g", "maxOffsetsPerTrigger": "7"}))
    assert (options.topics, options.group, options.rows_per_trigger) == (("a", "b"), "g", 7)
    with pytest.raises(OptionError, match="subscribe and topic are the same option: leave one out"):
        parse({"subscribe": "a", "topic": "a"})


def test_of_several_starts_the_first_of_kafkas_order_counts() -> None:
    given = {"topic": "a", "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a": {"0": 5}}'}
    bound = parse(given).starting
    assert bound is not None
    assert (bound.option, bound.times) == ("startingOffsetsByTimestamp", {MessageQueue("a", "", 0): 5})
    bound = parse({**given, "startingTimestamp": "99"}).starting
    assert bound is not None
    assert (bound.option, bound.time_ms) == ("startingTimestamp", 99)


def test_assigned_queues() -> None:
    assert parse({"assign": '{"a": [0, 2], "b": {"x": [1]}}'}).assigned == {("a", "", 0), ("a", "", 2), ("b", "x", 1)}
    assert parse({"assign": '{"b": [0], "a": [1]}'}).topics == ("a", "b")


@pytest.mark.parametrize(
    ("use", "options", "text"),
    [
        (for_batch, {"topic": "a", "assign": '{"a": [0]}'}, "topic and assign exclude each other"),
        (for_batch, {"subscribe": "a", "subscribePattern": "a.*"}, "topic and subscribePattern exclude each other"),
        (for_batch, {"subscribePattern": "("}, r"subscribePattern is '\(': .*allowed is a regular expression"),
        (for_batch, {"assign": '{"a": 3}'}, "assign is .*allowed is JSON like"),
        (for_batch, {"topic": "a", "tags": "x", "sql": "n = 1"}, "tags and sql exclude each other"),
        (
            for_batch,
            {"topic": "a", "startingTimestamp": "soon"},
            "startingTimestamp is 'soon': allowed are milliseconds",
        ),
        (for_batch, {"topic": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "allowed are milliseconds since"),
        (for_batch, {"topic": "a", "startingOffsetsByTimestampStrategy": "x"}, "allowed are error, latest"),
        (for_batch, {"topic": "a", "startingOffsetsByTimestampStrategy": "latest"}, "is for a starting timestamp"),
        (
            for_stream,
            {"topic": "a", "maxTriggerDelay": "5s"},
            "maxTriggerDelay limits the waiting for minOffsetsPerTrigger",
        ),
        (for_stream, {"topic": "a", "maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon': allowed is a time like"),
        (for_stream, {"topic": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "the least must not be"),
        (for_stream, {"topic": "a", "commitOffsets": "true"}, "commitOffsets needs a group of its own"),
        (for_stream, {"topic": "a", "consumerGroup": "no group!"}, "consumerGroup: "),
    ],
)
def test_options_that_contradict_each_other(use: Any, options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        use(parse(options))


def test_durations() -> None:
    seconds = [parse({"maxTriggerDelay": text}).delay_s for text in ("250", "500ms", "30s", "15m", "1h")]
    assert seconds == [0.25, 0.5, 30, 900, 3600]
