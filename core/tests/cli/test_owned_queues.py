"""`gantry queue`: what its rows are made of."""

from __future__ import annotations

import json
from typing import Any

from anyio import run

from gantrymq.cli.owned.queues import AMQP, BINDINGS, QUEUES, _limits, queues


class Reach:
    """Tables without a broker."""

    def __init__(self, **tables: dict[str, Any]) -> None:
        self._tables = tables

    async def rows(self, table: str) -> dict[str, bytes]:
        return {key: json.dumps(value).encode() for key, value in self._tables.get(table, {}).items()}


def test_queues_of_other_vhosts_have_these_in_front() -> None:
    row = {"light": 1, "durable": True, "auto_delete": False}
    binding = {"source": "shop\namq.topic", "key": "a.#", "to_queue": True, "destination": "shop\njobs"}
    reach = Reach(**{QUEUES: {"jobs": row, "shop\njobs": {**row, "light": 2}}, BINDINGS: {"b": binding}})
    found = run(queues, reach, AMQP)
    assert [(each["queue"], each["light"]) for each in found] == [("jobs", 1), ("shop/jobs", 2)]
    assert run(_limits, reach, found[1]) == {"bindings": ["shop/amq.topic a.#"]}
    assert run(_limits, reach, found[0]) == {"bindings": []}
