"""Turns raw pull bodies into Arrow batches, column by column: no Python object per message.

A block is some MiB of records, one behind the other, all of one message queue. One sequential hop finds where the records start;
every fixed field is one numpy gather over a big-endian view of the block with a byte stride of 1; body and properties are one Arrow
`take` over the block itself, seen as a binary array whose slots are [body, gap, properties, gap] per record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.client import records
from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.spark.decoding.pairs import PAD_BYTES, Pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Longs = NDArray[np.int64]

_SIZE: Final = struct.Struct(">I")
_EXTRA_HOST: Final = records.HOST_V6_BYTES - records.HOST_BYTES
_US_MAX: Final = 2**63 // 1000 - 1
"""Milliseconds beyond this do not fit a timestamp in microseconds; a client may have set anything."""

INFLATED_BATCH_BYTES: Final = 64 * 1024 * 1024
"""A batch ends when its inflated bodies reach this: compressed blocks must not become gigabytes of Arrow memory at once."""

_PAD: Final = bytes(4)
"""Behind a block: a size of 0 where a cut record's size would be read, and the byte that ends the last properties (`_pairs`)."""

_RUN: Final = 1024
_ALONE_MIN: Final = 64
_ALONE_MAX: Final = 4096
"""Records of one size, as a sensor writes them, are hopped over up to `_RUN` at once (15 ns each instead of 100). Where sizes differ that is
tried again after so many records hopped over one by one, so it costs them next to nothing."""

_OF_THE_HEAD: Final = frozenset({"topic", "broker", "queue", "offset", "body", "bornTimestamp", "storeTimestamp"})
"""Columns that need no properties."""

BLOCK_BYTES_MAX: Final = 1 << 30
"""Offsets inside a block are signed 32-bit, as in Arrow's binary type."""


class Queue:
    """Where a block comes from: the constant columns, and what errors name."""

    __slots__ = ("broker", "queue_id", "topic")

    def __init__(self, topic: str, broker: str, queue_id: int) -> None:
        self.topic = topic
        self.broker = broker
        self.queue_id = queue_id

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r} on broker {self.broker!r}"


def record_starts(block: bytearray, end: int) -> Longs:
    """Position of each record in `block[:end]`. Raises MESSAGE_ILLEGAL where sizes do not add up."""
    parts: list[Longs] = []
    starts: list[int] = []
    add = starts.append
    size_at = _SIZE.unpack_from
    least = records.RECORD_BYTES_MIN
    position, reach, alone = 0, _ALONE_MIN, _ALONE_MIN
    while position < end:
        size = size_at(block, position)[0]
        if size >= least:
            places = _equal_run(block, position, size, end, reach)
            parts += [np.array(starts, dtype=np.int64), places]
            starts.clear()
            position += size * len(places)
            if len(places) == reach:
                reach, alone = _RUN, _ALONE_MIN // 2
                continue
            reach, alone = _ALONE_MIN, min(alone * 2, _ALONE_MAX)
        stop = min(position + alone * max(size, least), end)
        while position < stop:
            size = size_at(block, position)[0]
            if size < least:
                raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"byte {position}: a record of {size} bytes")
            add(position)
            position += size
    if position != end:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"the last record ends {position - end} bytes behind the block")
    return np.concatenate([*parts, np.array(starts, dtype=np.int64)])


def _equal_run(block: bytearray, position: int, size: int, end: int, most: int) -> Longs:
    """Positions of the records of `size` bytes from `position` on, at least one, before one of another size comes; at most so many."""
    last = min(max(end - size, position), position + size * (most - 1))
    places: Longs = np.arange(position, last + 1, size, dtype=np.int64)
    other = np.flatnonzero(_field(block, "u4", places) != size)
    return places[: int(other[0])] if len(other) else places


def _field(block: bytearray, kind: str, positions: Longs) -> Longs:
    """One big-endian field of every record: a view with a byte stride of 1, gathered at `positions`."""
    width = int(kind[1:])
    view: Any = np.ndarray((len(block) - width + 1,), ">" + kind, block, strides=(1,))
    gathered: Longs = view[positions].astype(np.int64)
    return gathered


