"""The groups that a client belongs to: heartbeats that tell brokers so, and the requests that brokers send back because of it.

Every broker of a known topic hears a heartbeat each 30 s, and at once when a connection to it is new or a group joins. Requests of brokers are
handed to the group that they name. One client id per `Client`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from gantrymq.client.connecting.link import Link, Links
from gantrymq.client.connecting.routes import RouteCache
from gantrymq.client.messages import own_host
from gantrymq.client.records import readable_records
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

_log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 30.0
"""RocketMQ's heartbeatBrokerInterval; a broker forgets a client after 120 s."""
LEAVE_S: Final = 1.0
"""Wait for a broker's answer to a leave at most this long: it finds out by the closed connection as well."""
_numbers = itertools.count(1)


class ConsumerMember(Protocol):
    """A consumer as its group's brokers see it."""

    def describe(self) -> dict[str, Any]:
        """ConsumerData for heartbeats."""

    def members_changed(self) -> None:
        """The group has other members than before."""

    def serve(self, link: Link, command: Command) -> bool:
        """A broker's request about this group; False if it is not supported."""


Check = Callable[[Link, Command], None]
"""Takes a CHECK_TRANSACTION_STATE request."""


class Membership:
    """Groups of one client. Nothing runs before the first group joins."""

    def __init__(self, links: Links, routes: RouteCache) -> None:
        self.client_id = f"{own_host()}@{os.getpid()}#{next(_numbers)}{os.urandom(3).hex()}"
        self._on_reply: Callable[[Command], None] | None = None
        self._links = links
        self._routes = routes
        self._producers: dict[str, list[Check | None]] = {}
        """One entry per producer of the group; checks go to the first that can answer them."""
        self._consumers: dict[str, ConsumerMember] = {}
        self._beat: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def take_replies(self, on_reply: Callable[[Command], None]) -> None:
        """From now on `on_reply` takes PUSH_REPLY_MESSAGE_TO_CLIENT requests."""
        self._on_reply = on_reply

    # joining and leaving

    def join_producer(self, group: str, check: Check | None = None) -> None:
        """Be a producer of `group`; with `check`, one that can tell what became of a local transaction."""
        self._producers.setdefault(group, []).append(check)
        self.beat_soon()

    def join_consumer(self, group: str, member: ConsumerMember) -> None:
        """Be a consumer of `group`; brokers hear of it with the next `beat`. Raises ALREADY_EXISTS: a client has one consumer per group."""
        if group in self._consumers:
            raise GantryError(ErrorCode.ALREADY_EXISTS, f"this client has a consumer of group {group!r} already")
        self._consumers[group] = member
        self._start()

    async def leave(self, *, producer: str = "", consumer: str = "", check: Check | None = None) -> None:
        """Leave a group and tell every broker that is connected. `check`: as the producer joined with; others of its group stay."""
        checks = self._producers.get(producer)
        if checks is not None and check in checks:
            checks.remove(check)
            if checks:
                return
        known = self._producers.pop(producer, None) is not None
        known |= self._consumers.pop(consumer, None) is not None
        if not known:
            return
        fields = {"clientID": self.client_id}
        fields |= ({"producerGroup": producer} if producer else {}) | ({"consumerGroup": consumer} if consumer else {})
        brokers = self._routes.broker_addresses()
        requests = [
            link.request(Command(RequestCode.UNREGISTER_CLIENT, dict(fields)), LEAVE_S)
            for link in self._links.open_links()
            if link.address in brokers
        ]
        await asyncio.gather(*requests, return_exceptions=True)

    async def close(self) -> None:
        """Leave all groups and end the heartbeats."""
        for group in list(self._consumers):
            await self.leave(consumer=group)
        for group, checks in list(self._producers.items()):
            checks.clear()
            await self.leave(producer=group)
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.cancel()
            await asyncio.wait([beat])

    # heartbeats

    def beat_soon(self) -> None:
        """Tell all brokers soon: something changed."""
        self._start()
        self._wake.set()

    def _start(self) -> None:
        if self._beat is None:
            self._beat = asyncio.get_running_loop().create_task(self._keep_beating())

    async def beat(self) -> None:
        """A heartbeat to every broker of a known topic; brokers that cannot be reached are passed over."""
        if not (self._producers or self._consumers):
            return
        masters_only = not self._consumers
        addresses = self._routes.broker_addresses(masters_only)
        await asyncio.gather(*[self._beat_one(address) for address in sorted(addresses)])

    async def _beat_one(self, address: str) -> None:
        try:
            link = await self._links.get(address, patient=False)
            answer = await link.request(self._heartbeat())
            if answer.code != ResponseCode.SUCCESS:
                _log.warning("%s: heartbeat refused: %d %s", address, answer.code, answer.remark)
        except GantryError as error:
            _log.debug("%s: heartbeat: %s", address, error)

    async def _keep_beating(self) -> None:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.beat()

    def _heartbeat(self) -> Command:
        body = {
            "clientID": self.client_id,
            "producerDataSet": [{"groupName": group} for group in self._producers],
            "consumerDataSet": [member.describe() for member in self._consumers.values()],
            "heartbeatFingerprint": 0,
            "withoutSub": False,
        }
        return Command(RequestCode.HEART_BEAT, {}, msgspec.json.encode(body))

    def opened(self, link: Link) -> None:
        """The first thing that a broker hears on a new connection is who is there."""
        if (self._producers or self._consumers) and link.address in self._routes.broker_addresses():
            link.post(self._heartbeat(), lambda _: None)

    # requests of brokers

    def serve(self, link: Link, command: Command) -> bool:
        """A broker's request; False if it is not supported."""
        code, fields = command.code, command.fields
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            member = self._consumers.get(fields.get("consumerGroup", ""))
            if member is not None:
                member.members_changed()
            return True
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            return self._check(link, command)
        if code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and self._on_reply is not None:
            self._on_reply(command)
            link.answer(command)
            return True
        member = self._consumers.get(fields.get("consumerGroup") or fields.get("group") or "")
        return member is not None and member.serve(link, command)

    def _check(self, link: Link, command: Command) -> bool:
        messages = readable_records(command.body, "", f"{link.address}: a transaction check")
        group = messages[0].property(props.PRODUCER_GROUP) if messages else ""
        check = next((check for check in self._producers.get(group, ()) if check is not None), None)
        if check is None:
            _log.warning("%s: transaction check for group %r, which has no check callback here", link.address, group)
            return True
        check(link, command)
        return True
