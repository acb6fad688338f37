"""Options of source and sink, parsed once on the driver."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gantrymq.client.connecting.nameservers import DEFAULT_NAMESERVER, parse_nameservers
from gantrymq.client.consuming.pulling import parse_tags
from gantrymq.model.errors import GantryError
from gantrymq.model.names import check_group, check_topic
from gantrymq.spark.planning.offsets import OFFSET_MAX, Bound, OptionError, parse_json, parse_offsets, parse_times
from gantrymq.spark.planning.selecting import Selected, Selection, binding, mqtt_filter

ROWS_PER_TRIGGER: Final = 1_000_000
"""Default of maxOffsetsPerTrigger: the first batch must not swallow a whole backlog."""
TRIGGER_DELAY: Final = "15m"
"""Default of maxTriggerDelay, as in Spark's Kafka source."""
GROUP: Final = "gantry_spark"
DIGITS_MAX: Final = 19
"""Of a number: those of a long."""

_WHAT: Final = ("topic", "subscribePattern", "assign", "mqttFilter", "exchange")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""Of several the first counts, as in Spark's Kafka source."""
_READING: Final = (
    "nameserver", *_WHAT, *_STARTS, "startingOffsetsByTimestampStrategy", "tags", "sql", "failOnDataLoss", "checkCrc", "consumerGroup",
    "minPartitions", "maxRecordsPerPartition", "columns", "includeHeaders", "bindingKey",
)  # fmt: skip
BATCH: Final = (*_READING, *_ENDS, "pushFilters")
STREAM: Final = (
    *_READING, "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger", "commitOffsets",
)  # fmt: skip
SINK: Final = ("nameserver", "topic", "mode", "columns")
KNOWN: Final = tuple(dict.fromkeys([*BATCH, *STREAM, *SINK]))

SAME_AS: Final = {"subscribe": "topic", "kafka.group.id": "consumerGroup"}
"""Names of Spark's Kafka source that mean what an option here means; all others with the same name are the same."""
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark hands on of its own. (`path` and `paths` come from `load("...")` and `save("...")` alone.)"""
_PLACES: Final = frozenset({"path", "paths"})
_RETRIES: Final = "leave it out: servers that are away are asked again for 30 s"
_INSTEAD: Final = {
    "kafka.bootstrap.servers": "set nameserver to HOST:PORT of a GantryMQ or RocketMQ nameserver",
    "groupidprefix": "set consumerGroup to the whole name",
    "kafkaconsumer.polltimeoutms": _RETRIES,
    "fetchoffset.numretries": _RETRIES,
    "fetchoffset.retryintervalms": _RETRIES,
}
"""What users of Spark's Kafka source write that has no equal here, and what to do."""

AT_LEAST_ONCE: Final = "atLeastOnce"
MODES: Final = (AT_LEAST_ONCE, "idempotent", "exactlyOnce")
"""Values of `mode`."""
PROTOCOLS: Final = ("mqtt", "amqp", "cloudevents", "kafka")
"""Values of `columns`."""

