"""Requests of tools, all together (RocketMQ's AdminBrokerProcessor): topics, groups, offsets, clients, statistics, configuration."""

from __future__ import annotations

from typing import Final

from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.server.admin import clients as admin_clients
from gantrymq.remoting.server.admin import config as admin_config
from gantrymq.remoting.server.admin import groups as admin_groups
from gantrymq.remoting.server.admin import high_availability as admin_high_availability
from gantrymq.remoting.server.admin import offsets as admin_offsets
from gantrymq.remoting.server.admin import queues as admin_queues
from gantrymq.remoting.server.admin import runtime as admin_runtime
from gantrymq.remoting.server.admin import stats as admin_stats
from gantrymq.remoting.server.admin import topics as admin_topics
from gantrymq.remoting.server.reply import Reply
from gantrymq.remoting.server.tools import Tools

HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
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