class Bounds:
    """Checked positions inside a block: after this nothing points outside its own record."""

    def __init__(self, block: bytearray, end: int) -> None:
        self.starts = starts = record_starts(block, end)
        ends = np.append(starts[1:], end)
        self.sys_flags = _field(block, "i4", starts + records.SYS_FLAG_AT)
        hosts: Any = self.sys_flags & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6)
        self.store_at = starts + 56
        self.body_at = starts + records.HEAD_BYTES
        if hosts.any():
            born: Any = (hosts & sysflag.BORN_HOST_V6) != 0
            store: Any = (hosts & sysflag.STORE_HOST_V6) != 0
            self.store_at = self.store_at + born * _EXTRA_HOST
            self.body_at = self.body_at + (born * _EXTRA_HOST + store * _EXTRA_HOST)
        magic = _field(block, "u4", starts + 4)
        self._require((magic == records.MAGIC_V1) | (magic == records.MAGIC_V2), "has no record's magic")
        self._require(self.body_at + 3 <= ends, "ends inside its head")
        body_size = _field(block, "i4", self.body_at - 4)
        self.body_end = self.body_at + body_size
        self._require((body_size >= 0) & (self.body_end + 3 <= ends), "has a body that leaves it")
        topic_size = _field(block, "u1", self.body_end)
        topic_at = self.body_end + 1
        if magic.max() == records.MAGIC_V2:  # V2: two bytes of topic length
            second: Any = magic == records.MAGIC_V2
            topic_size = np.where(second, _field(block, "u2", self.body_end), topic_size)
            topic_at = topic_at + second
        self.pairs_at = topic_at + topic_size + 2
        self._require(self.pairs_at <= ends, "has a topic that leaves it")
        self.pairs_end = self.pairs_at + _field(block, "u2", self.pairs_at - 2)
        self._require(self.pairs_end <= ends, "has properties that leave it")

    def _require(self, fine: Any, text: str) -> None:
        if not fine.all():
            position = self.starts[int(np.argmin(fine))]
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"byte {position}: the record {text}")


