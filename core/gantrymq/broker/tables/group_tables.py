"""Tables in which a broker group keeps what concerns itself alone."""

from __future__ import annotations

from typing import Final, NamedTuple

from gantrymq.broker.tables.forward_table import TABLE
from gantrymq.broker.tables.slot_table import SLOTS_TABLE

LIGHT_BITS: Final = 33
"""A broker gives ids below 2^33 to its light queues; above stands the tag of the group that made it."""


TAG_BITS: Final = 20
"""A tag is a hash of a group's name."""


LIGHTS_TABLE = "cluster_light"
"""At each group, its own id (value, decimal) of a light queue that it has under the id of another group (key: cluster id), which made it."""


MOVED_TABLE: Final = "cluster_moved"
"""Light queues that have moved, and keep their id (key: cluster id; value: `LIGHT MOVES`, both decimal: the light queue here, `0` where it has gone on,
and how often it had moved then)."""


class Moved(NamedTuple):
    """Value of a row of `MOVED_TABLE`."""

    light: int
    moves: int


NEVER_MOVED: Final = Moved(0, 0)


def moved_from(value: bytes | None) -> Moved:
    """Raises ValueError for a malformed one."""
    if value is None:
        return NEVER_MOVED
    light, moves = value.split()
    return Moved(int(light), int(moves))


def moved_to(light: int, moves: int) -> bytes:
    """Back."""
    return f"{light} {moves}".encode()


STATE_TABLE = "cluster"
"""What a group says about itself: row `first_group` (its light ids have no tag) or `member`, row `draining` (no new messages), row `metadata_group`."""


FIRST_GROUP = "founder"


MEMBER = "member"


DRAINING = "draining"


METADATA_GROUP: Final = "metadata_group"
"""Row: who is to keep this group's table of slots. Gateways do not use the group before it has that table."""


TAG = "tag/"
"""Rows `tag/<number>`: this group has light queues of one that was emptied or forgotten."""


GROUP_TABLES: Final = frozenset({LIGHTS_TABLE, MOVED_TABLE, STATE_TABLE, SLOTS_TABLE, TABLE})
"""What each group has for itself; the rows of other tables move when it is emptied."""


STAYING_TABLES: Final = frozenset({"auth_user", "auth_policy", "auth_token", "mqtt_over"})
"""Rows that brokers have for what they do themselves (who may use their Remoting door, whom their disk has no room for): they move only when it is emptied."""
