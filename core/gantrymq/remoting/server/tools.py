"""What requests of tools may use: the administration, what the Remoting door knows of clients, and figures of the broker to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.administration.damage import Damage
    from gantrymq.administration.figures import Figures
    from gantrymq.administration.groups import Groups
    from gantrymq.administration.offsets import GroupOffsets
    from gantrymq.administration.overview import Overview
    from gantrymq.administration.reading import Reading
    from gantrymq.administration.topics import Topics
    from gantrymq.broker.consuming.offsets import ConsumerOffsets
    from gantrymq.broker.rocketmq.settings import Settings
    from gantrymq.broker.rocketmq.stats import BrokerStats
    from gantrymq.broker.tables.tables import Tables
    from gantrymq.remoting.server.clients.registry import Clients
    from gantrymq.remoting.server.identity import Identity
    from gantrymq.remoting.server.jobs import Jobs
    from gantrymq.remoting.server.pulling.pulls import Pulls
    from gantrymq.services import Clock
    from gantrymq.store.message_store import MessageStore


@dataclass(slots=True)
class Tools:
    """One per broker. `name`, `cluster`: the broker's; `committed`: offsets of groups."""

    topics: Topics
    groups: Groups
    offsets: GroupOffsets
    figures: Figures
    damage: Damage
    overview: Overview
    clients: Clients
    jobs: Jobs
    identity: Identity
    pulls: Pulls
    reading: Reading
    name: str
    cluster: str
    clock: Clock
    settings: Settings
    stats: BrokerStats
    store: MessageStore
    tables: Tables
    committed: ConsumerOffsets