_UNITS_S: Final = {"ms": 0.001, "": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Options:
    """What a reader or writer was told. `topics`: of the source; the sink has at most one, for rows without a topic."""

    nameserver: str
    topics: tuple[str, ...]
    pattern: str
    """Regular expression that a topic's whole name matches; instead of `topics`, or empty."""
    assigned: frozenset[tuple[str, str, int]]
    """(topic, broker or "" for each, queue): if there are any, no other queues are read."""
    starting: Bound | None
    ending: Bound | None
    late_start: str
    """Where a queue begins that has nothing from its starting timestamp on: `error` or `latest`."""
    tags: tuple[str, ...]
    sql: str
    fail_on_data_loss: bool
    rows_per_trigger: int
    """0: no limit; so are the other limits."""
    rows_min: int
    delay_s: float
    bytes_per_trigger: int
    partitions_min: int
    rows_per_partition: int
    group: str
    commit_offsets: bool
    push_filters: bool
    check_crc: bool
    columns: str
    """Whose columns there are besides the source's own; empty: none."""
    include_headers: bool
    mode: str
    """Of the sink: what becomes of rows that are sent again."""
    selection: Selection | None
    """What counts of the topics: of an MQTT filter or an AMQP binding."""
    is_set: frozenset[str]
    """Names, in lower case, of the options that were given."""

    @property
    def nameservers(self) -> list[str]:
        """Addresses of the nameservers."""
        return parse_nameservers(self.nameserver)


def parse(options: Mapping[str, str]) -> Options:
    """Raises OptionError. Names are case-insensitive, as everywhere in Spark."""
    given = _own_names({name.lower(): value for name, value in options.items()})
    nameserver = given.get("nameserver") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESERVER
    _checked("nameserver", parse_nameservers, nameserver)
    assigned = _assigned(given["assign"]) if "assign" in given else frozenset()
    names = [name.strip() for name in given.get("topic", "").split(",")] + sorted({topic for topic, _, _ in assigned})
    selected = _selected(given)
    names += [selected.topic] if selected else []
    topics = tuple(dict.fromkeys(filter(None, names)))
    for topic in topics:
        _checked("topic", check_topic, topic)
    for filtering in ("tags", "sql"):
        if not given.get(filtering, "*").strip():
            raise OptionError(f"{filtering} is empty: leave it out to read all messages")
    group = given.get("consumergroup", GROUP)
    _checked("consumerGroup", check_group, group)
    return Options(
        nameserver=nameserver,
        topics=topics,
        pattern=selected.topics if selected else _pattern(given.get("subscribepattern", "")),
        assigned=assigned,
        starting=_bound(given, _STARTS, "earliest"),
        ending=_bound(given, _ENDS, "latest"),
        late_start=_one_of(given, "startingOffsetsByTimestampStrategy", "error", "latest"),
        tags=tuple(sorted(_checked("tags", parse_tags, given.get("tags", "*")))),
        sql=given.get("sql", "").strip() or (selected.sql if selected else ""),
        fail_on_data_loss=_truth(given, "failOnDataLoss", True),
        rows_per_trigger=_count(given, "maxOffsetsPerTrigger", ROWS_PER_TRIGGER),
        rows_min=_count(given, "minOffsetsPerTrigger"),
        delay_s=_duration("maxTriggerDelay", given.get("maxtriggerdelay", TRIGGER_DELAY)),
        bytes_per_trigger=_count(given, "maxBytesPerTrigger"),
        partitions_min=_count(given, "minPartitions"),
        rows_per_partition=_count(given, "maxRecordsPerPartition"),
        group=group,
        commit_offsets=_truth(given, "commitOffsets", False),
        push_filters=_truth(given, "pushFilters", False),
        check_crc=_truth(given, "checkCrc", False),
        columns=_one_of(given, "columns", "", *PROTOCOLS),
        include_headers=_truth(given, "includeHeaders", False),
        mode=_one_of(given, "mode", *MODES),
        selection=selected.selection if selected else None,
        is_set=frozenset(given),
    )


def _selected(given: Mapping[str, str]) -> Selected | None:
    if "mqttfilter" in given:
        return mqtt_filter(given["mqttfilter"])
    return (
        binding(given["exchange"], given.get("bindingkey", "#" if given["exchange"] else ""))
        if "exchange" in given
        else None
    )


def _own_names(given: dict[str, str]) -> dict[str, str]:
    """By this source's names. Raises OptionError for one that does not exist, or that is given twice under two names."""
    for name, own in SAME_AS.items():
        if name in given:
            if own.lower() in given:
                raise OptionError(f"{name} and {own} are the same option: leave one out")
            given[own.lower()] = given.pop(name)
    known = {name.lower(): name for name in KNOWN}
    for name in sorted(given.keys() - known.keys() - _SPARKS_OWN):
        if name in _PLACES:
            raise OptionError(
                f"{name} is {given[name]!r}: messages have no path; name the topic with the option 'topic'"
            )
        if name in _INSTEAD:
            raise OptionError(f"there is no option {name!r}; {_INSTEAD[name]}")
        if name.startswith("kafka."):
            raise OptionError(f"there is no option {name!r}; leave it out: there is no Kafka client here")
        near = [known[like] for like in difflib.get_close_matches(name, known, 1)]
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN)}"
        raise OptionError(f"there is no option {name!r}; {hint}")
    return given


def _only(options: Options, allowed: tuple[str, ...], where: str) -> None:
    """Raise OptionError for an option that is of another use."""
    for name in KNOWN:
        if name.lower() in options.is_set and name not in allowed:
            raise OptionError(f"{name} has no meaning for {where}: leave it out; allowed are {', '.join(allowed)}")


def for_batch(options: Options) -> Options:
    """Checked for a batch read."""
    _only(options, BATCH, "a batch")
    _check_reading(options)
    if options.starting is not None and _is_word(options.starting, "latest"):
        raise OptionError("startingOffsets is 'latest': a batch would always be empty; allowed are earliest and JSON")
    if options.ending is not None and _is_word(options.ending, "earliest"):
        raise OptionError("endingOffsets is 'earliest': a batch would always be empty; allowed are latest and JSON")
    return options


def for_stream(options: Options) -> Options:
    """Checked for a streaming read."""
    for name in _ENDS:
        if name.lower() in options.is_set:
            raise OptionError(f"{name} has no meaning for a stream; use trigger(availableNow=True) to stop at the end")
    if "pushfilters" in options.is_set:
        raise OptionError(
            "pushFilters has no meaning for a stream: Spark pushes filters to batches only; use tags or sql"
        )
    _only(options, STREAM, "a stream")
    _check_reading(options)
    if "maxtriggerdelay" in options.is_set and not options.rows_min:
        raise OptionError("maxTriggerDelay limits the waiting for minOffsetsPerTrigger: set that too, or leave it out")
    if options.rows_per_trigger and options.rows_min > options.rows_per_trigger:
        text = f"minOffsetsPerTrigger is {options.rows_min}, maxOffsetsPerTrigger {options.rows_per_trigger}"
        raise OptionError(f"{text}: the least must not be above the most")
    if options.commit_offsets and options.group == GROUP:
        raise OptionError("commitOffsets needs a group of its own, whose lag it is: set consumerGroup")
    return options