class Decoder:
    """Decodes blocks of one queue into batches of `schema`, whose names are a selection of the source's columns.

    `tags`: exact tags to keep (the broker filters by hash); empty keeps all.
    """

    def __init__(self, queue: Queue, schema: pa.Schema, tags: Sequence[str] = ()) -> None:
        self._queue = queue
        self._schema = schema
        self._tags = pa.array(sorted(tags), pa.string()) if tags else None
        self._wanted = set(schema.names)
        self._constants: dict[str, pa.Array] = {}
        self._block = bytearray()

    def decode(self, bodies: Sequence[bytes], low: int, high: int) -> tuple[list[pa.RecordBatch], Longs]:
        """Batches of the records with `low <= queue offset < high`, and the queue offsets of all records in `bodies`.

        Offsets are checked to rise. Raises MESSAGE_ILLEGAL naming queue and byte for anything but whole records.
        """
        end = sum(map(len, bodies))
        if not end:
            return [], np.empty(0, dtype=np.int64)
        block = self._join(bodies, end)
        try:
            bounds = Bounds(block, end)
            offsets = _field(block, "i8", bounds.starts + 20)
            if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
                raise GantryError(ErrorCode.MESSAGE_ILLEGAL, "queue offsets do not rise")
        except GantryError as error:
            raise GantryError(error.code, f"{self._queue}: {error.text}") from None
        first, last = (int(edge) for edge in np.searchsorted(offsets, (low, high)))
        return list(self._batches(block, bounds, offsets, first, last)), offsets

    def _join(self, bodies: Sequence[bytes], end: int) -> bytearray:
        """The bodies and the padding in a buffer that is used again for the next block: fresh memory of some MiB costs more than the
        copying. Nothing that `decode` returns points into it."""
        if end > BLOCK_BYTES_MAX:
            raise GantryError(ErrorCode.MESSAGE_TOO_LARGE, f"a block of {end} bytes; at most {BLOCK_BYTES_MAX}")
        if len(self._block) < end + len(_PAD):
            self._block = bytearray(end + end // 4 + len(_PAD))
        view = memoryview(self._block)
        position = 0
        for body in bodies:
            view[position : position + len(body)] = body
            position += len(body)
        view[end : end + len(_PAD)] = _PAD
        return self._block

    def _batches(
        self, block: bytearray, bounds: Bounds, offsets: Longs, first: int, last: int
    ) -> Iterator[pa.RecordBatch]:
        if first >= last:
            return
        compressed: Any = bounds.sys_flags[first:last] & sysflag.COMPRESSED
        if "body" not in self._wanted or not compressed.any():
            yield from self._batch(block, bounds, offsets, slice(first, last), None)
            return
        rows = first + np.flatnonzero(compressed)
        inflated: dict[int, bytes] = {}
        begin, total = first, 0
        for row in rows.tolist():
            body = self._inflate(
                bytes(block[bounds.body_at[row] : bounds.body_end[row]]), int(bounds.sys_flags[row]), int(offsets[row])
            )
            if inflated and total + len(body) > INFLATED_BATCH_BYTES:
                yield from self._batch(block, bounds, offsets, slice(begin, row), inflated)
                begin, inflated, total = row, {}, 0
            inflated[row] = body
            total += len(body)
        yield from self._batch(block, bounds, offsets, slice(begin, last), inflated)

    def _inflate(self, body: bytes, sys_flag: int, offset: int) -> bytes:
        try:
            return records.inflate(body, sys_flag)
        except GantryError as error:
            raise GantryError(error.code, f"{self._queue}, offset {offset}: {error.text}") from None

    def _batch(
        self, block: bytearray, bounds: Bounds, offsets: Longs, rows: slice, inflated: dict[int, bytes] | None
    ) -> Iterator[pa.RecordBatch]:
        count = rows.stop - rows.start
        pairs = self._pairs(block, bounds, rows)
        slots = _Slots(block, bounds, rows)
        columns = []
        for field in self._schema:
            match field.name:
                case "topic" | "broker" | "queue":
                    column = self._constant(field.name, count)
                case "offset":
                    column = _longs(offsets[rows], field.type)
                case "bornTimestamp":
                    column = _longs(_micros(block, bounds.starts[rows] + 40), field.type)
                case "storeTimestamp":
                    column = _longs(_micros(block, bounds.store_at[rows]), field.type)
                case "body":
                    column = slots.bodies()
                    if inflated:
                        column = _replace(column, inflated, rows.start)
                case "tag":
                    column = pairs.values(props.TAGS)
                case "keys":
                    column = pairs.values(props.KEYS)
                case _:
                    column = _properties(pairs, field.type)
            columns.append(column)
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if self._tags is not None:
            batch = batch.filter(pc.is_in(pairs.values(props.TAGS), value_set=self._tags))
        if batch.num_rows:
            yield batch

    def _pairs(self, block: bytearray, bounds: Bounds, rows: slice) -> Pairs:
        """Properties of the rows. A last pair without \\x02 takes along the byte behind it, where `Pairs` marks its end: there is always
        one, the padding."""
        if self._wanted <= _OF_THE_HEAD and self._tags is None:
            return Pairs(np.zeros(PAD_BYTES, dtype=np.uint8), np.zeros(1, dtype=np.int64))
        begins, ends = bounds.pairs_at[rows], bounds.pairs_end[rows]
        open_end: Any = (ends > begins) & (_field(block, "u1", ends - 1) != 2)
        slots = np.empty(2 * len(begins) + 1, dtype=np.int32)
        slots[:-1:2] = begins
        slots[1::2] = ends + open_end
        slots[-1] = len(block)
        taken = _take_every(block, slots, 2)
        edges = np.frombuffer(taken.buffers()[1], dtype=np.int32)[: len(taken) + 1].astype(np.int64)
        size = int(edges[-1])
        data = np.zeros(size + PAD_BYTES, dtype=np.uint8)
        data[:size] = np.frombuffer(taken.buffers()[2], dtype=np.uint8)[:size]
        return Pairs(data, edges)

    def _constant(self, name: str, count: int) -> pa.Array:
        have = self._constants.get(name)
        if have is None or len(have) < count:
            value = {"topic": self._queue.topic, "broker": self._queue.broker, "queue": self._queue.queue_id}[name]
            have = pa.repeat(pa.scalar(value, self._schema.field(name).type), max(count, 1024))
            self._constants[name] = have
        return have.slice(0, count)


class _Slots:
    """The block as one binary array, two slots per record: [body, rest]."""

    def __init__(self, block: bytearray, bounds: Bounds, rows: slice) -> None:
        self._block = block
        self._bounds = bounds
        self._rows = rows

    def bodies(self) -> pa.Array:
        slots = np.empty(2 * (self._rows.stop - self._rows.start) + 1, dtype=np.int32)
        slots[:-1:2] = self._bounds.body_at[self._rows]
        slots[1::2] = self._bounds.body_end[self._rows]
        slots[-1] = len(self._block)
        return _take_every(self._block, slots, 2)


def _take_every(block: bytearray, slots: NDArray[np.int32], step: int) -> pa.Array:
    """Every `step`th slot of the block, copied behind one another by Arrow."""
    array = pa.Array.from_buffers(pa.binary(), len(slots) - 1, [None, pa.py_buffer(slots), pa.py_buffer(block)])
    return array.take(pa.array(np.arange(0, len(slots) - 1, step, dtype=np.int32)))


def _properties(pairs: Pairs, kind: pa.DataType) -> pa.Array:
    """All as a map, or those that a struct names."""
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([pairs.values(field.name) for field in kind], fields=list(kind))
    return pairs.maps(kind)


def _longs(values: Longs, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _micros(block: bytearray, positions: Longs) -> Longs:
    return np.clip(_field(block, "i8", positions), -_US_MAX, _US_MAX) * 1000


def _replace(bodies: pa.Array, inflated: dict[int, bytes], first: int) -> pa.Array:
    mask = np.zeros(len(bodies), dtype=bool)
    mask[np.fromiter(inflated, dtype=np.int64) - first] = True
    return pc.replace_with_mask(bodies, pa.array(mask), pa.array(list(inflated.values()), pa.binary()))
