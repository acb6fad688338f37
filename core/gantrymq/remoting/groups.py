"""Consumer groups as configuration: table `group`, name to SubscriptionGroupConfig as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.broker.topics import TopicConfig
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import TOPIC_BYTES_MAX
from gantrymq.remoting.json_bodies import DataVersion, GroupConfig, GroupTable, decode, encode

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker

GROUPS_MAX: Final = 20_000
"""Groups that are kept; each also has a retry topic."""


class Groups:
    """Known groups; a heartbeat of an unknown one makes it known (RocketMQ's autoCreateSubscriptionGroup)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.configs = {name: decode(data, GroupConfig) for name, data in broker.tables.rows("group").items()}
        self._version = 0
        self._changed_ms = broker.clock.now_ms()

    def get(self, name: str) -> GroupConfig | None:
        """Configuration of a group, or None."""
        return self.configs.get(name)

    def ensure(self, name: str) -> GroupConfig:
        """The group and its retry topic, made if need be. Raises NAME_INVALID, TOPIC_LIMIT."""
        config = self.configs.get(name)
        if config is None:
            config = GroupConfig(name)
            self.set(config)
        retry = names.RETRY_PREFIX + name
        if len(retry) <= TOPIC_BYTES_MAX and self._broker.topics.get(retry) is None:
            self._broker.topics.create(TopicConfig(retry, 1, 1))
        return config

    def set(self, config: GroupConfig) -> None:
        """Create or change a group."""
        name = config.group_name
        names.check_group(name)
        if name not in self.configs and len(self.configs) >= GROUPS_MAX:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{GROUPS_MAX} consumer groups exist; delete some first")
        self.configs[name] = config
        self._touch()
        self._broker.put("group", [(name, encode(config))], None, None)

    def delete(self, name: str, clean_offsets: bool) -> None:
        """Forget a group, with its offsets if asked."""
        if self.configs.pop(name, None) is not None:
            self._touch()
            self._broker.put("group", [(name, None)], None, None)
        if clean_offsets:
            keys: list[tuple[str, bytes | None]] = [(key, None) for key in self._broker.offsets.drop_group(name)]
            if keys:
                self._broker.put("offset", keys, None, None)

    def _touch(self) -> None:
        self._version += 1
        self._changed_ms = self._broker.clock.now_ms()

    def table(self) -> GroupTable:
        """Body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return GroupTable(self.configs, {}, DataVersion(0, self._changed_ms, self._version))
