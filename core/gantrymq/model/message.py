"""One message: what a door hands to the log, and what the log hands back.

The same class serves both ways, so that a record is delivered straight from its append batch. Fields of the
first block are the sender's; fields of the second are set by `MessageStore.append` or by reading a record.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model import properties as props

LOOPBACK_HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
"""127.0.0.1:0 as the record stores a host: address (4 or 16 bytes) and port (4 bytes), big-endian."""


PLAIN: Final = 0
DELAYED: Final = 1
"""The properties name a later time of delivery (DELAY, TIMER_*): `broker/delay/delays.py` keeps the message until then."""
HALF: Final = 2
"""Prepared part of a transaction: `broker/transactions/transactions.py` keeps it until its producer has decided."""
DECIDED: Final = 3
"""What becomes of a half message: `broker/transactions/transactions.py` notes the decision in the same batch."""
RUN: Final = 4
"""Many messages as one (`store/log/run.py`)."""
FORWARDED: Final = 5
"""A record of another broker group, for light queues here (`store/log/forwarded.py`)."""


class Message:
    """A message of the native model.

    `topic`: encoded native name. `properties`: encoded pairs (`model.properties`), the sender's own, TAGS and KEYS included,
    without the dispatch properties that the store appends. `tag`, `keys`: as in `properties`, so that nobody parses them
    again (`keys`: UNIQ_KEY first, then each entry of KEYS; what the index holds). `exchange`: AMQP exchange of origin as in
    property GANTRY_EXCHANGE, behind it U+0001 and GANTRY_EXCHANGE_KEYS if there are any; None for other doors. `demand_route`: a route kind that must match, else the message is not stored and
    its result is NO_ROUTE. `kind`: PLAIN, DELAYED or HALF, which are kept elsewhere first, DECIDED, RUN or FORWARDED. `lmq`: the client's own
    light queues (`%LMQ%name`) that the record enters beside its queue. `queue_id`: -1 lets the broker choose by hash of sharding key, else tag.
    """

    __slots__ = (
        "body",
        "born_host",
        "born_ms",
        "demand_route",
        "dispatch",
        "exchange",
        "flag",
        "keys",
        "kind",
        "lmq",
        "physical_offset",
        "prepared_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "sharding_key",
        "size",
        "store_host",
        "store_ms",
        "sys_flag",
        "tag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: bytes = b"",
        tag: str = "",
        keys: tuple[str, ...] = (),
        queue_id: int = -1,
        born_ms: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.tag = tag
        self.keys = keys
        self.queue_id = queue_id
        self.born_ms = born_ms
        """Milliseconds since the epoch; 0 takes the store's time."""
        self.born_host: bytes = LOOPBACK_HOST
        self.flag = 0
        self.sys_flag = 0
        self.reconsume_times = 0
        self.prepared_offset = 0
        self.sharding_key = ""
        self.exchange: str | None = None
        self.demand_route = ""
        self.kind = PLAIN
        self.lmq: tuple[str, ...] = ()
        # Set by the store.
        self.queue_offset = -1
        self.physical_offset = -1
        self.size = 0
        """Bytes of the whole record."""
        self.store_ms = 0
        self.store_host: bytes = LOOPBACK_HOST
        self.dispatch: bytes = b""
        """INNER_MULTI_DISPATCH and INNER_MULTI_QUEUE_OFFSET pairs as stored behind `properties`."""

    def property(self, name: str) -> str:
        """Value of one property or an empty string."""
        return props.find(self.properties, name)

    def property_map(self) -> dict[str, str]:
        """All properties of the sender, decoded."""
        return props.decode(self.properties)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, queue={self.queue_id}, offset={self.queue_offset}, tag={self.tag!r}, {len(self.body)} bytes)"
