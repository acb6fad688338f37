"""Who is connected: producers and consumers by group, as their heartbeats say, and who must hear of
changes.

Members of one group must want the same of every topic: queues are spread over them, so what one leaves out of his queues nobody
in the group gets. RocketMQ filters by whoever sent the newest heartbeat; here each client gets what he asked for, and a group
whose members differ is logged when that begins and when it ends, and counted (docs/mapping/rocketmq_filters.md).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final, Protocol

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import RETRY_PREFIX, check_group
from gantrymq.net.api import Link
from gantrymq.remoting.codec import Command
from gantrymq.remoting.json_bodies import ConsumerData, Heartbeat, Subscription
from gantrymq.remoting.server.clients.calls import OnAnswer
from gantrymq.remoting.server.reply import Reply

log = logging.getLogger(__name__)

CLIENT_ID_CHARS_MAX: Final = 512
"""Client ids are `ip@instance[@unit]`; this leaves room for long instance names."""

GROUPS_PER_CLIENT_MAX: Final = 1024
SUBSCRIPTIONS_MAX: Final = 4096
"""Groups of one heartbeat, and subscriptions of one group: a client with more is not a client."""

PLACES_PER_CONNECTION_MAX: Final = 16_384
"""Memberships over one connection; only a proxy has more than one client."""

HEARTBEAT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Last heartbeats of all clients of one connection, as they came: what is kept of them is proportional."""

SHOWN_MAX: Final = 3
"""Client ids beside each subscription in a log line."""

Wanted = tuple[str, str]
"""(expression type, expression) in one spelling: subscriptions that take the same."""


def wanted_of(subscription: Subscription) -> Wanted:
    """The subscription without the freedom of its spelling."""
    kind, text = subscription.expression_type or "TAG", subscription.sub_string or "*"
    if kind != "TAG":
        return kind, text.strip()
    return kind, "||".join(sorted({tag.strip() for tag in text.split("||")} - {""}))


class Member(Protocol):
    """A connection with a client behind it; what its last heartbeat said of the client, and when it came."""

    link: Link
    language: int
    version: int
    beat_ms: int

    def consumers_changed(self, group: str) -> None:
        """Tell it that the members of `group` changed."""

    def push(self, code: int, fields: dict[str, str], body: bytes = b"") -> bool:
        """Send it a one-way request; False if that did not happen."""

    def call(self, code: int, fields: dict[str, str], body: bytes, on_answer: OnAnswer, timeout_ms: int = ...) -> None:
        """Send it a request that has an answer. Raises UNAVAILABLE, LIMIT_REACHED."""

    def push_reply(self, fields: dict[str, str], body: bytes, on_answer: OnAnswer) -> None:
        """Send it the reply to a request of its own, as `call`."""


class ClientReply(Reply, Member, Protocol):
    """The connection of a client that asks something for itself."""

    @property
    def peer(self) -> str:
        """Address and port of the other side."""

    def handle(self, command: Command) -> None:
        """Handle a request as if it had just come."""

    def mark(self) -> None:
        """Something is in the outbox."""

    def respond_when_known(self, command: Command, fields: dict[str, str]) -> None:
        """Success, when the nameservers know of the topics, stored or not."""


class Consumer:
    """One client in a consumer group. `subscriptions`: what its last heartbeat said, by topic. `asked_version`: the newest version of
    a subscription that it was asked for since."""

    __slots__ = ("asked_version", "language", "member", "subscriptions", "version", "wanted")

    def __init__(self, member: Member, language: int, version: int, subscriptions: dict[str, Subscription]) -> None:
        self.member = member
        self.language = language
        self.version = version
        self.subscriptions = subscriptions
        self.asked_version = -1
        self.wanted: dict[str, Wanted] = {}


