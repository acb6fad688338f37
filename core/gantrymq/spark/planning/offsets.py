"""Offsets of many queues: as text in options and checkpoints, and the arithmetic of a batch. No Spark, no socket.

The form is `{"topic": {"broker": {"queue": offset}}}` with sorted keys: Spark compares offsets as JSON text, so the same offsets in another
order would look like new data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from gantrymq.client.connecting.routes import MessageQueue

Offsets = dict[MessageQueue, int]
Document = dict[str, dict[str, dict[str, int]]]

EARLIEST: Final = -2
LATEST: Final = -1
"""In a JSON option, as in Spark's Kafka source."""
OFFSET_MAX: Final = 2**63 - 1
"""Also of times: both are longs on the wire."""
MARKS: Final = "@"
"""In a checkpoint, where a topic's name would be: when the last message in front of each offset was stored. No topic has this name."""


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


def not_there(queue: MessageQueue, offset: int) -> DataLossError:
    """The error for a queue that the query has read up to `offset`, and that no broker has now."""
    return DataLossError(
        f"topic {queue.topic!r}, broker {queue.broker!r}, queue {queue.queue_id}: this query has read it up to offset {offset}, and no broker has it "
        "now: its broker is away, its topic was deleted, or the options do not name it any more. Bring it back; to go on without it, set the option "
        "failOnDataLoss to false."
    )


def made_anew(queue: MessageQueue, offset: int, was_ms: int, is_ms: int) -> DataLossError:
    """The error for a queue whose message in front of `offset` is another than the one that the query has read."""
    was, now = (datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") for ms in (was_ms, is_ms))
    return DataLossError(
        f"topic {queue.topic!r}, broker {queue.broker!r}, queue {queue.queue_id}: the message at offset {offset - 1} was stored at {was} when "
        f"this query read it, and the one there now at {now}: the topic was made anew, or the broker has another directory. To read the "
        "queue from its oldest message, set the option failOnDataLoss to false, or use a new checkpoint."
    )


def to_document(offsets: Mapping[MessageQueue, int], marks: Mapping[MessageQueue, int] | None = None) -> Document:
    """The checkpoint's form, keys sorted."""
    document: Document = {}
    if marks:
        document[MARKS] = to_document(marks)  # type: ignore[assignment]
    for queue in sorted(offsets, key=lambda queue: (queue.topic, queue.broker, str(queue.queue_id))):
        document.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return document


def from_document(document: Any, any_broker: bool = False) -> Offsets:
    """The inverse; raises OptionError for any other form. `any_broker`: also `{"topic": {"queue": offset}}`, whose queues have the broker ""."""
    found: Offsets = {}
    try:
        for topic, brokers in document.items():
            if topic == MARKS:
                continue
            for name, queues in brokers.items():
                if any_broker and not isinstance(queues, dict):
                    found[MessageQueue(topic, "", int(name))] = _whole(queues)
                    continue
                for queue, offset in queues.items():
                    found[MessageQueue(topic, name, int(queue))] = _whole(offset)
    except (AttributeError, TypeError, ValueError):
        text = f'offsets {json.dumps(document)[:200]}: allowed is {{"topic": {{"broker": {{"queue": offset}}}}}}'
        raise OptionError(text + (' or {"topic": {"queue": offset}}' if any_broker else "")) from None
    return found


def marks_of(document: Mapping[str, Any]) -> Offsets:
    """When the message in front of each offset was stored, in milliseconds; empty for a checkpoint of an earlier version."""
    return from_document(document.get(MARKS, {}))


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not EARLIEST <= value <= OFFSET_MAX:
        raise ValueError(value)
    return value


def parse_json(option: str, text: str) -> Any:
    """What `text` says, None for what is no JSON. Raises OptionError for a name that stands twice in one object: of the two one would be passed over."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise OptionError(f"{option} is {text[:200]!r}: {name!r} stands twice; leave one out")
            found[name] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except OptionError:
        raise
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends. `option`: the one that said so. Queues that neither `offsets` nor `times` name are at `word`."""

    option: str
    word: str
    """`earliest` or `latest`."""
    offsets: Offsets = field(default_factory=dict)
    times: Offsets = field(default_factory=dict)
    """Milliseconds since the epoch: the first message stored then or later."""
    time_ms: int = -1
    """The same for every queue, unless negative."""


def _parse_json(option: str, text: str, more: str) -> Offsets:
    document = parse_json(option, text)
    if not isinstance(document, dict):
        form = '{"topic": {"broker": {"queue": offset}}} or {"topic": {"queue": offset}}'
        raise OptionError(f"{option} is {text[:200]!r}: allowed is {more}JSON like {form}")
    try:
        return from_document(document, any_broker=True)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from None


def parse_offsets(option: str, text: str, word: str) -> Bound:
    """Value of `startingOffsets` or `endingOffsets`: `earliest`, `latest` or offsets by queue; `word` for the queues that are not named."""
    if text in ("earliest", "latest"):
        return Bound(option, text)
    return Bound(option, word, offsets=_parse_json(option, text, "earliest, latest, or "))


def parse_times(option: str, text: str, word: str) -> Bound:
    """Value of `startingOffsetsByTimestamp` or `endingOffsetsByTimestamp`."""
    times = _parse_json(option, text, "")
    for queue, time_ms in times.items():
        if time_ms < 0:
            raise OptionError(f"{option} of {queue} is {time_ms}: allowed are milliseconds since 1970")
    return Bound(option, word, times=times)


def name_queues(
    option: str, named: Mapping[MessageQueue, int], queues: Iterable[MessageQueue], same: bool = False
) -> Offsets:
    """`named` by queues that exist: an entry without a broker stands for that queue of each one. Raises OptionError for a queue that does not
    exist, and for an offset without a broker where several have that queue (unless it means the `same` for each: a time)."""
    result: Offsets = {}
    known = set(queues)
    by_number: dict[tuple[str, int], list[MessageQueue]] = {}
    for queue in sorted(known):
        by_number.setdefault((queue.topic, queue.queue_id), []).append(queue)
    for queue, value in named.items():
        found = by_number.get((queue.topic, queue.queue_id), []) if not queue.broker else [queue] * (queue in known)
        if not found:
            where = str(queue) if queue.broker else f"{queue.topic}/{queue.queue_id}"
            raise OptionError(f"{option} names {where}, which does not exist; {_some(known, queue.topic)}")
        if len(found) > 1 and value >= 0 and not same:
            brokers = ", ".join([each.broker for each in found])
            form = f'{{"{queue.topic}": {{"{found[0].broker}": {{"{queue.queue_id}": {value}}}}}}}'
            raise OptionError(
                f"{option} names queue {queue.queue_id} of {queue.topic}, which {brokers} have: name the broker, like {form}"
            )
        result |= dict.fromkeys(found, value)
    return result


def _some(queues: Iterable[MessageQueue], topic: str) -> str:
    names = [str(queue) for queue in sorted(queues) if queue.topic == topic]
    return (
        f"topic {topic!r} has {', '.join(names[:8]) or 'no queue'}{', ...' if names[8:] else ''} (topic/broker/queue)"
    )


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
