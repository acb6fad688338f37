"""Request and reply between clients through the broker (RocketMQ's ReplyMessageProcessor).

A request is an ordinary message that names its sender in REPLY_TO_CLIENT. The reply does not wait in a queue: it is pushed to that
client at once, over the connection of one of its producers, and stored in `<cluster>_REPLY_TOPIC` as a trace of what was said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gantrymq.model.errors import GantryError
from gantrymq.remoting.constants import REGION, RequestCode, ResponseCode
from gantrymq.remoting.headers import SendHeader, SendHeaderV2, parse
from gantrymq.remoting.specials import value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.remoting.broker_door import BrokerDoor
    from gantrymq.remoting.clients import Clients, Member
    from gantrymq.remoting.codec import Command

_REPLY_TO: Final = "REPLY_TO_CLIENT\x01"
PUSH_TIME: Final = "PUSH_REPLY_TIME"

REMEMBERED_MAX: Final = 16_384
"""Requesting clients whose producer group is remembered; beyond it they are looked for again."""


class Requesters:
    """Finds the connection of a requesting client: its id stands in each of its producer groups."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._groups: dict[str, str] = {}

    def find(self, client_id: str) -> Member | None:
        """The connection on which the client's producers sent their heartbeat, or None."""
        producers = self._clients.producers
        member = producers.get(self._groups.get(client_id, ""), {}).get(client_id)
        if member is None:
            for group, members in producers.items():
                member = members.get(client_id)
                if member is not None:
                    if len(self._groups) >= REMEMBERED_MAX:
                        self._groups.clear()
                    self._groups[client_id] = group
                    break
            else:
                self._groups.pop(client_id, None)
        return member


def reply(door: BrokerDoor, command: Command) -> None:
    """SEND_REPLY_MESSAGE and its V2: push first, whatever becomes of the stored copy; the answer says whether the push went out."""
    header: SendHeader | SendHeaderV2
    if command.code == RequestCode.SEND_REPLY_MESSAGE_V2:
        header = parse(command.fields, SendHeaderV2)
    else:
        header = parse(command.fields, SendHeader)
    topic = door.shared.broker.topics.get(header.topic)
    if topic is not None and header.queue_id >= topic.config.write_queues:
        # The topic of replies came with the first request: who has no route yet guesses by that of TBW102, which has more queues.
        header.queue_id = 0
    message = door.message(header, command.body)
    failure = _push(door, header, command.body)
    config = door.shared.broker.config

    def answer(results: Any) -> None:
        if failure:
            door.refuse(command, ResponseCode.SYSTEM_ERROR, failure)
            return
        stored = not isinstance(results, GantryError) and type(results[0]) is int
        msg_id = f"{door.shared.responses.host}{message.physical_offset:016X}" if stored else "0"
        fields = {
            "msgId": msg_id, "queueId": str(max(message.queue_id, 0)), "queueOffset": str(results[0]) if stored else "0",
            "MSG_REGION": REGION, "TRACE_ON": "true",
        }  # fmt: skip
        door.connection.respond(command, ResponseCode.SUCCESS, None, fields)

    if config.store_replies:
        door.submit([message], answer)
    else:
        answer([None])


def _push(door: BrokerDoor, header: SendHeader | SendHeaderV2, body: bytes) -> str:
    """Hand the reply to its client; why that did not happen, or nothing."""
    shared = door.shared
    text = header.properties or ""
    client_id = value_of(text, _REPLY_TO)
    if not client_id:
        return "reply message properties[REPLY_TO_CLIENT] is null"
    member = shared.requesters.find(client_id)
    if member is None:
        return f"push reply message fail, channel of <{client_id[:255]}> not found."
    now_ms = shared.broker.clock.now_ms()
    if text[-1] != "\x02":
        text += "\x02"
    fields = {
        "bornHost": door.link.peer, "storeHost": shared.address, "storeTimestamp": str(now_ms),
        "producerGroup": header.producer_group, "topic": header.topic, "defaultTopic": header.default_topic,
        "defaultTopicQueueNums": str(header.default_queues), "queueId": str(header.queue_id),
        "sysFlag": str(header.sys_flag), "bornTimestamp": str(header.born_ms), "flag": str(header.flag),
        "properties": f"{text}{PUSH_TIME}\x01{now_ms}\x02", "unitMode": header.unit_mode,
    }  # fmt: skip
    if header.reconsume_times is not None:
        fields["reconsumeTimes"] = str(header.reconsume_times)
    if not member.push(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body):
        return f"push reply message to {client_id[:255]} fail: it does not read what it is sent."
    return ""


HANDLERS: Final[dict[int, Callable[[BrokerDoor, Command], None]]] = {
    RequestCode.SEND_REPLY_MESSAGE: reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply,
}
