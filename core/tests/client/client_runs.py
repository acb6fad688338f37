"""Running a client's coroutine to its end, and waiting for what it does in the background."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from interop_tests.waiting import moment
from interop_tests.waiting import until_async as until

__all__ = ["moment", "run", "until"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], seconds: float = 55.0) -> T:
    """What `work` returns; it has so many seconds."""
    return asyncio.run(asyncio.wait_for(work, seconds))
