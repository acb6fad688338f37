import logging

import pytest

from gantrymq.client.routes import MessageQueue
from gantrymq.spark.offsets import OptionError
from gantrymq.spark.options import for_batch, for_sink, for_stream, parse
from gantrymq.spark.schema import SchemaError, check_projection, check_sink


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    options = for_stream(parse({"TOPIC": " a, b,a "}))
    assert options.topics == ("a", "b")
    assert options.nameservers == ["127.0.0.1:9876"]
    assert (options.starting, options.ending, options.tags) == ("", "latest", ())
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
    assert options.starting == {MessageQueue("a", "b", 0): 3}
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


def test_unknown_options_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse({"topic": "a", "startingOffset": "latest", "checkpointLocation": "/x"})
    assert "did you mean startingOffsets?" in caplog.text
    assert "checkpoint" not in caplog.text


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
