"""A pop consumer over a bench's link: requests as the Java client sends them, answers read as it reads them."""

from __future__ import annotations

import base64
import json
from typing import Any

from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.store.log import record
from tests.remoting.bench import TOPIC, answers, ask, request

GROUP = "CG"


class Popped:
    """One message with its receipt (POP_CK), as MQClientAPIImpl.processPopResponse makes it."""

    def __init__(self, message: Any, receipt: str) -> None:
        self.body: bytes = message.body
        self.topic: str = message.topic
        self.queue_id: int = message.queue_id
        self.offset: int = message.queue_offset
        self.times: int = message.reconsume_times
        self.receipt = receipt

    @property
    def pop_ms(self) -> int:
        return int(self.receipt.split()[1])


def parsed(text: str) -> dict[str, str]:
    """ExtraInfoUtil.parseMsgOffsetInfo and its sisters; every entry has three words and a key of its own."""
    found: dict[str, str] = {}
    for part in text.split(";") if text else ():
        mark, queue, value = part.split(" ")
        assert f"{mark}@{queue}" not in found
        found[f"{mark}@{queue}"] = value
    return found


def popped(answer: Command) -> list[Popped]:
    """Messages of an answer."""
    fields = answer.fields
    starts, offsets = parsed(fields["startOffsetInfo"]), parsed(fields["msgOffsetInfo"])
    counts = parsed(fields.get("orderCountInfo", ""))
    messages, at = [], 0
    while at < len(answer.body):
        message = record.decode(answer.body, at)
        at += message.size
        messages.append(message)
    found = []
    seen: dict[str, int] = {}
    for message in messages:
        receipt = message.property("POP_CK")
        if not receipt:
            key = f"0@{message.queue_id}"
            index = seen.get(key, 0)
            seen[key] = index + 1
            assert int(offsets[key].split(",")[index]) == message.queue_offset
            receipt = (
                f"{starts[key]} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 broker-a "
                f"{message.queue_id} {message.queue_offset}"
            )
            if counts:
                message.reconsume_times = int(counts.get(f"0@qo{message.queue_id}%{message.queue_offset}", counts[key]))
        found.append(Popped(message, receipt))
    return found


POP = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "maxMsgNums": 32, "invisibleTime": 10_000, "pollTime": 0,
       "bornTime": 0, "initMode": 0}  # fmt: skip


def pop_frame(opaque: int = 7, **fields: Any) -> bytes:
    return request(Code.POP_MESSAGE, b"", opaque, **POP | fields)


def pop_answer(link: FakeLink, **fields: Any) -> Command:
    return ask(link, Code.POP_MESSAGE, **POP | fields)


def pop(link: FakeLink, **fields: Any) -> list[Popped]:
    answer = pop_answer(link, **fields)
    if answer.code:
        assert answer.code in (209, 210), answer
        assert not answer.body
        return []
    return popped(answer)


def later(data: bytes) -> list[Popped]:
    """What a parked pop was answered."""
    (answer,) = answers(data)
    return popped(answer) if answer.code == 0 else []


def real_topic(one: Popped, group: str) -> str:
    mark = one.receipt.split()[4]
    return one.topic if mark == "0" else f"%RETRY%{group}{'_' if mark == '1' else '+'}{one.topic}"


def ack(link: FakeLink, one: Popped, **fields: Any) -> Command:
    group = fields.get("consumerGroup", GROUP)
    parts = one.receipt.split()
    given = {"consumerGroup": group, "topic": real_topic(one, group), "queueId": parts[6], "extraInfo": one.receipt,
             "offset": parts[7]}  # fmt: skip
    return ask(link, Code.ACK_MESSAGE, **given | fields)


def change(link: FakeLink, one: Popped, invisible_ms: int, **fields: Any) -> Command:
    """Changes the invisible time; the message's receipt becomes the new one."""
    parts = one.receipt.split()
    given = {"consumerGroup": GROUP, "topic": real_topic(one, GROUP), "queueId": parts[6], "extraInfo": one.receipt,
             "offset": parts[7], "invisibleTime": invisible_ms}  # fmt: skip
    answer = ask(link, Code.CHANGE_MESSAGE_INVISIBLETIME, **given | fields)
    if answer.code == 0:
        parts[1], parts[2] = answer.fields["popTime"], answer.fields["invisibleTime"]
        one.receipt = " ".join(parts)
    return answer


def batch_ack(link: FakeLink, messages: list[Popped], group: str = GROUP) -> Command:
    acks: dict[tuple[str, ...], int] = {}
    for one in messages:
        parts = one.receipt.split()
        key = (group, one.topic, *parts[:7])
        acks[key] = acks.get(key, 0) | 1 << (int(parts[7]) - int(parts[0]))
    body = [
        {"c": key[0], "t": key[1], "so": int(key[2]), "pt": int(key[3]), "it": int(key[4]), "rq": int(key[5]), "r": key[6],
         "q": int(key[8]), "b": base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()}
        for key, bits in acks.items()
    ]  # fmt: skip
    return ask(link, Code.BATCH_ACK_MESSAGE, json.dumps({"brokerName": "broker-a", "acks": body}).encode())
