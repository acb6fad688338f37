"""How many of the topics that may come into being by themselves one client may make, one door, and all who do not say so.

`topics.auto_create_max` is one number for everybody. Without shares one connection that publishes to ten thousand names leaves none for anybody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError

CONNECTION_TOPICS: Final = 100
"""Topics that one connection makes at once: more than an application has, fewer than a device fleet's ids behind a bridge."""
CONNECTION_MS: Final = 1_000
"""...and from then on one in so long."""
CONNECTIONS_MAX: Final = 1_024
"""Connections remembered, those that made a topic last; each is forgotten when it may make `CONNECTION_TOPICS` again."""
SHARES_FROM: Final = 20
"""Below it the limit is everybody's: tenths and halves of a handful of topics would be nobody's."""

NATIVE: Final = "native"
"""Door of messages that name no other origin."""
EXCHANGES: Final = "amqp"
"""Door of messages that were published to an exchange."""


Maker = tuple[str, object]
"""Door (GANTRY_ORIGIN of what was published, or `NATIVE`) and connection (any hashable; a BrokerPort stands for no single one)."""


class TopicBudget:
    """Of one broker. Counts of doors begin with the process."""

    def __init__(self, topics_max: int, now_ms: Callable[[], int]) -> None:
        self._max = topics_max
        self._now_ms = now_ms
        self._made: dict[str, int] = {}
        self._used: OrderedDict[object, tuple[float, int]] = OrderedDict()
        """By connection: topics that count against it, and when that was so."""

    def __len__(self) -> int:
        return len(self._used)

    def check(self, name: str, there: int, door: str, connection: object) -> None:
        """Raise TOPIC_LIMIT unless this client may make one more, where `there` exist already."""
        if self._max >= SHARES_FROM:
            if there >= self._max - self._max // 10:
                raise _refusal(
                    name,
                    f"{there} topics were created on use, and the last tenth of topics.auto_create_max is for declared ones",
                )
            if self._made.get(door, 0) >= self._max // 2:
                raise _refusal(
                    name, f"{door} clients have made half of the topics.auto_create_max topics that are created on use"
                )
        if connection is not None and self._counted(connection) > CONNECTION_TOPICS - 1:
            raise _refusal(
                name, f"this connection has made {CONNECTION_TOPICS} topics; it may make one more each second"
            )

    def made(self, door: str, connection: object) -> None:
        """A topic came into being."""
        self._made[door] = self._made.get(door, 0) + 1
        if connection is None:
            return
        used = self._used
        used[connection] = (self._counted(connection) + 1, self._now_ms())
        used.move_to_end(connection)
        while len(used) > CONNECTIONS_MAX or (used and not self._counted(next(iter(used)))):
            used.popitem(last=False)

    def _counted(self, connection: object) -> float:
        count, at_ms = self._used.get(connection, (0.0, 0))
        return max(count - (self._now_ms() - at_ms) / CONNECTION_MS, 0.0) if count else 0.0


def _refusal(name: str, why: str) -> GantryError:
    return GantryError(
        ErrorCode.TOPIC_LIMIT,
        f"topic {name} does not exist and is not created: {why}. Create it (gantry topic create {name}), remove unused ones (gantry topic prune "
        "--unused), or raise topics.auto_create_max",
    )
