"""Polls of pop consumers that wait: one list per group and topic, served in order when a record enters one of its queues or entries
come back. No polling: a queue's list of waiters (`Topic.wait`) and the deadlines' end call `serve`.

One record must not wake a thousand polls in vain: serving stops for a kind of poll (queue, order, filter) with the first that finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gantrymq.model.errors import GantryError
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.door import code_of
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.topics import Topic
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reads import Waits
    from gantrymq.remoting.server.reply import RecordsReply

T = TypeVar("T")

POLLS_MAX: Final = 100_000
"""Polls that wait, in all (RocketMQ's maxPopPollingSize)."""

POLLS_PER_KEY_MAX: Final = 1024
"""Of one group, topic and queue (popPollingSize)."""

POLLS_PER_CONNECTION_MAX: Final = 16_384
"""On one connection: as of those that pull."""


class Poll:
    """A POP_MESSAGE or NOTIFICATION that waits. `give(find(reading))`: answers if there is something now; False: there is nothing.
    `expire()`: the answer when its time is over. `kind`: polls of one kind find the same."""

    __slots__ = ("cold", "command", "expire", "find", "give", "handle", "kind", "queue_id", "reply", "ring")

    def __init__(
        self,
        reply: RecordsReply,
        command: Command,
        queue_id: int,
        kind: object,
        find: Callable[[Reading], T],
        give: Callable[[T], bool],
        expire: Callable[[], None],
    ) -> None:
        self.reply = reply
        self.command = command
        self.queue_id = queue_id
        self.kind = kind
        self.find: Callable[[Reading], Any] = find
        self.give: Callable[[Any], bool] = give
        self.expire = expire
        self.handle = 0
        self.cold = False
        """Its records are being read from the disk."""
        self.ring: Ring | None = None


class Ring:
    """Polls of one group for one topic, oldest first."""

    __slots__ = ("due", "group", "polls", "queues", "sizes", "topic")

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.polls: dict[Poll, None] = {}
        self.sizes: dict[int, int] = {}
        """Polls by queue id asked for (-1: any)."""
        self.queues: dict[tuple[str, int], Topic] = {}
        """(topic, queue id) whose next record calls `serve`; the topic may be deleted meanwhile, its waiters wait on."""
        self.due = False
        """`serve` is called at the end of this turn."""


class Polls:
    """All polls that wait. `queues_of(group, topic)`: the native queues that concern its polls."""

    def __init__(
        self, reading: Reading, waits: Waits, queues_of: Callable[[str, str], list[tuple[Topic, int]]]
    ) -> None:
        self._reading = reading
        self._wheel, self._turn, self._fetch = waits.wheel, waits.turn, waits.read_cold
        self._queues_of = queues_of
        self._rings: dict[tuple[str, str], Ring] = {}
        self._replies: dict[RecordsReply, set[Poll]] = {}
        self.waiting = 0

    def full(self, reply: RecordsReply, group: str, topic: str, queue_id: int) -> bool:
        """One more would be too many."""
        return (
            self.waiting >= POLLS_MAX
            or self.count(group, topic, queue_id) >= POLLS_PER_KEY_MAX
            or len(self._replies.get(reply, ())) >= POLLS_PER_CONNECTION_MAX
        )

    def count(self, group: str, topic: str, queue_id: int) -> int:
        """Polls that wait for that queue (-1: for any)."""
        ring = self._rings.get((group, topic))
        return ring.sizes.get(queue_id, 0) if ring is not None else 0

    def waits(self, reply: RecordsReply) -> bool:
        """Polls of this connection wait."""
        return reply in self._replies

    def park(self, poll: Poll, group: str, topic: str, wait_ms: int) -> None:
        """Let it wait; nothing was there for it just now."""
        ring = self._rings.get((group, topic))
        if ring is None:
            ring = self._rings[group, topic] = Ring(group, topic)
        poll.ring = ring
        ring.polls[poll] = None
        ring.sizes[poll.queue_id] = ring.sizes.get(poll.queue_id, 0) + 1
        self._replies.setdefault(poll.reply, set()).add(poll)
        self.waiting += 1
        wheel = self._wheel
        poll.handle = wheel.call_at(wheel.now_ms() + wait_ms, lambda now_ms: self._expired(poll))
        self._listen(ring)

    def _listen(self, ring: Ring) -> None:
        for topic, queue_id in self._queues_of(ring.group, ring.topic):
            key = (topic.name, queue_id)
            if key not in ring.queues:
                ring.queues[key] = topic
                topic.wait(queue_id, ("pop", ring.group, *key), partial(self._arrived, ring, key))

    def _arrived(self, ring: Ring, key: tuple[str, int]) -> None:
        ring.queues.pop(key, None)
        if self._rings.get((ring.group, ring.topic)) is ring:
            self._serve(ring)

    def wake(self, group: str, topic: str) -> None:
        """Entries came back, or an ordered queue is free: serve at the end of this turn."""
        ring = self._rings.get((group, topic))
        if ring is not None and not ring.due:
            ring.due = True
            self._turn.at_deliver(partial(self._serve, ring))

    def _serve(self, ring: Ring) -> None:
        ring.due = False
        nothing: set[object] = set()
        for poll in list(ring.polls):
            if poll.kind not in nothing and poll.ring is not None and not poll.cold and not self._try(poll):
                nothing.add(poll.kind)
        if ring.polls:
            self._listen(ring)

    def _try(self, poll: Poll) -> bool:
        """True if it is answered, or waits for something else: the disk, or its peer, who has not taken earlier answers."""
        if poll.reply.full():
            self._forget(poll)
            poll.reply.defer(poll.command)
            return True
        try:
            answered = poll.give(poll.find(self._reading))
        except Cold as cold:
            poll.cold = True
            self._fetch(cold, poll, self._again)
            return True
        except (GantryError, OSError) as error:  # what ends one poll must not cost the others theirs
            self._forget(poll)
            code = code_of(error.code) if isinstance(error, GantryError) else int(ResponseCode.SYSTEM_ERROR)
            poll.reply.refuse(poll.command, code, str(error))
            poll.reply.mark()
            return True
        if answered:
            self._forget(poll)
            poll.reply.mark()
        return answered

    def _again(self, poll: Poll) -> None:
        poll.cold = False
        if poll.ring is not None:
            self._try(poll)

    def _expired(self, poll: Poll) -> None:
        poll.handle = 0
        if poll.ring is not None:
            self._forget(poll)
            poll.expire()
            poll.reply.mark()

    def _forget(self, poll: Poll) -> None:
        ring = poll.ring
        if ring is None:
            return
        poll.ring = None
        self.waiting -= 1
        del ring.polls[poll]
        ring.sizes[poll.queue_id] -= 1
        if not ring.polls:
            del self._rings[ring.group, ring.topic]
            for key, topic in ring.queues.items():
                topic.unwait(key[1], ("pop", ring.group, *key))
        of_reply = self._replies[poll.reply]
        of_reply.discard(poll)
        if not of_reply:
            del self._replies[poll.reply]
        if poll.handle:
            self._wheel.cancel(poll.handle)

    def commands_of(self, reply: RecordsReply) -> list[Command]:
        """The requests of a connection that wait."""
        return [poll.command for poll in self._replies.get(reply, ())]

    def drop(self, reply: RecordsReply) -> None:
        """The connection is gone, or its polls are no longer wanted."""
        for poll in list(self._replies.get(reply, ())):
            self._forget(poll)
