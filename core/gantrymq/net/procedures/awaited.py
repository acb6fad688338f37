"""A call whose answer comes later, for a coroutine that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gantrymq.model.errors import GantryError


async def awaited(call: Callable[..., None], *arguments: object) -> Any:
    """The answer of `call(*arguments, token, on_done)`. Raises its GantryError."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(*arguments, None, lambda token, result: None if answer.done() else answer.set_result(result))
    result = await answer
    if isinstance(result, GantryError):
        raise result
    return result
