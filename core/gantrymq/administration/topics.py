"""Topics: what may be made, changed and deleted by people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.broker.topics import KEEP_RECORDS, RESERVE_TIME, TopicConfig
from gantrymq.model import message_types, names
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.topics import Topic, TopicTable

TOPICS_PER_REQUEST_MAX: Final = 10_000
"""Topics that are made in one go."""

ATTRIBUTES_MAX: Final = 32
ATTRIBUTE_CHARS_MAX: Final = 256
"""Attributes of a topic, and the length of one's name or value."""

ATTRIBUTE_VALUES: Final[dict[str, tuple[str, ...]]] = {
    message_types.ATTRIBUTE: message_types.TYPES,
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "flush": ("sync", "async"),
    KEEP_RECORDS: ("true", "false"),
}
"""Attributes that are understood, with the values that are kept as promised."""


def readable_topic(topics: TopicTable, name: str) -> Topic:
    """An existing topic that is not the broker's own; raises TOPIC_NOT_FOUND, NO_PERMISSION."""
    topic = topics.given_topic(name)
    if topic is not None and not topic.system:
        return topic
    if names.is_own_system_topic(name):
        raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
    raise GantryError(
        ErrorCode.TOPIC_NOT_FOUND,
        f"topic[{name[:255]}] not exist, apply first please! (gantry topic create {name[:255]})",
    )


class Topics:
    """`delete(name)`: as `Broker.delete_topic`. Errors: NAME_INVALID, ILLEGAL_ARGUMENT, NO_PERMISSION, and what the topic table says."""

    def __init__(self, table: TopicTable, delete: Callable[[str], bool]) -> None:
        self.table = table
        self._delete = delete

    def config(
        self, name: str, queues: tuple[int, int], perm: int, sys_flag: int, order: bool, changes: Sequence[str]
    ) -> TopicConfig:
        """What a topic is to be. `queues`: to read and to write; `changes`: of its attributes, `+name=value` or `-name`."""
        names.check_stored_topic(name)
        if self.is_rocketmq_own(name):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"The topic[{name}] is conflict with system topic.")
        if not 0 <= perm <= 7:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"perm {perm}: allowed are sums of 4 (read), 2 (write), 1")
        old = self.table.get(name) if not names.is_own_system_topic(name) else None
        attributes = dict(old.config.attributes) if old is not None else {}
        for change in changes:
            change_attributes(attributes, change)
        return TopicConfig(name, *queues, perm, sys_flag, order, attributes)

    def create(self, configs: Sequence[TopicConfig]) -> None:
        """Make topics or change them: all, or none if one is refused. What is so already makes no record."""
        if len(configs) > TOPICS_PER_REQUEST_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a request names at most {TOPICS_PER_REQUEST_MAX} topics")
        for config in configs:
            self.table.check(config)
        for config in configs:
            old = self.table.topics.get(config.name)
            if old is None or not same(old.config, config):
                self.table.create(config)

    def delete(self, name: str) -> None:
        """An unknown topic is deleted already."""
        if names.is_own_system_topic(name):
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
        if not name.strip():
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "The specified topic is blank.")
        if self.is_rocketmq_own(name):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"The topic[{name}] is conflict with system topic.")
        self._delete(name)

    def is_rocketmq_own(self, name: str) -> bool:
        """A topic that tools must neither change nor delete (TopicValidator.isSystemTopic)."""
        return (name in names.ROCKETMQ_SYSTEM_TOPICS and name != "BenchmarkTest") or name in self.table.given


def same(old: TopicConfig, new: TopicConfig) -> bool:
    """A request that changes nothing, as a tool repeats it, makes no record."""
    return (old.read_queues, old.write_queues, old.perm, old.sys_flag, old.order, old.attributes, old.on_use) == (
        new.read_queues, new.write_queues, new.perm, new.sys_flag, new.order, new.attributes, new.on_use,
    )  # fmt: skip


def change_attributes(attributes: dict[str, str], text: str) -> None:
    """Apply `+k=v,-k`; raises ILLEGAL_ARGUMENT for what is not understood, so that nobody relies on it."""
    for item in text.split(",") if text else ():
        key, mark, value = item[1:].partition("=")
        if item[:1] == "-" and not mark:
            attributes.pop(key, None)
            continue
        allowed = ATTRIBUTE_VALUES.get(key)
        if key == RESERVE_TIME:
            allowed = (value,) if value.isdecimal() or value == "-1" else ("milliseconds", "-1")
        if item[:1] != "+" or not mark or (allowed is not None and value not in allowed):
            known = f"; {key} may be {', '.join(allowed)}" if allowed is not None else ""
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"attribute {item[:80]!r} is not supported: write +key=value or -key{known}"
            )
        if allowed is None and not key.startswith("gantry."):
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"attribute {key[:80]!r} is not known; known: {', '.join([*ATTRIBUTE_VALUES, RESERVE_TIME])}",
            )
        if len(attributes) >= ATTRIBUTES_MAX or max(len(key), len(value)) > ATTRIBUTE_CHARS_MAX:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"a topic has at most {ATTRIBUTES_MAX} attributes of {ATTRIBUTE_CHARS_MAX} characters",
            )
        attributes[key] = value
