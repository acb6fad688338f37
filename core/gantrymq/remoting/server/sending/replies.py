"""Request and reply between clients through the broker (RocketMQ's ReplyMessageProcessor).

A request is an ordinary message that names its sender in REPLY_TO_CLIENT. The reply does not wait in a queue: it is pushed to that
client at once, over the connection of one of its producers, and stored in `<cluster>_REPLY_TOPIC` as a trace of what was said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.model.errors import GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import REGION, RequestCode, ResponseCode
from gantrymq.remoting.headers import SendHeaderV2, parse, parse_send
from gantrymq.remoting.server.sending.specials import value_of

if TYPE_CHECKING:
    from gantrymq.broker.topics import TopicTable
    from gantrymq.model.message import Message
    from gantrymq.remoting.codec import SendResponses
    from gantrymq.remoting.server.clients.registry import Clients, Member
    from gantrymq.remoting.server.identity import Identity
    from gantrymq.remoting.server.reply import SendReply
    from gantrymq.services import Clock

_REPLY_TO: Final = "REPLY_TO_CLIENT\x01"
PUSH_TIME: Final = "PUSH_REPLY_TIME"

REMEMBERED_MAX: Final = 16_384
"""Requesting clients whose producer group is remembered; beyond it they are looked for again."""


PUSHED_MAX: Final = 4_096
"""Replies that one client was sent and has not confirmed; beyond it their repliers are told that it takes no more."""


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


@dataclass(slots=True)
class Replies:
    """What replies need of the broker."""

    topics: TopicTable
    requesters: Requesters
    clock: Clock
    identity: Identity
    responses: SendResponses
    store_replies: bool


class Outcome:
    """What a replier waits for: that the client took the reply, and that its copy is stored. The answer goes out when both are known."""

    def __init__(self, reply: SendReply, command: Command, responses: SendResponses, queue_id: int) -> None:
        self._reply = reply
        self._responses = responses
        self._opaque = Command(command.code, {}, b"", command.opaque, command.flag, None, command.language)
        self._left = 2
        self._failure = ""
        self._fields = {
            "msgId": "0", "queueId": str(queue_id), "queueOffset": "0", "MSG_REGION": REGION, "TRACE_ON": "true",
        }  # fmt: skip

    def stored(self, message: Message, results: Any) -> None:
        """The copy is stored, or was refused: that is not the replier's trouble."""
        if not isinstance(results, GantryError) and type(results[0]) is int:
            host = self._responses.host
            self._fields |= {"msgId": f"{host}{message.physical_offset:016X}", "queueOffset": str(results[0])}
        self._fields["queueId"] = str(max(message.queue_id, 0))
        self.done()

    def failed(self, why: str) -> None:
        """The client did not take the reply."""
        self._failure = why
        self.done()

    def done(self) -> None:
        """One of the two is known."""
        self._left -= 1
        reply = self._reply
        if self._left:
            return
        if self._failure:
            reply.refuse(self._opaque, ResponseCode.SYSTEM_ERROR, self._failure)
        else:
            reply.respond(self._opaque, ResponseCode.SUCCESS, None, self._fields)


def send_reply(command: Command, reply: SendReply, services: Replies) -> None:
    """SEND_REPLY_MESSAGE and its V2: pushed whatever becomes of the stored copy; the answer says whether the client took it, at most
    `CALL_MS` later (ReplyMessageProcessor waits in Broker2Client.callClient)."""
    if command.code == RequestCode.SEND_REPLY_MESSAGE_V2:
        header = parse(command.fields, SendHeaderV2)
    else:
        header = parse_send(command.fields)
    topic = services.topics.get(header.topic)
    if topic is not None and header.queue_id >= topic.config.write_queues:
        # The topic of replies came with the first request: who has no route yet guesses by that of TBW102, which has more queues.
        header.queue_id = 0
    message = reply.message(header, command.body)
    outcome = Outcome(reply, command, services.responses, max(message.queue_id, 0))
    _push(reply, services, header, command.body, outcome)
    if services.store_replies:
        reply.submit([message], lambda results: outcome.stored(message, results))
    else:
        outcome.done()


def _push(reply: SendReply, services: Replies, header: SendHeaderV2, body: bytes, outcome: Outcome) -> None:
    """Hand the reply to its client."""
    text = header.properties or ""
    client_id = value_of(text, _REPLY_TO)
    if not client_id:
        outcome.failed("reply message properties[REPLY_TO_CLIENT] is null")
        return
    member = services.requesters.find(client_id)
    if member is None:
        outcome.failed(f"push reply message fail, channel of <{client_id[:255]}> not found.")
        return
    now_ms = services.clock.now_ms()
    if text[-1] != "\x02":
        text += "\x02"
    fields = {
        "bornHost": reply.peer, "storeHost": services.identity.address, "storeTimestamp": str(now_ms),
        "producerGroup": header.producer_group, "topic": header.topic, "defaultTopic": header.default_topic,
        "defaultTopicQueueNums": str(header.default_queues), "queueId": str(header.queue_id),
        "sysFlag": str(header.sys_flag), "bornTimestamp": str(header.born_ms), "flag": str(header.flag),
        "properties": f"{text}{PUSH_TIME}\x01{now_ms}\x02", "unitMode": header.unit_mode,
    }  # fmt: skip
    if header.reconsume_times is not None:
        fields["reconsumeTimes"] = str(header.reconsume_times)

    def failed(why: str) -> None:
        outcome.failed(f"push reply message to {client_id[:255]} fail: {why}")

    def answered(answer: Command | GantryError) -> None:
        if isinstance(answer, GantryError):
            failed(answer.text)
        elif answer.code != ResponseCode.SUCCESS:
            failed(f"it answered {answer.code} {answer.remark or ''}".rstrip())
        else:
            outcome.done()

    try:
        member.push_reply(fields, body, answered)
    except GantryError as error:
        failed(error.text)


HANDLERS: Final = {
    RequestCode.SEND_REPLY_MESSAGE: send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: send_reply,
}
