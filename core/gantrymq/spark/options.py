"""Options of source and sink, parsed once on the driver."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gantrymq.client.connecting.nameservers import DEFAULT_NAMESERVER, parse_nameservers
from gantrymq.client.consuming.pulling import parse_tags
from gantrymq.model.errors import GantryError
from gantrymq.model.names import check_topic
from gantrymq.spark.offsets import Offsets, OptionError, parse_offsets

ROWS_PER_TRIGGER: Final = 1_000_000
"""Default of maxOffsetsPerTrigger: the first batch must not swallow a whole backlog."""
GROUP: Final = "gantry_spark"

_READING: Final = ("nameserver", "topic", "startingOffsets", "tags", "failOnDataLoss", "consumerGroup", "checkCrc")
BATCH: Final = (*_READING, "endingOffsets")
STREAM: Final = (*_READING, "maxOffsetsPerTrigger")
SINK: Final = ("nameserver", "topic")
KNOWN: Final = tuple(dict.fromkeys([*BATCH, *STREAM, *SINK]))

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark hands on of its own. (`path` and `paths` come from `load("...")` and `save("...")` alone.)"""
_PLACES: Final = frozenset({"path", "paths"})
_KAFKAS: Final = {
    "subscribe": "topic", "kafka.bootstrap.servers": "nameserver", "kafka.group.id": "consumerGroup", "groupidprefix": "consumerGroup",
}  # fmt: skip
"""What users of Spark's Kafka source write, and what it is called here."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a reader or writer was told. `topics`: of the source; the sink has at most one, for rows without a topic."""

    nameserver: str
    topics: tuple[str, ...]
    starting: str | Offsets
    ending: str | Offsets
    tags: tuple[str, ...]
    fail_on_data_loss: bool
    rows_per_trigger: int
    """0: no limit."""
    group: str
    check_crc: bool
    is_set: frozenset[str]
    """Names, in lower case, of the options that were given."""

    @property
    def nameservers(self) -> list[str]:
        """Addresses of the nameservers."""
        return parse_nameservers(self.nameserver)


def parse(options: Mapping[str, str]) -> Options:
    """Raises OptionError. Names are case-insensitive, as everywhere in Spark."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    nameserver = given.get("nameserver") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESERVER
    try:
        parse_nameservers(nameserver)
    except GantryError as error:
        raise OptionError(f"nameserver: {error.text}") from None
    topics = tuple(dict.fromkeys(topic.strip() for topic in given.get("topic", "").split(",") if topic.strip()))
    for topic in topics:
        try:
            check_topic(topic)
        except GantryError as error:
            raise OptionError(f"topic: {error.text}") from None
    try:
        tags = tuple(sorted(parse_tags(given.get("tags", "*"))))
    except GantryError as error:
        raise OptionError(f"tags: {error.text}") from None
    return Options(
        nameserver,
        topics,
        parse_offsets("startingOffsets", given["startingoffsets"]) if "startingoffsets" in given else "",
        parse_offsets("endingOffsets", given.get("endingoffsets", "latest")),
        tags,
        _truth("failOnDataLoss", given.get("failondataloss", "true")),
        _count("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger", str(ROWS_PER_TRIGGER))),
        given.get("consumergroup", GROUP),
        _truth("checkCrc", given.get("checkcrc", "false")),
        frozenset(given),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    for name in sorted(given.keys() - known.keys() - _SPARKS_OWN):
        if name in _PLACES:
            raise OptionError(
                f"{name} is {given[name]!r}: messages have no path; name the topic with the option 'topic'"
            )
        near = [known[like] for like in difflib.get_close_matches(name, known, 1)]
        near = [_KAFKAS[name]] if name in _KAFKAS else near
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN)}"
        raise OptionError(f"there is no option {name!r}; {hint}")


def _only(options: Options, allowed: tuple[str, ...], where: str) -> None:
    """Raise OptionError for an option that is of another use."""
    for name in KNOWN:
        if name.lower() in options.is_set and name not in allowed:
            raise OptionError(f"{name} has no meaning for {where}: leave it out; allowed are {', '.join(allowed)}")


def for_batch(options: Options) -> Options:
    """Checked for a batch read."""
    _only(options, BATCH, "a batch")
    _need_topic(options)
    if options.starting == "latest":
        raise OptionError("startingOffsets is 'latest': a batch would always be empty; allowed are earliest and JSON")
    if options.ending == "earliest":
        raise OptionError("endingOffsets is 'earliest': a batch would always be empty; allowed are latest and JSON")
    return options


def for_stream(options: Options) -> Options:
    """Checked for a streaming read."""
    _need_topic(options)
    if "endingoffsets" in options.is_set:
        raise OptionError(
            "endingOffsets has no meaning for a stream; use trigger(availableNow=True) to stop at the end"
        )
    _only(options, STREAM, "a stream")
    return options


def for_sink(options: Options) -> Options:
    """Checked for writing."""
    _only(options, SINK, "writing")
    if len(options.topics) > 1:
        raise OptionError(
            f"topic is {','.join(options.topics)!r}: the sink takes one; use a column 'topic' for several"
        )
    return options


def _need_topic(options: Options) -> None:
    if not options.topics:
        raise OptionError("set the option 'topic' to the topic to read, or to several joined by commas")


def _truth(name: str, text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise OptionError(f"{name} is {text!r}: allowed are true and false")


def _count(name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise OptionError(f"{name} is {text!r}: allowed is a number of messages, 0 for no limit")
