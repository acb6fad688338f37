"""A push consumer's handlers: what the user gives, and what becomes of messages that it fails for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from gantrymq.client.client import Client
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.consuming.pulling import Subscription
from gantrymq.client.errors import expect_success
from gantrymq.client.records import ReceivedMessage
from gantrymq.model import properties as props
from gantrymq.model.names import RETRY_PREFIX
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode

Handler = Callable[[ReceivedMessage], Awaitable[None] | None]
"""Takes one message. Returning is success, raising means again later. A coroutine function runs on the loop, a plain one in a thread."""
BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[None] | None]
"""The same for up to `batch` messages of one queue, which succeed or fail together."""

DEAD_LETTER: Final = -1
"""`RetryLater(DEAD_LETTER)`: no further attempt."""
RECONSUME_MAX: Final = 16
"""Attempts beyond the first before a message becomes a dead letter, as in RocketMQ."""


class RetryLater(Exception):
    """Raised by a handler: deliver the message again.

    Attributes:
        delay_level (int): 1 to 18 as RocketMQ's delay levels; 0: longer with every attempt (10 s, 30 s, 1 min, ... 2 h); `DEAD_LETTER`: not again.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"again with delay level {delay_level}")
        self.delay_level = delay_level


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A topic's subscription and its handler. `takes_batches`: it takes a list."""

    subscription: Subscription
    handler: Callable[[Any], Any]
    takes_batches: bool
    is_coroutine: bool

    @classmethod
    def of(cls, subscription: Subscription, handler: Callable[[Any], Any], takes_batches: bool) -> Subscribed:
        """`handler` may be a function, a method or an object with `__call__`."""
        is_coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004
        )
        return cls(subscription, handler, takes_batches, is_coroutine)


async def call_handler(subscribed: Subscribed, messages: list[ReceivedMessage], pool: ThreadPoolExecutor) -> None:
    """Run the handler for one delivery; raises what it raises."""
    argument = messages if subscribed.takes_batches else messages[0]
    if subscribed.is_coroutine:
        await subscribed.handler(argument)
        return
    result = await asyncio.get_running_loop().run_in_executor(pool, subscribed.handler, argument)
    if inspect.isawaitable(result):  # a partial or lambda around a coroutine function
        await result


def restore_topic(message: ReceivedMessage, group: str) -> None:
    """Give a message that came back over the group's retry topic the topic that it was sent to."""
    if message.topic.startswith(RETRY_PREFIX) and message.topic == RETRY_PREFIX + group:
        message.topic = message.property(props.RETRY_TOPIC) or message.topic


async def send_back(
    client: Client, group: str, message: ReceivedMessage, queue: MessageQueue, delay_level: int, reconsume_max: int
) -> None:
    """Hand a message back to the broker, which delivers it again to the group later, or makes it a dead letter after `reconsume_max` times.
    Raises what the broker answers, or UNAVAILABLE."""
    fields = {
        "group": group,
        "offset": str(message.physical_offset),
        "delayLevel": str(delay_level),
        "originMsgId": message.message_id,
        "originTopic": message.topic,
        "unitMode": "false",
        "maxReconsumeTimes": str(reconsume_max),
        "bname": queue.broker,
    }
    link = await client.link_of(queue, master_only=True)
    answer = await link.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
    expect_success(answer, f"send back of message {message.message_id}", link.address)
