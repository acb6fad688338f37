"""Topics: configuration and what the append path needs to know of each, in one object."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from zlib import crc32

from gantrymq.broker.config import TopicsConfig
from gantrymq.broker.matches import RouteMatch
from gantrymq.model import message_types, names
from gantrymq.model.dialect import quick_json
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

CACHE_MAX = 10_000
"""Routing results remembered per topic; a topic with more tags than that starts its memory anew."""
QUEUE_CACHE_MAX = 10_000
"""Tags per topic whose queue is remembered; beyond it the memory is started anew."""

FLUSH = "flush"
"""Topic attribute: `sync` or `async`, whatever `store.flush` says; without it `store.flush` rules."""

CLEANUP = "cleanup.policy"
COMPACTION = "COMPACTION"
"""Topic attribute, as in RocketMQ: the last record of each key (property KEYS) is kept; fixed when the topic is made."""

RESERVE_TIME = "reserve.time"
"""Topic attribute, as in RocketMQ: milliseconds that its readers see; longer than the store keeps has no effect, -1 is none."""

KEEP_RECORDS = "keep.records"
"""Topic attribute: `false`: its records are kept only for who has them before him, not for `store.file_reserved_hours`; `true`: for that time,
whatever `amqp.keep_exchange_records` says."""

CHANGES_MAX = 10_000
"""Changes that are remembered for nameservers; one that missed more gets the whole table."""

QUEUES_MAX = 1024
"""Queues a topic may have (RocketMQ's BenchmarkTest has 1,024)."""

CLUSTER_QUEUES = 16
"""Queues of the topic that is named as the cluster, as in RocketMQ."""

MINUTE_MS = 60_000

LIGHT_QUEUES_MAX = 20_000
"""Clients' light queues (RocketMQ's maxLmqConsumeQueueNum): each has files of its own in `consumequeue`."""


NO_ATTRIBUTES: dict[str, str] = {}
NO_OFFSETS: dict[str, int] = {}
NO_CACHE: dict[tuple[str | None, str], RouteMatch] = {}
NO_WAITERS: dict[int, dict[object, Callable[[], None]]] = {}
NO_TAGS: dict[str, int] = {}
"""Of all topics that have none: of very many most are idle. Nothing is ever put in; whoever has something gives the topic a table of its own."""


def is_client_light(name: str) -> bool:
    """True for the name of a client's own light queue."""
    return (
        name.startswith(names.LMQ_PREFIX)
        and not name.startswith((names.OWN_LIGHT_PREFIX, names.OWN_ROWS_PREFIX))
        and names.is_stored_topic(name)
    )


@dataclass(slots=True)
class TopicConfig:
    """What RocketMQ's topics.json holds of a topic."""

    name: str
    read_queues: int = 4
    write_queues: int = 4
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=lambda: NO_ATTRIBUTES)
    """Replaced, never changed; so are..."""
    first_offsets: dict[str, int] = field(default_factory=lambda: NO_OFFSETS)
    """Queue id (decimal) to first offset, of a topic that was deleted and created again: it goes on counting."""
    deleted: bool = False
    on_use: bool = False
    """Came into being at its first use; such topics count towards topics.auto_create_max..."""
    for_queue: bool = False
    """...or, made for a declared queue, towards topics.queue_topics_max."""
    for_exchange: bool = False
    """Made for an AMQP exchange or queue; it stays so when somebody changes the topic."""
    created_ms: int = 0
    """When a topic came into being at its first use; 0: not known. Of one for a queue to the minute: the rows of many are equal then."""
    deleting: list[str] | None = None
    """Only while the rows that go with a deleted topic (broker/deletion/deletions.py) are not gone yet: its retry topics, which go with it."""

    def to_bytes(self) -> bytes:
        """The value in table `topic`."""
        value: dict[str, object] = {
            "readQueueNums": self.read_queues, "writeQueueNums": self.write_queues, "perm": self.perm, "topicSysFlag": self.sys_flag,
            "order": self.order, "attributes": self.attributes, "first": self.first_offsets, "deleted": self.deleted,
            "onUse": self.on_use,
        }  # fmt: skip
        if self.for_queue:
            value["forQueue"] = True
        if self.for_exchange:
            value["forExchange"] = True
        if self.created_ms:
            value["created"] = self.created_ms
        if self.deleting is not None:
            value["deleting"] = self.deleting
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> TopicConfig:
        """Back from `to_bytes`."""
        value = quick_json(data)
        return cls(
            name, value["readQueueNums"], value["writeQueueNums"], value["perm"], value["topicSysFlag"], value["order"],
            value["attributes"] or NO_ATTRIBUTES, value.get("first") or NO_OFFSETS, value.get("deleted", False), value.get("onUse", False),
            value.get("forQueue", False), value.get("forExchange", False), value.get("created", 0), value.get("deleting"),
        )  # fmt: skip

    @property
    def for_exchanges(self) -> bool:
        """AMQP clients publish to it: they declared its exchange or queue. Rows of earlier versions say that of queues alone."""
        return self.for_exchange or self.for_queue


