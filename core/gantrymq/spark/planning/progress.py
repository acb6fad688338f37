"""How far a streaming query is behind, from Spark's own progress report: Spark takes no metrics from a source written in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.spark.planning.offsets import from_document


def lag(progress: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Messages that each queue has behind what the query has read, from `query.lastProgress`. Queues of which nothing was read yet count from their
    offset 0; an empty result where the query reads no `gantry` source."""
    behind: dict[MessageQueue, int] = {}
    for source in progress["sources"]:
        read, newest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
        for queue, offset in newest.items():
            behind[queue] = max(0, offset - read.get(queue, 0))
    return behind


def metrics(progress: Mapping[str, Any]) -> dict[str, float]:
    """What Spark's Kafka source shows as its metrics, of all queues that the query reads: `minOffsetsBehindLatest`, `maxOffsetsBehindLatest`,
    `avgOffsetsBehindLatest`; and of the sink `rowsWritten`, where Spark counted them. Empty where there is neither."""
    found: dict[str, float] = {}
    behind = lag(progress).values()
    if behind:
        found |= {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
        }
    written = progress.get("sink", {}).get("numOutputRows", -1)
    return found | ({"rowsWritten": written} if written >= 0 else {})


def _offsets(value: Any) -> dict[MessageQueue, int]:
    document = json.loads(value) if isinstance(value, str) else value
    try:
        return from_document(document) if isinstance(document, dict) else {}
    except ValueError:  # of another source
        return {}
