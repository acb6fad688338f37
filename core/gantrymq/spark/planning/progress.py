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


def _offsets(value: Any) -> dict[MessageQueue, int]:
    document = json.loads(value) if isinstance(value, str) else value
    try:
        return from_document(document) if isinstance(document, dict) else {}
    except ValueError:  # of another source
        return {}
