"""Bringing a broker group into use where the cluster has slots: what is open in this process is opened there, and nothing is copied.

What it has nobody else has. What was removed while it was away was not removed there: whoever asked for that was refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.cluster.join import found
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster, Group


def join(cluster: Cluster, group: Group) -> Steps:
    """As `cluster/join.py`: nothing is left when this returns. Result: an empty set."""
    known: set[tuple[int, int]] = set()
    begun = False
    while True:
        others = [
            other
            for other in cluster.ready_groups()
            if other is not group and (other.index, other.attempt) not in known
        ]
        if others or not begun:
            known.update([(other.index, other.attempt) for other in others])
            _refuse_without_slots([group, *others])
            yield from found(cluster, group, others)
            if not begun:
                yield from cluster.restore(group)
            begun = True
        elif group.pending:
            for call in group.take_pending():
                yield from call(group)
        else:
            return set()


def _refuse_without_slots(groups: list[Group]) -> None:
    """A broker without the table forwards nothing: what is published there would not reach the others' queues."""
    without = ", ".join([group.name for group in groups if not group.has_slots])
    if without:
        raise GantryError(
            ErrorCode.UNAVAILABLE,
            f"the cluster has a table of slots, and broker group {without} has not got it yet; every broker needs the same broker.metadata_group",
        )
