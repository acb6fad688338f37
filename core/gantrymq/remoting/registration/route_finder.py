"""Queues that the other brokers have of a topic, asked of the nameservers and kept for a moment (RocketMQ's TopicRouteInfoManager).

One question at a time, over connections that end with the last of them: a client asks for its assignment every 20 s, and the answer
to one serves all for `FRESH_S`. Without a nameserver the last answer holds, and where there is none the asker does with what it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.broker.topics import PERM_READ
from gantrymq.model.errors import GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.json_bodies import BodyError, ReadTopicRoute, decode
from gantrymq.remoting.registration.nameserver_connection import NameserverConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.net.tls.contexts import Outgoing

FRESH_S: Final = 5.0
"""A new broker of a topic is assigned that much later; RocketMQ's brokers ask every 30 s (loadBalancePollNameServerInterval)."""

ANSWER_S: Final = 1.0
"""Clients give up their own question after 3 s (RebalanceImpl.QUERY_ASSIGNMENT_TIMEOUT, tried again)."""

REST_S: Final = 5.0
"""No nameserver answered: nobody waits for them meanwhile."""

TOPICS_MAX: Final = 20_000
"""Routes kept, some hundred bytes each; the oldest go."""

WAITING_MAX: Final = 10_000
"""Askers at once; what comes beyond gets what is known."""

Queues = dict[str, int]
"""Broker name to the number of queues that can be read there."""
OnQueues = Callable[[Queues | None], None]


class RouteFinder:
    """`nameservers()`: whom to ask now; `tls`: how."""

    def __init__(self, nameservers: Callable[[], Sequence[str]], tls: Outgoing | None = None) -> None:
        self._nameservers = nameservers
        self._tls = tls
        self._links: dict[str, NameserverConnection] = {}
        self._known: dict[str, tuple[float, Queues]] = {}
        self._waiting: dict[str, list[OnQueues]] = {}
        self._waiters = 0
        self._rest_until_s = 0.0
        self._preferred = ""
        self._task: asyncio.Task[None] | None = None

    def find(self, topic: str, on_queues: OnQueues) -> None:
        """`on_queues(queues)` now or soon; None: nobody says."""
        if not self._nameservers():
            on_queues(None)
            return
        known = self._known.get(topic)
        now_s = asyncio.get_running_loop().time()
        if known is not None and now_s - known[0] < FRESH_S:
            on_queues(known[1])
        elif now_s < self._rest_until_s or self._waiters >= WAITING_MAX:
            on_queues(known and known[1])
        else:
            self._waiters += 1
            self._waiting.setdefault(topic, []).append(on_queues)
            if self._task is None:
                self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        now_s = asyncio.get_running_loop().time
        try:
            while self._waiting:
                topic = next(iter(self._waiting))
                queues = await self._ask(topic)
                if queues is None:
                    self._rest_until_s = now_s() + REST_S
                    for each in list(self._waiting):
                        self._tell(each)
                    return
                self._known.pop(topic, None)
                self._known[topic] = (now_s(), queues)
                while len(self._known) > TOPICS_MAX:
                    del self._known[next(iter(self._known))]
                self._tell(topic)
        finally:
            self._task = None
            for link in self._links.values():
                link.close()
            self._links.clear()

    def _tell(self, topic: str) -> None:
        known = self._known.get(topic)
        askers = self._waiting.pop(topic)
        self._waiters -= len(askers)
        for on_queues in askers:
            on_queues(known and known[1])

    async def _ask(self, topic: str) -> Queues | None:
        """Of the nameserver that answered last, else of the others in turn; None: of none."""
        for address in sorted(self._nameservers(), key=lambda one: one != self._preferred):
            link = self._links.get(address)
            if link is None:
                link = self._links[address] = NameserverConnection(address, tls=self._tls)
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await link.request(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    queues: Queues = {}
                elif answer.code == ResponseCode.SUCCESS:
                    rows = decode(answer.body, ReadTopicRoute).queue_datas
                    queues = {row.broker_name: row.read_queue_nums for row in rows if row.perm & PERM_READ}
                else:
                    continue
            except (GantryError, TimeoutError, BodyError, ValueError):
                continue
            self._preferred = address
            return queues
        return None
