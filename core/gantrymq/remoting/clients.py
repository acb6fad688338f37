"""Who is connected: producers and consumers by group, as their heartbeats say, and who must hear of
changes."""

from __future__ import annotations

from typing import Final, Protocol

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import check_group
from gantrymq.net.api import Link
from gantrymq.remoting.json_bodies import ConsumerData, Heartbeat, Subscription

CLIENT_ID_CHARS_MAX: Final = 512
"""Client ids are `ip@instance[@unit]`; this leaves room for long instance names."""

GROUPS_PER_CLIENT_MAX: Final = 1024
SUBSCRIPTIONS_MAX: Final = 4096
"""Groups of one heartbeat, and subscriptions of one group: a client with more is not a client."""


class Member(Protocol):
    """A connection with a client behind it."""

    link: Link

    def consumers_changed(self, group: str) -> None:
        """Tell it that the members of `group` changed."""

    def push(self, code: int, fields: dict[str, str], body: bytes = b"") -> bool:
        """Send it a one-way request; False if that did not happen."""


class Consumer:
    """One client in a consumer group."""

    __slots__ = ("language", "member", "version")

    def __init__(self, member: Member, language: int, version: int) -> None:
        self.member = member
        self.language = language
        self.version = version


class ConsumerGroup:
    """Members by client id, and what the group subscribes to."""

    __slots__ = ("consume_type", "consumers", "from_where", "message_model", "subscriptions")

    def __init__(self) -> None:
        self.consumers: dict[str, Consumer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.consume_type = ""
        self.message_model = ""
        self.from_where = ""

    def subscribe(self, data: ConsumerData) -> bool:
        """Take over a member's subscriptions; True if they differ from before. A newer subVersion wins, as in
        RocketMQ."""
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.from_where = data.consume_from_where
        changed = False
        topics = set()
        for new in data.subscription_data_set:
            topics.add(new.topic)
            old = self.subscriptions.get(new.topic)
            if old is None or new.sub_version > old.sub_version:
                changed |= old is None or old.sub_string != new.sub_string
                self.subscriptions[new.topic] = new
        for topic in self.subscriptions.keys() - topics:
            del self.subscriptions[topic]
            changed = True
        return changed


class Clients:
    """The registry of one broker."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[str, Member]] = {}
        self._of_member: dict[Member, set[tuple[bool, str, str]]] = {}
        """(is a consumer, group, client id) by connection."""

    def heartbeat(self, member: Member, beat: Heartbeat, language: int, version: int) -> list[str]:
        """Take in a heartbeat; returns the consumer groups that are new. Members of changed groups are told.

        Raises NAME_INVALID, ILLEGAL_ARGUMENT before anything is changed.
        """
        self._check(beat)
        client_id = beat.client_id
        places = self._of_member.setdefault(member, set())
        for producer in beat.producer_data_set:
            self.producers.setdefault(producer.group_name, {})[client_id] = member
            places.add((False, producer.group_name, client_id))
        new_groups = []
        for data in beat.consumer_data_set:
            name = data.group_name
            group = self.groups.get(name)
            if group is None:
                group = self.groups[name] = ConsumerGroup()
                new_groups.append(name)
            before = group.consumers.get(client_id)
            changed = group.subscribe(data)
            group.consumers[client_id] = Consumer(member, language, version)
            places.add((True, name, client_id))
            if changed or before is None or before.member is not member:
                self._tell(name)
        return new_groups

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

    def connection_closed(self, member: Member) -> None:
        """Everything that came over this connection leaves."""
        for place in list(self._of_member.get(member, ())):
            self._leave(member, place)
        self._of_member.pop(member, None)

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
        del group.consumers[client_id]
        if not group.consumers:
            del self.groups[name]
        self._tell(name)

    def _tell(self, name: str) -> None:
        group = self.groups.get(name)
        if group is not None:
            for consumer in group.consumers.values():
                consumer.member.consumers_changed(name)

    def client_ids(self, group: str) -> list[str]:
        """Client ids of a consumer group, sorted."""
        found = self.groups.get(group)
        return sorted(found.consumers) if found is not None else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What the group's heartbeats say of a topic."""
        found = self.groups.get(group)
        return found.subscriptions.get(topic) if found is not None else None