class ConsumerGroup:
    """Members by client id, and what they subscribe to.

    `subscriptions`: the newest of each topic (by subVersion), as tools see it. `conflicts`: topics of which members want different
    things.
    """

    __slots__ = (
        "_wanted", "_with_topics", "by_member", "conflicts", "consume_type", "consumers", "from_where", "message_model", "name",
        "subscriptions",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.consumers: dict[str, Consumer] = {}
        self.by_member: dict[Member, Consumer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.consume_type = ""
        self.message_model = ""
        self.from_where = ""
        self.conflicts: set[str] = set()
        self._wanted: dict[str, dict[Wanted, int]] = {}
        """Per topic: how many members want what."""
        self._with_topics = 0
        """Members with any subscription: a pull consumer may have none, and is no part of a conflict."""

    def take(self, client_id: str, new: Consumer, data: ConsumerData) -> bool:
        """A member's heartbeat; True if what it wants differs from before."""
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.from_where = data.consume_from_where
        before = self.consumers.get(client_id)
        same = before is not None and _same(before.subscriptions, new.subscriptions)
        if same:
            assert before is not None
            new.wanted = before.wanted
        else:
            new.wanted = _wanted_by(new, data)
        if before is not None and self.by_member.get(before.member) is before:
            del self.by_member[before.member]
        self.consumers[client_id] = self.by_member[new.member] = new
        for topic, found in new.subscriptions.items():
            newest = self.subscriptions.get(topic)
            if newest is None or found.sub_version > newest.sub_version:
                self.subscriptions[topic] = found
        if same:
            return False
        self._count(before.wanted if before is not None else {}, new.wanted)
        gone = before.subscriptions.keys() - new.subscriptions.keys() if before is not None else ()
        for topic in gone:
            self._find_newest(topic)
        return True

    def drop(self, client_id: str) -> None:
        """A member leaves."""
        gone = self.consumers.pop(client_id)
        if self.by_member.get(gone.member) is gone:
            del self.by_member[gone.member]
        self._count(gone.wanted, {})
        for topic in gone.subscriptions:
            self._find_newest(topic)

    def _count(self, old: dict[str, Wanted], new: dict[str, Wanted]) -> None:
        self._with_topics += bool(new) - bool(old)
        for topic, wanted in old.items():
            counts = self._wanted[topic]
            counts[wanted] -= 1
            if not counts[wanted]:
                del counts[wanted]
        for topic, wanted in new.items():
            counts = self._wanted.setdefault(topic, {})
            counts[wanted] = counts.get(wanted, 0) + 1
        if bool(new) != bool(old):
            self._judge(list(self._wanted))  # every topic misses a member, or no longer does
        else:
            self._judge([topic for topic in old | new if old.get(topic) != new.get(topic)])

    def _find_newest(self, topic: str) -> None:
        """The topic's newest subscription among the members that are left."""
        left = [each.subscriptions[topic] for each in self.consumers.values() if topic in each.subscriptions]
        if left:
            self.subscriptions[topic] = max(left, key=lambda found: found.sub_version)
        else:
            self.subscriptions.pop(topic, None)

    def _judge(self, topics: list[str]) -> None:
        for topic in topics:
            counts = self._wanted[topic]
            if not counts:
                del self._wanted[topic]
            if len(counts) > 1 or (counts and sum(counts.values()) < self._with_topics):
                if topic not in self.conflicts:
                    self.conflicts.add(topic)
                    log.warning(
                        "group %s: its members want different things of topic %s: %s. Each gets what he asked for from the queues "
                        "that he has, nobody gets the rest: let them all subscribe alike, or give them groups of their own",
                        self.name, topic, self.describe(topic),
                    )  # fmt: skip
            elif topic in self.conflicts:
                self.conflicts.discard(topic)
                log.info("group %s: its members want the same of topic %s again", self.name, topic)

    def who_wants(self, topic: str) -> dict[Wanted | None, list[str]]:
        """Client ids by what they want of a topic; None: members that do not subscribe to it, but to others."""
        found: dict[Wanted | None, list[str]] = {}
        for client_id, consumer in sorted(self.consumers.items()):
            if consumer.wanted:
                found.setdefault(consumer.wanted.get(topic), []).append(client_id)
        return found

    def describe(self, topic: str) -> str:
        """`who_wants` for people, shortened."""
        return "; ".join(
            f"{'nothing' if wanted is None else repr(wanted[1][:80])} by {', '.join(ids[:SHOWN_MAX])}"
            + (f" and {len(ids) - SHOWN_MAX} more" if len(ids) > SHOWN_MAX else "")
            for wanted, ids in self.who_wants(topic).items()
        )


def _wanted_by(consumer: Consumer, data: ConsumerData) -> dict[str, Wanted]:
    """What must be alike in a group. Retry topics are not filtered, and only some clients name them; a broadcast consumer has every
    queue, so nothing is lost to him by others."""
    if data.message_model == "BROADCASTING":
        return {}
    subscriptions = consumer.subscriptions
    return {topic: wanted_of(found) for topic, found in subscriptions.items() if not topic.startswith(RETRY_PREFIX)}


def _same(old: dict[str, Subscription], new: dict[str, Subscription]) -> bool:
    """Nearly every heartbeat: the same topics with the same expressions."""
    if old.keys() != new.keys():
        return False
    for topic, one in old.items():
        other = new[topic]
        if one.sub_string != other.sub_string or one.expression_type != other.expression_type:
            return False
    return True


class Clients:
    """The registry of one broker."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[str, Member]] = {}
        self._of_member: dict[Member, set[tuple[bool, str, str]]] = {}
        """(is a consumer, group, client id) by connection."""
        self._beat_bytes: dict[Member, dict[str, int]] = {}
        """Bytes of the last heartbeat by connection and client id."""

    def heartbeat(self, member: Member, beat: Heartbeat, language: int, version: int, size: int = 0) -> list[str]:
        """Take in a heartbeat of `size` bytes; returns the consumer groups that are new. Members of changed groups are told.

        Raises NAME_INVALID, ILLEGAL_ARGUMENT, LIMIT_REACHED before anything is changed.
        """
        self._check(beat)
        client_id = beat.client_id
        self._check_room(member, beat, size)
        places = self._of_member.setdefault(member, set())
        for producer in beat.producer_data_set:
            self.producers.setdefault(producer.group_name, {})[client_id] = member
            places.add((False, producer.group_name, client_id))
        new_groups = []
        for data in beat.consumer_data_set:
            name = data.group_name
            group = self.groups.get(name)
            if group is None:
                group = self.groups[name] = ConsumerGroup(name)
                new_groups.append(name)
            before = group.consumers.get(client_id)
            subscriptions = {found.topic: found for found in data.subscription_data_set}
            changed = group.take(client_id, Consumer(member, language, version, subscriptions), data)
            places.add((True, name, client_id))
            if changed or before is None or before.member is not member:
                self._tell(name)
        return new_groups

    def _check_room(self, member: Member, beat: Heartbeat, size: int) -> None:
        """One connection keeps a bounded number of clients in memory, with bounded subscriptions."""
        client_id = beat.client_id
        wanted = {(False, producer.group_name, client_id) for producer in beat.producer_data_set}
        wanted |= {(True, data.group_name, client_id) for data in beat.consumer_data_set}
        if len(self._of_member.get(member, set()) | wanted) > PLACES_PER_CONNECTION_MAX:
            raise GantryError(
                ErrorCode.LIMIT_REACHED,
                f"clients of one connection are in at most {PLACES_PER_CONNECTION_MAX} groups together",
            )
        sizes = self._beat_bytes.setdefault(member, {})
        if sum(sizes.values()) - sizes.get(beat.client_id, 0) + size > HEARTBEAT_BYTES_MAX:
            raise GantryError(
                ErrorCode.LIMIT_REACHED,
                f"heartbeats of one connection have at most {HEARTBEAT_BYTES_MAX} bytes together",
            )
        if size:
            sizes[beat.client_id] = size

    def _check(self, beat: Heartbeat) -> None:
        if not beat.client_id or len(beat.client_id) > CLIENT_ID_CHARS_MAX:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"clientID has {len(beat.client_id)} characters; allowed are 1 to {CLIENT_ID_CHARS_MAX}",
            )
        if len(beat.producer_data_set) + len(beat.consumer_data_set) > GROUPS_PER_CLIENT_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a client has at most {GROUPS_PER_CLIENT_MAX} groups")
        for producer in beat.producer_data_set:
            check_group(producer.group_name)
        for data in beat.consumer_data_set:
            check_group(data.group_name)
            if len(data.subscription_data_set) > SUBSCRIPTIONS_MAX:
                raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a group has at most {SUBSCRIPTIONS_MAX} subscriptions")

    def unregister(self, member: Member, client_id: str, producer: str | None, consumer: str | None) -> None:
        """A client leaves groups (None: does not)."""
        for is_consumer, group in ((False, producer), (True, consumer)):
            if group:
                self._leave(member, (is_consumer, group, client_id))
        if not any(place[2] == client_id for place in self._of_member.get(member, ())):
            self._beat_bytes.get(member, {}).pop(client_id, None)

    def connection_closed(self, member: Member) -> None:
        """Everything that came over this connection leaves."""
        for place in list(self._of_member.get(member, ())):
            self._leave(member, place)
        self._of_member.pop(member, None)
        self._beat_bytes.pop(member, None)

    def _leave(self, member: Member, place: tuple[bool, str, str]) -> None:
        places = self._of_member.get(member)
        if places is None or place not in places:
            return
        places.discard(place)
        is_consumer, name, client_id = place
        if not is_consumer:
            members = self.producers.get(name, {})
            if members.get(client_id) is member:
                del members[client_id]
                if not members:
                    del self.producers[name]
            return
        group = self.groups.get(name)
        # The client may be back over another connection already.
        if group is None or client_id not in group.consumers or group.consumers[client_id].member is not member:
            return
        group.drop(client_id)
        if not group.consumers:
            del self.groups[name]
        self._tell(name)

    def _tell(self, name: str) -> None:
        group = self.groups.get(name)
        if group is not None:
            for consumer in group.consumers.values():
                consumer.member.consumers_changed(name)

    def topics_of(self, group: str) -> Collection[str]:
        """Topics that members of a group, being online, subscribe to."""
        found = self.groups.get(group)
        return found.subscriptions.keys() if found is not None else ()

    def members_of(self, group: str) -> Collection[str]:
        """Client ids of the members of a group."""
        found = self.groups.get(group)
        return found.consumers.keys() if found is not None else ()

    def is_subscribed(self, topic: str) -> bool:
        """Some group wants it."""
        return any(topic in group.subscriptions for group in self.groups.values())

    def wanted(self) -> dict[str, set[str]]:
        """By topic, the groups that want it."""
        found: dict[str, set[str]] = {}
        for name, group in self.groups.items():
            for topic in group.subscriptions:
                found.setdefault(topic, set()).add(name)
        return found

    def client_ids(self, group: str) -> list[str]:
        """Client ids of a consumer group, sorted."""
        found = self.groups.get(group)
        return sorted(found.consumers) if found is not None else []

    def subscription(self, group: str, topic: str, member: Member | None = None) -> Subscription | None:
        """What the client of this connection subscribed to, else the newest of its group."""
        found = self.groups.get(group)
        if found is None:
            return None
        consumer = found.by_member.get(member) if member is not None else None
        if consumer is not None:
            own = consumer.subscriptions.get(topic)
            if own is not None:
                return own
        return found.subscriptions.get(topic)

    def consumer_of(self, group: str, member: Member) -> tuple[str, Consumer] | None:
        """Client id and membership of the client behind this connection; None if it is not in the group."""
        found = self.groups.get(group)
        consumer = found.by_member.get(member) if found is not None else None
        if found is None or consumer is None:
            return None
        for client_id, each in found.consumers.items():
            if each is consumer:
                return client_id, consumer
        return None

    def renew(self, group: str, member: Member, subscriptions: list[Subscription]) -> None:
        """What the client itself says of its subscriptions, between two heartbeats; at most SUBSCRIPTIONS_MAX are believed."""
        found = self.consumer_of(group, member)
        if found is None or not 0 < len(subscriptions) <= SUBSCRIPTIONS_MAX:
            return
        client_id, before = found
        its = self.groups[group]
        data = ConsumerData(group, its.consume_type, its.message_model, its.from_where, subscriptions)
        new = Consumer(member, before.language, before.version, {each.topic: each for each in subscriptions})
        new.asked_version = before.asked_version
        if its.take(client_id, new, data):
            self._tell(group)

    def conflicts(self) -> int:
        """Topics, over all groups, of which members of one group want different things (gantry_subscription_conflicts)."""
        return sum([len(group.conflicts) for group in self.groups.values()])
