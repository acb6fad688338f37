"""Pulls whose SQL92 subscription is newer than the client's last heartbeat: the client is asked, instead of being sent away.

After a rebalance RocketMQ's clients give their subscriptions a new version, and the heartbeat with it is lost if another one is on
its way: a real broker then answers 25 until the next one comes, half a minute later. GET_CONSUMER_RUNNING_INFO brings the
subscriptions at once. A client that does not answer, or does not know better, gets its 25.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.model.errors import GantryError
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.clients.registry import ClientReply, Clients

log = logging.getLogger(__name__)

ASK_MS: Final = 3000
"""RocketMQ's client comes again after so long when it is refused."""

WAITING_MAX: Final = 1024
"""Pulls of one client that wait for its answer: one for each of its queues."""


class RunningInfo(msgspec.Struct, rename="camel"):
    """ConsumerRunningInfo: the part about subscriptions."""

    subscription_set: list[bodies.Subscription] = []


class SubscriptionCalls:
    """Pulls that wait for their client's answer, by connection and group."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._waiting: dict[tuple[ClientReply, str], list[Command]] = {}

    def ask(self, reply: ClientReply, group: str, version: int, command: Command) -> bool:
        """Handle the pull again when the client has answered; False: it said already what it knows, or cannot be asked."""
        key = (reply, group)
        waiting = self._waiting.get(key)
        if waiting is None:
            found = self._clients.consumer_of(group, reply)
            if found is None or found[1].asked_version >= version:
                return False
            client_id, consumer = found
            fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            try:
                reply.call(code, fields, b"", lambda answer: self._answered(reply, group, answer), ASK_MS)
            except GantryError:
                return False
            consumer.asked_version = version
            waiting = self._waiting[key] = []
        if len(waiting) >= WAITING_MAX:
            return False
        waiting.append(command)
        return True

    def _answered(self, reply: ClientReply, group: str, answer: Command | GantryError) -> None:
        waiting = self._waiting.pop((reply, group), [])
        if not reply.open:
            return
        if not isinstance(answer, GantryError) and answer.code == ResponseCode.SUCCESS:
            try:
                self._clients.renew(group, reply, bodies.decode(answer.body, RunningInfo).subscription_set)
            except bodies.BodyError as error:
                log.info("%s: what it subscribes to cannot be read: %s", reply.peer, error)
        for command in waiting:
            reply.handle(command)

    def forget(self, reply: ClientReply) -> None:
        """The connection is gone, or its pulls are no longer wanted."""
        for key in [key for key in self._waiting if key[0] is reply]:
            del self._waiting[key]
