"""Topics as nameservers and tools are told of them."""

from __future__ import annotations

from gantrymq.broker.topics import PERM_INHERIT, TopicConfig, TopicTable
from gantrymq.remoting import json_bodies as bodies


def topic_body(config: TopicConfig, broker_permission: int = 6) -> bodies.TopicConfigBody:
    """A topic's configuration as RocketMQ writes it; `broker_permission`: what the broker leaves of its permission."""
    perm = config.perm & (broker_permission | PERM_INHERIT)
    return bodies.TopicConfigBody(
        config.name, config.read_queues, config.write_queues, perm, "SINGLE_TAG", config.sys_flag, config.order,
        config.attributes,
    )  # fmt: skip


def topic_table(topics: TopicTable, broker_permission: int, started_ms: int) -> bodies.TopicConfigTable:
    """All topics with the version that nameservers compare."""
    table = {config.name: topic_body(config, broker_permission) for config in topics.configs()}
    return bodies.TopicConfigTable(table, bodies.DataVersion(0, started_ms, topics.version))
