"""What a gateway may ask: the types and ranges of every call's arguments, checked as they are decoded (docs/formats/gateway.md).

Nothing of a request reaches the broker before all of it has been checked: what the append turn takes cannot fail by its types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gantrymq.broker.forward.leaving import LEAVING_MAX
from gantrymq.broker.tables.slot_table import SLOTS
from gantrymq.cluster.wire.codec import GatewayCode
from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, PLAIN, Message
from gantrymq.model.tables.message_rows import queues_of

Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
QueueId = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]

Under = tuple[Annotated[int, Meta(ge=0, lt=SLOTS)], Natural]

QUEUES_AT_ONCE: Final = 64
"""Queues that go to another group in one go."""
Queues = Annotated[list[tuple[Natural, Natural]], Meta(min_length=1, max_length=QUEUES_AT_ONCE)]
"""Light queues of a group: its number, and the id in the cluster."""

Settled = tuple[Natural, Natural, Annotated[int, Meta(ge=0, le=3)]]

SENT_FLAGS: Final = (
    sysflag.COMPRESSED | sysflag.MULTI_TAGS | sysflag.COMPRESSION_MASK | sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
)
"""Bits of sysFlag that a gateway may send. It copies whole messages (dead letters), so the widths of hosts come too; they are not its to say
and are taken off."""


OURS: Final = (props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET, "GANTRY_DISPATCH_MORE")
"""Properties that the store writes behind the sender's."""

_INNER: Final = b"INNER_MULTI_"
_MORE: Final = b"GANTRY_DISPATCH_MORE"
"""One of them is in each name of `OURS`."""

KNOWN_MAX: Final = 2_048
"""Properties that are known to be right, for each connection of a gateway: some 3 MB at most."""
KNOWN_BYTES: Final = 512
"""Longer ones are looked at each time."""


class Sent(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A row of SUBMIT, see `codec.pack_sent`."""

    topic: str
    body: bytes
    properties: bytes
    tag: str
    keys: tuple[str, ...]
    queue_id: QueueId
    born_ms: Natural
    sharding_key: str
    exchange: str | None
    demand_route: str
    flag: Int32
    sys_flag: Int32
    table: str
    """That the message is a row of, too; empty: none."""


class RouteRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A row of ADD_ROUTE, see `port.Route`."""

    route_id: str
    kind: str
    topic: str | None
    expression: str
    light: Natural


ARGUMENTS: Final[dict[int, Any]] = {
    GatewayCode.HELLO: tuple[int],
    GatewayCode.SUBMIT: tuple[list[Sent], Natural],
    GatewayCode.SUBMIT_WITH: tuple[list[Sent], Natural, list[Settled], list[tuple[str, str, bytes | None]]],
    GatewayCode.ENSURE_TOPIC: tuple[str, bool | int],
    GatewayCode.TOPICS: tuple[()],
    GatewayCode.READ: tuple[list[tuple[Natural, Natural]]],
    GatewayCode.NEXT: tuple[Natural],
    GatewayCode.ADD_ROUTE: tuple[RouteRow],
    GatewayCode.REMOVE_ROUTES: tuple[list[str]],
    GatewayCode.OPEN_TAP: tuple[()],
    GatewayCode.CLOSE_TAP: tuple[Natural],
    GatewayCode.ADD_VOLATILE: tuple[Natural, Natural, str, str | None, str],
    GatewayCode.REMOVE_VOLATILE: tuple[Natural, list[Natural]],
    GatewayCode.CREATE_LIGHT: tuple[Annotated[int, Meta(ge=-1, lt=SLOTS)]],
    GatewayCode.DELETE_LIGHT: tuple[Natural],
    GatewayCode.OPEN_CURSOR: tuple[str, str, str, Natural],
    GatewayCode.DELETE_CURSOR: tuple[Natural],
    GatewayCode.SET_POLICY: tuple[Natural, bytes],
    GatewayCode.TAKE_SEAT: tuple[Natural, bool, bool, Int32],
    GatewayCode.LEAVE_SEAT: tuple[Natural, Natural],
    GatewayCode.RANK: tuple[Natural, Int32],
    GatewayCode.ACQUIRE: tuple[Natural, Natural, Natural, Natural],
    GatewayCode.SCAN: tuple[Natural, Natural, Natural, Natural],
    GatewayCode.SEEK: tuple[Natural, str, Natural],
    GatewayCode.SETTLE: tuple[list[Settled]],
    GatewayCode.RELEASE: tuple[Natural],
    GatewayCode.WATCH: tuple[Natural, bool],
    GatewayCode.STATS: tuple[list[Natural]],
    GatewayCode.DETAILS: tuple[list[Natural]],
    GatewayCode.PURGE: tuple[Natural],
    GatewayCode.PUT: tuple[str, list[tuple[str, bytes | None]], bool],
    GatewayCode.PUT_IF: tuple[str, list[tuple[str, bytes | None, bytes | None]]],
    GatewayCode.PUT_TOGETHER: tuple[str, str, bytes | None, list[tuple[str, bytes | None]]],
    GatewayCode.WATCH_TABLE: tuple[str, bool],
    GatewayCode.TAKE_LEASE: tuple[str, bool, Under | None],
    GatewayCode.IS_FREE: tuple[str, Under | None],
    GatewayCode.DROP_LEASE: tuple[str, Natural],
    GatewayCode.FOLLOW: tuple[str, str, Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]],
    GatewayCode.FORWARD_END: tuple[str],
    GatewayCode.AWAIT_FORWARD: tuple[str, str, Natural],
    GatewayCode.READ_FORWARD: tuple[Natural, Natural],
    GatewayCode.SETTLE_FORWARD: tuple[Natural, Natural],
    GatewayCode.READ_LIGHT: tuple[Natural, int, Natural],
    GatewayCode.FREEZE_LIGHTS: tuple[Queues, str, str],
    GatewayCode.END_FREEZE: tuple[Annotated[list[Natural], Meta(max_length=QUEUES_AT_ONCE)], str, bool],
    GatewayCode.HOLD_RECORDS: tuple[str, str],
    GatewayCode.RELEASE_RECORDS: tuple[str, Natural],
    GatewayCode.QUEUES_CAME: tuple[Annotated[list[tuple[Natural, Natural]], Meta(max_length=LEAVING_MAX)]],
    GatewayCode.TAKE_QUEUES: tuple[str, Queues],
    GatewayCode.STOP_SLOTS: tuple[Annotated[list[Under], Meta(max_length=SLOTS)], bool],
}
"""Arguments of each call, in order."""

