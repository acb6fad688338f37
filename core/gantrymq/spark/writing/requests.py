"""Encoded rows cut into requests: each has rows of one topic for one queue, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model.names import java_hash
from gantrymq.spark.writing.rows import Rows

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
    """A request's body. `queue`: None where any will do; `rows`: numbers in the batch; `delayed`: of one row, which is not to be seen yet (batches take none)."""

    topic: str
    queue: MessageQueue | None
    body: memoryview
    rows: range | NDArray[np.int64]
    delayed: bool = False


def requests_of(rows: Rows, queues: Queues) -> Iterator[Request]:
    """All rows, in their order within each topic and sharding key."""
    names = rows.topics.dictionary.to_pylist()
    count = len(rows.items)
    if len(names) == 1 and rows.sharding is None and rows.delayed is None:
        yield from _cut(rows.items, range(count), names[0], None, False)
        return
    groups: list[tuple[str, MessageQueue | None]] = []
    codes = _codes(rows, names, queues, groups)
    if rows.delayed is not None:
        codes = codes * 2 + rows.delayed
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    edges = [0, *(np.flatnonzero(np.diff(sorted_codes)) + 1).tolist(), count]
    items = rows.items.take(order)
    for begin, end in pairwise(edges):
        code, delayed = int(sorted_codes[begin]), False
        if rows.delayed is not None:
            code, delayed = code // 2, bool(code % 2)
        yield from _cut(items.slice(begin, end - begin), order[begin:end], *groups[code], delayed)


def _codes(
    rows: Rows, names: list[str], queues: Queues, groups: list[tuple[str, MessageQueue | None]]
) -> NDArray[np.int64]:
    """A number for each row: its place in `groups`, which are filled here."""
    topics: NDArray[np.int64] = rows.topics.indices.to_numpy().astype(np.int64)
    groups += [(name, None) for name in names]
    if rows.sharding is None:
        return topics
    encoded = rows.sharding.dictionary_encode()
    hashes = np.array([abs(java_hash(key)) for key in encoded.dictionary.to_pylist()], dtype=np.int64)
    keys = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    codes: NDArray[np.int64] = topics.copy()
    for place, name in enumerate(names):
        mine = np.flatnonzero((topics == place) & (keys >= 0))
        if len(mine):
            there = queues(name)
            codes[mine] = hashes[keys[mine]] % len(there) + len(groups)  # SelectMessageQueueByHash
            groups += [(name, queue) for queue in there]
    return codes


def _cut(
    items: Any, rows: range | NDArray[np.int64], topic: str, queue: MessageQueue | None, delayed: bool
) -> Iterator[Request]:
    buffers = items.buffers()
    edges = np.frombuffer(buffers[1], dtype=np.int32)[items.offset : items.offset + len(items) + 1]
    data = memoryview(buffers[2])
    begin, count = 0, len(items)
    while begin < count:
        fits = int(np.searchsorted(edges, edges[begin] + REQUEST_BYTES, "right")) - 1
        end = begin + 1 if delayed else max(begin + 1, min(fits, begin + REQUEST_ROWS, count))
        yield Request(topic, queue, data[edges[begin] : edges[end]], rows[begin:end], delayed)
        begin = end
