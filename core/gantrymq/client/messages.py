"""What a producer sends and gets back, and the ids that it gives out."""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import PROPERTIES_BYTES_MAX

DELIVER_AT: Final = "TIMER_DELIVER_MS"
SYSTEM_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
KEYS_SEPARATOR: Final = " "
_UNIQ_KEY: Final = f"{props.UNIQ_KEY}\x01"


@dataclass(slots=True)
class OutMessage:
    """One message to send. At most one of `delay_level`, `deliver_at_ms` and `deliver_after_s` delays it.

    Attributes:
        topic: Its name; the first send creates it where the broker allows that.
        body: Any bytes, 15 MiB at most; a broker that was taken over from RocketMQ takes 4 MiB.
        tag: A text that consumers choose messages by; empty: none.
        keys: What it can be queried by: one text with spaces between the keys, or several texts.
        properties: Further names and values, for filters and readers.
        sharding_key: Messages of one key go to one queue, in order; empty: any queue.
        flag: A number that readers get as it is; RocketMQ gives it no meaning.
        born_ms: When it came to be; 0 is now.
        delay_level: 1 to 18: one of RocketMQ's fixed delays, 1 s to 2 h; 0: none.
        deliver_at_ms: Nobody sees it before; 0: at once. The broker limits how far ahead that may be.
        deliver_after_s: The same from the time of sending on, by this machine's clock; 0: at once.
        priority: 0 and above: higher is read first by pop consumers, as far as the topic has queues (RocketMQ 5.4); -1: none.
        queue: Send to this queue and no other; None: the producer chooses.
    """

    topic: str
    body: bytes
    tag: str = ""
    keys: str | Iterable[str] = ""
    properties: Mapping[str, str] | None = None
    sharding_key: str = ""
    flag: int = 0
    born_ms: int = 0
    delay_level: int = 0
    deliver_at_ms: int = 0
    deliver_after_s: float = 0.0
    priority: int = -1
    queue: MessageQueue | None = None


class SendResult(NamedTuple):
    """Where a message is.

    Attributes:
        message_id: The producer's own id of it (UNIQ_KEY); consumers see the same, also when it was sent twice.
        offset_message_id: Its place in the broker's log, as hexadecimal digits: what `Admin.view` takes.
        queue: The queue that it was stored in.
        queue_offset: Its number there, from 0.
        durable: False: stored, but the flush or the copy to a slave that the broker is configured for did not happen in time.
        recall_handle: Takes a delayed message back (`Producer.recall`); empty for others.
        transaction_id: Of a half message; empty for others.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    durable: bool = True
    recall_handle: str = ""
    transaction_id: str = ""


def encode_properties(message: OutMessage, unique_id: str) -> str:
    """The text form for the wire of a message that was checked (`checks`), tag, keys, sharding key and UNIQ_KEY included. Raises
    PROPERTIES_TOO_LARGE."""
    if is_plain(message) and unique_id.isalnum():
        return f"{_UNIQ_KEY}{unique_id}\x02"
    pairs = dict(message.properties or ())
    if unique_id:
        pairs[props.UNIQ_KEY] = unique_id
    if message.tag:
        pairs[props.TAGS] = message.tag
    keys = message.keys if isinstance(message.keys, str) else KEYS_SEPARATOR.join(message.keys)
    if keys:
        pairs[props.KEYS] = keys
    if message.sharding_key:
        pairs[props.SHARDING_KEY] = message.sharding_key
    if message.delay_level:
        pairs[props.DELAY] = str(message.delay_level)
    if message.deliver_at_ms or message.deliver_after_s:
        due = message.deliver_at_ms or time.time_ns() // 1_000_000 + int(message.deliver_after_s * 1000)
        pairs[DELIVER_AT] = str(due)
    if message.priority >= 0:
        pairs[SYSTEM_PRIORITY] = str(message.priority)
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items() if name and value])
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > PROPERTIES_BYTES_MAX:
        text = f"the properties have {size} bytes, at most {PROPERTIES_BYTES_MAX} are allowed"
        raise GantryError(ErrorCode.PROPERTIES_TOO_LARGE, text)
    return text


def is_plain(message: OutMessage) -> bool:
    """Whether it has no property but its UNIQ_KEY."""
    return not (
        message.properties
        or message.tag
        or message.keys
        or message.sharding_key
        or message.priority >= 0
        or _delays(message)
    )


def _delays(message: OutMessage) -> bool:
    return bool(message.delay_level or message.deliver_at_ms or message.deliver_after_s)


def _own_address() -> bytes:
    try:
        return ipaddress.ip_address(socket.gethostbyname(socket.gethostname())).packed
    except (OSError, ValueError):
        return b"\x7f\0\0\1"


def own_host() -> str:
    """This machine's address as text: the first part of client ids."""
    return str(ipaddress.ip_address(_own_address()))


class UniqueIds:
    """UNIQ_KEY as RocketMQ's clients make it: address 4, process 2, loader hash 4 (here: random), milliseconds since the month began 4,
    counter 2; 32 hexadecimal digits. Make one per process: a forked copy would repeat ids."""

    __slots__ = ("_counter", "_month_ends_ms", "_month_ms", "_now_ms", "_prefix", "_stamped")

    def __init__(self, address: bytes | None = None) -> None:
        head = (address or _own_address())[-4:] + (os.getpid() & 0xFFFF).to_bytes(2, "big") + os.urandom(4)
        self._prefix = head.hex().upper()
        self._counter = 0
        self._month_ms = self._month_ends_ms = 0
        self._now_ms = -1
        self._stamped = ""
        """All but the counter, as of `_now_ms`."""

    def next(self, now_ms: int) -> str:
        """A new id. `now_ms`: milliseconds since the epoch."""
        if now_ms != self._now_ms:
            if not self._month_ms <= now_ms < self._month_ends_ms:
                self._set_month(now_ms)
            self._now_ms = now_ms
            self._stamped = f"{self._prefix}{(now_ms - self._month_ms) & 0xFFFFFFFF:08X}"
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._stamped}{self._counter:04X}"

    def run(self, now_ms: int, count: int) -> str:
        """The first of so many new ids, whose numbers (the last 12 digits) follow one another."""
        if self._counter + count > 0xFFFF:
            self._counter = 0
        first = self.next(now_ms)
        self._counter += count - 1
        return first

    def _set_month(self, now_ms: int) -> None:
        now = time.localtime(now_ms / 1000)
        self._month_ms = int(time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
        self._month_ends_ms = int(time.mktime((now.tm_year, now.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))) * 1000


def parse_offset_message_id(message_id: str) -> tuple[str, int]:
    """Broker address `host:port` and physical offset of an offset message id. Raises ILLEGAL_ARGUMENT."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        text = f"message id {message_id!r}: an offset message id has 32 or 56 hexadecimal digits"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    address = ipaddress.ip_address(data[:-12])
    port = int.from_bytes(data[-12:-8], "big")
    if not 0 < port < 65536:
        text = f"message id {message_id!r} names no broker: it is the one that its producer gave it; give the topic too"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    host = str(address) if address.version == 4 else f"[{address}]"
    return f"{host}:{port}", int.from_bytes(data[-8:], "big")


def recall_place(handle: str) -> tuple[str, str, str]:
    """Topic, broker and UNIQ_KEY of a recall handle: base64url of `v1 topic broker timestamp uniqKey`. Raises ILLEGAL_ARGUMENT."""
    try:
        words = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except ValueError:
        words = []
    if len(words) != 5 or words[0] != "v1":
        text = f"{handle!r} is no recall handle: the message was not delayed, or its broker does not recall"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    return words[1], words[2], words[4]
