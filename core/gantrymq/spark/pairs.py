"""Message properties of many records at once: name \\x01 value \\x02 ... as Arrow maps and single columns.

One numpy scan finds every separator of a block; names and values are then slots of the block itself, which Arrow copies. What is not
laid out as RocketMQ writes it (a pair without \\x01, text that is no UTF-8) sends the whole block through `model.properties`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.model import properties as props

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Longs = NDArray[np.int64]

_INNER: Final = pa.array([props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET])
"""The store's own pairs, which no reader of messages sees."""
_BITS: Final = 63
"""Up to so many different names a row's set of names fits one integer."""


class Pairs:
    """Properties of `len(edges) - 1` rows; row i is `data[edges[i] : edges[i + 1]]`, its last byte is 0 and no part of it."""

    def __init__(self, data: NDArray[np.uint8], edges: Longs) -> None:
        self._rows = len(edges) - 1
        found = self._scan(data, edges)
        if found is None:
            found = self._decode_rows(data, edges)
        self._names, self._values, self._counts = found
        self._codes = np.empty(0, dtype=np.int64)
        self._dictionary = pa.array([], pa.string())
        if len(self._names):
            encoded = self._names.dictionary_encode()
            self._dictionary = encoded.dictionary
            self._codes = encoded.indices.to_numpy().astype(np.int64)
            self._drop_inner()
            self._drop_repeated()

    @cached_property
    def _row_of(self) -> Longs:
        return np.repeat(np.arange(self._rows), self._counts)

    def values(self, name: str) -> pa.Array:
        """One property as a column of strings, null where a row has none."""
        code = pc.index(self._dictionary, name).as_py()
        pairs = np.flatnonzero(self._codes == code) if code >= 0 else np.empty(0, dtype=np.int64)
        if len(pairs) == self._rows:
            return self._values.take(pa.array(pairs))
        if not len(pairs):
            return pa.nulls(self._rows, pa.string())
        index = np.full(self._rows, -1)
        index[self._row_of[pairs]] = pairs
        return self._values.take(pa.array(index, mask=index < 0))

    def maps(self, kind: pa.DataType) -> pa.Array:
        """All properties as a column of type `kind`, a map from string to string."""
        offsets = np.zeros(self._rows + 1, dtype=np.int32)
        np.cumsum(self._counts, out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), self._names, self._values, type=kind)

    def _scan(self, data: NDArray[np.uint8], edges: Longs) -> tuple[pa.Array, pa.Array, Longs] | None:
        """Names, values, pairs per row; None if anything is laid out in another way."""
        tokens = np.flatnonzero(data <= 2)
        ends = edges[1:] - 1
        kinds = data[tokens]
        zeros = np.flatnonzero(kinds == 0)
        if len(zeros) != self._rows:
            return None  # U+0000 inside a value
        # A row's end closes a pair only where the last one has no \x02 behind it, as RocketMQ's newer clients write it.
        closes: Any = (ends > edges[:-1]) & (data[ends - 1] != 2)
        keep = np.ones(len(tokens), dtype=bool)
        keep[zeros] = closes
        tokens, kinds = tokens[keep], kinds[keep]
        if len(tokens) % 2 or (kinds[::2] != 1).any() or (kinds[1::2] == 1).any():
            return None
        name_end, value_end = tokens[::2], tokens[1::2]
        counts = (np.diff(zeros, prepend=-1) - 1 + closes) // 2
        firsts = np.cumsum(counts) - counts
        name_at = np.empty(len(name_end), dtype=np.int64)
        name_at[1:] = value_end[:-1] + 1
        some: Any = counts > 0
        name_at[firsts[some]] = edges[:-1][some]
        if (name_end <= name_at).any() or (value_end <= name_end + 1).any():
            return None
        if not _is_utf8(data):
            return None
        slots = np.empty(4 * len(name_end) + 1, dtype=np.int32)
        slots[:-1:4], slots[1::4], slots[2::4], slots[3::4] = name_at, name_end, name_end + 1, value_end
        slots[-1] = len(data)
        array = pa.Array.from_buffers(pa.string(), len(slots) - 1, [None, pa.py_buffer(slots), pa.py_buffer(data)])
        index = np.arange(0, len(slots) - 1, 4, dtype=np.int32)
        return array.take(pa.array(index)), array.take(pa.array(index + 2)), counts

    def _decode_rows(self, data: NDArray[np.uint8], edges: Longs) -> tuple[pa.Array, pa.Array, Longs]:
        text = data.tobytes()
        names: list[str] = []
        values: list[str] = []
        counts = np.zeros(self._rows, dtype=np.int64)
        for row in range(self._rows):
            pairs = props.decode(text[edges[row] : edges[row + 1] - 1])
            names += pairs.keys()
            values += pairs.values()
            counts[row] = len(pairs)
        return pa.array(names, pa.string()), pa.array(values, pa.string()), counts

    def _drop_inner(self) -> None:
        inner = np.flatnonzero(pc.is_in(self._dictionary, value_set=_INNER).to_numpy(zero_copy_only=False))
        if len(inner):
            self._keep(~np.isin(self._codes, inner))

    def _drop_repeated(self) -> None:
        """Of a repeated name the last counts (a RocketMQ batch repeats UNIQ_KEY in each message)."""
        size = len(self._dictionary)
        if size <= _BITS and len(self._codes):
            bits = np.left_shift(1, self._codes)
            firsts = (np.cumsum(self._counts) - self._counts)[self._counts > 0]
            if (np.add.reduceat(bits, firsts) == np.bitwise_or.reduceat(bits, firsts)).all():
                return
        keys = self._row_of * size + self._codes
        _, last = np.unique(keys[::-1], return_index=True)
        if len(last) < len(keys):
            keep = np.zeros(len(keys), dtype=bool)
            keep[len(keys) - 1 - last] = True
            self._keep(keep)

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        chosen = pa.array(keep)
        self._names, self._values = self._names.filter(chosen), self._values.filter(chosen)
        self._codes = self._codes[keep]
        self._counts = np.bincount(self._row_of[keep], minlength=self._rows)
        self.__dict__.pop("_row_of", None)


def _is_utf8(data: NDArray[np.uint8]) -> bool:
    if not len(data) or data.max() < 0x80:
        return True
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
