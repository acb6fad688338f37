"""What users get wrong, as data: each is an error that names what was given and what to do, and each has its line in docs/spark_errors.md."""

import re
from pathlib import Path
from typing import Any

import pytest

from core.tests.spark.planning.test_planner import Q0, Q1, Clock, FakeEnds, planner
from gantrymq.spark.planning.offsets import DataLossError, OptionError, from_document, not_there
from gantrymq.spark.planning.options import for_batch, for_sink, for_stream, parse
from gantrymq.spark.planning.planner import LATEST_AGE_S, Planner
from gantrymq.spark.schema import SchemaError, check_projection, check_sink

pa = pytest.importorskip("pyarrow")
from gantrymq.spark.writing.rows import BadRow, encode_rows  # noqa: E402

PAGE = Path(__file__).parents[4] / "docs" / "spark_errors.md"
T = {"topic": "t"}
HUGE = "9" * 20

OPTIONS: list[tuple[Any, dict[str, str], str]] = [
    *[(use, {**T, "tag": "x"}, "no option 'tag'; did you mean tags?") for use in (for_batch, for_stream, for_sink)],
    (for_batch, {**T, "startingOfsets": "latest"}, "did you mean startingOffsets?"),
    (for_batch, {**T, "tags": ""}, "tags is empty: leave it out to read all messages"),
    (for_stream, {**T, "sql": " "}, "sql is empty: leave it out to read all messages"),
    (for_batch, {**T, "xyzzy": "1"}, "known are nameserver, topic"),
    (for_batch, {**T, "kafka.bootstrap.servers": "h:9092"}, "set nameserver to HOST:PORT"),
    (for_batch, {**T, "kafka.security.protocol": "SSL"}, "there is no Kafka client here"),
    (for_batch, {**T, "groupIdPrefix": "x"}, "set consumerGroup to the whole name"),
    (for_batch, {**T, "path": "/data"}, "path is '/data': messages have no path"),
    (for_sink, {"path": "/data"}, "name the topic with the option 'topic'"),
    (for_batch, {}, "set the option 'topic'"),
    (for_batch, {"topic": " , "}, "set the option 'topic'"),
    (for_stream, {"subscribePattern": ""}, "set the option 'topic'"),
    (for_stream, {"subscribePattern": "("}, "subscribePattern is '('"),
    (for_batch, {"topic": "a b"}, "topic: topic name 'a b'"),
    (for_batch, {"topic": "t" * 300}, "topic: the topic name has 300 characters"),
    (for_batch, {**T, "subscribe": "t"}, "subscribe and topic are the same option"),
    (for_batch, {**T, "subscribePattern": "t.*"}, "topic and subscribePattern exclude each other"),
    (for_batch, {**T, "mqttFilter": "a/#"}, "topic and mqttFilter exclude each other"),
    (for_batch, {"mqttFilter": "a/#/b"}, "mqttFilter is 'a/#/b'"),
    (for_batch, {"mqttFilter": ""}, "mqttFilter is ''"),
    (for_batch, {"mqttFilter": "a/#", "tags": "x"}, "tags and mqttFilter exclude each other"),
    (for_batch, {"exchange": "e", "sql": "a = 1"}, "sql and exchange exclude each other"),
    (for_batch, {"exchange": ""}, "bindingKey must be a queue's name"),
    (for_batch, {**T, "bindingKey": "k"}, "bindingKey is of an exchange"),
    (for_batch, {**T, "tags": "x", "sql": "a = 1"}, "tags and sql exclude each other"),
    (for_batch, {**T, "tags": "x ||"}, "tags: tag expression"),
    (for_batch, {**T, "nameserver": "nowhere"}, "nameserver: address 'nowhere'"),
    (for_batch, {**T, "nameserver": "h:http"}, "nameserver: "),
    (for_batch, {**T, "consumerGroup": "no group!"}, "consumerGroup: "),
    *[(for_batch, {**T, name: "maybe"}, f"{name} is 'maybe': allowed are true and false") for name in ("failOnDataLoss", "checkCrc", "pushFilters", "includeHeaders")],
    (for_stream, {**T, "commitOffsets": "1"}, "commitOffsets is '1'"),
    *[(for_stream, {**T, name: value}, f"{name} is {value!r}: allowed is a number") for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition") for value in ("-1", "1e6", HUGE)],
    (for_batch, {**T, "minPartitions": ""}, "minPartitions is ''"),
    (for_batch, {**T, "columns": "parquet"}, "columns is 'parquet': allowed are mqtt, amqp"),
    (for_sink, {**T, "mode": "exactly"}, "mode is 'exactly': allowed are atLeastOnce"),
    (for_batch, {**T, "includeHeaders": "true"}, "includeHeaders is for columns = kafka"),
    (for_batch, {**T, "startingOffsets": "latest"}, "a batch would always be empty"),
    (for_batch, {**T, "endingOffsets": "earliest"}, "a batch would always be empty"),
    (for_stream, {**T, "endingOffsets": "latest"}, "has no meaning for a stream"),
    (for_stream, {**T, "pushFilters": "true"}, "has no meaning for a stream"),
    (for_batch, {**T, "maxOffsetsPerTrigger": "5"}, "has no meaning for a batch"),
    (for_sink, {**T, "tags": "x"}, "has no meaning for writing"),
    (for_batch, {**T, "mode": "idempotent"}, "mode has no meaning for a batch"),
    (for_sink, {"topic": "a,b"}, "the sink takes one"),
    *[(for_stream, {**T, "startingTimestamp": text}, f"startingTimestamp is '{text}': allowed are milliseconds") for text in ("soon", "-1", "2026-01-01", HUGE)],
    (for_stream, {**T, "startingOffsetsByTimestampStrategy": "latest"}, "is for a starting timestamp"),
    (for_stream, {**T, "startingOffsetsByTimestampStrategy": "x"}, "allowed are error, latest"),
    (for_stream, {**T, "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "startingOffsetsByTimestamp of t//0 is -1"),
    (for_stream, {**T, "maxTriggerDelay": "5s"}, "limits the waiting for minOffsetsPerTrigger"),
    (for_stream, {**T, "maxTriggerDelay": "soon", "minOffsetsPerTrigger": "5"}, "allowed is a time like"),
    (for_stream, {**T, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "the least must not be above the most"),
    (for_stream, {**T, "commitOffsets": "true"}, "commitOffsets needs a group of its own"),
    *[(for_batch, {**T, "startingOffsets": text}, "startingOffsets is ") for text in ("", "EARLIER", "3", "[]", '"latest"', '{"t":{"0":1}', "[" * 99_999)],
    *[(for_batch, {**T, "startingOffsets": text}, "startingOffsets: offsets ") for text in ('{"t":3}', '{"t":{"x":1}}', '{"t":{"0":"1"}}', '{"t":{"0":1.5}}', '{"t":{"0":true}}', '{"t":{"0":null}}', '{"t":{"0":-3}}', f'{{"t":{{"0":{HUGE}}}}}')],
    (for_batch, {**T, "startingOffsets": '{"t":{"0":1},"t":{"1":2}}'}, "'t' stands twice; leave one out"),
    (for_batch, {**T, "endingOffsets": '{"t":{"0":1,"0":2}}'}, "'0' stands twice; leave one out"),
    *[(for_batch, {"assign": text}, "assign is ") for text in ("", "t", "[0]", '{"t":3}', '{"t":["0"]}', '{"t":[-1]}', '{"t":[true]}')],
    *[(for_batch, {"assign": text}, "topic 't' has an empty list") for text in ('{"t":[]}', '{"u":[0],"t":[]}', '{"t":{"b":[]}}')],
    (for_batch, {"assign": '{"t":[0],"t":[1]}'}, "'t' stands twice; leave one out"),
]  # fmt: skip

OFFSETS: list[tuple[dict[str, str], str]] = [
    ({"minPartitions": "100001"}, "minPartitions is 100001: allowed are at most 100000"),
    ({"startingOffsets": '{"t":{"b":{"0":101}}}'}, "startingOffsets of t/b/0 is 101, but the queue ends at 100: allowed are"),
    ({"endingOffsets": '{"t":{"b":{"1":151}}}'}, "endingOffsets of t/b/1 is 151, but the queue ends at 150"),
    ({"startingOffsets": '{"t":{"7":1}}'}, "startingOffsets names t/7, which does not exist; topic 't' has t/b/0, t/b/1"),
    ({"startingOffsets": '{"t":{"x":{"0":1}}}'}, "startingOffsets names t/x/0, which does not exist"),
    ({"startingOffsets": '{"u":{"0":1}}'}, "startingOffsets names topic 'u', which the option topic does not"),
    ({"startingOffsets": '{"t":{"0":40}}', "endingOffsets": '{"t":{"0":30}}'}, "startingOffsets of t/b/0 is 40, but the end is 30"),
    ({"startingTimestamp": "99999999"}, "but it has no message of that time or later"),
    ({"subscribePattern": "nothing.*"}, "subscribePattern is 'nothing.*': no topic matches it"),
    ({"assign": '{"t":[5]}'}, "assign names queue t/5, which does not exist; there is t/b/0, t/b/1"),
    ({"startingOffsets": '{"t":{"1":3}}'}, "queue 1: offsets 3 to 49 (47 messages) are gone: the broker begins at offset 50"),
]  # fmt: skip

BODY = ("body", "binary")
SCHEMAS: list[tuple[list[tuple[str, str]], str]] = [
    ([("tag", "string")], "the column 'body' (binary or string) is missing"),
    ([BODY, BODY], "column 'body' stands twice: drop one"),
    ([BODY, ("tag", "string"), ("tag", "string")], "column 'tag' stands twice: drop one"),
    ([("body", "int")], "column 'body' is int; allowed is"),
    ([BODY, ("value", "int")], "column 'value' cannot be written; allowed are"),
    ([BODY, ("properties", "map<string,int>")], "column 'properties' is map<string,int>; allowed is"),
    ([BODY], "set the option 'topic', or give each row its own in a column 'topic'"),
]
ROWS: list[tuple[dict[str, Any], str]] = [
    ({"body": pa.array([b"", None], pa.binary())}, "(topic 't'): the body is null; an empty one is allowed"),
    ({"topic": pa.array(["t", "a b"])}, "(topic 'a b'): topic name"),
    ({"tag": pa.array(["a", "a\x01"])}, "holds U+0001 or U+0002"),
    ({"tag": pa.array(["a", "x" * 40_000])}, "its tag has over"),
]


def _option(use: Any, options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        use(parse(options))
    return str(caught.value)


def _batch(options: dict[str, str]) -> str:
    with pytest.raises((OptionError, DataLossError)) as caught:
        planner(FakeEnds(), **options).batch()
    return str(caught.value)


def _schema(fields: list[tuple[str, str]]) -> str:
    with pytest.raises(SchemaError) as caught:
        check_sink(fields, has_topic=False)
    return str(caught.value)


def _row(columns: dict[str, Any]) -> str:
    with pytest.raises(BadRow) as caught:
        encode_rows({"body": pa.array([b"a", b"b"]), **columns}, "t")
    assert caught.value.row == 1
    return str(caught.value)


def _went_back(**options: str) -> str:
    """A checkpoint of offset 100, and a broker that has 70."""
    ends = FakeEnds()
    plan = planner(ends, **options)
    ends.ends[Q0] = (0, 70)
    if options:
        plan.freeze()
    with pytest.raises(DataLossError) as caught:
        plan.latest({Q0: 100, Q1: 150}, 0)
    return str(caught.value)


@pytest.mark.parametrize(("use", "options", "text"), OPTIONS)
def test_options(use: Any, options: dict[str, str], text: str) -> None:
    assert text in _option(use, options)


@pytest.mark.parametrize(("options", "text"), OFFSETS)
def test_offsets(options: dict[str, str], text: str) -> None:
    assert text in _batch(options)


@pytest.mark.parametrize(("fields", "text"), SCHEMAS)
def test_schemas_of_the_sink(fields: list[tuple[str, str]], text: str) -> None:
    assert text in _schema(fields)


@pytest.mark.parametrize(("columns", "text"), ROWS)
def test_rows(columns: dict[str, Any], text: str) -> None:
    assert text in _row(columns)


@pytest.mark.parametrize("options", [{}, {"startingOffsets": "earliest"}], ids=["trigger", "available now"])
def test_a_broker_with_an_older_directory(options: dict[str, str]) -> None:
    assert "queue 0: offsets 70 to 99 (30 messages) are gone: the broker ends at offset 70" in _went_back(**options)


def test_one_that_goes_on_without_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, ends = Clock(), FakeEnds()
    plan = planner(ends, clock, failOnDataLoss="false")
    ends.ends[Q0] = (0, 70)
    for offset in (100, 110, 150):
        clock.now += LATEST_AGE_S
        assert plan.latest({Q0: 100, Q1: offset}, 0) == {Q0: 100, Q1: 150}
    assert len([record for record in caplog.records if "the broker ends at offset 70" in record.message]) == 1


def test_available_now_that_begins_at_latest_is_no_loss() -> None:
    """Messages that came between its making and its first question are not waited for."""
    ends = FakeEnds()
    plan = planner(ends)
    plan.freeze()
    ends.ends[Q0] = (0, 105)
    start = plan.initial()
    assert plan.latest(start, 0) == start == {Q0: 105, Q1: 150}


def _too_many_tasks() -> str:
    ends = FakeEnds()
    ends.ends[Q0] = (0, 300_000)
    with pytest.raises(OptionError) as caught:
        planner(ends, maxRecordsPerPartition="2").batch()
    assert len(planner(ends, maxRecordsPerPartition="4").batch()) == 75_025
    return str(caught.value)


def test_a_batch_is_not_cut_into_more_tasks_than_a_driver_bears() -> None:
    assert "maxRecordsPerPartition is 2: 300100 messages would be 150050 tasks" in _too_many_tasks()


def _absent(**options: str) -> tuple[FakeEnds, Planner]:
    """Q1 is in no route."""
    ends = FakeEnds()
    del ends.ends[Q1]
    return ends, planner(ends, **options)


def _ends_without() -> str:
    _, plan = _absent()
    plan.freeze()
    with pytest.raises(DataLossError) as caught:
        plan.latest({Q0: 50, Q1: 100}, 0)
    return str(caught.value)


def test_available_now_does_not_end_without_a_queue() -> None:
    assert "queue 1: this query has read it up to offset 100, and no broker has it now" in _ends_without()
    _, plan = _absent(failOnDataLoss="false")
    plan.freeze()
    assert plan.latest({Q0: 50, Q1: 100}, 0) == {Q0: 100, Q1: 100}


def test_a_stream_goes_on_with_a_queue_that_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    ends = FakeEnds()
    plan = planner(ends, clock)
    kept = ends.ends.pop(Q1)
    for offset in (50, 60):
        clock.now += LATEST_AGE_S
        assert plan.latest({Q0: offset, Q1: 100}, 0) == {Q0: 100, Q1: 100}
    assert [record.message for record in caplog.records if "no broker has it now" in record.message] == [
        str(not_there(Q1, 100))
    ]
    ends.ends[Q1] = kept
    clock.now += LATEST_AGE_S
    assert plan.latest({Q0: 100, Q1: 100}, 0) == {Q0: 100, Q1: 150}


def _others() -> list[str]:
    ends = FakeEnds()
    plan = planner(ends)
    start = {Q0: 50, Q1: 100}
    marks = plan.marks({}, {Q0: 0, Q1: 50}, plan.latest(start, 0) | start)
    ends.later = 5
    found = []
    with pytest.raises(DataLossError) as anew:
        plan.ranges(start, {Q0: 100, Q1: 150}, marks)
    found.append(str(anew.value))
    del ends.ends[Q1]
    with pytest.raises(DataLossError) as gone:
        planner(ends).ranges(start, {Q0: 50, Q1: 150})
    found.append(str(gone.value))
    with pytest.raises(SchemaError) as projected:
        check_projection([("nothing", "string")])
    found.append(str(projected.value))
    with pytest.raises(OptionError) as document:
        from_document({"t": 3})
    return [*found, str(document.value)]


def test_the_page_has_every_message_and_no_other() -> None:
    """`...` in the page's first column stands for any text."""
    rows = re.findall(r"^\| `(.+?)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 30
    forms = {row: re.compile(".*".join(map(re.escape, row.split("..."))), re.DOTALL) for row in rows}
    messages = [_option(use, options) for use, options, _ in OPTIONS] + [_batch(options) for options, _ in OFFSETS]
    messages += [_schema(fields) for fields, _ in SCHEMAS] + [_row(columns) for columns, _ in ROWS]
    messages += [_went_back(), _ends_without(), _too_many_tasks(), *_others()]
    unknown = [message[:200] for message in messages if not any(form.search(message) for form in forms.values())]
    unused = [row for row, form in forms.items() if not any(map(form.search, messages))]
    assert (unknown, unused) == ([], [])
