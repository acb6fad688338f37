"""Headers, bodies and texts of the pop requests (RocketMQ's header classes of the same names, ExtraInfoUtil, BatchAck)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.model import names
from gantrymq.remoting.codec import PREFIX
from gantrymq.remoting.constants import FLAG_ONEWAY, VERSION
from gantrymq.remoting.frame_headers import encode_json
from gantrymq.remoting.headers import HeaderError

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import RecordsReply

ORDER_QUEUE: Final = 999
"""Revive queue id in the receipts of ordered pops (KeyBuilder.POP_ORDER_REVIVE_QUEUE)."""

NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"
"""Marks of a record's topic in receipts: the topic itself, `%RETRY%group_topic`, `%RETRY%group+topic`."""

BATCH_BITS_MAX: Final = 1 << 19
"""Offsets that one batch acknowledgement spans; our own answers span 8,192 at most."""

INVALID_PARAMETER: Final = 29
"""ResponseCode.INVALID_PARAMETER."""

_HEADER: Final = (
    b'{"code":%%d,"extFields":{"popTime":"%%d","invisibleTime":"%%d","reviveQid":"%%d","restNum":"%%d",'
    b'"startOffsetInfo":"%%b","msgOffsetInfo":"%%b"%%b},"flag":1,"language":"JAVA","opaque":%%d,"remark":"%%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}'
) % VERSION


_DONE: Final = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
)


class ChangeHeader(msgspec.Struct, rename="camel"):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int


class PeekHeader(msgspec.Struct, rename="camel"):
    """PEEK_MESSAGE."""

    topic: str
    queue_id: int
    max_msg_nums: int
    consumer_group: str


class NotificationHeader(msgspec.Struct, rename="camel"):
    """NOTIFICATION."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int = 0
    order: bool | None = False
    attempt_id: str | None = None


class PollingInfoHeader(msgspec.Struct, rename="camel"):
    """POLLING_INFO."""

    consumer_group: str
    topic: str
    queue_id: int


class BatchAck(
    msgspec.Struct,
    rename={
        "group": "c", "topic": "t", "retry": "r", "start": "so", "queue_id": "q", "revive_queue": "rq", "pop_time": "pt",
        "invisible_time": "it", "bits": "b",
    },
    gc=False,
):  # fmt: skip
    """Acknowledgements of one queue of one pop. `bits`: BitSet.toByteArray, bit i is offset `start` + i."""

    group: str
    topic: str
    start: int
    queue_id: int
    pop_time: int
    bits: bytes = b""
    retry: str = NORMAL
    revive_queue: int = 0
    invisible_time: int = 0


class BatchAckBody(msgspec.Struct, rename="camel"):
    """BatchAckMessageRequestBody."""

    broker_name: str | None = None
    acks: list[BatchAck] | None = None


class Receipt:
    """A parsed receipt: `start pop-time invisible revive-queue mark broker queue [offset]`."""

    __slots__ = ("pop_ms", "revive_queue")

    def __init__(self, text: str) -> None:
        parts = text.split(" ")
        try:
            self.pop_ms = int(parts[1])
            self.revive_queue = int(parts[3])
        except (IndexError, ValueError):
            raise HeaderError(f"extraInfo {text[:80]!r} is no receipt") from None


def pop_time_of(receipt: str) -> int:
    """When the delivery of a receipt was, in milliseconds; -1 for what is no receipt."""
    try:
        return int(receipt.split(" ", 2)[1])
    except (IndexError, ValueError):
        return -1


def offsets_of(start: int, bits: bytes) -> Sequence[int]:
    """Offsets that a batch acknowledgement names, ascending; raises HeaderError."""
    if len(bits) * 8 > BATCH_BITS_MAX:
        raise HeaderError(f"a batch acknowledgement of {len(bits) * 8} offsets, at most {BATCH_BITS_MAX} are allowed")
    number = int.from_bytes(bits, "little")
    if number and not number & (number + 1):
        return range(start, start + number.bit_length())
    found: list[int] = []
    for index, byte in enumerate(bits):
        if byte:
            at = start + index * 8
            found += [at + bit for bit in range(8) if byte >> bit & 1]
    return found


def mark_of(topic: str) -> str:
    """ExtraInfoUtil.getRetry."""
    if not topic.startswith(names.RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Where a real broker put what came back (KeyBuilder.buildPopRetryTopicV1, V2)."""
    return f"{names.RETRY_PREFIX}{group}_{topic}", f"{names.RETRY_PREFIX}{group}+{topic}"


def real_topic(topic: str, group: str, mark: str) -> str:
    """ExtraInfoUtil.getRealTopic."""
    if mark == NORMAL:
        return topic
    return retry_topics(group, topic)[mark == RETRY_V2]


class Answer:
    """Answer to a pop or peek: what the client builds receipts from."""

    __slots__ = (
        "code",
        "counts",
        "invisible_ms",
        "offsets",
        "pieces",
        "pop_ms",
        "rest",
        "revive_queue",
        "size",
        "starts",
        "status",
    )

    def __init__(self, code: int, status: bytes) -> None:
        self.code = code
        self.status = status
        self.pop_ms = 0
        self.invisible_ms = 0
        self.revive_queue = 0
        self.rest = 0
        self.starts: list[bytes] = []
        self.offsets: list[bytes] = []
        self.counts: list[str] | None = None
        """orderCountInfo; None: not an ordered pop."""
        self.pieces: list[bytes] = []
        self.size = 0
        """Bytes of `pieces`."""

    def add_queue(self, mark: str, queue_id: int, offsets: Sequence[int]) -> None:
        """Records of one queue, in the order of their bytes."""
        head = f"{mark} {queue_id} ".encode()
        self.starts.append(b"%b%d" % (head, offsets[0]))
        self.offsets.append(head + encode_json(list(offsets))[1:-1])

    def add_counts(self, mark: str, queue_id: int, offsets: Sequence[int], counts: dict[int, int]) -> None:
        """Deliveries before this one, of an ordered pop (ConsumerOrderInfoManager.update)."""
        if self.counts is None:
            self.counts = []
        self.counts += [f"{mark} qo{queue_id}%{offset} {counts[offset]}" for offset in offsets if counts.get(offset)]
        self.counts.append(f"{mark} {queue_id} {min([counts.get(offset, 0) for offset in offsets], default=0)}")


def write(reply: RecordsReply, opaque: int, answer: Answer) -> None:
    """Put an answer into the connection's outbox; records go out as they are."""
    counts = answer.counts
    header = _HEADER % (
        answer.code, answer.pop_ms, answer.invisible_ms, answer.revive_queue, answer.rest, b";".join(answer.starts),
        b";".join(answer.offsets),
        b"" if counts is None else b',"orderCountInfo":"%b"' % ";".join(counts).encode(), opaque, answer.status,
    )  # fmt: skip
    outbox = reply.outbox
    size = len(header)
    body = answer.size
    outbox.append(PREFIX.pack(size + 4 + body, size) + header)
    if body:
        outbox += answer.pieces
        reply.pull_bytes += body


def write_done(command: Command, reply: RecordsReply) -> None:
    """The answer to an acknowledgement, without an encoder: a consumer sends one per message."""
    if not command.flag & FLAG_ONEWAY:
        header = _DONE % command.opaque
        size = len(header)
        reply.outbox.append(PREFIX.pack(size + 4, size) + header)
