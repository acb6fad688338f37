"""RouteCache: a known route outlives nameservers that are down, and one that has just forgotten it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gantrymq.client.connecting import routes
from gantrymq.client.connecting.routes import Route, RouteCache
from gantrymq.model.errors import ErrorCode, GantryError


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_NOT_FOUND, ErrorCode.UNAVAILABLE])
def test_a_known_route_is_kept_through_a_restart_of_the_nameserver(
    monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    answers: list[Any] = [Route("t", {}, {}, {}), GantryError(code), GantryError(code), GantryError(code)]

    async def ask(self: RouteCache, topic: str, timeout_s: float | None) -> Route:
        answer = answers.pop(0)
        if isinstance(answer, GantryError):
            raise answer
        return cast("Route", answer)

    async def run() -> None:
        cache = RouteCache(["127.0.0.1:1"], cast("Any", None))
        first = await cache.route("t")
        for _ in range(2):
            assert await cache.route("t") is first
            await asyncio.wait(cache._asking.values())  # the refresh in the background
        assert await cache.route("t") is first
        monkeypatch.setattr(routes, "MISSING_S_MAX", 0.0)
        await asyncio.wait(cache._asking.values())
        await asyncio.sleep(0)
        assert ("t" in cache._routes) == (code is ErrorCode.UNAVAILABLE)

    monkeypatch.setattr(RouteCache, "_ask", ask)
    monkeypatch.setattr(routes, "ROUTE_AGE_S", 0.0)
    asyncio.run(run())
