"""Who is at home where: groups by rendezvous hash, light ids that are unique in the cluster, handles that name their group.

Every gateway process computes the same homes from the same names; nothing here is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from gantrymq.broker.port import POSITION_BITS
from gantrymq.broker.tables.group_tables import LIGHT_BITS, TAG_BITS

if TYPE_CHECKING:
    from gantrymq.model.message import Message

_LIGHT_MASK: Final = (1 << LIGHT_BITS) - 1

GROUP_BITS: Final = 10
GROUPS_MAX: Final = 1 << GROUP_BITS
"""Groups that one gateway process may have seen since it began: their numbers stand in delivery handles."""


def home_of(name: str, groups: Iterable[str]) -> str:
    """The group with the highest hash of (group, name): when a group comes or goes, only its own names move."""
    return max(
        groups,
        key=lambda group: (blake2b(f"{group}\0{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest(), group),
    )


def tag_of(group: str) -> int:
    """A group's mark in the ids of light queues that it made, never 0 (that is the founder's)."""
    return 1 + int.from_bytes(blake2b(group.encode(), digest_size=4).digest(), "big") % ((1 << TAG_BITS) - 1)


def cluster_light(tag: int, local: int) -> int:
    """The id of a light queue everywhere in the cluster."""
    return tag << LIGHT_BITS | local


def split_light(light: int) -> tuple[int, int]:
    """(tag, id at the group that made it)."""
    return light >> LIGHT_BITS, light & _LIGHT_MASK


def mark(index: int, message: Message | None) -> Message | None:
    """Put the group's number above the record's position."""
    if message is not None and index:
        message.physical_offset |= index << POSITION_BITS
    return message
