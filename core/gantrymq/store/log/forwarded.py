"""A record of another broker group as its owner stores it: topic `rmq_sys_gantry_forwarded` (docs/formats/forwarded.md).

It has the sender's properties, birth and flags, and is not in the index: who asks for its keys asks for its own topic, at its source. In front of the body stands where it was stored first:

      0  magic "GFW1" 4 | queue id 4 | queue offset 8 | position 8 | store ms 8 | sysFlag 4 | length of the topic 2 | of the host 1 | topic | host | body
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from gantrymq.model.message import FORWARDED, Message
from gantrymq.model.names import FORWARDED_TOPIC
from gantrymq.store.log import record

_MAGIC: Final = b"GFW1"
_HEAD: Final = Struct(">4siqqqiHB")


class Forwarded(Message):
    """`lights`: the light queues here that get it. `properties`: as its sender gave them."""

    __slots__ = ("lights",)

    def __init__(self, found: Message, properties: bytes, lights: tuple[int, ...]) -> None:
        topic, host = found.topic.encode(), found.store_host
        head = _HEAD.pack(
            _MAGIC, found.queue_id, found.queue_offset, found.physical_offset, found.store_ms, found.sys_flag,
            len(topic), len(host),
        )  # fmt: skip
        body = b"".join((head, topic, host, found.body))
        super().__init__(FORWARDED_TOPIC, body, properties, found.tag, (), 0, found.born_ms)
        self.kind = FORWARDED
        self.born_host, self.flag, self.sys_flag = found.born_host, found.flag, found.sys_flag
        self.reconsume_times, self.exchange = found.reconsume_times, found.exchange
        self.lights = lights


def unwrap(message: Message) -> Message:
    """The record as its source stored it, but with position and size of where it lies here. Raises RecordError."""
    data, topic_at = message.body, _HEAD.size
    if len(data) < topic_at or data[: len(_MAGIC)] != _MAGIC:
        raise record.RecordError(f"forwarded record at {message.physical_offset} is malformed")
    _, queue_id, queue_offset, _, store_ms, sys_flag, topic_bytes, host_bytes = _HEAD.unpack_from(data)
    host_at = topic_at + topic_bytes
    body_at = host_at + host_bytes
    try:
        message.topic = data[topic_at:host_at].decode()
    except UnicodeDecodeError as error:
        raise record.RecordError(f"forwarded record at {message.physical_offset} is malformed") from error
    message.store_host, message.body = data[host_at:body_at], data[body_at:]
    message.queue_id, message.queue_offset = queue_id, queue_offset
    message.store_ms, message.sys_flag = store_ms, sys_flag
    return message


def original(message: Message) -> Message:
    """The source's record, of one that is yet to be stored here; `message` stays as it is. Raises RecordError."""
    made = Message(message.topic, message.body, message.properties, message.tag, (), message.queue_id, message.born_ms)
    made.born_host, made.flag, made.sys_flag = message.born_host, message.flag, message.sys_flag
    made.reconsume_times, made.exchange = message.reconsume_times, message.exchange
    return unwrap(made)
