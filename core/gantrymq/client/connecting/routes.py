"""Where topics are: route data from the nameservers, kept so that a client outlives them.

Any number of nameservers, `host:port` joined by `;`; the one that answered last is asked first. A route is asked for again after 30 s, or at
once when a broker refused it; while no nameserver answers, the last known route goes on being used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gantrymq.client.connecting.link import CLOSED, Links
from gantrymq.client.connecting.nameservers import DISCOVERY_S, fetch_nameservers
from gantrymq.client.errors import expect_success
from gantrymq.model.dialect import DialectError, standard
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import AUTO_CREATE_TEMPLATE
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import MASTER_ID, Perm, RequestCode

ROUTE_AGE_S: Final = 30.0
"""RocketMQ's pollNameServerInterval."""
RETRY_S: Final = 0.1
"""Pause before all nameservers are asked again, while the caller's time lasts."""
ASK_TIMEOUT_S: Final = 3.0
ASK_ALL_S: Final = 8.0
"""For one round over all nameservers, of which each gets its share: an answer of one, or an error, comes within ten seconds."""
NO_NAMESERVER: Final = "; start one there (`gantry up`), or name another: nameserver=..., or NAMESRV_ADDR"
REFRESH_TIMEOUT_S: Final = 1.0
"""Where an older route is at hand, nobody waits longer for a newer one."""
MISSING_S_MAX: Final = 60.0
"""A topic that was known and is answered `unknown` for so long is gone; brokers register every 30 s."""
ROUTES_MAX: Final = 10_000
"""Topics whose routes are kept; the oldest go first."""
DEFAULT_QUEUES: Final = 4
"""Queues of a topic that the first send creates (defaultTopicQueueNums)."""


def loads(data: bytes) -> Any:
    """JSON as RocketMQ writes it: numbers and objects may stand as keys (fastjson). Raises MESSAGE_ILLEGAL."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        try:
            return msgspec.json.decode(standard(data))
        except (msgspec.DecodeError, DialectError) as error:
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"an answer's body is not JSON: {error}") from None


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker.

    Attributes:
        topic: The topic's name.
        broker: The broker's name.
        queue_id: Number of the queue on that broker, from 0.
    """

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


@dataclass(frozen=True, slots=True)
class Route:
    """Brokers and queues of one topic.

    Attributes:
        topic: The topic's name.
        queues: Broker name to (read queues, write queues, permission: 4 read, 2 write, 6 both).
        brokers: Broker name to {broker id: address}; id 0 is the master.
        clusters: Broker name to the name of its cluster.
    """

    topic: str
    queues: dict[str, tuple[int, int, int]]
    brokers: dict[str, dict[int, str]]
    clusters: dict[str, str] = field(default_factory=dict)
    _writable: list[MessageQueue] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        writable = [queue for queue in self._list(1, Perm.WRITE) if MASTER_ID in self.brokers.get(queue.broker, ())]
        object.__setattr__(self, "_writable", writable)

    def read_queues(self) -> list[MessageQueue]:
        """Queues that can be pulled from, in order."""
        return self._list(0, Perm.READ)

    def write_queues(self) -> list[MessageQueue]:
        """Queues that take messages: those of brokers with a master. Do not change the list: it is kept."""
        return self._writable

    def _list(self, which: int, perm: Perm) -> list[MessageQueue]:
        return [
            MessageQueue(self.topic, broker, queue_id)
            for broker, data in sorted(self.queues.items())
            if data[2] & perm
            for queue_id in range(data[which])
        ]

    def address(self, broker: str, master_only: bool = False) -> str:
        """Address of a broker: its master, else the slave with the lowest id. Raises UNAVAILABLE."""
        addresses = self.brokers.get(broker, {})
        if addresses and (MASTER_ID in addresses or not master_only):
            return addresses[min(addresses)]
        kind = "master of broker" if addresses else "broker"
        raise GantryError(ErrorCode.UNAVAILABLE, f"topic {self.topic!r}: no nameserver knows a {kind} {broker!r}")


