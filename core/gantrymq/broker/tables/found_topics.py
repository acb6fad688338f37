"""Topics whose row cannot be read: what their queues show is enough to serve their records to native clients. One without a record is
served too, else its first use would make a topic, whose row takes the place of the one that another version can read.

A row that was put aside stays in the log, and the topic gets no other one until somebody changes it. A damaged record of the log hides
which topic it was about: then every topic of the store that has no row gets one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gantrymq.broker.topics import QUEUES_MAX, TopicConfig, is_client_light
from gantrymq.model import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.broker.tables.tables import Rows, Tables
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

DELETED = b'"deleted":true'
"""In a row that cannot be read: its topic is not served."""


def quarantined(tables: Tables, store: MessageStore) -> Iterator[TopicConfig]:
    """Topics whose row was put aside."""
    for name, row in tables.quarantined("topic").items():
        config = _found(name, store) or TopicConfig(name)
        if DELETED not in row and _may_be(name):
            log.warning("topic %s: served with %d queues, read and write", name, config.read_queues)
            yield config


def lost_rows(tables: Tables, store: MessageStore, damaged: bool) -> Rows:
    """Rows for the topics of the store that have none, if table `topic` has a `damaged` record."""
    rows: Rows = []
    known = tables.rows("topic")
    for name in store.topics() if damaged else ():
        if name not in known and name not in tables.quarantined("topic") and not is_client_light(name):
            config = _found(name, store)
            if config is not None:
                log.warning("topic %s: it has %d queues and no row: made again", name, config.read_queues)
                rows.append(("topic", name, config.to_bytes()))
    return rows


def _found(name: str, store: MessageStore) -> TopicConfig | None:
    queues = store.queues_of(name)
    if not queues or not _may_be(name):
        return None
    count = min(max(queues) + 1, QUEUES_MAX)
    return TopicConfig(name, count, count)


def _may_be(name: str) -> bool:
    return names.is_stored_topic(name) and not names.is_own_system_topic(name)
