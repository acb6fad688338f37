"""Table `forward`: what a group keeps of its forward queues and of others'. Rows of this group alone, never moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TABLE: Final = "forward"
TO: Final = "to/"
"""`to/PEER/START`: a forward queue here (value: its light queue)."""
QUEUES_TABLE: Final = "forward_queues"
"""Has no rows: its watchers are told of changes of `to/` rows alone, for progress changes with every pull."""
READ: Final = "read/"
"""`read/SOURCE/START`: below which offset a forward queue of another group was read."""
SOURCE: Final = "source/"
"""`source/SOURCE`: a group that has a forward queue for this one (value: 1)."""
START: Final = "start/"
"""`start/START`: from which light queue on this start of this group made its own."""
LEAVING: Final = "leaving/"
"""`leaving/LIGHT`: a light queue that is frozen on its way to another group (value: JSON of its id in the cluster and that group)."""
COMING: Final = "coming/"
"""`coming/ID`: a queue on its way here (value: JSON, `copying` or `in`, its light queue here, and of the second its routes)."""

CAME: Final = "came/"
"""`came/SOURCE/ID`: a queue that came from that group, which has not said yet that its part is gone (value: JSON of its light queue there, the move,
and how often it had moved then)."""
ENDED: Final = "ended/"
"""`ended/ID`: a queue that had moved and has ended here (value: JSON of the groups that have not heard of it yet)."""

CONSUMED: Final = "consumed/"
"""`consumed/LIGHT`: an auto-delete queue that had consumers when it went on its way, or came (value: 1); see `broker/forward/deserted.py`."""


def door_queues(lights: Mapping[str, bytes], rows: Mapping[str, bytes]) -> set[str]:
    """Of the rows of table `light` those that are no forward queues, by `rows` of table `forward`: what doors made."""
    forward = {light.decode() for key, light in rows.items() if key.startswith(TO)}
    return lights.keys() - forward - {"next"}
