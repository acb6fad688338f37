"""Waiting for conditions of other processes, which nobody tells us about."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02
LIMIT_S = 120.0
"""Only a safety net: a machine that runs other tests at the same time may be ten times slower than an idle one."""


def until(condition: Callable[[], T], timeout_s: float = LIMIT_S, ignored: tuple[type[Exception], ...] = ()) -> T:
    """What `condition()` returns as soon as that is true; exceptions of the types in `ignored` count as not yet."""
    end = time.monotonic() + timeout_s
    never = threading.Event()
    last: object = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except ignored as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s:g} s; last seen: {last!r}")
        never.wait(POLL_S)


async def moment() -> None:
    """Let the event loop do other things for `POLL_S`."""
    try:
        async with asyncio.timeout(POLL_S):
            await asyncio.Event().wait()
    except TimeoutError:
        return


async def until_async(condition: Callable[[], T], timeout_s: float = LIMIT_S) -> T:
    """`until` for what happens on this event loop."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while not (found := condition()):
        assert loop.time() < end, f"not within {timeout_s:g} s; last seen: {found!r}"
        await moment()
    return found
