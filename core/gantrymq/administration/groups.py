"""Consumer groups as configuration: table `group`, name to SubscriptionGroupConfig as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import json

from gantrymq.broker.topics import Topic, TopicConfig, TopicTable
from gantrymq.model import names
from gantrymq.model.dialect import decode
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.groups import GroupConfig
from gantrymq.model.limits import GROUP_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.broker.tables.tables import Tables
    from gantrymq.services import Clock

GROUPS_MAX: Final = 20_000
"""Groups that are kept; each also has a retry topic."""

RETRY_QUEUES_MAX: Final = 128
"""Queues of a retry topic, whatever a group's retryQueueNums says."""

UNIT_SUB: Final = 2
"""Topic sysFlag of a unit's retry topic (TopicSysFlag.buildSysFlag(false, true))."""


class Groups:
    """Known groups; a heartbeat of an unknown one makes it known (RocketMQ's autoCreateSubscriptionGroup)."""

    def __init__(
        self,
        topics: TopicTable,
        tables: Tables,
        clock: Clock,
        put: Callable[..., None],
        forget: Callable[[str, bool, bool], None],
    ) -> None:
        """`put` and `forget`: as `Broker.put` and `Broker.delete_group`."""
        self._topics = topics
        self._tables = tables
        self._clock = clock
        self._put = put
        self._forget = forget
        self.configs = {name: decode(data, GroupConfig) for name, data in tables.rows("group").items()}
        self.version = 0
        self.changed_ms = clock.now_ms()

    def get(self, name: str) -> GroupConfig | None:
        """Configuration of a group, or None. A light queue's own group needs none (LmqSubscriptionGroupManager)."""
        config = self.configs.get(name)
        return GroupConfig(name) if config is None and name.startswith(names.LMQ_PREFIX) else config

    def ensure(self, name: str) -> GroupConfig:
        """The group and its retry topic, made if need be. Raises NAME_INVALID, LIMIT_REACHED."""
        config = self.get(name)
        if config is None:
            config = self._make(name)
        if not name.startswith(names.LMQ_PREFIX):
            self.retry_topic(config)
        return config

    def find(self, name: str) -> GroupConfig:
        """The group of a message that comes back, made if need be (findSubscriptionGroupConfig). Raises GROUP_NOT_FOUND, LIMIT_REACHED."""
        try:
            names.check_group(name)
        except GantryError as error:
            raise GantryError(
                ErrorCode.GROUP_NOT_FOUND, f"subscription group not exist, {name[:80]}: {error.text}"
            ) from error
        config = self.get(name)
        if config is None:
            config = self._make(name)
        return config

    def retry_topic(self, config: GroupConfig, unit: bool = False) -> Topic | None:
        """The group's retry topic, made if need be; None for a group whose name leaves no room for a prefix."""
        return self._topic(names.RETRY_PREFIX + config.group_name, config.retry_queue_nums, UNIT_SUB if unit else 0)

    def dead_letter_topic(self, group: str) -> Topic | None:
        """The group's dead letter topic, one queue, made if need be; None as for `retry_topic`."""
        return self._topic(names.DLQ_PREFIX + group, 1, 0)

    def _topic(self, name: str, queues: int, sys_flag: int) -> Topic | None:
        topic = self._topics.get(name)
        if topic is None and len(name) <= GROUP_BYTES_MAX:
            count = min(max(queues, 1), RETRY_QUEUES_MAX)
            topic = self._topics.create(TopicConfig(name, count, count, sys_flag=sys_flag))
        return topic

    def _make(self, name: str) -> GroupConfig:
        """A group with default settings. Where its row could not be read, that row stays as it is until an administrator changes the group."""
        config = GroupConfig(name)
        if name in self._tables.quarantined("group"):
            self._keep(config)
        else:
            self.set(config)
        return config

    def update(self, configs: list[GroupConfig]) -> None:
        """Create or change groups: all, or none if one name is refused (NAME_INVALID)."""
        for config in configs:
            names.check_group(config.group_name)
        for config in configs:
            self.set(config)

    def set(self, config: GroupConfig) -> None:
        """Create or change a group."""
        self._keep(config)
        self._put("group", [(config.group_name, json.encode(config))], None, None)

    def _keep(self, config: GroupConfig) -> None:
        name = config.group_name
        names.check_group(name)
        if name not in self.configs and len(self.configs) >= GROUPS_MAX:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{GROUPS_MAX} consumer groups exist; delete some first")
        self.configs[name] = config
        self._touch()

    def delete(self, name: str, clean_offsets: bool) -> None:
        """Forget a group, with its offsets and pop cursors if asked."""
        known = self.configs.pop(name, None) is not None
        if known:
            self._touch()
        self._forget(name, known, clean_offsets)

    def _touch(self) -> None:
        self.version += 1
        self.changed_ms = self._clock.now_ms()
