"""What requests of tools may use: the administration, what the Remoting door knows of clients, and figures of the broker to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.administration.administration import Administration
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.server.clients.registry import Clients
    from gantrymq.remoting.server.identity import Identity
    from gantrymq.remoting.server.jobs import Jobs
    from gantrymq.remoting.server.pulling.pulls import Pulls


class Tools:
    """One per broker."""

    def __init__(
        self, administration: Administration, broker: Broker, reading: Reading, clients: Clients, jobs: Jobs,
        identity: Identity, pulls: Pulls,
    ) -> None:  # fmt: skip
        self.topics = administration.topics
        self.groups = administration.groups
        self.offsets = administration.offsets
        self.figures = administration.figures
        self.damage = administration.damage
        self.overview = administration.overview
        self.clients = clients
        self.jobs = jobs
        self.identity = identity
        self.pulls = pulls
        self.reading = reading
        self.name = broker.config.name
        self.cluster = broker.config.cluster
        self.clock = broker.clock
        self.settings = broker.settings
        self.stats = broker.stats
        self.store = broker.store
        self.tables = broker.tables
        self.committed = broker.offsets
