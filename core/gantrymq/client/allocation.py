"""Who of a consumer group reads which queue: every member computes the same shares from the same two sorted lists.

Results are those of RocketMQ's AllocateMessageQueue* classes (5.3.3), so Java and Python members can share a group as long as all of them use
the same strategy.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Final

from gantrymq.client.connecting.routes import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, sorted queues of one topic, sorted client ids of the group) to the own share. The own id is one of `clients`."""

VIRTUAL_NODES: Final = 10
"""Points per member on the ring of `consistent_hash` (virtualNodeCnt)."""


def averagely(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Neighbouring queues to each member; the first members have one more where it does not come out even (AllocateMessageQueueAveragely)."""
    index = clients.index(client_id)
    share, rest = divmod(len(queues), len(clients))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def circle(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Queues dealt out like cards (AllocateMessageQueueAveragelyByCircle)."""
    return list(queues[clients.index(client_id) :: len(clients)])


def machine_room(rooms: Collection[str]) -> Strategy:
    """Only queues of brokers named `room@name` with one of these rooms, averagely (AllocateMessageQueueByMachineRoom)."""

    def allocate(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
        index = clients.index(client_id)
        near = [queue for queue in queues if queue.broker.count("@") == 1 and queue.broker.split("@")[0] in rooms]
        share, rest = divmod(len(near), len(clients))
        own = near[index * share : (index + 1) * share]
        if index < rest:
            own.append(near[share * len(clients) + index])
        return own

    return allocate


def _ring_hash(text: str) -> int:
    """The first four bytes of the MD5 digest (ConsistentHashRouter's MD5Hash)."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def consistent_hash(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Few queues move when a member comes or goes (AllocateMessageQueueConsistentHash)."""
    ring: dict[int, str] = {}
    for client in clients:
        for replica in range(VIRTUAL_NODES):
            ring[_ring_hash(f"{client}-{replica}")] = client
    points = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        name = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        at = bisect_left(points, _ring_hash(name))
        return ring[points[at] if at < len(points) else points[0]]

    return [queue for queue in queues if owner(queue) == client_id]


def by_config(wanted: Collection[MessageQueue]) -> Strategy:
    """Always these queues, whoever else is there (AllocateMessageQueueByConfig)."""

    def allocate(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in wanted]

    return allocate
