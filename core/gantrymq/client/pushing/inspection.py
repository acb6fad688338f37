"""What brokers ask a push consumer on behalf of people: reset offsets, show offsets and state, handle one message now.

The tools behind it are RocketMQ's mqadmin and dashboard (ClientRemotingProcessor of the Java client).
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gantrymq.client.connecting.link import Link
from gantrymq.client.connecting.routes import MessageQueue, loads
from gantrymq.client.pushing.handlers import RetryLater, call_handler, restore_topic
from gantrymq.client.records import readable_records
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from gantrymq.client.client import Client
    from gantrymq.client.consuming.pulling import Subscription
    from gantrymq.client.pushing.buffers import QueueBuffer
    from gantrymq.client.pushing.handlers import Subscribed


class Inspected(Protocol):
    """What brokers ask of a consumer."""

    client: Client
    group: str
    orderly: bool
    concurrency: int
    started_ms: int

    @property
    def pool(self) -> ThreadPoolExecutor: ...

    async def reset(self, offsets: dict[MessageQueue, int]) -> None: ...

    def states(self) -> dict[MessageQueue, QueueBuffer]: ...

    def subscriptions(self) -> list[Subscription]: ...

    def handler_of(self, topic: str) -> Subscribed | None: ...


def answer(consumer: Inspected, link: Link, command: Command) -> Coroutine[Any, Any, None] | None:
    """The work that answers `command`, or None for a request that is not known here."""
    match command.code:
        case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return _reset(consumer, link, command)
        case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return _status(consumer, link, command)
        case RequestCode.GET_CONSUMER_RUNNING_INFO:
            return _running(consumer, link, command)
        case RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return _handle_one(consumer, link, command)
    return None


def _queue_key(queue: MessageQueue) -> bytes:
    """A MessageQueue as fastjson writes it where it is a map's key."""
    return msgspec.json.encode({"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic})


def _by_queue(rows: dict[MessageQueue, object]) -> msgspec.Raw:
    pairs = [_queue_key(queue) + b":" + msgspec.json.encode(value) for queue, value in rows.items()]
    return msgspec.Raw(b"{" + b",".join(pairs) + b"}")


async def _reset(consumer: Inspected, link: Link, command: Command) -> None:
    link.answer(command)
    offsets = {}
    for key, offset in (loads(command.body).get("offsetTable") or {}).items():
        queue = loads(key.encode())
        offsets[MessageQueue(queue["topic"], queue["brokerName"], queue["queueId"])] = int(offset)
    await consumer.reset(offsets)


async def _status(consumer: Inspected, link: Link, command: Command) -> None:
    topic = command.fields.get("topic", "")
    rows: dict[MessageQueue, object] = {
        queue: buffer.floor for queue, buffer in consumer.states().items() if queue.topic == topic or not topic
    }
    link.answer(command, body=msgspec.json.encode({"messageQueueTable": _by_queue(rows)}))


async def _running(consumer: Inspected, link: Link, command: Command) -> None:
    rows: dict[MessageQueue, object] = {
        queue: {
            "commitOffset": buffer.floor,
            "cachedMsgMinOffset": buffer.floor,
            "cachedMsgMaxOffset": max(buffer.floor, buffer.next_offset - 1) if len(buffer) else 0,
            "cachedMsgCount": len(buffer),
            "cachedMsgSizeInMiB": buffer.bytes >> 20,
            "droped": buffer.dropped,
            "lastPullTimestamp": buffer.last_pull_ms,
            "locked": consumer.orderly,
        }
        for queue, buffer in consumer.states().items()
    }
    body = {
        "properties": {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(consumer.orderly).lower(),
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
            "PROP_THREADPOOL_CORE_SIZE": str(consumer.concurrency),
            "PROP_NAMESERVER_ADDR": ";".join(consumer.client.routes.nameservers),
            "consumerGroup": consumer.group,
        },
        "subscriptionSet": [subscription.data() for subscription in consumer.subscriptions()],
        "mqTable": _by_queue(rows),
        "statusTable": {},
        "userConsumerInfo": {},
    }
    link.answer(command, body=msgspec.json.encode(body))


async def _handle_one(consumer: Inspected, link: Link, command: Command) -> None:
    messages = readable_records(
        command.body, command.fields.get("brokerName", ""), f"{link.address}: a message to handle"
    )
    if not messages:
        link.answer(command, ResponseCode.SYSTEM_ERROR, "the message cannot be read")
        return
    message = messages[0]
    restore_topic(message, consumer.group)
    subscribed = consumer.handler_of(message.topic)
    if subscribed is None:
        text = f"group {consumer.group} has no handler for topic {message.topic}"
        link.answer(command, ResponseCode.SYSTEM_ERROR, text)
        return
    begun = time.monotonic()
    result, remark = "CR_SUCCESS", ""
    try:
        await call_handler(subscribed, [message], consumer.pool)
    except RetryLater:
        result = "CR_LATER"
    except Exception as error:
        result, remark = "CR_THROW_EXCEPTION", repr(error)
    body = {
        "order": consumer.orderly,
        "autoCommit": True,
        "consumeResult": result,
        "remark": remark,
        "spentTimeMills": int((time.monotonic() - begun) * 1000),
    }
    link.answer(command, body=msgspec.json.encode(body))
