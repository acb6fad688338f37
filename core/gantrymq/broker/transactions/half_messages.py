"""Half messages: how a message waits in the half topic, and what becomes of it when its producer has decided.

The records are RocketMQ's own (docs/formats/transactions.md): a real broker goes on with them and we go on with its. Pure: no clock,
no store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.errors import GantryError
from gantrymq.model.message import DECIDED, Message
from gantrymq.model.names import OWN_LIGHT_PREFIX, OWN_ROWS_PREFIX
from gantrymq.store.log.record import split_dispatch
from gantrymq.store.log.run import Run, take

if TYPE_CHECKING:
    from gantrymq.broker.config import TransactionsConfig
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.port import Done


HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""RocketMQ's own consumer group of half and op topic: its offsets say what is undecided."""

HALF_TAG: Final = "d"
OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d\x02"
OP_BYTES_MAX: Final = 4096
"""RocketMQ's transactionOpMsgMaxSize: offsets of one op record."""

TRANSACTION_ID: Final = "__transactionId__"
ROWS: Final = "GANTRY_ROWS"
"""Of a half message whose body is that of a batch: how many messages it is."""
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
_IMMUNITY: Final = IMMUNITY.encode()
_DISPATCH: Final = props.MULTI_DISPATCH.encode()
_SHARDING: Final = props.SHARDING_KEY.encode()
_ADDED: Final = (TRANSACTION_ID, props.REAL_TOPIC, props.REAL_QUEUE_ID, CHECK_TIMES, PREPARED_QUEUE_OFFSET)

COMMIT: Final = 1
ROLLBACK: Final = 2
GIVEN_UP: Final = 3
FATES: Final = {COMMIT: "committed", ROLLBACK: "rolled back", GIVEN_UP: "given up after too many checks"}


class Half:
    """One undecided half message."""

    __slots__ = (
        "born_ms",
        "checks",
        "copy",
        "group",
        "immunity_ms",
        "message",
        "offset",
        "position",
        "queue_id",
        "size",
        "store_ms",
        "topic",
        "unique",
    )

    def __init__(self, group: str, unique: str, topic: str, queue_id: int, properties: bytes) -> None:
        self.group = group
        self.unique = unique
        self.topic = topic
        self.queue_id = queue_id
        """Of its own topic."""
        self.offset = self.position = -1
        """In the half topic, and where it was stored first, which is what its producer knows."""
        self.size = self.born_ms = self.store_ms = 0
        self.immunity_ms = immunity_ms(props.find(properties, IMMUNITY)) if _IMMUNITY in properties else -1
        """Time before the first check that its producer asked for, or -1."""
        self.checks = 0
        """Checks that a real broker had made."""
        self.copy = False
        """A real broker stored it anew when it asked the producer, or put that off; its earlier records count no more."""
        self.message: Message | None = None
        """The record while it is young: most are decided within milliseconds."""

    def stored(self, message: Message, position: int) -> None:
        """It is in the log."""
        self.offset = message.queue_offset
        self.position = position
        self.size = message.size
        self.born_ms = message.born_ms
        self.store_ms = message.store_ms

    @classmethod
    def read(cls, message: Message, position: int) -> Half:
        """From a record of the half topic; `position` as in `stored`."""
        properties = message.properties
        half = cls(
            props.find(properties, props.PRODUCER_GROUP),
            props.find(properties, props.UNIQ_KEY),
            props.find(properties, props.REAL_TOPIC),
            whole(props.find(properties, props.REAL_QUEUE_ID)),
            properties,
        )
        half.stored(message, position)
        half.checks = whole(props.find(properties, CHECK_TIMES))
        half.copy = half.checks > 0 or PREPARED_QUEUE_OFFSET.encode() in properties
        return half


class Undecided(Protocol):
    """The transactions of a broker as their start and their checks know them."""

    config: TransactionsConfig
    table: dict[int, Half]
    covered: int
    pending: int
    halves: Cursor | None
    ops: Cursor | None

    def make_cursors(self, half_start: int, op_start: int) -> None: ...

    def take_more(self, count: int) -> bool: ...

    def read(self, offset: int) -> tuple[Message, int] | None: ...

    def message_of(self, half: Half) -> Message: ...

    def drop_message(self, half: Half) -> None: ...

    def checks_of(self, half: Half) -> int: ...

    def decide(self, half: Half, fate: int, message: Message | None, token: Any, on_done: Done) -> None: ...

    def opened(self, owed: list[int], op_safe: int) -> None: ...


