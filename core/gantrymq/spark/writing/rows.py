"""Arrow columns into the columns of blocks (model/batch/block.py): no Python object per row.

Bodies, properties, tags and keys stay Arrow arrays of bytes, each one behind the other in one buffer, so that any stretch of rows is a part of a
block as it stands. Only names that repeat (topics, property names) are looked at in Python, once for each different one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.model import properties as props
from gantrymq.model.batch import block
from gantrymq.model.errors import GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING, PROPERTIES_BYTES_MAX, TAG_BYTES_MAX
from gantrymq.model.names import check_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    Longs = NDArray[np.int64]

SLICE: Final = 8192
"""Rows encoded together: Spark's own batches may be of any size."""
SLICE_BYTES: Final = 16 * 1024 * 1024
"""...and bytes of their bodies."""

NOT_WRITTEN: Final = (props.SYSTEM_NAMES - {props.SHARDING_KEY}) | {
    props.EXCHANGE, props.ORIGIN, props.AMQP_HEADER, props.AMQP_REST,
}  # fmt: skip
"""Pairs of the column `properties` that are left out: they belong to the record that a row was read from. Tag and keys have columns."""
DELIVER_AT: Final = "TIMER_DELIVER_MS"

_BYTES: Final = pa.binary()
_MAP: Final = pa.map_(pa.string(), pa.string())
_NOTHING: Final = pa.scalar(b"", _BYTES)
ROW_BYTES: Final = 64
"""What a row has in a request beside its body and properties, at most: lengths, and in an item a head."""


class BadRow(Exception):
    """A row that is no message. `row`: its number in the batch; the text begins behind that."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as columns. `pairs`: properties but tag, keys and id; `tags`, `keys`: texts, empty for none, None where none has one; `sizes`: bytes of body and
    properties; `topics`: of each; `sharding`: key or null, None where none has one; `delayed`: which are not to be seen yet; `queues`:
    number of each one's queue in its topic, -1 where any will do."""

    bodies: Any
    pairs: Any
    tags: Any
    keys: Any
    sizes: Longs
    topics: Any
    sharding: Any
    delayed: NDArray[np.bool_] | None
    queues: Longs | None = None


def slices(batch: pa.RecordBatch, body: str = "body") -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most `SLICE` rows whose bodies (column `body`) are some `SLICE_BYTES` at most (more where a single one is)."""
    begin, step = 0, SLICE
    while begin < batch.num_rows:
        part = batch.slice(begin, step)
        if step > 1 and part.get_total_buffer_size() > SLICE_BYTES and _size(part.column(body)) > SLICE_BYTES:
            step = max(1, step // 2)
            continue
        yield part
        begin += part.num_rows


def _size(bodies: Any) -> int:
    return int(pc.sum(pc.binary_length(bodies)).as_py() or 0)


def encode_rows(columns: Mapping[str, Any], topic: str, extras: Iterable[tuple[str, Any]] = ()) -> Rows:
    """Rows of the sink's own columns. `topic`: for rows without one; `extras`: names of further properties, each with its texts. Raises BadRow."""
    count = len(columns["body"])
    topics = _topics(columns.get("topic"), topic, count)
    body = columns["body"].cast(_BYTES)
    if body.null_count:
        row = _first(body.is_null())
        raise BadRow(row, f" (topic {_at(topics, row)!r}): the body is null; an empty one is allowed")
    sharding = _text("shardingKey", columns.get("shardingKey"), count)
    pieces: list[Any] = []
    if "properties" in columns:
        pairs, keys = _pairs(columns["properties"])
        pieces.append(pairs)
        if keys is not None:
            sharding = keys if sharding is None else pc.coalesce(sharding, keys)
    tag = _text("tag", columns.get("tag"), count)
    if tag is not None:
        _check_tags(tag)
    keys = _text("keys", columns.get("keys"), count)
    if sharding is not None:
        pieces.append(_pair(props.SHARDING_KEY, sharding))
    for name, values in extras:
        texts = _text(name, values, count)
        if texts is not None:
            pieces.append(_pair(name, texts))
    delayed = None
    for name, column in ((DELIVER_AT, "deliverAt"), (props.EXPIRES_AT, "expiresAt")):
        at = columns.get(column)
        if at is not None and at.null_count < count:
            pieces.append(_pair(name, _milliseconds(at)))
            if name == DELIVER_AT:
                delayed = at.is_valid().to_numpy(zero_copy_only=False)
    if len(pieces) > 1:
        pairs = pc.binary_join_element_wise(*pieces, _NOTHING)
    else:
        pairs = pieces[0] if pieces else _empty(count)
    tag, keys = [values if values is None else values.fill_null("") for values in (tag, keys)]
    sizes = _sizes(body, pairs, tag, keys, topics)
    return Rows(body, pairs, tag, keys, sizes, topics, sharding, delayed, _queues(columns.get("queue")))


