"""The broker's settings under RocketMQ's names: which can be read, which can be changed while it runs, and to what.

A change is a row of table `setting` (name to value as text), so it outlives a restart, and wins over the configuration file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.parts import Context
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.config import TopicsConfig


log = logging.getLogger(__name__)

TABLE: Final = "setting"


class Configured(Context, Protocol):
    """The broker as its settings know it."""

    settings: Settings


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse


def _word(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse


def _hours(text: str) -> str:
    if not all(hour.isdecimal() and int(hour) < 24 for hour in text.split(";")):
        raise ValueError
    return text


@dataclass(frozen=True, slots=True)
class Changeable:
    """A setting that may be changed. `parse` raises ValueError; `allowed` says in words what it takes."""

    parse: Callable[[str], Any]
    allowed: str
    put: Callable[[Configured, Any], None]


def _put_topics(field: str) -> Callable[[Configured, Any], None]:
    def put(broker: Configured, value: Any) -> None:
        settings = broker.settings
        settings.topics_config = replace(settings.topics_config, **{field: value})
        broker.topics.all_changed()  # the template of auto-created topics is registered with nameservers

    return put


def _put_store(field: str) -> Callable[[Configured, Any], None]:
    def put(broker: Configured, value: Any) -> None:
        broker.store.config = replace(broker.store.config, **{field: value})

    return put


def _put_flush(broker: Configured, value: str) -> None:
    strict = value == "SYNC_FLUSH"
    broker.gate.set_open(not strict)
    broker.topics.set_strict(strict)


def _put_typed(broker: Configured, value: bool) -> None:
    settings = broker.settings
    settings.topics_config = replace(settings.topics_config, check_message_type=value)
    broker.topics.set_typed(value)


def _put_permission(broker: Configured, value: int) -> None:
    broker.settings.permission = value
    broker.topics.all_changed()


def _put_reset(broker: Configured, value: bool) -> None:
    broker.settings.server_side_reset = value


CHANGEABLE: Final[dict[str, Changeable]] = {
    "autoCreateTopicEnable": Changeable(_boolean, "true, false", _put_topics("auto_create")),
    "defaultTopicQueueNums": Changeable(_number(1, 128), "1 to 128", _put_topics("default_queues")),
    "brokerPermission": Changeable(_number(0, 6), "sums of 4 (read) and 2 (write)", _put_permission),
    "flushDiskType": Changeable(_word("ASYNC_FLUSH", "SYNC_FLUSH"), "ASYNC_FLUSH, SYNC_FLUSH", _put_flush),
    "fileReservedTime": Changeable(_number(0, 1_000_000), "hours, 0 to 1000000", _put_store("file_reserved_hours")),
    "deleteWhen": Changeable(_hours, "hours of the day separated by ;", _put_store("delete_when")),
    "useServerSideResetOffset": Changeable(_boolean, "true, false", _put_reset),
    "enableTopicMessageTypeCheck": Changeable(_boolean, "true, false", _put_typed),
}

ALWAYS: Final[dict[str, Any]] = {
    "brokerRole": "ASYNC_MASTER", "autoCreateSubscriptionGroup": True, "enablePropertyFilter": True, "enableLmq": True,
    "enableMultiDispatch": True, "timerWheelEnable": True, "recallMessageEnable": True, "traceTopicEnable": True,
    "traceOn": True, "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC", "messageIndexEnable": True, "longPollingEnable": True,
    "notifyConsumerIdsChangedEnable": True, "regionId": "DefaultRegion", "storeType": "default",
    "enableControllerMode": False, "enableSlaveActingMaster": False, "slaveReadEnable": False,
}  # fmt: skip
"""What RocketMQ can be told otherwise, and this broker always does."""


def present(broker: Configured) -> dict[str, Any]:
    """What the settings are that somebody chose, here or in the configuration."""
    store, config = broker.store.config, broker.config
    return {
        "autoCreateTopicEnable": broker.settings.topics_config.auto_create,
        "defaultTopicQueueNums": broker.settings.topics_config.default_queues,
        "brokerPermission": broker.settings.permission,
        "flushDiskType": "SYNC_FLUSH" if broker.topics.strict else "ASYNC_FLUSH",
        "fileReservedTime": store.file_reserved_hours,
        "deleteWhen": store.delete_when,
        "useServerSideResetOffset": broker.settings.server_side_reset,
        "enableTopicMessageTypeCheck": broker.topics.typed,
        "brokerName": config.name,
        "brokerClusterName": config.cluster,
        "brokerId": config.id,
        "maxMessageSize": broker.store.body_bytes_max,
        "mappedFileSizeCommitLog": store.commitlog_file_size,
        "mappedFileSizeConsumeQueue": store.consumequeue_file_size,
        "maxHashSlotNum": store.index_slots,
        "maxIndexNum": store.index_entries,
        "flushIntervalCommitLog": store.flush_interval_ms,
        "transientStorePoolEnable": store.transient_pool,
        "enabledAppendPropCRC": store.properties_crc,
        "messageDelayLevel": store.delay_levels,
        "diskMaxUsedSpaceRatio": round(store.disk_warn_ratio * 100),
        "diskSpaceCleanForciblyRatio": round(store.disk_clean_ratio * 100),
        "diskSpaceWarningLevelRatio": round(store.disk_full_ratio * 100),
    }


NEVER: Final = frozenset({"configBlackList", "brokerConfigPath"})
"""RocketMQ's own black list: paths of files, through which a configuration could be planted (CVE-2023-33246)."""


