"""Ordinary sends that came alone, one in a read: those of many connections in one turn become one batch with one answer to it.

What a batch takes beside its messages, in the door, the broker and back, is as much as a message itself; with many connections that send one
message at a time it was paid for each (docs/decisions/0009-sends-that-come-alone.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.remoting.codec import SendResponses, as_command, response
from gantrymq.remoting.door import code_of
from gantrymq.remoting.send_shapes import Alike
from gantrymq.remoting.sends import remark_of

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.broker_door import BrokerDoor

Lone = tuple["BrokerDoor", Message, Alike]


class LoneSends:
    """One per broker."""

    __slots__ = ("_batch", "_broker", "_lone", "_topics", "responses")

    def __init__(self, broker: Broker, responses: SendResponses) -> None:
        self._broker = broker
        self._topics = broker.topics.topics
        self._batch: list[Message] = []
        self._lone: list[Lone] = []
        """Whose messages those of the batch are."""
        self.responses = responses

    def take(self, door: BrokerDoor, sent: Alike, message: Message) -> bool:
        """Submit the message of a send; False: it is none that is answered in the same turn, and has to go by itself.

        Nobody may wait for the disk because of another's message. A batch that others were submitted behind is not added to: what one
        connection sends is stored in its order, whichever way it goes.
        """
        topic = self._topics.get(message.topic)
        if topic is None or topic.strict or message.intake:
            return False
        if self._broker.newest_batch is self._batch:
            self._batch.append(message)
            self._lone.append((door, message, sent))
            return True
        self._batch, self._lone = [message], [(door, message, sent)]
        self._broker.submit(self._batch, self._lone, self._stored)
        return True

    def _stored(self, lone: list[Lone], results: Any) -> None:
        """The broker is done with a batch: render the answers."""
        template, prefixes = self.responses.template, self.responses.prefixes
        if isinstance(results, GantryError):
            results = [results.code] * len(lone)
        for (door, message, sent), result in zip(lone, results, strict=True):
            if not door.open:
                continue
            if type(result) is int:
                # SendResponses.frame, without a call per message.
                header = template % (message.physical_offset, message.queue_id, result, sent[4])
                frame = prefixes[len(header)] + header
            else:
                frame = response(as_command(sent), code_of(result), remark_of(result, message))
            outbox, link = door.connection.outbox, door.link
            if outbox or not link.write_now(frame):
                outbox.append(frame)
                link.mark()
