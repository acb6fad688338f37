"""The administration of one broker, the same for whoever asks: the Remoting door, the command line, a console.

A change is in memory when the call returns, and safe when `Broker.when_stored` says so. Failures are GantryErrors.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from gantrymq.administration.damage import Damage
from gantrymq.administration.figures import Figures
from gantrymq.administration.offsets import GroupOffsets
from gantrymq.administration.overview import Overview
from gantrymq.administration.topics import Topics

if TYPE_CHECKING:
    from gantrymq.administration.groups import Groups
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.broker import Broker


class Online(Protocol):
    """Native clients that are connected."""

    def topics_of(self, group: str) -> Collection[str]:
        """Topics that members of a group subscribe to."""

    def members_of(self, group: str) -> Collection[str]:
        """Their client ids."""

    def is_subscribed(self, topic: str) -> bool:
        """Some group wants it."""


class Administration:
    """Topics, groups, their offsets, what is damaged, numbers."""

    def __init__(self, broker: Broker, groups: Groups, reading: Reading, online: Online) -> None:
        self.topics = Topics(broker.topics, broker.delete_topic)
        self.groups = groups
        self.offsets: GroupOffsets = GroupOffsets(
            broker.topics, broker.min_offset, broker.commits, broker.pops, groups, online.topics_of
        )
        self.figures: Figures = Figures(reading, broker.offsets, broker.stats, online.topics_of, online.members_of)
        self.damage: Damage = Damage(broker.store, broker.cursors, reading)
        self.overview: Overview = Overview(broker, reading, online.members_of, online.is_subscribed)
