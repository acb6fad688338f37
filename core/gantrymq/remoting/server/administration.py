"""What requests of tools may use of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.server.clients.groups import Groups
    from gantrymq.remoting.server.clients.registry import Clients
    from gantrymq.remoting.server.identity import Identity
    from gantrymq.remoting.server.jobs import Jobs
    from gantrymq.remoting.server.pulling.pulls import Pulls
    from gantrymq.remoting.server.reads import Reading


@dataclass(slots=True)
class Administration:
    """One per broker."""

    broker: Broker
    clients: Clients
    groups: Groups
    jobs: Jobs
    reading: Reading
    identity: Identity
    pulls: Pulls