def whole(text: str) -> int:
    """A number of a property; 0 for anything else."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0


def immunity_ms(text: str) -> int:
    """CHECK_IMMUNITY_TIME_IN_SECONDS in ms; what is no number counts as not given (-1)."""
    return whole(text) * 1000 if text.isdecimal() and text.isascii() and len(text) < 10 else -1


def to_half(message: Message, unique: str) -> None:
    """Rewrite a sender's message for the half topic (TransactionalMessageBridge.parseHalfMessageInner)."""
    text = message.properties
    mark = b"" if not text or text.endswith(b"\x02") else b"\x02"
    added = f"{TRANSACTION_ID}\x01{unique}\x02{props.REAL_TOPIC}\x01{message.topic}\x02{props.REAL_QUEUE_ID}\x01{message.queue_id}\x02"
    message.properties = text + mark + added.encode("utf-8", "surrogatepass")
    message.topic = HALF_TOPIC
    message.queue_id = 0
    message.sys_flag &= ~sysflag.TRANSACTION_MASK
    message.lmq = ()
    """Light queues of its own are entered at the commit."""


def lights_of(half: Message) -> tuple[str, ...]:
    """The client's own light queues: in a record that was read they stand beside the properties."""
    text = half.dispatch or (half.properties if _DISPATCH in half.properties else b"")
    found = props.find(text, props.MULTI_DISPATCH) if text else ""
    return tuple(
        [name for name in found.split(",") if name and not name.startswith((OWN_LIGHT_PREFIX, OWN_ROWS_PREFIX))]
    )


def _with_lights(half: Message) -> bytes:
    lights = lights_of(half) if half.dispatch else ()
    return half.properties + props.encode([(props.MULTI_DISPATCH, ",".join(lights))])


def _rebuilt(half: Message, topic: str, queue_id: int) -> Message:
    properties = half.properties
    keys = half.keys
    if not keys:  # it was read
        unique = props.find(properties, props.UNIQ_KEY)
        keys = ((unique,) if unique else ()) + tuple(props.find(properties, props.KEYS).split())
    message = Message(topic, half.body, properties, half.tag, keys, queue_id, half.born_ms)
    message.born_host = half.born_host
    message.flag = half.flag
    message.sys_flag = half.sys_flag & ~(sysflag.TRANSACTION_MASK | sysflag.STORE_HOST_V6)
    message.reconsume_times = half.reconsume_times
    message.kind = DECIDED
    return message


def committed(message: Message, half: Half) -> Message:
    """The message that enters its topic (EndTransactionProcessor.endMessageTransaction). Its properties stay as they are: RocketMQ
    clears TRAN_MSG, REAL_TOPIC and REAL_QID too late for the record, so its committed messages carry them."""
    made = _rebuilt(message, half.topic, half.queue_id)
    made.sys_flag |= sysflag.TRANSACTION_COMMIT
    made.prepared_offset = half.position
    if message.dispatch or _DISPATCH in made.properties:
        made.lmq = lights_of(message)
        made.properties = split_dispatch(made.properties)[0]  # the store writes the names again, with offsets
    if _SHARDING in made.properties:
        made.sharding_key = props.find(made.properties, props.SHARDING_KEY)
    return made


def committed_rows(message: Message, half: Half) -> Run | None:
    """The messages that enter their topic together, of a half message that is many; None if it is one."""
    if not props.find(message.properties, ROWS):
        return None
    own = props.encode([(props.CLUSTER, props.find(message.properties, props.CLUSTER))])
    run = Run(half.topic, half.queue_id, message.born_ms, own)
    size = len(message.body)
    try:
        if not take(run, message.body, (size, size, size)):
            return None
    except GantryError:  # nobody's rows: a block that is none
        return None
    run.sys_flag |= message.sys_flag & sysflag.BORN_HOST_V6 | sysflag.TRANSACTION_COMMIT
    run.born_host, run.prepared_offset, run.queue_offset = message.born_host, half.position, half.offset
    run.grouped = True
    return run


def given_up(message: Message, half: Half) -> Message:
    """The message as it lies in TRANS_CHECK_MAX_TIME_TOPIC (DefaultTransactionalMessageCheckListener); `prepared_offset` is ours: it
    tells the next start what has been given up."""
    made = _rebuilt(message, GIVEN_UP_TOPIC, 0)
    made.properties = _with_lights(message)
    made.prepared_offset = half.position
    return made


def resumed(message: Message) -> Message:
    """A message that was given up, as its producer sent it: it becomes a half message again."""
    pairs = message.property_map()
    topic, queue_id = pairs.get(props.REAL_TOPIC, ""), whole(pairs.get(props.REAL_QUEUE_ID, ""))
    again = _rebuilt(message, topic, queue_id)
    lights = lights_of(message)
    if lights:
        pairs[props.MULTI_DISPATCH] = ",".join(lights)
    again.properties = props.encode({name: value for name, value in pairs.items() if name not in _ADDED})
    return again


def op_bodies(offsets: list[int]) -> list[bytes]:
    """Bodies of op records for these half queue offsets; each offset is followed by a comma, as RocketMQ writes them."""
    bodies: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for offset in offsets:
        text = b"%d," % offset
        if size + len(text) > OP_BYTES_MAX and part:
            bodies.append(b"".join(part))
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        bodies.append(b"".join(part))
    return bodies


def op_offsets(body: bytes) -> list[int]:
    """Offsets of an op record; what is no number is left out, as RocketMQ does."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) < 19]
