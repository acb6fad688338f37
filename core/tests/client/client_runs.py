"""Running a client's coroutine to its end, and waiting for what it does in the background."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
POLL_S = 0.01


def run(work: Coroutine[Any, Any, T], seconds: float = 40.0) -> T:
    return asyncio.run(asyncio.wait_for(work, seconds))


async def until(condition: Callable[[], T], seconds: float = 20.0) -> T:
    """What `condition()` returns as soon as that is true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not (found := condition()):
        assert loop.time() < end, f"not within {seconds:g} s; last seen: {found!r}"
        await asyncio.sleep(POLL_S)
    return found
