"""Running a client's coroutine to its end, waiting for what it does in the background, and what many of them begin with."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gantrymq.client import Admin, PushConsumer, ReceivedMessage
from interop_tests.waiting import moment
from interop_tests.waiting import until_async as until

__all__ = ["collector", "make", "moment", "run", "until"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], seconds: float = 150.0) -> T:
    """What `work` returns; it has so many seconds."""
    return asyncio.run(asyncio.wait_for(work, seconds))


async def make(nameserver: str, topic: str, queues: int = 4) -> None:
    """Create a topic."""
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues)


def collector(nameserver: str, topic: str, *, sql: str = "", **settings: Any) -> tuple[PushConsumer, list[bytes]]:
    """A push consumer of a topic from its beginning, in a group of the same name, and the bodies that it gets."""
    got: list[bytes] = []
    consumer = PushConsumer(nameserver, group=topic, start="earliest", **settings)

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    consumer.subscribe(topic, handle, sql=sql)
    return consumer, got
