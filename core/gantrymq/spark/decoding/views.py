"""Columns as another protocol's users know them (`columns`): made of the source's own, a batch at a time (docs/spark.md, docs/mapping).

A property that a view needs is decoded by its name into a struct; text that repeats (tags, names) is turned once for each different value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.model import names
from gantrymq.model import properties as props

if TYPE_CHECKING:
    from gantrymq.spark.planning.selecting import Selection

_TEXT: Final = pa.string()
_MAP: Final = pa.map_(_TEXT, _TEXT)
_INSTANT: Final = pa.timestamp("us", "UTC")
BASE: Final = {
    "topic": _TEXT, "queue": pa.int32(), "offset": pa.int64(), "tag": _TEXT, "keys": _TEXT, "body": pa.binary(),
    "bornTimestamp": _INSTANT, "storeTimestamp": _INSTANT, "properties": _MAP,
}  # fmt: skip
"""Types of the source's own columns that views are made of."""
_CHOSEN: Final = "chosen properties"
_ALL: Final = "all properties"
"""Names of the struct that holds the properties that a view needs, and of the map of all, where the schema has that as a struct."""

_AMQP_KEY: Final = "GANTRY_AMQP_KEY"
_AMQP_DEFAULT: Final = "(default)"
_CE_TYPES: Final = "GANTRY_CE_TYPES"
_CE_DATA: Final = "GANTRY_CE_DATA"
_LOG_APPEND_TIME: Final = 1
_TYPE_WORDS: Final = {"i": "Integer", "b": "Boolean", "e": "String"}


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is made: of which of the source's columns, of which properties."""

    make: Callable[[Parts, pa.DataType], Any]
    base: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()


class Parts:
    """What columns are made of."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.count: int = batch.num_rows

    def base(self, name: str) -> Any:
        """One of the source's own columns."""
        return self._batch.column(name)

    def properties(self) -> Any:
        """All properties as a map."""
        return self._batch.column(_ALL if _ALL in self._batch.schema.names else "properties")

    def chosen(self, name: str) -> Any:
        """A property, null where it is not."""
        return self._batch.column(_CHOSEN).field(name)

    @property
    def topic(self) -> str:
        """Of all rows: a batch is of one queue."""
        return str(self.base("topic")[0].as_py())


def _same(name: str) -> Column:
    return Column(lambda parts, kind: parts.base(name), (name,))


def _property(name: str) -> Column:
    return Column(lambda parts, kind: parts.chosen(name), (), (name,))


def _number(name: str, default: int | None = None) -> Column:
    def make(parts: Parts, kind: pa.DataType) -> Any:
        found = each(
            parts.chosen(name), lambda text: int(text) if text.isascii() and text[:9].isdigit() else None, kind
        )
        return found if default is None else found.fill_null(default)

    return Column(make, (), (name,))


def _renamed(rename: Callable[[str], str | None]) -> Column:
    """A map of the properties for which `rename` gives a name."""

    def make(parts: Parts, kind: pa.DataType) -> Any:
        offsets, keys, values = select(parts.properties(), rename)
        return pa.MapArray.from_arrays(offsets, keys, values, type=kind)

    return Column(make, ("properties",))


