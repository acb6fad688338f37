"""Dead letters of pop consumers: what was delivered too often is copied to `%DLQ%<group>`, then done in its own queue.

At least once: a crash in between repeats the copy. A refusal that passes (disk full) leaves the message leased for a while, and it
is tried again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.consuming.cursors import GONE
from gantrymq.broker.topics import TopicConfig
from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantrymq.broker.parts import Context
    from gantrymq.broker.pop.leases import Place

log = logging.getLogger(__name__)

AGAIN_MS: Final = 60_000
"""A dead letter that could not be stored is tried again."""

AT_ONCE: Final = 64
"""Dead letters read and submitted in one step."""


class DeadLetters:
    """See the module. `lease(place, offsets, for ms)` keeps entries from consumers; `acknowledge(place, offsets, 0)`: they are done."""

    def __init__(
        self,
        broker: Context,
        lease: Callable[[Place, Sequence[int], int], None],
        acknowledge: Callable[[Place, Sequence[int], int], int],
    ) -> None:
        self._broker = broker
        self._lease = lease
        self._acknowledge = acknowledge

    def bury(self, place: Place, offsets: Sequence[int]) -> None:
        """Offsets that came back just now."""
        self._lease(place, offsets, AGAIN_MS)
        for first in range(0, len(offsets), AT_ONCE):
            self._copy((place, offsets[first : first + AT_ONCE]))

    def _copy(self, step: tuple[Place, Sequence[int]]) -> None:
        place, offsets = step
        broker, cursor = self._broker, place.cursor
        try:
            units = [(broker.cursors.units(cursor, offset, 1) or GONE)[0] for offset in offsets]
            found = broker.store.get_many([(unit[0], unit[1]) for unit in units])
            bad = broker.cursors.quarantined.damaged(cursor, offsets, units, found)
        except Cold as cold:
            broker.fetch(cold, step, self._copy)
            return
        except OSError as error:
            log.error("%s: dead letters of group %s cannot be read; tried again in %d s: %s",
                      cursor.queue, place.group, AGAIN_MS // 1000, error)  # fmt: skip
            return
        quarantined = broker.cursors.quarantine(cursor, bad) if bad else ()
        entries = [entry for entry in zip(offsets, found, strict=True) if entry[0] not in quarantined]
        gone = [offset for offset, message in entries if message is None]
        left = [(offset, message) for offset, message in entries if message is not None]
        if gone:
            self._done((place, gone), None)
        if not left:
            return
        try:
            topic = self._topic(place.group)
        except GantryError as error:
            log.error("group %s: its dead letters have no topic: %s", place.group, error.text)
            return
        times = cursor.window.counts
        batch = [letter(message, topic, place, times.get(offset, 0)) for offset, message in left]
        broker.submit(batch, (place, [offset for offset, _ in left]), self._done)

    def _topic(self, group: str) -> str:
        name = names.DLQ_PREFIX + group
        if self._broker.topics.get(name) is None:
            self._broker.topics.create(TopicConfig(name, 1, 1))
        return name

    def _done(self, step: tuple[Place, Sequence[int]], results: Any) -> None:
        place, offsets = step
        if isinstance(results, GantryError):
            return
        stored = [
            offset
            for offset, result in zip(offsets, results if results is not None else offsets, strict=True)
            if type(result) is int
        ]
        if len(stored) < len(offsets):
            log.warning("group %s: %d dead letters could not be stored; tried again in %d s",
                        place.group, len(offsets) - len(stored), AGAIN_MS // 1000)  # fmt: skip
        if stored:
            self._acknowledge(place, stored, 0)


def letter(message: Message, topic: str, place: Place, times: int) -> Message:
    """The copy. RETRY_TOPIC and ORIGIN_MESSAGE_ID as RocketMQ sets them (AbstractSendMessageProcessor.consumerSendMsgBack)."""
    text = _with_origin(message, place)
    copy = Message(topic, message.body, text, message.tag, props.index_keys(text), 0, message.born_ms)
    copy.born_host, copy.flag = message.born_host, message.flag
    copy.sys_flag = message.sys_flag & ~sysflag.STORE_HOST_V6
    copy.reconsume_times = message.reconsume_times + times
    return copy


def _with_origin(message: Message, place: Place) -> bytes:
    # The record's store host is 8 bytes with IPv4: an offset message id is host, port and position.
    message_id = f"{message.store_host.hex().upper()}{message.physical_offset:016X}"
    text = message.properties
    if text and not text.endswith(props.PAIR_END):
        text += props.PAIR_END
    for name, value in (
        (props.RETRY_TOPIC, place.topic),
        (props.ORIGIN_MESSAGE_ID, message_id),
        ("DLQ_ORIGIN_TOPIC", place.topic),
        ("DLQ_ORIGIN_MESSAGE_ID", message_id),
    ):
        if not props.find(text, name):
            text += b"%b\x01%b\x02" % (name.encode(), value.encode())
    return text


__all__ = ["DeadLetters", "letter"]
