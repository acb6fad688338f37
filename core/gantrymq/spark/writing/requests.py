"""Rows cut into requests: each is a block (model/batch/block.py) of rows of one topic for one queue, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model.batch import block
from gantrymq.model.names import java_hash
from gantrymq.spark.writing.rows import ROW_BYTES, BadRow, Rows, bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

REQUEST_ROWS: Final = 1000
"""A broker stores so many messages of a request in one append: whole, or not at all (turn/submitted.py)."""
REQUEST_BYTES: Final = 768 * 1024
"""...and so many bytes of bodies and properties."""

Queues = Callable[[str], Sequence[MessageQueue]]
"""Queues of a topic that can be written."""


@dataclass(slots=True)
class Request:
    """A request's body, a block. `queue`: None where any will do; `rows`: numbers in the batch; `unique`: id (UNIQ_KEY) of the first; `delayed`: of one row,
    which is not to be seen yet (batches take none)."""

    topic: str
    queue: MessageQueue | None
    body: bytes
    rows: range | NDArray[np.int64]
    unique: str = ""
    delayed: bool = False


def requests_of(rows: Rows, queues: Queues, prefix: bytes, first: int) -> Iterator[Request]:
    """All rows, in their order within each topic and sharding key. Ids are `prefix` (20 digits) and a number: each row has another one, from `first` on."""
    names = rows.topics.dictionary.to_pylist()
    count = len(rows.bodies)
    if len(names) == 1 and rows.sharding is None and rows.delayed is None and rows.queues is None:
        yield from _cut(rows, range(count), (0, count), (names[0], None, False), prefix, first)
        return
    groups: list[tuple[str, MessageQueue | None]] = []
    codes = _codes(rows, names, queues, groups)
    if rows.delayed is not None:
        codes = codes * 2 + rows.delayed
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    edges = [0, *(np.flatnonzero(np.diff(sorted_codes)) + 1).tolist(), count]
    columns = [
        values if values is None else values.take(order) for values in (rows.bodies, rows.pairs, rows.tags, rows.keys)
    ]
    ordered = replace(
        rows, bodies=columns[0], pairs=columns[1], tags=columns[2], keys=columns[3], sizes=rows.sizes[order]
    )
    for begin, end in pairwise(edges):
        code, delayed = int(sorted_codes[begin]), False
        if rows.delayed is not None:
            code, delayed = code // 2, bool(code % 2)
        yield from _cut(ordered, order, (begin, end), (*groups[code], delayed), prefix, first)


def _codes(
    rows: Rows, names: list[str], queues: Queues, groups: list[tuple[str, MessageQueue | None]]
) -> NDArray[np.int64]:
    """A number for each row: its place in `groups`, which are filled here."""
    topics: NDArray[np.int64] = rows.topics.indices.to_numpy().astype(np.int64)
    groups += [(name, None) for name in names]
    codes: NDArray[np.int64] = topics.copy()
    if rows.sharding is not None:
        encoded = rows.sharding.dictionary_encode()
        hashes = np.array([abs(java_hash(key)) for key in encoded.dictionary.to_pylist()], dtype=np.int64)
        keys = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for place, name in enumerate(names):
            mine = np.flatnonzero((topics == place) & (keys >= 0))
            if len(mine):
                there = queues(name)
                codes[mine] = hashes[keys[mine]] % len(there) + len(groups)  # SelectMessageQueueByHash
                groups += [(name, queue) for queue in there]
    if rows.queues is not None:
        for place, name in enumerate(names):
            mine = np.flatnonzero((topics == place) & (rows.queues >= 0))
            if len(mine):
                there = queues(name)
                numbers = rows.queues[mine]
                if numbers.max() >= len(there):
                    row = int(mine[np.argmax(numbers >= len(there))])
                    text = f"partition is {rows.queues[row]}, and the topic has {len(there)} that can be written, from 0 on"
                    raise BadRow(row, f" (topic {name!r}): {text}")
                codes[mine] = numbers + len(groups)
                groups += [(name, queue) for queue in there]
    return codes


def _cut(
    rows: Rows, numbers: range | NDArray[np.int64], span: tuple[int, int], where: tuple[str, MessageQueue | None, bool],
    prefix: bytes, first: int,
) -> Iterator[Request]:  # fmt: skip
    """Rows `span` as requests. `numbers`: of all rows in the batch; `where`: topic, queue and whether they are delayed."""
    begin, end = span
    topic, queue, delayed = where
    filled = np.cumsum(rows.sizes[begin:end] + ROW_BYTES)
    at = begin
    while at < end:
        before = filled[at - begin - 1] if at > begin else 0
        fits = begin + int(np.searchsorted(filled, before + REQUEST_BYTES, "right"))
        stop = at + 1 if delayed else max(at + 1, min(fits, at + REQUEST_ROWS, end))
        unique = b"%b%0*X" % (prefix, block.NUMBER_DIGITS, first + at)
        body = block_of(rows, at, stop, prefix, first + at)
        yield Request(topic, queue, body, numbers[at:stop], unique.decode(), delayed)
        at = stop


def block_of(rows: Rows, begin: int, end: int, prefix: bytes, first: int) -> bytes:
    """The block of these rows; `first`: number of the first id."""
    count = end - begin
    lengths, bodies = bytes_of(rows.bodies.slice(begin, count))
    pair_lengths, pairs = bytes_of(rows.pairs.slice(begin, count))
    table = keys = memoryview(b"")
    columns = [lengths.astype(">u4"), pair_lengths.astype(">u2")]
    if rows.keys is not None:
        key_lengths, keys = bytes_of(rows.keys.slice(begin, count))
        if len(keys):
            columns.append(key_lengths.astype(">u2"))
    if rows.tags is not None:
        encoded = rows.tags.slice(begin, count).dictionary_encode()
        tags = encoded.dictionary.to_pylist()
        numbers = np.arange(1, len(tags) + 1)
        if "" in tags:  # number 0
            place = tags.index("")
            numbers[place:] -= 1
            numbers[place] = 0
            tags.pop(place)
        if tags:
            columns.append(numbers[encoded.indices.to_numpy()].astype(">u2"))
            table = memoryview("".join([tag + "\x02" for tag in tags]).encode())
    texts = [table, keys, pairs, bodies]
    head = block.HEAD.pack(block.MAGIC, count, first, prefix, *map(len, texts))
    return b"".join([head, *[column.tobytes() for column in columns], *texts])
