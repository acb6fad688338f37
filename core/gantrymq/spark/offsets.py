"""Offsets of many queues: as text in options and checkpoints, and the arithmetic of a batch. No Spark, no socket.

The form is `{"topic": {"broker": {"queue": offset}}}` with sorted keys: Spark compares offsets as JSON text, so the same offsets in another
order would look like new data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gantrymq.client.connecting.routes import MessageQueue

Offsets = dict[MessageQueue, int]
Document = dict[str, dict[str, dict[str, int]]]

EARLIEST: Final = -2
LATEST: Final = -1
"""In a JSON option, as in Spark's Kafka source."""


class OptionError(ValueError):
    """An option that cannot be used; the text names option, value and what is allowed."""


class DataLossError(RuntimeError):
    """Messages that the query needs are gone; the text names queue and offsets."""


def lost(queue: MessageQueue, first: int, last: int, why: str) -> DataLossError:
    """The error for offsets `first` to `last` (inclusive) of `queue`."""
    count = last - first + 1
    return DataLossError(
        f"topic {queue.topic!r}, broker {queue.broker!r}, queue {queue.queue_id}: offsets {first} to {last} "
        f"({count} message{'s' if count != 1 else ''}) are gone: {why}. To go on without them, set the option "
        "failOnDataLoss to false; to start elsewhere, use a new checkpoint with startingOffsets."
    )


def to_document(offsets: Mapping[MessageQueue, int]) -> Document:
    """The checkpoint's form, keys sorted."""
    document: Document = {}
    for queue in sorted(offsets, key=lambda queue: (queue.topic, queue.broker, str(queue.queue_id))):
        document.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return document


def from_document(document: Any) -> Offsets:
    """The inverse; raises OptionError for any other form."""
    try:
        return {
            MessageQueue(topic, broker, int(queue)): _whole(offset)
            for topic, brokers in document.items()
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError):
        text = f'offsets {json.dumps(document)[:200]}: allowed is {{"topic": {{"broker": {{"queue": offset}}}}}}'
        raise OptionError(text) from None


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError(value)
    return value


def parse_offsets(option: str, text: str) -> str | Offsets:
    """Value of `startingOffsets` or `endingOffsets`: `earliest`, `latest` or offsets by queue. Raises OptionError."""
    if text in ("earliest", "latest"):
        return text
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        form = '{"topic": {"broker": {"queue": offset}}}'
        raise OptionError(f"{option} is {text!r}: allowed are earliest, latest, or JSON like {form}")
    try:
        return from_document(document)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from None


def resolve(
    option: str,
    wanted: str | Offsets,
    default: str,
    queues: Iterable[MessageQueue],
    ends: Callable[[str], Offsets],
) -> Offsets:
    """An offset for every queue. `ends(word)` gives the offsets of all queues at `earliest` or `latest`; queues that JSON does not
    name begin at `default`. Raises OptionError for a queue that does not exist."""
    if isinstance(wanted, str):
        known = ends(wanted)
        return {queue: known[queue] for queue in queues}
    result = {}
    named = dict(wanted)
    for queue in queues:
        offset = named.pop(queue, {"earliest": EARLIEST, "latest": LATEST}[default])
        if offset < 0:
            offset = ends("earliest" if offset == EARLIEST else "latest")[queue]
        result[queue] = offset
    if named:
        queue = min(named)
        raise OptionError(f"{option} names {queue} (topic/broker/queue), which does not exist")
    return result


def cap(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], rows_max: int) -> Offsets:
    """`end`, drawn back so that at most `rows_max` offsets lie behind `start`, each queue in proportion to what it has.

    Every queue of `end` must be in `start`. At least one offset is taken if there are any.
    """
    lags = {queue: offset - start[queue] for queue, offset in end.items() if offset > start[queue]}
    total = sum(lags.values())
    if total <= rows_max:
        return dict(end)
    shares = {queue: lag * rows_max // total for queue, lag in lags.items()}
    left = max(rows_max, 1) - sum(shares.values())
    # What rounding left over goes to the longest queues, so that none starves behind the others.
    for queue in sorted(lags, key=lambda queue: (shares[queue] - lags[queue], queue))[:left]:
        shares[queue] += 1
    return {queue: start[queue] + shares[queue] if queue in shares else offset for queue, offset in end.items()}
