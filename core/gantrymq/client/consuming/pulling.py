"""Pull requests and their answers, and what a consumer subscribes to: for every consumer that reads by offset."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from gantrymq.client.client import Client
from gantrymq.client.connecting.link import REQUEST_TIMEOUT_S
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.errors import BrokerError, number
from gantrymq.client.records import ReceivedMessage, decode_records, readable_records
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import java_hash
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

PULL_MAX: Final = 1024
"""Messages of one pull; a stock RocketMQ broker gives at most 32."""
PULL_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one pull, one message larger than that excepted."""

_PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)  # fmt: skip
TAG: Final = "TAG"
SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class PullResult:
    """One pull of one queue.

    Attributes:
        messages: Those that the subscription takes; may be empty.
        next_offset: Where to go on.
        min_offset: Offset of the oldest message of the queue.
        max_offset: Offset that its next message will get.
        moved: The offset asked for is outside [min_offset, max_offset], and `next_offset` is the nearest that is not.
    """

    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool = False


def parse_tags(expression: str) -> frozenset[str]:
    """Tags of `a || b`; empty for `*`, which is every message. Raises ILLEGAL_ARGUMENT for an empty tag between bars."""
    text = expression.strip()
    if text in ("", "*"):
        return frozenset()
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"tag expression {expression!r}: allowed is a || b || c, or *")
    return frozenset(tags)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a consumer; with neither tags nor SQL every message of it.

    Attributes:
        topic: Its name.
        tags: A message with one of these is taken; empty: any.
        sql: An SQL92 filter over properties; empty: none.
        version: When it was made, milliseconds since the epoch: the newer of two counts at the broker.
        check_crc: A message whose body is not the one that was stored is left out, with a line of the log.
    """

    topic: str
    tags: frozenset[str] = frozenset()
    sql: str = ""
    version: int = 0
    check_crc: bool = False

    @classmethod
    def of(cls, topic: str, tags: str = "*", sql: str = "", check_crc: bool = False) -> Subscription:
        """Subscription from a tag expression `a || b` or an SQL92 filter. Raises ILLEGAL_ARGUMENT if there are both."""
        parsed = parse_tags(tags)
        if parsed and sql:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"topic {topic!r}: tags and sql exclude each other")
        return cls(topic, parsed, sql.strip(), time.time_ns() // 1_000_000, check_crc)

    @property
    def expression(self) -> str:
        """Text for the wire."""
        return self.sql or " || ".join(sorted(self.tags)) or "*"

    @property
    def kind(self) -> str:
        """`TAG` or `SQL92`."""
        return SQL92 if self.sql else TAG

    def data(self) -> dict[str, Any]:
        """SubscriptionData as heartbeats carry it."""
        return {
            "topic": self.topic,
            "subString": self.expression,
            "tagsSet": sorted(self.tags),
            "codeSet": sorted(java_hash(tag) for tag in self.tags),
            "subVersion": self.version,
            "expressionType": self.kind,
            "classFilterMode": False,
        }

    def wants(self, message: ReceivedMessage) -> bool:
        """The exact check behind the broker's, which compares hashes of tags."""
        return not self.tags or message.tag in self.tags


def pull_fields(
    group: str, queue: MessageQueue, offset: int, count: int, tags: Iterable[str] | Subscription, wait_ms: int,
    commit: int = -1, max_bytes: int = PULL_BYTES_MAX, lite: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Fields of a PULL_MESSAGE that brings its subscription along, so that no heartbeat is needed. `commit`: offset to keep for the
    group, unless negative."""
    subscription = tags if isinstance(tags, Subscription) else Subscription(queue.topic, frozenset(tags))
    flags = sysflag.PULL_SUBSCRIPTION | (sysflag.PULL_SUSPEND if wait_ms else 0)
    flags |= (sysflag.PULL_COMMIT_OFFSET if commit >= 0 else 0) | (sysflag.PULL_LITE if lite else 0)
    return {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(flags),
        "commitOffset": str(max(commit, 0)),
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": subscription.expression,
        "subVersion": str(subscription.version),
        "expressionType": subscription.kind,
        "maxMsgBytes": str(max_bytes),
    }


def pull_offsets(answer: Command, queue: MessageQueue, address: str) -> tuple[int, int, int]:
    """Next, least and maximum offset of an answer. Raises `BrokerError` for anything but found, not found, retry and moved."""
    if answer.code not in _PULLED:
        raise BrokerError(answer, f"pull of {queue}", address)
    fields = answer.fields
    try:
        return int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])
    except (KeyError, ValueError):
        for name in ("nextBeginOffset", "minOffset", "maxOffset"):
            number(answer, name, f"pull of {queue}", address)
        raise


def parse_pull(answer: Command, queue: MessageQueue, address: str) -> tuple[PullResult, bytes]:
    """Result without messages, and the raw records. Raises as `pull_offsets`."""
    offsets = pull_offsets(answer, queue, address)
    result = PullResult([], *offsets, answer.code == ResponseCode.PULL_OFFSET_MOVED)
    return result, answer.body if answer.code == ResponseCode.SUCCESS else b""


def wanted_records(raw: bytes, queue: MessageQueue, subscription: Subscription, address: str) -> list[ReceivedMessage]:
    """The messages of a pull's records that the subscription takes. Those that cannot be read are left out, with a line of the log."""
    try:
        messages = decode_records(raw, queue.broker, subscription.check_crc)
    except GantryError:
        messages = readable_records(raw, queue.broker, f"{address}: {queue}", subscription.check_crc)
    if subscription.tags:  # the broker compares hashes; two tags may have the same
        messages = [message for message in messages if message.tag in subscription.tags]
    return messages


async def pull_once(
    client: Client,
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    *,
    count: int = PULL_MAX,
    wait_s: float = 0.0,
    commit: int = -1,
    lite: bool = False,
) -> PullResult:
    """One request for one queue; the broker waits up to `wait_s` for a message. Raises what it answers, or UNAVAILABLE."""
    link = await client.link_of(queue)
    fields = pull_fields(group, queue, offset, count, subscription, max(0, int(wait_s * 1000)), commit, lite=lite)
    code = RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE
    answer = await link.request(Command(code, fields), REQUEST_TIMEOUT_S + wait_s)
    result, raw = parse_pull(answer, queue, link.address)
    result.messages.extend(wanted_records(raw, queue, subscription, link.address))
    return result
