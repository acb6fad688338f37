"""Rows in the shape of another protocol (`columns` of the sink) into the sink's own columns: the way back of decoding/views.py (docs/spark.md).

A batch at a time. Text that repeats (MQTT topics, routing keys, event types, names) is turned once for each different one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.spark.writing.rows import BadRow

_TEXT: Final = pa.string()
_MAP: Final = pa.map_(_TEXT, _TEXT)
SPECVERSION: Final = "1.0"
CE_REQUIRED: Final = ("id", "source", "type")
_CE_COLUMNS: Final = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_CE_TYPES: Final = "GANTRY_CE_TYPES"
_CE_DATA: Final = "GANTRY_CE_DATA"
_CE_NAME: Final = re.compile(r"[a-z0-9]+")
_TYPE_LETTERS: Final = {"Integer": "i", "Boolean": "b", "String": "e"}
QOS_MAX: Final = 2
PRIORITY_MAX: Final = 255

_SHARED: Final = {
    "contentType": props.CONTENT_TYPE, "correlationId": props.CORRELATION_ID, "replyTo": props.REPLY_TO, "messageId": props.MESSAGE_ID,
}  # fmt: skip
"""Columns that are a property as they stand."""
_AS_THEY_ARE: Final = ("body", "topic", "shardingKey", "expiresAt", "deliverAt")


@dataclass(slots=True)
class Shaped:
    """`columns`: of the sink itself, by name; `extras`: further properties with their texts, null for none."""

    columns: dict[str, Any] = field(default_factory=dict)
    extras: list[tuple[str, Any]] = field(default_factory=list)


def shaped(view: str, batch: pa.RecordBatch) -> Shaped:
    """The rows of `batch`, whose columns are those of `view` (schema.SHAPE_COLUMNS). Raises BadRow."""
    given = {name: batch.column(name) for name in batch.schema.names}
    if not view:
        return Shaped(given)
    result = Shaped({name: given[name] for name in _AS_THEY_ARE if name in given})
    {"mqtt": _mqtt, "amqp": _amqp, "cloudevents": _cloudevents, "kafka": _kafka}[view](given, result, batch.num_rows)
    for name, native in _SHARED.items():
        if name in given:
            result.extras.append((native, given[name]))
    return result


def _turned(column: str, texts: Any, change: Callable[[str], Any], kind: pa.DataType = _TEXT) -> Any:
    """`change` of every text, called once for each different one; null stays null. Raises BadRow where it refuses one."""
    encoded = texts.dictionary_encode()
    values = []
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(change(text))
        except GantryError as error:
            raise BadRow(_row(pc.equal(encoded.indices, place)), f": {column} {text!r}: {error.text}") from None
    return pa.array(values, kind).take(encoded.indices)


def _row(flags: Any) -> int:
    return int(np.argmax(flags.fill_null(False).to_numpy(zero_copy_only=False)))


def _number(column: str, values: Any, most: int) -> Any:
    """Numbers as texts. Raises BadRow for one outside 0 to `most`."""
    wrong = pc.or_(pc.less(values, 0), pc.greater(values, most)).fill_null(False)
    if pc.any(wrong).as_py():
        row = _row(wrong)
        raise BadRow(row, f": {column} is {values[row].as_py()}, allowed are 0 to {most}")
    return values.cast(_TEXT)


def _renamed(column: str, maps: Any, rename: Callable[[str], str | None]) -> Any:
    """A map with other names; pairs for which `rename` gives none are left out. It may raise GantryError."""
    starts = maps.offsets.to_numpy()
    begin, end = int(starts[0]), int(starts[-1])
    rows = np.repeat(np.arange(len(maps)), np.diff(starts))
    try:
        keys = _turned(column, maps.keys.slice(begin, end - begin), rename)
    except BadRow as error:  # the pair's number, so far
        raise BadRow(int(rows[error.row]), str(error)) from None
    keep = keys.is_valid()
    offsets = np.zeros(len(maps) + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows[keep.to_numpy(zero_copy_only=False)], minlength=len(maps)), out=offsets[1:])
    values = maps.items.slice(begin, end - begin)
    return pa.MapArray.from_arrays(pa.array(offsets), keys.filter(keep), values.filter(keep), type=_MAP)


def _refuse(text: str) -> GantryError:
    return GantryError(ErrorCode.NAME_INVALID, text)


def _native_topic(foreign: str) -> str:
    native = names.encode_topic(foreign)
    if names.is_closed_to_gateways(native):
        raise _refuse("it belongs to the system and cannot be written to")
    return native


# --- MQTT


def _mqtt(given: dict[str, Any], result: Shaped, count: int) -> None:
    topics = given.get("mqttTopic")
    if topics is not None:
        result.columns["topic"] = _turned("mqttTopic", topics, _first_level)
        result.columns["tag"] = _turned(
            "mqttTopic", topics, lambda topic: names.encode_tag(topic.split("/")[1:]) or None
        )
    if "userProperties" in given:
        result.columns["properties"] = _renamed("userProperties", given["userProperties"], props.foreign_name)
    if "qos" in given:
        result.extras.append((props.QOS, _number("qos", given["qos"], QOS_MAX)))
    if "retain" in given and pc.any(given["retain"]).as_py():
        wanted = pc.if_else(given["retain"], pa.scalar("1", _TEXT), pa.scalar(None, _TEXT))
        result.extras.append((props.RETAIN_IT, wanted))
    result.extras.append((props.ORIGIN, pa.repeat(pa.scalar("mqtt", _TEXT), count)))


def _first_level(topic: str) -> str:
    if not topic or "+" in topic or "#" in topic:
        raise _refuse("a topic to publish to is not empty and has no wildcards")
    return _native_topic(topic.split("/", 1)[0])


# --- AMQP


def _amqp(given: dict[str, Any], result: Shaped, count: int) -> None:
    nothing = pa.nulls(count, _TEXT)
    exchange, key = given.get("exchange", nothing), given.get("routingKey", nothing)
    default = pc.equal(exchange, "").fill_null(False)
    unnamed = pc.and_(default, pc.equal(pc.coalesce(key, ""), ""))
    if pc.any(unnamed).as_py():
        raise BadRow(_row(unnamed), ": exchange is empty, the default one, and routingKey names no queue")
    queues = _turned("routingKey", pc.if_else(default, key, nothing), _native_topic)
    topics = _turned("exchange", pc.if_else(default, nothing, exchange), _native_topic)
    result.columns["topic"] = pc.coalesce(queues, topics)
    keys = pc.if_else(default, nothing, key)
    result.columns["tag"] = _turned(
        "routingKey", keys, lambda text: names.encode_tag(text.split(".")) if text else None
    )
    if "headers" in given:
        result.columns["properties"] = _renamed("headers", given["headers"], props.foreign_name)
    if "priority" in given:
        result.extras.append((props.PRIORITY, _number("priority", given["priority"], PRIORITY_MAX)))
    result.extras.append((props.ORIGIN, pa.repeat(pa.scalar("amqp", _TEXT), count)))


# --- CloudEvents


def _cloudevents(given: dict[str, Any], result: Shaped, count: int) -> None:
    for name in CE_REQUIRED:
        missing = pc.equal(given[name], "").fill_null(True)
        if pc.any(missing).as_py():
            raise BadRow(_row(missing), f": {name} is null or empty, and every event has one")
    result.columns["tag"] = _turned("type", given["type"], lambda text: names.encode_tag(text.split(".")))
    result.columns["keys"] = pc.replace_substring(given["id"], " ", "%20")  # blanks separate keys
    data = given["data"].cast(pa.binary())
    result.columns["body"] = data.fill_null(b"")
    if data.null_count:
        result.extras.append((_CE_DATA, pc.if_else(data.is_null(), "absent", pa.scalar(None, _TEXT))))
    texts = {name: given[name] for name in _CE_COLUMNS if name in given}
    if "time" in texts:
        texts["time"] = _rfc3339(texts["time"])
    if "datacontenttype" in texts:
        result.extras.append((props.CONTENT_TYPE, texts["datacontenttype"]))
    if "attributes" in given:
        own = {"specversion", *texts}

        def attribute(name: str) -> str | None:
            if not _CE_NAME.fullmatch(name):
                raise _refuse("an attribute's name has lower-case letters and digits only")
            return None if name in own else props.CE_PREFIX + name

        result.columns["properties"] = _renamed("attributes", given["attributes"], attribute)
        result.columns["shardingKey"] = pc.map_lookup(given["attributes"], "partitionkey", "last")
    result.extras += [(props.CE_PREFIX + name, values) for name, values in texts.items()]
    result.extras.append((props.CE_PREFIX + "specversion", pa.repeat(pa.scalar(SPECVERSION, _TEXT), count)))
    if "attributeTypes" in given:
        result.extras.append((_CE_TYPES, _types(given["attributeTypes"])))
    result.extras.append((props.ORIGIN, pa.repeat(pa.scalar("cloudevents", _TEXT), count)))


def _rfc3339(times: Any) -> Any:
    plain = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).cast(pa.timestamp("us")).cast(_TEXT)
    plain = pc.replace_substring_regex(pc.replace_substring(plain, " ", "T"), r"\.000000$", "")
    return pc.binary_join_element_wise(plain, pa.scalar("Z", _TEXT), pa.scalar("", _TEXT))


def _types(maps: Any) -> Any:
    """`name=i` for each pair of `attributeTypes`, separated by blanks."""
    kept = _renamed("attributeTypes", maps, lambda name: name)

    def letter(word: str) -> str:
        if word not in _TYPE_LETTERS:
            raise _refuse(f"allowed are {', '.join(_TYPE_LETTERS)}")
        return _TYPE_LETTERS[word]

    offsets = kept.offsets.to_numpy()
    try:
        letters = _turned("attributeTypes", kept.items, letter)
    except BadRow as error:
        raise BadRow(int(np.searchsorted(offsets, error.row, "right")) - 1, str(error)) from None
    words = pc.binary_join_element_wise(kept.keys, letters, pa.scalar("=", _TEXT))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), words), " ")


# --- Kafka


def _kafka(given: dict[str, Any], result: Shaped, count: int) -> None:
    result.columns["body"] = given["value"]
    if "key" in given:
        # One key, one queue, in order, as Kafka's partitioner has it.
        result.columns["keys"] = result.columns["shardingKey"] = _utf8("key", given["key"])
    if "partition" in given:
        result.columns["queue"] = given["partition"]
    if "headers" in given:
        starts = given["headers"].offsets.to_numpy()
        pairs = given["headers"].values.slice(starts[0], starts[-1] - starts[0])
        starts = starts - starts[0]
        names_of, values = pairs.field("key"), _header_values(pairs, starts)
        maps = pa.MapArray.from_arrays(pa.array(starts), names_of, values, type=_MAP)
        result.columns["properties"] = _renamed("headers", maps, props.foreign_name)


def _header_values(pairs: Any, starts: Any) -> Any:
    try:
        return _utf8("the value of a header", pairs.field("value"))
    except BadRow as error:
        raise BadRow(int(np.searchsorted(starts, error.row, "right")) - 1, str(error)) from None


def _utf8(what: str, values: Any) -> Any:
    """Bytes as text. Raises BadRow for those that are none: a message's keys and properties are text."""
    try:
        return values.cast(_TEXT)
    except pa.ArrowInvalid:
        for row, value in enumerate(values.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                raise BadRow(row, f": {what} is no UTF-8: {value[:32]!r}") from None
        raise