class Topic:
    """One topic on the append path."""

    __slots__ = (
        "_queue_of",
        "cache",
        "compacted",
        "config",
        "name",
        "routed",
        "special",
        "strict",
        "system",
        "takes",
        "waiters",
        "wanted_ms",
        "write_queues",
    )

    def __init__(self, config: TopicConfig, system: bool = False, strict: bool = False) -> None:
        self.config = config
        self.name = config.name
        self.compacted = config.attributes.get(CLEANUP) == COMPACTION
        """Every record must have a key."""
        self.write_queues = config.write_queues
        self.system = system
        self.special = system or config.name.startswith("%") or names.is_system_topic(config.name)
        """A send to it needs a closer look: retry, dead letter and light queue topics, RocketMQ's and our system topics."""
        self.strict = strict
        """Acknowledged when on stable storage."""
        self.takes: str | None = None
        """Only messages of this type; None: nobody looks."""
        self.routed = False
        """Some route may match records of this topic."""
        self.cache = NO_CACHE
        """Routing results by (exchange of origin, tag)."""
        self.wanted_ms = 0
        """When a door last asked for the topic to be there, since the start."""
        self.waiters = NO_WAITERS
        """Who waits for the next record of a queue, by queue id and the waiter's own key; each is called once."""
        self._queue_of = NO_TAGS

    def remember(self, exchange: str | None, tag: str, match: RouteMatch) -> None:
        """A routing result; of at most `CACHE_MAX` tags."""
        if self.cache is NO_CACHE or len(self.cache) >= CACHE_MAX:
            self.cache = {}
        self.cache[(exchange, tag)] = match

    def wait(self, queue_id: int, key: object, callback: Callable[[], None]) -> None:
        """Call `callback` once when a record enters that queue."""
        if self.waiters is NO_WAITERS:
            self.waiters = {}
        self.waiters.setdefault(queue_id, {})[key] = callback

    def unwait(self, queue_id: int, key: object) -> None:
        """Wait no longer."""
        if (waiters := self.waiters.get(queue_id)) is not None:
            waiters.pop(key, None)
            if not waiters:
                del self.waiters[queue_id]

    def takes_runs(self) -> bool:
        """Nobody wants to look at its messages one by one."""
        return not (self.routed or self.special or self.compacted or self.takes is not None)

    def reconfigure(self, config: TopicConfig, strict: bool) -> None:
        """Take a changed configuration."""
        self.config = config
        self.strict = strict
        self.write_queues = config.write_queues
        self._queue_of = NO_TAGS

    def queue_for(self, message: Message) -> int:
        """Queue by hash of the sharding key, else of the whole tag: one key, one queue, so its order is kept."""
        key = message.sharding_key or message.tag
        queue = self._queue_of.get(key)
        if queue is None:
            if self._queue_of is NO_TAGS or len(self._queue_of) >= QUEUE_CACHE_MAX:
                self._queue_of = {}
            queue = self._queue_of[key] = crc32(key.encode("utf-8", "surrogatepass")) % self.write_queues
        return queue