class Settings:
    """The settings of one broker."""

    def __init__(self, broker: Configured, topics_config: TopicsConfig) -> None:
        self._broker = broker
        self.topics_config = topics_config
        """As it is now: settings change it."""
        self.version = 0
        """Counts changes since start."""
        self.permission = 6
        """Bits that the broker leaves of every topic's permission when it registers (RocketMQ: brokerPermission)."""
        self.server_side_reset = True

    def load(self, rows: Mapping[str, bytes]) -> None:
        """At start, before topics are made: what was changed in an earlier life."""
        for name, data in rows.items():
            found = CHANGEABLE.get(name)
            try:
                value = found.parse(data.decode()) if found is not None else None
            except ValueError:
                value = None
            if found is None or value is None:
                log.warning("setting %s = %s was made by another version and does not count", name, data[:80])
                continue
            found.put(self._broker, value)
            log.info("setting %s = %s, changed while the broker ran, wins over the configuration", name, data.decode())

    def shown(self) -> dict[str, str]:
        """Every setting as text."""
        values = ALWAYS | present(self._broker)
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in sorted(values.items())
        }

    def update(self, wanted: dict[str, str]) -> None:
        """Change settings, all or none. Raises ILLEGAL_ARGUMENT, NO_PERMISSION."""
        values = {}
        for name, text in wanted.items():
            if name in NEVER:
                raise GantryError(ErrorCode.NO_PERMISSION, f"Can not update config in black list: {name}")
            found = CHANGEABLE.get(name)
            if found is None:
                known = name in present(self._broker)
                how = "it is set in the configuration; restart" if known else "there is no such setting"
                raise GantryError(
                    ErrorCode.ILLEGAL_ARGUMENT,
                    f"setting {name[:80]!r} cannot be changed while the broker runs: {how}. Changeable: {', '.join(CHANGEABLE)}",
                )
            try:
                values[name] = found.parse(text.strip())
            except ValueError:
                raise GantryError(
                    ErrorCode.ILLEGAL_ARGUMENT, f"setting {name} = {text[:80]!r}: allowed are {found.allowed}"
                ) from None
        for name, value in values.items():
            CHANGEABLE[name].put(self._broker, value)
            log.info("setting %s = %s", name, value)
        self.version += 1
        self._broker.put(TABLE, [(name, wanted[name].strip().encode()) for name in values], None, None)
