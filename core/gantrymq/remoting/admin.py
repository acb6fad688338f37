"""Requests of tools, all together (RocketMQ's AdminBrokerProcessor): topics, groups, offsets, clients, statistics, configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.remoting import (
    admin_clients,
    admin_config,
    admin_groups,
    admin_high_availability,
    admin_offsets,
    admin_queues,
    admin_runtime,
    admin_stats,
    admin_topics,
)

if TYPE_CHECKING:
    from gantrymq.remoting.broker_door import BrokerDoor
    from gantrymq.remoting.codec import Command

HANDLERS: Final[dict[int, Callable[[BrokerDoor, Command], None]]] = {
    **admin_topics.HANDLERS,
    **admin_groups.HANDLERS,
    **admin_clients.HANDLERS,
    **admin_offsets.HANDLERS,
    **admin_queues.HANDLERS,
    **admin_stats.HANDLERS,
    **admin_runtime.HANDLERS,
    **admin_config.HANDLERS,
    **admin_high_availability.HANDLERS,
}
