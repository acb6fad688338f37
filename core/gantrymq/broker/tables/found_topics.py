"""Topics whose row cannot be read: what their queues show is enough to serve their records to native clients.

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


def quarantined(tables: Tables, store: MessageStore) -> Iterator[TopicConfig]:
    """Topics whose row was put aside."""
    for name in tables.quarantined("topic"):
        config = _found(name, store)
        if config is not None:
            log.warning("topic %s: served with the %d queues that it has, read and write", name, config.read_queues)
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
    if not queues or names.is_own_system_topic(name) or not names.is_stored_topic(name):
        return None
    count = min(max(queues) + 1, QUEUES_MAX)
    return TopicConfig(name, count, count)