DECODERS: Final[dict[int, Callable[[bytes], tuple[Any, ...]]]] = {
    code: msgspec.msgpack.Decoder(kind).decode for code, kind in ARGUMENTS.items()
}


def decode_call(code: int, body: bytes) -> tuple[Any, ...]:
    """The arguments of a call; raises ILLEGAL_ARGUMENT that says which is wrong, NOT_SUPPORTED for an unknown code."""
    decode = DECODERS.get(code)
    if decode is None:
        raise GantryError(ErrorCode.NOT_SUPPORTED, f"gateway request code {code} is unknown; upgrade the broker")
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = GatewayCode(code).name
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"gateway request {name} cannot be read: {error}") from None


def _sent_flags(sys_flag: int) -> int:
    """What is kept of a gateway's sysFlag. Raises ILLEGAL_ARGUMENT."""
    if sys_flag & ~SENT_FLAGS:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"sysFlag {sys_flag} has bits that a gateway may not set")
    return sys_flag & ~(sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6)


class Checked:
    """Makes messages of rows; keeps which properties of rows without keys were found right: those of most publishers are the same again."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, int]] = {}
        """Tag and kind of a message, by its properties."""

    def messages_of(self, rows: list[Sent]) -> list[Message]:
        """The messages of rows. Raises ILLEGAL_ARGUMENT where one contradicts itself: indexes made from the row would not be those that a recovery
        makes from the record; NO_PERMISSION for RocketMQ's own topics, which no gateway writes (the broker refuses our own)."""
        known, own = self._known, names.ROCKETMQ_SYSTEM_TOPICS
        batch: list[Message] = []
        for sent in rows:
            topic, properties, tag, keys = sent.topic, sent.properties, sent.tag, sent.keys
            if topic in own:
                raise GantryError(ErrorCode.NO_PERMISSION, f"topic {topic} belongs to the broker itself")
            found = known.get(properties)
            kind = found[1] if found is not None and found[0] == tag and not keys else self._check(sent)
            message = Message(topic, sent.body, properties, tag, keys, sent.queue_id, sent.born_ms)
            message.sharding_key = sent.sharding_key
            message.exchange = sent.exchange
            message.demand_route = sent.demand_route
            message.flag = sent.flag
            message.kind = kind
            if sent.table:
                message.lmq = queues_of(sent.table)
            if sent.sys_flag:
                message.sys_flag = _sent_flags(sent.sys_flag)
            batch.append(message)
        return batch

    def _check(self, sent: Sent) -> int:
        """The kind of a message whose properties say what its row says of them. Raises ILLEGAL_ARGUMENT."""
        properties = sent.properties
        if props.find(properties, props.TAGS) != sent.tag:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"tag {sent.tag[:80]!r} is not that of the properties (TAGS)")
        if props.index_keys(properties) != sent.keys:
            text = "the keys are not those of the properties (UNIQ_KEY, KEYS)"
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
        if (_INNER in properties or _MORE in properties) and any(props.find(properties, name) for name in OURS):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "light queues in the properties are the broker's to write")
        # A foreign header of that name has another one here (props.foreign_name).
        kind = DELAYED if b"TIMER_DELAY_MS\x01" in properties else PLAIN
        if not sent.keys and len(properties) <= KNOWN_BYTES:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[properties] = (sent.tag, kind)
        return kind
