"""Topics, routes, groups, offsets and single messages, for tools and people."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gantrymq.client.client import Part
from gantrymq.client.connecting.routes import MessageQueue, Route, loads
from gantrymq.client.consuming import offsets
from gantrymq.client.errors import BrokerError, expect_success, number
from gantrymq.client.messages import parse_offset_message_id
from gantrymq.client.records import ReceivedMessage, decode_records
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import check_group, check_topic, is_system_topic
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import MASTER_ID, Perm, RequestCode, ResponseCode

QUEUES: Final = 4
"""Queues of a new topic, as RocketMQ's defaultTopicQueueNums."""
KNOWN_AFTER_S: Final = 5.0
"""Brokers register a new topic at once; this is what that may take under load."""
POLL_S: Final = 0.02
SYSTEM_GROUPS: Final = frozenset(
    {
        "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL", "CID_SYS_RMQ_TRANS",
    }
)  # fmt: skip
"""RocketMQ's own groups (MixAll)."""
TIME_MAX_MS: Final = 2**63 - 1
_OFFSET_ID_DIGITS: Final = (32, 56)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Brokers that the nameserver knows.

    Attributes:
        clusters: Cluster name to broker names.
        brokers: Broker name to {broker id: address}; id 0 is the master.
    """

    clusters: dict[str, list[str]]
    brokers: dict[str, dict[int, str]]

    def masters(self, cluster: str = "") -> dict[str, str]:
        """Broker name to master address, of one cluster or of all."""
        if cluster and cluster not in self.clusters:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise GantryError(ErrorCode.NOT_FOUND, f"there is no cluster {cluster!r}; known: {known}")
        names = self.clusters[cluster] if cluster else sorted(self.brokers)
        return {name: self.brokers[name][MASTER_ID] for name in names if MASTER_ID in self.brokers.get(name, ())}


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How much a queue holds.

    Attributes:
        queue: The queue.
        min_offset: Offset of its oldest message.
        max_offset: Offset that its next message will get.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int

    @property
    def messages(self) -> int:
        """Offsets between the oldest and the next."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One connected client of a consumer group.

    Attributes:
        client_id: As it named itself.
        address: `host:port` that it connects from.
        language: As RocketMQ's LanguageCode names it: `JAVA`, `PYTHON`, ...
    """

    client_id: str
    address: str
    language: str


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in one queue.

    Attributes:
        queue: The queue.
        committed: The group's offset: the next message that it gets; None for a group without one.
        min_offset: Offset of the oldest message.
        max_offset: Offset that the next message will get.
    """

    queue: MessageQueue
    committed: int | None
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed, everything for a group without an offset."""
        return self.max_offset - max(self.min_offset, self.committed or 0)


class Admin(Part):
    """Administration over nameservers and brokers. Every method raises GantryError with the server's own text.

    Arguments:
        nameserver: `HOST:PORT`, several joined by `;`, or a page that names them; empty: `NAMESRV_ADDR`, else 127.0.0.1:9876.
        client: Connections to share; None: its own.

    Attributes:
        client (Client): Its connections and routes.
    """

    async def cluster(self) -> ClusterInfo:
        """Clusters and brokers."""
        answer, address = await self.client.routes.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        data = loads(expect_success(answer, "cluster info", address).body)
        try:
            brokers = {
                name: {int(number_): where for number_, where in entry["brokerAddrs"].items()}
                for name, entry in (data.get("brokerAddrTable") or {}).items()
            }
            clusters = {name: sorted(names) for name, names in (data.get("clusterAddrTable") or {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"cluster info of {address}: {error!r}") from None
        return ClusterInfo(clusters, brokers)

    async def create_topic(
        self, topic: str, queues: int = QUEUES, cluster: str = "", broker: str = "", perm: int = Perm.READ | Perm.WRITE
    ) -> list[str]:
        """Create or change `topic` on every master (of one cluster, or of one broker). Returns the brokers' names, once the nameserver knows the
        topic (or has not heard of it for 5 s, which is no failure: brokers tell it from time to time)."""
        check_topic(topic)
        if queues < 1:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{queues} queues: allowed is 1 or more")
        masters = await self._masters(cluster, broker)
        if not masters:
            what = f"broker {broker!r}" if broker else "broker"
            raise GantryError(ErrorCode.UNAVAILABLE, f"topic {topic!r} was not created: the nameserver knows no {what}")
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(int(perm)),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        for address in masters.values():
            await self.client.ask(
                address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, dict(fields)), f"create topic {topic!r}"
            )
        await self.wait_until_known(topic, set(masters))
        return sorted(masters)

    async def _masters(self, cluster: str, broker: str) -> dict[str, str]:
        """Masters that take a new topic. A nameserver that has just started hears of its brokers a little later."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KNOWN_AFTER_S
        while True:
            info = await self.cluster()
            if info.brokers or loop.time() >= deadline:
                masters = info.masters(cluster)
                return {name: address for name, address in masters.items() if broker in ("", name)}
            await asyncio.sleep(POLL_S)

    async def wait_until_known(self, topic: str, brokers: set[str]) -> None:
        """Return when a nameserver knows that these brokers have `topic`, or after 5 s."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KNOWN_AFTER_S
        while loop.time() < deadline:
            try:
                if brokers <= (await self.client.routes.route(topic, fresh=True)).queues.keys():
                    return
            except GantryError as error:
                if error.code not in (ErrorCode.TOPIC_NOT_FOUND, ErrorCode.UNAVAILABLE):
                    raise
            await asyncio.sleep(POLL_S)

    async def delete_topic(self, topic: str) -> None:
        """Delete `topic` on every broker that has it, then at every nameserver. Raises TOPIC_NOT_FOUND."""
        what = f"delete topic {topic!r}"
        route = await self.client.routes.route(topic, fresh=True)
        for addresses in route.brokers.values():
            for address in addresses.values():
                await self.client.ask(address, Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}), what)
        for address in list(self.client.routes.nameservers):
            try:
                await self.client.ask(address, Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}), what)
            except GantryError as error:
                if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.TOPIC_NOT_FOUND):
                    raise  # one that is down, or forgot it already, learns from the brokers

    async def topics(self, system: bool = False) -> list[str]:
        """Names of all topics, sorted; without RocketMQ's and our own system topics unless `system`."""
        answer, address = await self.client.routes.ask(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        names = loads(expect_success(answer, "list of topics", address).body).get("topicList") or []
        brokers: set[str] = set()
        if not system:  # RocketMQ makes a topic of each cluster's and each broker's name
            info = await self.cluster()
            brokers = {*info.clusters, *info.brokers}
        return sorted(name for name in set(names) if system or not (is_system_topic(name) or name in brokers))

    async def route(self, topic: str) -> Route:
        """The topic's brokers and queues, asked for now."""
        return await self.client.routes.route(topic, fresh=True)

    async def topic_stats(self, topic: str) -> list[QueueStats]:
        """Oldest and next offset of every queue that can be read."""
        queues = (await self.route(topic)).read_queues()
        codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        offsets = await asyncio.gather(*[self._offset(queue, code) for queue in queues for code in codes])
        return [QueueStats(queue, *offsets[2 * row : 2 * row + 2]) for row, queue in enumerate(queues)]

    async def query_by_key(
        self, topic: str, key: str, limit: int = 64, begin_ms: int = 0, end_ms: int = TIME_MAX_MS, unique: bool = False
    ) -> list[ReceivedMessage]:
        """Messages with `key` among their KEYS (or, with `unique`, as UNIQ_KEY) stored between the times, newest first."""
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(limit),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
        }
        if unique:
            fields["_UNIQUE_KEY_QUERY"] = "true"
        route = await self.client.routes.route(topic)
        found: list[ReceivedMessage] = []
        for broker in sorted(route.brokers):
            command = Command(RequestCode.QUERY_MESSAGE, dict(fields))
            try:
                answer = await self.client.ask(route.address(broker), command, f"query of {topic!r} for key {key!r}")
            except BrokerError as error:
                if error.response_code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                raise
            found += decode_records(answer.body, broker)
        # The index holds hashes: two keys may have the same.
        exact = [message for message in found if _has_key(message, key, unique)]
        exact.sort(key=lambda message: (message.store_ms, message.physical_offset), reverse=True)
        return exact[:limit]

    async def view(self, message_id: str, topic: str = "") -> ReceivedMessage:
        """One message by its offset message id or, with its topic, by its UNIQ_KEY. Raises NOT_FOUND."""
        if len(message_id) in _OFFSET_ID_DIGITS:
            try:
                return await self._view_at(message_id, topic)
            except GantryError:
                if not topic:  # both kinds of id look alike
                    raise
        if not topic:
            text = (
                f"message id {message_id!r}: give the topic too, or an offset message id of 32 or 56 hexadecimal digits"
            )
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
        found = await self.query_by_key(topic, message_id, limit=1, unique=True)
        if not found:
            raise GantryError(ErrorCode.NOT_FOUND, f"topic {topic!r} has no message with id {message_id!r}")
        return found[0]

    async def _view_at(self, message_id: str, topic: str) -> ReceivedMessage:
        address, offset = parse_offset_message_id(message_id)
        if topic:  # a client's id may look like an offset id: ask only brokers that have the topic
            route = await self.client.routes.route(topic)
            if not any(address in addresses.values() for addresses in route.brokers.values()):
                raise GantryError(ErrorCode.NOT_FOUND, f"no broker of topic {topic!r} has the address {address}")
        fields = {"offset": str(offset)} | ({"topic": topic} if topic else {})
        answer = await self.client.ask(
            address, Command(RequestCode.VIEW_MESSAGE_BY_ID, fields), f"view of {message_id}"
        )
        messages = decode_records(answer.body)
        if not messages:
            raise GantryError(ErrorCode.NOT_FOUND, f"{address} has no message at physical offset {offset}")
        return messages[0]

    # consumer groups

    async def create_group(self, group: str, *, reconsume_max: int = 16, cluster: str = "") -> list[str]:
        """Create or change a consumer group on every master (of one cluster). `reconsume_max`: attempts beyond the first before a message
        becomes a dead letter. Returns the brokers' names."""
        check_group(group)
        config = {
            "groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
            "consumeMessageOrderly": False, "retryQueueNums": 1, "retryMaxTimes": reconsume_max, "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True,
        }  # fmt: skip
        masters = (await self.cluster()).masters(cluster)
        for address in masters.values():
            command = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, msgspec.json.encode(config))
            await self.client.ask(address, command, f"create group {group!r}")
        return sorted(masters)

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a group on every master, with its offsets unless told otherwise."""
        fields = {"groupName": group, "cleanOffset": str(offsets).lower()}
        for address in (await self.cluster()).masters().values():
            command = Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, dict(fields))
            await self.client.ask(address, command, f"delete group {group!r}")

    async def groups(self, system: bool = False) -> list[str]:
        """Names of all consumer groups, sorted; without RocketMQ's own unless `system`."""
        names: set[str] = set()
        for address in (await self.cluster()).masters().values():
            command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            answer = await self.client.ask(address, command, "list of groups")
            names |= set(loads(answer.body).get("subscriptionGroupTable") or {})
        return sorted(name for name in names if system or not is_system_group(name))

    async def members(self, group: str) -> list[GroupMember]:
        """Clients of a group that are connected, sorted by client id; empty if none is."""
        found: dict[str, GroupMember] = {}
        for address in (await self.cluster()).masters().values():
            command = Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
            try:
                answer = await self.client.ask(address, command, f"members of group {group!r}")
            except BrokerError as error:
                if error.response_code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST):
                    continue
                raise
            for entry in loads(answer.body).get("connectionSet") or ():
                member = GroupMember(entry["clientId"], entry["clientAddr"].lstrip("/"), str(entry["language"]))
                found[member.client_id] = member
        return [found[client_id] for client_id in sorted(found)]

    async def progress(self, group: str, topic: str) -> list[QueueProgress]:
        """How far a group is in every queue of a topic."""
        queues = (await self.route(topic)).read_queues()
        result = []
        for queue in queues:
            kept = await offsets.committed(self.client, group, queue)
            least = await offsets.min_offset(self.client, queue)
            result.append(QueueProgress(queue, kept, least, await offsets.max_offset(self.client, queue)))
        return result

    async def lag(self, group: str, topic: str) -> int:
        """Messages of a topic that a group has not consumed."""
        return sum(row.lag for row in await self.progress(group, topic))

    async def set_offsets(self, group: str, wanted: Mapping[MessageQueue, int]) -> None:
        """Set offsets of a group that nobody of is connected: a running consumer would commit its own again."""
        for queue, offset in wanted.items():
            await offsets.commit(self.client, group, queue, offset)

    async def reset_offsets(self, group: str, topic: str, to: str | int) -> dict[MessageQueue, int]:
        """Let a group go on at `earliest`, `latest` or the first message at or after a time (milliseconds since the epoch); its connected
        consumers are told. Returns the offsets."""
        route = await self.route(topic)
        wanted = {queue: await offsets.find_start(self.client, queue, to) for queue in route.read_queues()}
        times = {"latest": -1, "earliest": 0}
        fields = {
            "topic": topic, "group": group, "timestamp": str(times[to] if isinstance(to, str) else to),
            "isForce": "true", "queueId": "-1",
        }  # fmt: skip
        for broker in sorted(route.brokers):
            mine = {queue: offset for queue, offset in wanted.items() if queue.broker == broker}
            try:
                command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, dict(fields))
                await self.client.ask(route.address(broker, True), command, f"reset of group {group!r}")
            except BrokerError:
                if await self.members(group):
                    raise
                await self.set_offsets(group, mine)  # nobody of the group is connected
        return wanted

    async def _offset(self, queue: MessageQueue, code: RequestCode) -> int:
        link = await self.client.link_of(queue)
        what = f"{code.name} of {queue}"
        answer = await link.request(Command(code, {"topic": queue.topic, "queueId": str(queue.queue_id)}))
        return number(expect_success(answer, what, link.address), "offset", what, link.address)


def _has_key(message: ReceivedMessage, key: str, unique: bool) -> bool:
    return message.message_id == key if unique else key in message.keys.split() or message.message_id == key


def is_system_group(name: str) -> bool:
    """One of RocketMQ's own."""
    return name in SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")
