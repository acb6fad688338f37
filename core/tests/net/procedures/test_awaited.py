"""Calls whose answer comes later, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.awaited import awaited


def answering(answer: Any) -> Callable[..., None]:
    """A call that is answered in a later turn of the loop, with its arguments in front of what was said."""

    def call(name: str, token: Any, on_done: Callable[[Any, Any], None]) -> None:
        said = answer if isinstance(answer, GantryError) else (name, answer)
        asyncio.get_running_loop().call_soon(on_done, token, said)

    return call


def test_the_answer_is_returned_and_a_failure_raised() -> None:
    assert asyncio.run(awaited(answering(5), "a")) == ("a", 5)
    with pytest.raises(GantryError, match="away"):
        asyncio.run(awaited(answering(GantryError(ErrorCode.UNAVAILABLE, "away")), "a"))


def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    kept: list[Callable[[], None]] = []

    async def main() -> None:
        task = asyncio.ensure_future(awaited(lambda token, on_done: kept.append(lambda: on_done(token, 1))))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        kept[0]()

    asyncio.run(main())
    assert len(kept) == 1
