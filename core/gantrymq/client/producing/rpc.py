"""Request and reply over messages: a request waits in its topic like any message, its reply comes back through the broker to the asker.

A reply is pushed to the connection of the client that asked; where that is gone the reply is lost and the asker times out.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
import weakref
from typing import Any, Final

from gantrymq.client.client import Client
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.messages import OutMessage, SendResult
from gantrymq.client.producing.sending import Sender
from gantrymq.client.records import ReceivedMessage
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode

_log = logging.getLogger(__name__)

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
REPLY_TOPIC_SUFFIX: Final = "REPLY_TOPIC"
REQUESTS_MAX: Final = 65_536
"""Requests of one client that wait for a reply."""


_calls: weakref.WeakKeyDictionary[Client, Calls] = weakref.WeakKeyDictionary()


class Calls:
    """Requests of one client that wait for their reply, by correlation id. Got by `Calls.of`: producers of a client share them."""

    def __init__(self, client: Client) -> None:
        self._members = client.members
        self._routes = client.routes
        client.members.take_replies(self._on_reply)
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._known: set[str] = set()
        """Addresses that heard a heartbeat before the first request through them."""

    @classmethod
    def of(cls, client: Client) -> Calls:
        """The calls of `client`."""
        found = _calls.get(client)
        if found is None:
            found = _calls[client] = cls(client)
        return found

    async def request(self, sender: Sender, message: OutMessage, timeout_s: float) -> ReceivedMessage:
        """The reply. Raises UNAVAILABLE when none comes in time."""
        if len(self._waiting) >= REQUESTS_MAX:
            raise GantryError(ErrorCode.BUSY, f"{REQUESTS_MAX} requests wait for a reply")
        await self._be_known(message.topic)
        outgoing = await sender.prepare(message)
        name = str(uuid.uuid4())
        pairs = {CORRELATION_ID: name, REPLY_TO_CLIENT: self._members.client_id, TTL: str(int(timeout_s * 1000))}
        outgoing.extra = "".join([f"{key}\x01{value}\x02" for key, value in pairs.items()])
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[name] = future
        try:
            async with asyncio.timeout(timeout_s):
                await sender.send(outgoing)
                return await future
        except TimeoutError:
            text = f"no reply to the request in topic {message.topic!r} within {timeout_s:g} s"
            raise GantryError(ErrorCode.UNAVAILABLE, text) from None
        finally:
            del self._waiting[name]

    async def _be_known(self, topic: str) -> None:
        """A broker can push a reply only to a client that it has heard of."""
        route = await self._routes.publish_route(topic)
        addresses = {address for brokers in route.brokers.values() for address in brokers.values()}
        if not addresses <= self._known:
            await self._members.beat()
            self._known |= addresses

    def _on_reply(self, command: Command) -> None:
        try:
            message = _pushed(command)
        except (KeyError, ValueError) as error:
            _log.warning("a pushed reply cannot be read: %r", error)
            return
        future = self._waiting.get(message.property(CORRELATION_ID))
        if future is not None and not future.done():
            future.set_result(message)


def _pushed(command: Command) -> ReceivedMessage:
    """The message of a PUSH_REPLY_MESSAGE_TO_CLIENT (ReplyMessageRequestHeader)."""
    fields = command.fields
    nowhere = bytes(8)
    head: tuple[Any, ...] = (
        0, 0, 0, int(fields["queueId"]), int(fields["flag"]), 0, 0, int(fields["sysFlag"]), int(fields["bornTimestamp"]),
        nowhere, int(fields.get("storeTimestamp") or 0), nowhere, int(fields.get("reconsumeTimes") or 0), 0, 0,
    )  # fmt: skip
    properties = fields.get("properties", "").encode("utf-8", "surrogatepass")
    return ReceivedMessage(fields["topic"], "", properties, command.body, head)


async def send_reply(sender: Sender, request: ReceivedMessage, body: bytes, properties: dict[str, str]) -> SendResult:
    """Send a reply to `request` through the broker that it was read from. Raises ILLEGAL_ARGUMENT if it is no request."""
    found = {name: request.property(name) for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL)}
    cluster = request.property(props.CLUSTER)
    if not (cluster and found[CORRELATION_ID] and found[REPLY_TO_CLIENT]):
        text = f"message {request.message_id} is no request: it has no {CORRELATION_ID}, {REPLY_TO_CLIENT} or {props.CLUSTER}"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    pairs = {**properties, **{name: value for name, value in found.items() if value}, MESSAGE_TYPE: REPLY}
    topic = f"{cluster}_{REPLY_TOPIC_SUFFIX}"
    queue = MessageQueue(topic, request.broker, 0) if request.broker else None
    outgoing = await sender.prepare(OutMessage(topic, body, properties=pairs, queue=queue))
    outgoing.code = RequestCode.SEND_REPLY_MESSAGE_V2
    return await sender.send(outgoing)