class TopicTable:
    """All topics of this broker, in `topics`. Changes go through `on_write(name, value)`, which makes them records of the log; `on_new(topic)` is
    called for each topic object made (the router looks which routes concern it)."""

    def __init__(
        self,
        topics: dict[str, Topic],
        on_write: Callable[[str, bytes], None],
        on_new: Callable[[Topic], None],
        config: TopicsConfig,
        strict: bool,
    ) -> None:
        self.topics = topics
        self._deleted: dict[str, TopicConfig] = {}
        self._waiting: dict[str, dict[int, dict[object, Callable[[], None]]]] = {}
        """`Topic.waiters` of deleted topics: cursors outlive their topic, and wait for one of its name."""
        self._light: set[str] = set()
        self.given: dict[str, TopicConfig] = {}
        """Topics that every broker of RocketMQ has, by name: routed from the start, made when they are first used."""
        self._write = on_write
        self._on_new = on_new
        self._auto_create_max = config.auto_create_max
        self.auto_created = 0
        """Topics that came into being at their first use, without..."""
        self._queue_topics_max = config.queue_topics_max
        self.made_for_queues = 0
        """...those that were made for a declared queue."""
        self.strict = strict
        """Rule of topics that have none of their own."""
        self.typed = config.check_message_type
        """Messages are compared with the type of their topic."""
        self.version = 0
        """Counts changes since start; the registration with nameservers carries it."""
        self.changes: deque[str] = deque(maxlen=CHANGES_MAX)
        """Names of the topics that the last changes concerned."""
        self._watchers: list[Callable[[], None]] = []
        self._name_watchers: list[Callable[[str], None]] = []

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after each change that nameservers must learn, until `unwatch`."""
        self._watchers.append(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """Ignored where it does not watch."""
        if on_change in self._watchers:
            self._watchers.remove(on_change)

    def watch_names(self, on_name: Callable[[str], None]) -> None:
        """Call `on_name` with the name of each topic that came, changed or went."""
        self._name_watchers.append(on_name)

    def load(self, values: Mapping[str, bytes]) -> None:
        """Take over the table as replayed from the log."""
        for name, data in values.items():
            config = TopicConfig.from_bytes(name, data)
            if config.deleted:
                self._deleted[name] = config
            else:
                self._add(config)
                self._count(config, 1)

    def load_found(self, config: TopicConfig) -> None:
        """At start: a topic that has queues and no row that can be read. It has none until somebody changes it."""
        self._add(config)

    def give(self, cluster: str, broker: str) -> None:
        """Set `given`: topics named as the cluster and as the broker (RocketMQ: clusterTopicEnable, brokerTopicEnable), by whose
        routes tools find all brokers and each one. A name that no topic can have is left out."""
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        wanted = {cluster: CLUSTER_QUEUES, broker: 1}
        self.given = {
            name: TopicConfig(name, queues, queues, perm)
            for name, queues in wanted.items()
            if names.is_stored_topic(name)
        }

    def given_topic(self, name: str) -> Topic | None:
        """An existing topic, or one of `given`, which is made by this."""
        topic = self.get(name)
        if topic is None and name in self.given:
            topic = self.create(replace(self.given[name], attributes={}, first_offsets={}))
        return topic

    def wait_for(self, name: str, queue_id: int, key: object, callback: Callable[[], None]) -> None:
        """Call `callback` once when a record enters that queue, also if the topic is yet to be made (again)."""
        topic = self.get(name)
        if topic is not None:
            topic.wait(queue_id, key, callback)
        else:
            self._waiting.setdefault(name, {}).setdefault(queue_id, {})[key] = callback

    def get(self, name: str) -> Topic | None:
        """The topic, or None. Our own system topics and clients' light queues exist from their first use on."""
        topic = self.topics.get(name)
        if topic is None and names.is_own_system_topic(name):
            topic = self._add(TopicConfig(name, 1, 1), system=True)
        elif topic is None and is_client_light(name) and len(self._light) < LIGHT_QUEUES_MAX:
            topic = self.light(name)
        return topic

    def light(self, name: str) -> Topic:
        """The topic of a client's light queue (`%LMQ%name`): one queue, no row of the table, as many as `LIGHT_QUEUES_MAX`.

        Raises NAME_INVALID, NO_PERMISSION, LIMIT_REACHED.
        """
        topic = self.topics.get(name)
        if topic is None:
            names.check_topic(name)
            if name.startswith((names.OWN_LIGHT_PREFIX, names.OWN_ROWS_PREFIX)):
                raise GantryError(ErrorCode.NO_PERMISSION, f"light queue {name} belongs to the broker itself")
            if len(self._light) >= LIGHT_QUEUES_MAX:
                raise GantryError(
                    ErrorCode.ILLEGAL_ARGUMENT,
                    f"[LMQ_CONSUME_QUEUE_NUM_EXCEEDED] {LIGHT_QUEUES_MAX} light queues exist: {name} cannot be made",
                )
            self._light.add(name)
            topic = self._add(TopicConfig(name, 1, 1))
        return topic

    def wake_lights(self, lmq: tuple[str, ...], woken: dict[object, Callable[[], None]]) -> None:
        """A record entered these light queues: who waits for them is to be called."""
        for name in lmq:
            topic = self.topics.get(name)
            if topic is not None and topic.waiters:
                woken.update(topic.waiters.pop(0, {}))

    def load_light(self, stored: list[str]) -> None:
        """At start: light queues that have records, of all names in the store; beyond the limit they cannot be read."""
        for name in stored:
            if is_client_light(name) and len(self._light) < LIGHT_QUEUES_MAX:
                self.light(name)

    def configs(self) -> list[TopicConfig]:
        """Every topic but our own system topics and clients' light queues, which no nameserver knows."""
        return [topic.config for topic in self.topics.values() if not topic.system and topic.name not in self._light]

    def check(self, config: TopicConfig) -> None:
        """Raise what `create` would raise."""
        names.check_stored_topic(config.name)
        if names.is_own_system_topic(config.name):
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {config.name} belongs to the broker itself")
        if not 1 <= config.read_queues <= QUEUES_MAX or not 1 <= config.write_queues <= QUEUES_MAX:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"a topic has 1 to {QUEUES_MAX} queues, not {config.read_queues}/{config.write_queues}",
            )
        if config.attributes.get(FLUSH, "sync") not in ("sync", "async"):
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"topic attribute {FLUSH}={config.attributes[FLUSH]}: allowed are sync and async",
            )
        if config.attributes.get(KEEP_RECORDS, "true") not in ("true", "false"):
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"topic attribute {KEEP_RECORDS}={config.attributes[KEEP_RECORDS]}: allowed are true and false",
            )
        old = self.topics.get(config.name)
        if old is not None and old.compacted != (config.attributes.get(CLEANUP) == COMPACTION):
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"topic {config.name} exists: {CLEANUP} cannot be changed, delete the topic first",
            )

    def create(self, config: TopicConfig) -> Topic:
        """Create or change a topic. Raises NAME_INVALID, NO_PERMISSION, ILLEGAL_ARGUMENT."""
        self.check(config)
        old = self.topics.get(config.name)
        if old is not None:
            self._count(old.config, -1)
            config.first_offsets = old.config.first_offsets
            config.for_exchange = old.config.for_exchanges
            old.reconfigure(config, self._strict(config))
            old.takes = self._takes(config)
            topic = old
        else:
            dead = self._deleted.pop(config.name, None)
            if dead is not None:
                config.first_offsets = dead.first_offsets
            topic = self._add(config)
        self._write(config.name, config.to_bytes())
        self._changed(config.name)
        return topic

    def create_on_use(
        self, name: str, queues: int, now_ms: int = 0, for_queue: bool = False, for_exchange: bool = False
    ) -> Topic:
        """A topic that comes into being at first use, now. Raises NAME_INVALID, TOPIC_LIMIT."""
        if for_queue and self.made_for_queues >= self._queue_topics_max:
            raise GantryError(
                ErrorCode.TOPIC_LIMIT,
                f"queue {name} would have a topic, and {self._queue_topics_max} topics that were made for queues exist already: "
                "remove unused ones (gantry topic prune --unused), or raise topics.queue_topics_max",
            )
        if not for_queue and self.auto_created >= self._auto_create_max:
            raise GantryError(
                ErrorCode.TOPIC_LIMIT,
                f"topic {name} does not exist and {self._auto_create_max} topics that were created on use exist already: "
                "create it, or raise topics.auto_create_max",
            )
        made_ms = now_ms - now_ms % MINUTE_MS if for_queue else now_ms
        config = TopicConfig(name, queues, queues, on_use=True, for_queue=for_queue, created_ms=made_ms)
        config.for_exchange = for_exchange
        topic = self.create(config)
        topic.wanted_ms = now_ms
        self._count(topic.config, 1)
        return topic

    def _count(self, config: TopicConfig, step: int) -> None:
        if config.on_use and config.for_queue:
            self.made_for_queues += step
        elif config.on_use:
            self.auto_created += step

    def delete(self, name: str, ends: dict[int, int]) -> TopicConfig | None:
        """Forget a topic; `ends`: maximum offset by queue id, where a topic of this name created later goes on. Returns its tombstone,
        which the caller makes a record (broker/deletion/deletions.py); None if unknown."""
        topic = self.topics.get(name)
        if topic is None or topic.system:
            return None
        del self.topics[name]
        self._count(topic.config, -1)
        if topic.waiters:
            self._waiting[name] = topic.waiters
        config = TopicConfig.from_bytes(name, topic.config.to_bytes())
        config.deleted = True
        config.first_offsets = {str(queue): end for queue, end in ends.items()}
        self._deleted[name] = config
        self._changed(name)
        return config

    def forget_tombstone(self, name: str) -> bool:
        """Of a deleted topic that never had a record, so that there is nothing to go on counting from. False if there is none."""
        dead = self._deleted.get(name)
        if dead is None or dead.first_offsets or dead.deleting is not None:
            return False
        del self._deleted[name]
        return True

    def _tell_watchers(self) -> None:
        for on_change in self._watchers:
            on_change()

    def _changed(self, name: str) -> None:
        self.version += 1
        self.changes.append(name)
        for on_name in self._name_watchers:
            on_name(name)
        self._tell_watchers()

    def all_changed(self) -> None:
        """Nameservers must learn everything anew."""
        self.version += 1
        self.changes.clear()
        self._tell_watchers()

    def set_strict(self, strict: bool) -> None:
        """Change the rule of topics that have none of their own."""
        self.strict = strict
        for topic in self.topics.values():
            topic.strict = self._strict(topic.config)

    def set_typed(self, typed: bool) -> None:
        """Begin or cease to compare messages with the type of their topic."""
        self.typed = typed
        for topic in self.topics.values():
            topic.takes = self._takes(topic.config)

    def changed_since(self, version: int) -> list[str] | None:
        """Names of the topics made, changed or deleted after `version`, each once; None if that is too long ago."""
        count = self.version - version
        if not 0 <= count <= len(self.changes):
            return None
        return list(dict.fromkeys(list(self.changes)[len(self.changes) - count :]))

    def first_offset(self, name: str, queue_id: int) -> int:
        """First offset that belongs to the topic as it exists now."""
        topic = self.topics.get(name)
        return topic.config.first_offsets.get(str(queue_id), 0) if topic is not None else 0

    def _strict(self, config: TopicConfig) -> bool:
        rule = config.attributes.get(FLUSH)
        return rule == "sync" if rule in ("sync", "async") else self.strict

    def _takes(self, config: TopicConfig) -> str | None:
        return message_types.of_topic(config.name, config.attributes) if self.typed else None

    def _add(self, config: TopicConfig, system: bool = False) -> Topic:
        config.deleted = False
        topic = Topic(config, system, self._strict(config))
        topic.takes = self._takes(config)
        topic.waiters = self._waiting.pop(config.name, topic.waiters)
        self.topics[config.name] = topic
        self._on_new(topic)
        return topic
