"""Streaming queries on machines that do other work too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interop_tests.waiting import until

STARTS_MAX = 10
ENDS_S = 250.0


def begun(start: Callable[[], Any]) -> Any:
    """A query that has made progress or is done. Spark gives the Python process of a stream's source ten seconds to start and to connect,
    whatever else the machine does; where that was too short the query is started again, from its checkpoint."""
    for _ in range(STARTS_MAX):
        query = start()
        until(lambda query=query: query.recentProgress or not query.isActive, ENDS_S)
        error = query.exception()
        if error is None:
            return query
        if "worker failed to connect back" not in str(error):
            raise error
    raise AssertionError(f"no Python process connected within ten seconds, {STARTS_MAX} times")


def run(start: Callable[[], Any]) -> Any:
    """The query after its end, which came without an error."""
    query = begun(start)
    assert query.awaitTermination(ENDS_S)
    assert query.exception() is None
    return query