def for_sink(options: Options) -> Options:
    """Checked for writing."""
    _only(options, SINK, "writing")
    if len(options.topics) > 1:
        raise OptionError(
            f"topic is {','.join(options.topics)!r}: the sink takes one; use a column 'topic' for several"
        )
    return options


def _check_reading(options: Options) -> None:
    chosen = [name for name in _WHAT if name.lower() in options.is_set]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join(chosen)} exclude each other: leave all but one out")
    if not options.topics and not options.pattern:
        raise OptionError(
            "set the option 'topic' to the topic to read, or to several joined by commas; or subscribePattern, assign, mqttFilter, exchange"
        )
    if "bindingkey" in options.is_set and "exchange" not in options.is_set:
        raise OptionError("bindingKey is of an exchange: set the option exchange, empty for the default one")
    for name in ("tags", "sql"):
        if options.selection is not None and name in options.is_set:
            raise OptionError(f"{name} and {chosen[0]} exclude each other: leave one out, and filter the rows in Spark")
    if options.tags and options.sql:
        raise OptionError("tags and sql exclude each other; in sql a tag is the property TAGS: sql = \"TAGS = 'a'\"")
    if options.late_start == "latest" and (
        options.starting is None or not (options.starting.times or options.starting.time_ms >= 0)
    ):
        raise OptionError("startingOffsetsByTimestampStrategy is for a starting timestamp: set one, or leave it out")

    if "includeheaders" in options.is_set and options.columns != "kafka":
        raise OptionError("includeHeaders is for columns = kafka: leave it out; the column properties has them")


def _is_word(bound: Bound, word: str) -> bool:
    return bound.word == word and not bound.offsets and not bound.times and bound.time_ms < 0


def _bound(given: Mapping[str, str], names: tuple[str, str, str], word: str) -> Bound | None:
    at_time, by_time, by_offset = names
    if at_time.lower() in given:
        text = given[at_time.lower()]
        if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and int(text) <= OFFSET_MAX):
            raise OptionError(f"{at_time} is {text!r}: allowed are milliseconds since 1970")
        return Bound(at_time, word, time_ms=int(text))
    if by_time.lower() in given:
        return parse_times(by_time, given[by_time.lower()], word)
    return parse_offsets(by_offset, given[by_offset.lower()], word) if by_offset.lower() in given else None


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern is {text!r}: {error}; allowed is a regular expression of Python") from None
    return text


def _assigned(text: str) -> frozenset[tuple[str, str, int]]:
    """`{"topic": [queue, ...]}`, as Kafka's, or `{"topic": {"broker": [queue, ...]}}`."""
    found: set[tuple[str, str, int]] = set()
    try:
        for topic, brokers in parse_json("assign", text).items():
            for broker, queues in (brokers if isinstance(brokers, dict) else {"": brokers}).items():
                chosen = {(topic, broker, _queue_id(queue)) for queue in queues}
                if not chosen:
                    raise OptionError(
                        f"assign is {text!r}: topic {topic!r} has an empty list; name its queues, or leave it out"
                    )
                found |= chosen
    except OptionError:
        raise
    except (AttributeError, TypeError, ValueError):
        form = '{"topic": [0, 1]} or {"topic": {"broker": [0, 1]}}'
        raise OptionError(f"assign is {text!r}: allowed is JSON like {form}") from None
    return frozenset(found)


def _queue_id(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


def _checked(name: str, check: Any, text: str) -> Any:
    try:
        return check(text)
    except GantryError as error:
        raise OptionError(f"{name}: {error.text}") from None


def _one_of(given: Mapping[str, str], name: str, *allowed: str) -> str:
    """One of the words, without one the first."""
    text = given.get(name.lower(), allowed[0])
    for word in allowed:
        if text.lower() == word.lower():
            return word
    raise OptionError(f"{name} is {text!r}: allowed are {', '.join(filter(None, allowed))}")


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is {given[name.lower()]!r}: allowed are true and false")
    return text == "true"


def _count(given: Mapping[str, str], name: str, default: int = 0) -> int:
    text = given.get(name.lower(), str(default))
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        return int(text)
    raise OptionError(f"{name} is {text!r}: allowed is a number, 0 for no limit")


def _duration(name: str, text: str) -> float:
    """Seconds of `15m`, `30s`, `500ms`; a number alone is milliseconds, as in Spark."""
    parts = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.strip().lower())
    if parts is None or parts[2] not in _UNITS_S:
        raise OptionError(f"{name} is {text!r}: allowed is a time like 500ms, 30s, 15m, 1h")
    return int(parts[1]) * _UNITS_S[parts[2]]
