"""Message properties of many records at once: name \\x01 value \\x02 ... as Arrow maps and single columns.

One numpy scan finds every separator of a block; names and values are then slots of the block itself, of which Arrow copies those that a
column needs. Names are told apart by the first bytes of each, and compared in full only where that does not decide. What is not laid out as
RocketMQ writes it (a pair without \\x01, text that is no UTF-8) sends the whole block through `model.properties`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.model import properties as props

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]

_INNER: Final = (props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET, props.OWN_CRC)
"""The store's own pairs, which no reader of messages sees."""
_BITS: Final = 63
"""Up to so many different names a row's set of names fits one integer."""
_POWERS: Final = np.left_shift(1, np.arange(_BITS))
_KEY_BYTES: Final = 7
"""A name of at most so many bytes is told exactly by its key: these bytes and its length in one integer."""
PAD_BYTES: Final = 8
"""Behind the last row: eight bytes are read at the beginning of the last name, too."""

_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_KEY_BYTES + 1)], dtype=np.uint64)


def _key(name: bytes) -> int:
    return int.from_bytes(name[:_KEY_BYTES], "little") | (len(name) & 0xFF) << 56


class Pairs:
    """Properties of `len(edges) - 1` rows. Row i is `data[edges[i] : edges[i + 1]]`: empty, or its last byte ends its last pair and may
    be anything. `PAD_BYTES` follow the last row. `data` is written to."""

    def __init__(self, data: Bytes, edges: Longs) -> None:
        self._rows = len(edges) - 1
        filled: Any = edges[1:] > edges[:-1]
        data[edges[1:][filled] - 1] = 0
        found = self._scan(data, edges, filled)
        if found is None:
            found = self._decode_rows(data, edges)
        self._data, slots, self._counts = found
        self._slots = _strings(slots, self._data)
        self._pairs = np.arange(len(slots) // 4, dtype=np.int32)
        """Which pairs of `_slots` count: pair n is there [4 n: name, one byte, 4 n + 2: value, one byte]."""
        encoded = pa.array(self._keys(slots)).dictionary_encode()
        self._dictionary: Any = encoded.dictionary.to_numpy()
        self._codes = encoded.indices.to_numpy()
        inner = [self._places(name) for name in _INNER]
        if any(len(places) for places in inner):
            keep = np.ones(len(self._pairs), dtype=bool)
            keep[np.concatenate(inner)] = False
            self._keep(keep)
        if self._may_repeat():
            self._drop_repeated()

    def values(self, name: str) -> pa.Array:
        """One property as a column of strings, null where a row has none."""
        places = self._places(name)
        if not len(places):
            return pa.nulls(self._rows, pa.string())
        slots = self._pairs[places] * 4 + 2
        if len(places) == self._rows:
            return self._slots.take(pa.array(slots))
        index = np.full(self._rows, -1, dtype=np.int32)
        index[self._row_of()[places]] = slots
        return self._slots.take(pa.array(index, mask=index < 0))

    def maps(self, kind: pa.DataType) -> pa.Array:
        """All properties as a column of type `kind`, a map from string to string."""
        offsets = np.zeros(self._rows + 1, dtype=np.int32)
        np.cumsum(self._counts, out=offsets[1:])
        names, values = (self._slots.take(pa.array(self._pairs * 4 + part)) for part in (0, 2))
        return pa.MapArray.from_arrays(pa.array(offsets), names, values, type=kind)

    @staticmethod
    def _scan(data: Bytes, edges: Longs, filled: Any) -> tuple[Bytes, Ints, Longs] | None:
        """Data, slots and pairs per row; None if anything is laid out in another way."""
        end = int(edges[-1])
        tokens = np.flatnonzero(data[:end] <= 2)
        kinds = data[tokens]
        if len(tokens) % 2 or (kinds[::2] != 1).any() or (kinds[1::2] == 1).any():
            return None
        lasts = np.flatnonzero(kinds[1::2] == 0)
        if len(lasts) != np.count_nonzero(filled):
            return None  # U+0000 inside a value
        if len(tokens) and (tokens[0] == 0 or np.diff(tokens).min() == 1):
            return None  # a name or a value without a byte
        if not _is_utf8(data[:end]):
            return None
        counts = np.zeros(len(filled), dtype=np.int64)
        counts[filled] = np.diff(lasts, prepend=-1)
        slots = np.zeros(2 * len(tokens) + 1, dtype=np.int32)
        slots[4::4] = tokens[1::2] + 1
        slots[1::4], slots[3::4] = tokens[::2], tokens[1::2]
        slots[2::4] = slots[1::4] + 1
        return data, slots, counts

    @staticmethod
    def _decode_rows(data: Bytes, edges: Longs) -> tuple[Bytes, Ints, Longs]:
        text = data.tobytes()
        parts: list[bytes] = []
        counts = np.zeros(len(edges) - 1, dtype=np.int64)
        for row in range(len(counts)):
            pairs = props.decode(text[edges[row] : max(edges[row], edges[row + 1] - 1)])
            for name, value in pairs.items():
                parts += (name.encode(), b"\x01", value.encode(), b"\x02")
            counts[row] = len(pairs)
        slots = np.zeros(len(parts) + 1, dtype=np.int32)
        np.cumsum(np.fromiter(map(len, parts), dtype=np.int32, count=len(parts)), out=slots[1:])
        return np.frombuffer(b"".join(parts) + bytes(PAD_BYTES), dtype=np.uint8), slots, counts

    def _keys(self, slots: Ints) -> Any:
        """What `_key` gives, for every name."""
        begins = slots[:-1:4].astype(np.int64)  # numpy makes this of any other index
        sizes = slots[1::4] - begins
        words: Any = np.ndarray((len(self._data) - 7,), "<u8", self._data, strides=(1,))
        heads = words[begins] & _MASKS[np.minimum(sizes, _KEY_BYTES)]
        return heads | (sizes.astype(np.uint64) & 0xFF) << 56

    def _places(self, name: str) -> Longs:
        """Where in `_pairs` the pairs of this name stand."""
        wanted = name.encode()
        code = np.flatnonzero(self._dictionary == _key(wanted))
        if not len(code):
            return np.empty(0, dtype=np.int64)
        places = np.flatnonzero(self._codes == code[0])
        if len(wanted) > _KEY_BYTES:
            names = self._slots.take(pa.array(self._pairs[places] * 4))
            places = places[pc.equal(names, name).to_numpy(zero_copy_only=False)]
        return places

    def _row_of(self) -> Longs:
        return np.repeat(np.arange(self._rows), self._counts)

    def _may_repeat(self) -> bool:
        """Whether a row may have a name twice: false only where it is sure."""
        if not len(self._codes):
            return False
        if len(self._dictionary) > _BITS:
            return True
        bits = _POWERS[self._codes]
        firsts = (np.cumsum(self._counts) - self._counts)[self._counts > 0]
        sums, sets = np.add.reduceat(bits, firsts), np.bitwise_or.reduceat(bits, firsts)
        return not bool((sums == sets).all())

    def _drop_repeated(self) -> None:
        """Of a repeated name the last counts (a RocketMQ batch repeats UNIQ_KEY in each message)."""
        encoded = self._slots.take(pa.array(self._pairs * 4)).dictionary_encode()
        keys = self._row_of() * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, last = np.unique(keys[::-1], return_index=True)
        if len(last) < len(keys):
            keep = np.zeros(len(keys), dtype=bool)
            keep[len(keys) - 1 - last] = True
            self._keep(keep)

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        self._counts = np.bincount(self._row_of()[keep], minlength=self._rows)
        self._pairs, self._codes = self._pairs[keep], self._codes[keep]


def _strings(slots: Ints, data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(slots) - 1, [None, pa.py_buffer(slots), pa.py_buffer(data)])


def _is_utf8(data: Bytes) -> bool:
    if not len(data) or data.max() < 0x80:
        return True
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