def each(texts: Any, change: Callable[[str], Any], kind: pa.DataType) -> Any:
    """`change` of every text, called once for each different one; null stays null."""
    encoded = texts.dictionary_encode()
    return pa.array([change(text) for text in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def select(maps: Any, rename: Callable[[str], str | None]) -> tuple[Any, Any, Any]:
    """Offsets, names and values of the pairs of `maps` for which `rename` gives a name."""
    encoded = maps.keys.dictionary_encode()
    keys = pa.array([rename(name) for name in encoded.dictionary.to_pylist()], _TEXT).take(encoded.indices)
    keep = keys.is_valid()
    rows = np.repeat(np.arange(len(maps)), np.diff(maps.offsets.to_numpy()))
    counts = np.bincount(rows[keep.to_numpy(zero_copy_only=False)], minlength=len(maps))
    offsets = np.zeros(len(maps) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.array(offsets), keys.filter(keep), maps.items.filter(keep)


# --- MQTT


def _mqtt_topic(parts: Parts, kind: pa.DataType) -> Any:
    first = names.decode_escapes(parts.topic, "/+#")

    def whole(tag: str) -> str:
        words = [word if word == names.EMPTY else names.decode_escapes(word, "/+#") for word in tag.split(".")]
        return "/".join([first, *([""] if tag == names.EMPTY else words)])

    return each(parts.base("tag"), whole, kind).fill_null(first)


# --- AMQP


def _exchange(parts: Parts, kind: pa.DataType) -> Any:
    exchange = each(parts.chosen(props.EXCHANGE), lambda name: "" if name == _AMQP_DEFAULT else name, kind)
    return exchange.fill_null(names.decode_escapes(parts.topic, ""))


def _routing_key(parts: Parts, kind: pa.DataType) -> Any:
    is_default = pc.equal(parts.chosen(props.EXCHANGE), _AMQP_DEFAULT).fill_null(False)
    queue = parts.chosen(_AMQP_KEY).fill_null(names.decode_escapes(parts.topic, ""))
    key = each(parts.base("tag"), lambda tag: names.decode_escapes(tag, "."), kind).fill_null("")
    return pc.if_else(is_default, queue, key)


# --- CloudEvents


def _attribute(name: str, *instead: str) -> Column:
    """An attribute, else the first of these properties that there is."""
    wanted = (props.CE_PREFIX + name, *instead)
    return Column(lambda parts, kind: pc.coalesce(*[parts.chosen(each) for each in wanted]), (), wanted)


def _type(parts: Parts, kind: pa.DataType) -> Any:
    return pc.coalesce(parts.chosen("CE_type"), parts.base("tag"), pa.scalar("message", kind))


def _time(parts: Parts, kind: pa.DataType) -> Any:
    texts = parts.chosen("CE_time")
    try:
        times = pc.cast(texts, kind)
    except pa.ArrowInvalid:
        times = each(texts, _instant, kind)
    return pc.coalesce(times, parts.base("storeTimestamp"))


def _instant(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _data(parts: Parts, kind: pa.DataType) -> Any:
    none = pc.is_in(parts.chosen(_CE_DATA), value_set=pa.array(["absent", "null"]))
    return pc.if_else(none, pa.scalar(None, kind), parts.base("body"))


def _attribute_types(parts: Parts, kind: pa.DataType) -> Any:
    def types(text: str) -> list[tuple[str, str]]:
        pairs = [entry.rpartition("=") for entry in text.split(" ")]
        return [(name, _TYPE_WORDS[word]) for name, _, word in pairs if name and word in _TYPE_WORDS]

    return each(parts.chosen(_CE_TYPES), types, kind)


def _attribute_name(name: str) -> str | None:
    return name[len(props.CE_PREFIX) :] if name.startswith(props.CE_PREFIX) else None


# --- Kafka


def _key(parts: Parts, kind: pa.DataType) -> Any:
    return pc.coalesce(parts.base("keys"), parts.chosen(props.SHARDING_KEY)).cast(kind)


def _timestamp_type(parts: Parts, kind: pa.DataType) -> Any:
    return pa.repeat(pa.scalar(_LOG_APPEND_TIME, kind), parts.count)


def _headers(parts: Parts, kind: pa.DataType) -> Any:
    offsets, keys, values = select(parts.properties(), props.foreign_name_of)
    pairs = pa.StructArray.from_arrays([keys, values.cast(pa.binary())], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, type=kind)


VIEWS: Final[dict[str, dict[str, Column]]] = {
    "mqtt": {
        "mqttTopic": Column(_mqtt_topic, ("topic", "tag")),
        "qos": _number(props.QOS, 1),
        "retain": Column(lambda parts, kind: pc.equal(parts.chosen(props.RETAIN), "1").fill_null(False), (), (props.RETAIN,)),
        "userProperties": _renamed(props.foreign_name_of),
    },
    "amqp": {
        "exchange": Column(_exchange, ("topic",), (props.EXCHANGE,)),
        "routingKey": Column(_routing_key, ("topic", "tag"), (props.EXCHANGE, _AMQP_KEY)),
        "headers": _renamed(props.foreign_name_of),
        "contentType": _property(props.CONTENT_TYPE),
        "correlationId": _property(props.CORRELATION_ID),
        "replyTo": _property(props.REPLY_TO),
        "messageId": _property(props.MESSAGE_ID),
        "priority": _number(props.PRIORITY),
    },
    "cloudevents": {
        "id": _attribute("id", props.UNIQ_KEY),
        "source": _attribute("source"),
        "type": Column(_type, ("tag",), ("CE_type",)),
        "subject": _attribute("subject"),
        "time": Column(_time, ("storeTimestamp",), ("CE_time",)),
        "datacontenttype": _attribute("datacontenttype", props.CONTENT_TYPE),
        "dataschema": _attribute("dataschema"),
        "data": Column(_data, ("body",), (_CE_DATA,)),
        "attributes": _renamed(_attribute_name),
        "attributeTypes": Column(_attribute_types, (), (_CE_TYPES,)),
    },
    "kafka": {
        "key": Column(_key, ("keys",), (props.SHARDING_KEY,)),
        "value": _same("body"),
        "partition": _same("queue"),
        "timestamp": _same("storeTimestamp"),
        "timestampType": Column(_timestamp_type),
        "headers": Column(_headers, ("properties",)),
    },
}  # fmt: skip


class View:
    """What to decode for `schema`, and how to make its columns of that. `name`: a key of `VIEWS`, or empty for the source's own columns alone;
    `selection`: which rows count, where not all do."""

    def __init__(self, name: str, schema: pa.Schema, selection: Selection | None = None) -> None:
        self._schema = schema
        self._selection = selection
        columns = VIEWS.get(name, {})
        self._columns = [columns.get(field.name) for field in schema]
        self.decoded = schema
        """Schema of the batches that `batches` takes."""
        made = [column for column in self._columns if column is not None]
        if selection is not None:
            origin = (props.EXCHANGE, props.ORIGIN_KEYS) if selection.exchange is not None else ()
            made.append(Column(lambda parts, kind: None, ("tag",), origin))
        if made:
            own = {
                field.name: field.type for field, column in zip(schema, self._columns, strict=True) if column is None
            }
            wanted = {base: BASE[base] for column in made for base in column.base}
            wanted |= own | {"offset": BASE["offset"]}  # of a batch without columns nobody could tell the rows
            if any("properties" in column.base for column in made) and pa.types.is_struct(wanted["properties"]):
                wanted[_ALL] = _MAP
            chosen = sorted({each for column in made for each in column.chosen})
            fields = [pa.field(name, kind) for name, kind in wanted.items()]
            if chosen:
                fields.append(pa.field(_CHOSEN, pa.struct([pa.field(each, _TEXT) for each in chosen])))
            self.decoded = pa.schema(fields)

    def batches(self, decoded: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """With the columns of the view's schema."""
        if self.decoded is self._schema:
            yield from decoded
            return
        for each_batch in decoded:
            batch = (
                each_batch
                if self._selection is None
                else each_batch.filter(selected(Parts(each_batch), self._selection))
            )
            if not batch.num_rows:
                continue
            parts = Parts(batch)
            arrays = [
                parts.base(field.name) if column is None else column.make(parts, field.type)
                for field, column in zip(self._schema, self._columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def selected(parts: Parts, selection: Selection) -> Any:
    """Which rows `selection` matches."""
    found = each(parts.base("tag"), selection.matches, pa.bool_()).fill_null(selection.matches(""))
    if selection.exchange is None:
        return found
    origin, further = parts.chosen(props.EXCHANGE), parts.chosen(props.ORIGIN_KEYS)
    if further.null_count < parts.count:
        tags = each(further, lambda text: any(selection.matches(key[1:]) for key in text.split(" ")), pa.bool_())
        found = pc.or_(found, tags.fill_null(False))
    # A record of another door counts as published to the exchange named like its topic; without a tag to the queue of that name, too.
    return pc.and_(found, pc.equal(origin.fill_null(selection.exchange), selection.exchange))
