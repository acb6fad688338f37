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
from gantrymq.remoting.constants import RequestCode

if TYPE_CHECKING:
    from gantrymq.remoting.broker_door import BrokerDoor
    from gantrymq.remoting.codec import Command

NOT_YET: Final[dict[int, str]] = {
    RequestCode.CONSUMER_SEND_MSG_BACK: "CONSUMER_SEND_MSG_BACK (36): this broker does not support delayed retries yet; "
    "the message stays uncommitted, so consume it again",
    RequestCode.POP_MESSAGE: "POP_MESSAGE (200050): this broker does not support pop consumers yet; use a pull or push consumer",
}
"""Refusals that say more than a number: these codes come with a later version."""


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