def parse_route(topic: str, body: bytes) -> Route:
    """Route from a TopicRouteData body; raises MESSAGE_ILLEGAL."""
    data = loads(body)
    try:
        queues = {
            entry["brokerName"]: (int(entry["readQueueNums"]), int(entry["writeQueueNums"]), int(entry["perm"]))
            for entry in data.get("queueDatas") or ()
        }
        brokers = {
            entry["brokerName"]: {int(number): address for number, address in entry["brokerAddrs"].items()}
            for entry in data.get("brokerDatas") or ()
        }
        clusters = {entry["brokerName"]: entry.get("cluster") or "" for entry in data.get("brokerDatas") or ()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"route of topic {topic!r}: {error!r} in {body[:200]!r}") from None
    return Route(topic, queues, brokers, clusters)


class RouteCache:
    """Routes by topic, with their age."""

    def __init__(self, nameservers: Sequence[str], links: Links, page: str = "") -> None:
        self.nameservers = list(nameservers)
        self._page = page
        """Address of a page that names the nameservers; empty: they are given."""
        self._page_at = float("-inf")
        self._page_lock = asyncio.Lock()
        self._links = links
        self._routes: dict[str, tuple[Route, float]] = {}
        self._missing_since: dict[str, float] = {}
        self._asking: dict[str, asyncio.Future[Route]] = {}
        self._closed = False
        self._clock_s: Callable[[], float] = time.monotonic
        """The loop's, once a route is kept: asking asyncio for its loop is a system call in Python 3.11."""

    def fresh_route(self, topic: str) -> Route | None:
        """The kept route if it is young enough to be used without asking."""
        kept = self._routes.get(topic)
        if kept is None or self._clock_s() - kept[1] >= ROUTE_AGE_S:
            return None
        return kept[0]

    def broker_addresses(self, masters_only: bool = False) -> set[str]:
        """Addresses of all brokers in kept routes."""
        return {
            address
            for route, _ in self._routes.values()
            for addresses in route.brokers.values()
            for number, address in addresses.items()
            if number == MASTER_ID or not masters_only
        }

    async def route(self, topic: str, fresh: bool = False) -> Route:
        """The topic's route; `fresh` asks again whatever is kept. Raises TOPIC_NOT_FOUND, or UNAVAILABLE if no nameserver answers and
        nothing is kept."""
        now = asyncio.get_running_loop().time()
        kept = self._routes.get(topic)
        if kept is not None and not fresh:
            if now - kept[1] >= ROUTE_AGE_S:
                self._refresh(topic)  # in the background: a nameserver that is down must not hold up a send
            return kept[0]
        asking = self._refresh(topic)
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if not asking.cancelled() or (own is not None and own.cancelling()):
                raise
            raise GantryError(ErrorCode.UNAVAILABLE, CLOSED) from None  # by `close`, which is not whoever waits here
        except GantryError as error:
            if kept is None or error.code is not ErrorCode.UNAVAILABLE:
                raise
            return kept[0]

    def _is_patient(self, topic: str, error: BaseException) -> bool:
        """Whether a kept route outlives this answer. A nameserver that started again knows a topic only when its brokers have
        registered, so `unknown` counts only when it lasts."""
        if not isinstance(error, GantryError) or error.code is not ErrorCode.TOPIC_NOT_FOUND:
            return isinstance(error, GantryError) and error.code is ErrorCode.UNAVAILABLE
        now = asyncio.get_running_loop().time()
        return now - self._missing_since.setdefault(topic, now) < MISSING_S_MAX

    def _refresh(self, topic: str) -> asyncio.Future[Route]:
        """One question at a time per topic, however many ask."""
        future = self._asking.get(topic)
        if future is None:
            future = self._asking[topic] = asyncio.ensure_future(
                self._ask(topic, REFRESH_TIMEOUT_S if topic in self._routes else None)
            )
            future.add_done_callback(lambda done: self._keep(topic, done))
        return future

    def _keep(self, topic: str, done: asyncio.Future[Route]) -> None:
        self._asking.pop(topic, None)
        if done.cancelled():
            return
        error = done.exception()
        self._clock_s = asyncio.get_running_loop().time
        now = self._clock_s()
        kept = self._routes.pop(topic, None)
        if error is None:
            self._missing_since.pop(topic, None)
            self._routes[topic] = (done.result(), now)
            if len(self._routes) > ROUTES_MAX:
                self._routes.pop(next(iter(self._routes)))
        elif kept is not None:
            if self._is_patient(topic, error):
                self._routes[topic] = (kept[0], now)
            else:
                self._missing_since.pop(topic, None)

    async def close(self) -> None:
        """End questions that are asked for whoever no longer waits: such a one would connect again. Whoever does wait is told UNAVAILABLE."""
        self._closed = True
        asking = list(self._asking.values())
        for future in asking:
            future.cancel()
        if asking:
            await asyncio.wait(asking)

    async def publish_route(self, topic: str, fresh: bool = False) -> Route:
        """As `route`; for a topic that does not exist yet, the brokers that will create it at the first send."""
        try:
            return await self.route(topic, fresh)
        except GantryError as error:
            if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                raise
            try:
                template = await self.route(AUTO_CREATE_TEMPLATE, fresh)
            except GantryError:
                raise error from None
        queues = {
            name: (read, min(write, DEFAULT_QUEUES), perm) for name, (read, write, perm) in template.queues.items()
        }
        return Route(topic, queues, template.brokers, template.clusters)

    async def ask(self, command: Command, timeout_s: float | None = None) -> tuple[Command, str]:
        """Any nameserver's answer, and its address. Raises UNAVAILABLE naming all of them."""
        loop = asyncio.get_running_loop()
        timeout_s = ASK_TIMEOUT_S if timeout_s is None else timeout_s
        deadline = loop.time() + timeout_s
        while True:
            if self._closed:
                raise GantryError(ErrorCode.UNAVAILABLE, CLOSED)
            why = await self._discover()
            for address in list(self.nameservers):
                end = loop.time() + min(timeout_s, ASK_ALL_S / len(self.nameservers))
                try:
                    link = await self._links.get(address, end - loop.time(), patient=False)
                    answer = await link.request(command, max(end - loop.time(), RETRY_S))
                except GantryError as error:
                    if error.code is not ErrorCode.UNAVAILABLE:
                        raise
                    why.append(error.text)
                    continue
                if address in self.nameservers:  # a page may have dropped it in the meantime
                    self.nameservers.remove(address)
                    self.nameservers.insert(0, address)
                return answer, address
            if loop.time() + RETRY_S >= deadline:
                text = f"no nameserver answers: {'; '.join(why)} (tried for {timeout_s:g} s){NO_NAMESERVER}"
                raise GantryError(ErrorCode.UNAVAILABLE, text)
            await asyncio.sleep(RETRY_S)

    async def _discover(self) -> list[str]:
        """Ask the page for nameservers if it is time; returns why that failed."""
        if not self._page:
            return []
        async with self._page_lock:
            now = asyncio.get_running_loop().time()
            if now - self._page_at < DISCOVERY_S:
                return []
            if self.nameservers:
                self._page_at = now  # a page that fails is asked again later: there is a list
            try:
                found = await fetch_nameservers(self._page)
            except GantryError as error:
                return [error.text]
            self._page_at = now
            kept = [address for address in self.nameservers if address in found]
            self.nameservers[:] = kept + [address for address in found if address not in kept]
            return []

    async def _ask(self, topic: str, timeout_s: float | None) -> Route:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer, address = await self.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields), timeout_s)
        return parse_route(topic, expect_success(answer, f"route of topic {topic!r}", address).body)
