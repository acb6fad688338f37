"""Which queues of its topics a group's member reads now: computed again every 20 s, and at once when the group's members change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from gantrymq.client.allocation import Strategy
from gantrymq.client.client import Client
from gantrymq.client.connecting.link import Link
from gantrymq.client.connecting.routes import MessageQueue, Route, loads
from gantrymq.client.errors import expect_success
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode

_log = logging.getLogger(__name__)

REBALANCE_S: Final = 20.0
"""RocketMQ's rebalance interval."""
RETRY_S: Final = 0.1
"""After a round in which a topic could not be balanced (it does not exist yet), or a queue not be taken over; doubled up to `REBALANCE_S`."""

Change = Callable[[str, list[MessageQueue]], Awaitable[bool]]
"""(topic, the queues that are ours now); False if some could not be taken over yet."""


async def member_ids(client: Client, group: str, route: Route) -> list[str]:
    """Client ids of a group, sorted, from any broker of the topic. Raises UNAVAILABLE or what the last one answered."""
    failure: GantryError | None = None
    for broker in sorted(route.brokers):
        try:
            answer = await client.ask(
                route.address(broker),
                Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}),
                f"members of group {group!r}",
            )
            return sorted(loads(answer.body).get("consumerIdList") or [])
        except GantryError as error:
            failure = error
    raise failure or GantryError(ErrorCode.UNAVAILABLE, f"topic {route.topic!r} has no broker")


class Balancer:
    """Runs rebalance rounds for one member."""

    def __init__(
        self, client: Client, group: str, topics: Callable[[], Iterable[str]], strategy: Strategy | None, change: Change
    ) -> None:
        """`strategy` None: every queue of every topic (broadcast)."""
        self._client = client
        self._group = group
        self._topics = topics
        self._strategy = strategy
        self._change = change
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.rounds = 0
        """Rounds that have ended."""

    def wake(self) -> None:
        """Begin a round now, or another one behind the one that runs."""
        self._wake.set()

    async def start(self) -> None:
        """Run the first round, then go on in the background."""
        settled = await self._round()
        self._task = asyncio.get_running_loop().create_task(self._run(settled))

    async def stop(self) -> None:
        """End; no `change` is called any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self, settled: bool) -> None:
        pause = RETRY_S
        while True:
            try:
                async with asyncio.timeout(REBALANCE_S if settled else pause):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                settled = await self._round()
            except Exception:  # the strategy is the user's: what fails now may not with the next members
                _log.exception("group %s: every topic keeps its queues, the rebalance failed", self._group)
                settled = False
            pause = RETRY_S if settled else min(pause * 2, REBALANCE_S)

    async def _round(self) -> bool:
        settled = True
        for topic in list(self._topics()):
            try:
                settled &= await self._balance(topic)
            except GantryError as error:
                # A retry topic comes into being with the group's first heartbeat; of others `start` has told.
                level = logging.DEBUG if error.code is ErrorCode.TOPIC_NOT_FOUND else logging.WARNING
                _log.log(level, "group %s: topic %s keeps its queues: %s", self._group, topic, error)
                settled = False
        self.rounds += 1
        return settled

    async def _balance(self, topic: str) -> bool:
        route = await self._client.routes.route(topic, fresh=self.rounds == 0)
        queues = sorted(route.read_queues())
        if self._strategy is None:
            return await self._change(topic, queues)
        own_id = self._client.members.client_id
        ids = await member_ids(self._client, self._group, route)
        if own_id not in ids:
            self._client.members.beat_soon()  # this broker has not heard of us
            return False
        return await self._change(topic, self._strategy(own_id, queues, ids))


async def lock_queues(client: Client, group: str, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
    """Take or renew queues for an orderly consumer; the ones that it holds now. Brokers that do not answer give none."""
    held: set[MessageQueue] = set()
    for broker, mine in _by_broker(queues).items():
        what = f"lock of {len(mine)} queues of broker {broker!r}"
        try:
            link = await client.link_of(mine[0], master_only=True)
            answer = await link.request(_lock_command(RequestCode.LOCK_BATCH_MQ, client, group, mine))
            body = loads(expect_success(answer, what, link.address).body)
            found = {(queue["topic"], queue["brokerName"], queue["queueId"]) for queue in body["lockOKMQSet"]}
        except (GantryError, KeyError, TypeError) as error:
            _log.warning("group %s: %s: %s", group, what, error)
            continue
        held |= {queue for queue in mine if (queue.topic, queue.broker, queue.queue_id) in found}
    return held


async def unlock_queues(client: Client, group: str, queues: Iterable[MessageQueue]) -> None:
    """Give queues back; a broker that does not hear it does so after 60 s by itself."""
    for mine in _by_broker(queues).values():
        try:
            link: Link = await client.link_of(mine[0], master_only=True)
            await link.request(_lock_command(RequestCode.UNLOCK_BATCH_MQ, client, group, mine))
        except GantryError as error:
            _log.debug("group %s: unlock: %s", group, error)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    result: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        result.setdefault(queue.broker, []).append(queue)
    return result


def _lock_command(code: RequestCode, client: Client, group: str, queues: list[MessageQueue]) -> Command:
    body = {
        "clientId": client.members.client_id,
        "consumerGroup": group,
        "mqSet": [{"topic": q.topic, "brokerName": q.broker, "queueId": q.queue_id} for q in queues],
        "onlyThisBroker": False,
    }
    return Command(code, {}, msgspec.json.encode(body))