def _queues(column: Any) -> Longs | None:
    if column is None or column.null_count == len(column):
        return None
    numbers: Longs = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    wrong = (numbers < 0) & column.is_valid().to_numpy(zero_copy_only=False)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadRow(row, f": partition is {numbers[row]}; they begin with 0, and null lets the key choose")
    return numbers


def _sizes(body: Any, pairs: Any, tag: Any, keys: Any, topics: Any) -> Longs:
    """Bytes of each row. Raises BadRow for too many."""
    body_sizes = _lengths(body)
    sizes = _lengths(pairs) + block.ID_PAIR_BYTES
    for values, beside in ((tag, block.BESIDE_TAG), (keys, block.BESIDE_KEYS)):
        if values is not None:
            lengths = _lengths(values)
            sizes += lengths + beside * (lengths > 0)
    for lengths, most, what in (
        (body_sizes, BODY_BYTES_CEILING, "the body has"),
        (sizes, PROPERTIES_BYTES_MAX, "the properties have"),
    ):
        if len(lengths) and lengths.max() > most:
            row = int(np.argmax(lengths > most))
            raise BadRow(row, f" (topic {_at(topics, row)!r}): {what} {lengths[row]} bytes, at most {most} are allowed")
    return body_sizes + sizes


def bytes_of(values: Any) -> tuple[Longs, memoryview]:
    """Length of each value of an Arrow array of bytes or texts, and all of them one behind the other."""
    buffers = values.buffers()
    edges = np.frombuffer(buffers[1], dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    data = memoryview(buffers[2] or b"")[edges[0] : edges[-1]]
    lengths: Longs = np.diff(edges).astype(np.int64)
    return lengths, data


def _empty(count: int) -> Any:
    return pa.array([b""] * count, _BYTES)


def _lengths(values: Any) -> Longs:
    lengths: Longs = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _pair(name: str, values: Any) -> Any:
    """`name \\x01 value \\x02` for each value; nothing where it is null."""
    pair = pc.binary_join_element_wise(
        pa.scalar(name.encode() + b"\x01", _BYTES), values.cast(_BYTES), pa.scalar(b"\x02", _BYTES), _NOTHING
    )
    return pair.fill_null(_NOTHING) if pair.null_count else pair


def _text(column: str, values: Any, count: int) -> Any:
    """Texts of a column, null where they are empty; None where there are none at all. Raises BadRow for a separator in one."""
    if values is None or values.null_count == count:
        return None
    empty = pc.equal(values, "")
    if pc.any(empty).as_py():
        values = pc.if_else(empty, pa.scalar(None, values.type), values)
    found = _with_separator(values)
    if found >= 0:
        raise BadRow(found, f": {column} {_at(values, found)!r} holds U+0001 or U+0002, which separate properties")
    return values


def _with_separator(values: Any) -> int:
    """Number of the first text that holds U+0001 or U+0002, or -1."""
    data = _data_of(values)
    if not ((data == 1) | (data == 2)).any():
        return -1
    bad = pc.match_substring_regex(values, "[\x01\x02]").fill_null(False)
    return _first(bad) if pc.any(bad).as_py() else -1


def _data_of(values: Any) -> NDArray[np.uint8]:
    """All bytes of an array of texts (nulls may have some)."""
    buffers = values.buffers()
    if buffers[2] is None or not len(values):
        return np.empty(0, dtype=np.uint8)
    offsets = np.frombuffer(buffers[1], dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(buffers[2], dtype=np.uint8)[offsets[0] : offsets[-1]]


def _check_tags(tags: Any) -> None:
    sizes = pc.binary_length(tags).fill_null(0)
    if pc.max(sizes).as_py() > TAG_BYTES_MAX:
        raise BadRow(_first(pc.greater(sizes, TAG_BYTES_MAX)), f": its tag has over {TAG_BYTES_MAX} bytes")
    if (_data_of(tags) == ord("|")).any():
        barred = pc.match_substring(tags, "||").fill_null(False)
        if pc.any(barred).as_py():
            row = _first(barred)
            raise BadRow(row, f": tag {_at(tags, row)!r}: a message has one tag; use keys or properties for several")


def _milliseconds(times: Any) -> Any:
    return times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64()).cast(pa.string())


def _topics(column: Any, topic: str, count: int) -> Any:
    """The topic of every row, dictionary-encoded. Raises BadRow where there is none, or no legal one."""
    if column is None:
        indices = pa.array(np.zeros(count, dtype=np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array([topic]))
    empty = pc.equal(column, "").fill_null(True)
    if pc.any(empty).as_py():
        if not topic:
            raise BadRow(_first(empty), ": the topic is null or empty, and the option 'topic' is not set")
        column = pc.if_else(empty, topic, column)
    encoded = column.dictionary_encode()
    for place, name in enumerate(encoded.dictionary.to_pylist()):
        try:
            check_topic(name)
        except GantryError as error:
            row = _first(pc.equal(encoded.indices, place))
            raise BadRow(row, f" (topic {name!r}): {error.text}") from None
    return encoded


def _pairs(maps: Any) -> tuple[Any, Any]:
    """The column `properties` as text, and the sharding keys in it (None: there are none). Raises BadRow."""
    if maps.null_count and pc.sum(_map_sizes(maps).filter(maps.is_null())).as_py():
        maps = pa.array(maps.to_pylist(), _MAP)  # a null that spans pairs: nobody makes such, but Arrow allows it
    starts = maps.offsets.to_numpy()
    begin, end = int(starts[0]), int(starts[-1])
    names, values = maps.keys.slice(begin, end - begin), maps.items.slice(begin, end - begin)
    rows = np.repeat(np.arange(len(maps)), np.diff(starts))
    encoded = names.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    for texts, what in ((encoded.dictionary, "name"), (values, "value")):
        found = _with_separator(texts)
        if found >= 0:
            place = found if what == "value" else _first(pc.equal(encoded.indices, found))
            text = f": properties: the {what} {_at(texts, found)!r} holds U+0001 or U+0002, which separate properties"
            raise BadRow(int(rows[place]), text)
    sharding = pc.map_lookup(maps, props.SHARDING_KEY, "last") if props.SHARDING_KEY in known else None
    if sharding is not None:
        sharding = pc.if_else(pc.equal(sharding, ""), pa.scalar(None, pa.string()), sharding)
    chosen = pa.array([bool(name) and name not in NOT_WRITTEN and name != props.SHARDING_KEY for name in known])
    keep = pc.and_(chosen.take(encoded.indices), pc.greater(pc.binary_length(values), 0)).fill_null(False)
    kept = keep.to_numpy(zero_copy_only=False)
    if not kept.all():
        names, values, rows = names.filter(keep), values.filter(keep), rows[kept]
    offsets = np.zeros(len(maps) + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows, minlength=len(maps)), out=offsets[1:])
    one = pa.scalar(b"\x01", _BYTES)
    texts = pc.binary_join_element_wise(
        names.cast(_BYTES), one, values.cast(_BYTES), pa.scalar(b"\x02", _BYTES), _NOTHING
    )
    return _joined(texts, offsets), sharding


def _joined(texts: Any, offsets: NDArray[np.int32]) -> Any:
    """Runs of texts as one text each: they lie one behind the other already, so only the ends of the runs change."""
    buffers = texts.buffers()
    if buffers[2] is None:
        return _empty(len(offsets) - 1)
    edges = np.frombuffer(buffers[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    ends = np.ascontiguousarray(edges[offsets])
    return pa.Array.from_buffers(_BYTES, len(offsets) - 1, [None, pa.py_buffer(ends), buffers[2]])


def _map_sizes(maps: Any) -> Any:
    return pa.array(np.diff(maps.offsets.to_numpy()))


def _first(flags: Any) -> int:
    return int(np.argmax(flags.to_numpy(zero_copy_only=False)))


def _at(values: Any, row: int) -> Any:
    return values[row].as_py()
