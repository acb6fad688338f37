"""One shared subscription as this gateway sees it: who of its clients gets which message.

The group's place is one cursor in a light queue of its own, which every gateway acquires from: as much as its members have room for. What a member
held when it leaves goes back to its old place in the queue. Which member of this gateway a message is for is the strategy's choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol
from zlib import crc32

from gantrymq.broker.port import Delivery, Outcome
from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq_gateways.mqtt.messages.refused import CLIENT
from gantrymq_gateways.mqtt.sessions.sessions import ACQUIRE_BYTES, Session, SessionTools
from gantrymq_gateways.mqtt.sessions.single import qos_of, send_one

ACQUIRE_MAX: Final = 256
"""Messages fetched for a group at once: what is fetched here cannot go to members of other gateways."""

PENDING_MAX: Final = 1_024
"""Messages fetched that wait for the member which the strategy chose; no more are fetched meanwhile."""

ALONE: Final = frozenset({"sticky", "key"})
"""Strategies whose promise holds for one gateway at a time: the others wait for its lease."""


class GroupPort(Protocol):
    """What a group needs from the broker."""

    def acquire(
        self,
        cursor: int,
        holder: int,
        count_max: int,
        bytes_max: int,
        token: object,
        on_done: Callable[[Any, Any], None],
    ) -> None: ...


class Taken:
    """A message that a member got and has not acknowledged."""

    __slots__ = ("group", "key", "offset", "session")

    def __init__(self, group: SharedGroup, session: Session, offset: int, key: tuple[str, str]) -> None:
        self.group = group
        self.session = session
        self.offset = offset
        self.key = key
        """Native topic and tag."""

    def acknowledged(self) -> None:
        """Its member is done with it."""
        self.group.end(self, Outcome.ACK)


class _Member:
    __slots__ = ("granted", "pending", "session")

    def __init__(self, session: Session, granted: int) -> None:
        self.session = session
        self.granted = granted
        self.pending: deque[Delivery] = deque()
        """Chosen for it, waiting for room."""

    def room(self) -> int:
        return self.session.outlet.room() - len(self.pending)

    def load(self) -> int:
        return len(self.session.outlet.inflight) + len(self.pending)


class SharedGroup:
    """`text`: the subscription, `$share/...`. `holder`: of what this gateway acquired."""

    def __init__(self, text: str, light: int, cursor: int, holder: int, strategy: str, tools: SessionTools) -> None:
        self.text = text
        self.light = light
        self.cursor = cursor
        self.holder = holder
        self.strategy = strategy
        self._flush = tools.flush_settled
        self.active = strategy not in ALONE
        """This gateway may deliver."""
        self._tools = tools
        self._members: dict[Session, _Member] = {}
        self._taken: dict[Session, dict[int, Taken]] = {}
        self._topics: dict[tuple[str, str], list[Any]] = {}
        """Native topic and tag -> [member, messages that it has not done]: strategy `key`."""
        self._turn = 0
        self._asked = 0
        self._ready = True
        self._marked = False
        self._returned = False
        """What is on its way from the broker comes behind something that went back."""

    def __len__(self) -> int:
        return len(self._members)

    def is_idle(self) -> bool:
        """Nobody of this gateway has anything of the group any more."""
        return not self._members and not self._taken and not self._asked

    def sessions(self) -> list[Session]:
        """Its members here."""
        return list(self._members)

    def join(self, session: Session, granted: int) -> None:
        """A new member, or a new QoS for one."""
        member = self._members.get(session)
        if member is not None:
            member.granted = granted
            return
        self._members[session] = _Member(session, granted)
        session.shares[self.text] = self
        session.shared_with |= {self}
        self.wake()

    def leave(self, session: Session) -> None:
        """It subscribes no more. What was sent stays to be acknowledged, but with strategy `key`: the topic is another member's now."""
        member = self._members.pop(session, None)
        if member is None:
            return
        session.shares.pop(self.text, None)
        for delivery in member.pending:
            self._done_with((delivery.message.topic, delivery.message.tag))
            self._tools.settle(self.cursor, delivery.offset, Outcome.RELEASE)
        self._returned = self._returned or self._asked > 0
        if self.strategy == "key":
            self._return(session)
        self._flush()
        self.wake()

    def detach(self, session: Session) -> None:
        """The connection is gone: what its client held goes back, in order."""
        self.leave(session)
        self._return(session)
        self._flush()
        self.wake()

    def _return(self, session: Session) -> None:
        for taken in list(self._taken.get(session, {}).values()):
            self.end(taken, Outcome.REQUEUE)
            self._returned = self._returned or self._asked > 0

    def end(self, taken: Taken, outcome: Outcome) -> None:
        """A message is done or goes back; once."""
        mine = self._taken.get(taken.session)
        if mine is None or mine.pop(taken.offset, None) is not taken:
            return
        if not mine:
            del self._taken[taken.session]
        self._done_with(taken.key)
        self._tools.settle(self.cursor, taken.offset, outcome)

    def ready(self, cursor: int) -> None:
        """The broker has something."""
        self._ready = True
        self.wake()

    def wake(self) -> None:
        """A member has room, perhaps: look at the end of this turn."""
        if not self._marked:
            self._marked = True
            self._tools.later(self._pump)

    def _pump(self) -> None:
        self._marked = False
        for member in list(self._members.values()):
            self._send_pending(member)
        if not self.active or not self._ready or self._asked or not self._members:
            return
        room = waiting = 0
        for member in self._members.values():
            waiting += len(member.pending)
            room += max(member.room(), 0)
        count = min(room, ACQUIRE_MAX, PENDING_MAX - waiting)
        if count > 0:
            self._asked = count
            port: GroupPort = self._tools.port
            port.acquire(self.cursor, self.holder, count, ACQUIRE_BYTES, count, self._acquired)

    def _acquired(self, asked: int, result: Any) -> None:
        self._asked = 0
        returned, self._returned = self._returned, False
        if isinstance(result, GantryError):
            for session in self.sessions():
                session.fail(f"messages for {self.text!r} cannot be fetched: {result}")
            return
        if len(result) < asked:
            self._ready = False  # the watcher tells, at once if there is more
        if returned or not self._members or not self.active:
            for delivery in result:
                self._tools.settle(self.cursor, delivery.offset, Outcome.RELEASE)
            self._flush()
            self._ready = True
        else:
            for delivery in result:
                self._choose(delivery).pending.append(delivery)
        self.wake()

    # Strategies

    def _choose(self, delivery: Delivery) -> _Member:
        message = delivery.message
        members = list(self._members.values())
        if len(members) == 1 and self.strategy != "key":
            return members[0]
        if self.strategy == "hash_topic":
            return members[crc32(f"{message.topic}.{message.tag}".encode()) % len(members)]
        if self.strategy == "hash_client":
            publisher = props.find(message.properties, CLIENT) or ""
            return members[crc32(publisher.encode()) % len(members)]
        if self.strategy == "sticky":
            return members[0]
        if self.strategy == "least_inflight":
            return min(members, key=_Member.load)
        if self.strategy == "key":
            key = (message.topic, message.tag)
            known = self._topics.setdefault(key, [None, 0])
            if known[0] is None:
                known[0] = self._next(members)
            known[1] += 1
            chosen: _Member = known[0]
            return chosen
        return self._next(members)

    def _next(self, members: list[_Member]) -> _Member:
        """The next in turn that has room; whoever has least to do where nobody has."""
        for _ in members:
            self._turn = (self._turn + 1) % len(members)
            if members[self._turn].room() > 0:
                return members[self._turn]
        return min(members, key=_Member.load)

    def _done_with(self, key: tuple[str, str]) -> None:
        known = self._topics.get(key)
        if known is not None:
            known[1] -= 1
            if known[1] <= 0:
                del self._topics[key]

    # Delivery

    def _send_pending(self, member: _Member) -> None:
        session, outlet = member.session, member.session.outlet
        while member.pending and session.is_attached() and not session.held:
            qos = qos_of(member.pending[0], member.granted)
            if outlet.blocked or (qos and outlet.room() <= 0):
                return
            self._send(member, member.pending.popleft())

    def _send(self, member: _Member, delivery: Delivery) -> None:
        session, message = member.session, delivery.message
        taken = Taken(self, session, delivery.offset, (message.topic, message.tag))
        self._taken.setdefault(session, {})[delivery.offset] = taken
        send_one(self._tools, session, delivery, member.granted, taken)


def publisher_property(client_id: str) -> bytes:
    """What strategy `hash_client` needs of every message."""
    return props.encode([(CLIENT, client_id)])
