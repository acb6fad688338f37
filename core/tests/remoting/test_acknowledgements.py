"""An acknowledgement is in the log before its answer goes out, however it comes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gantrymq.broker.consuming.acks import ACK_TOPIC
from gantrymq.remoting.constants import RequestCode as Code
from tests.remoting.bench import TOPIC, Bench, answers, request, send
from tests.remoting.pop_client import GROUP, Popped, pop, pop_frame


def single(messages: list[Popped]) -> list[bytes]:
    frames = []
    for opaque, one in enumerate(messages, 20):
        fields: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "extraInfo": one.receipt}
        frames.append(request(Code.ACK_MESSAGE, b"", opaque, offset=one.offset, **fields))
    return frames


def batch(messages: list[Popped]) -> list[bytes]:
    one = messages[0]
    bits = base64.b64encode(bytes([(1 << len(messages)) - 1])).decode()
    ack = {
        "c": GROUP,
        "t": TOPIC,
        "so": one.offset,
        "pt": one.pop_ms,
        "it": 10_000,
        "rq": 0,
        "r": "0",
        "q": 0,
        "b": bits,
    }
    return [request(Code.BATCH_ACK_MESSAGE, json.dumps({"brokerName": "broker-a", "acks": [ack]}).encode())]


@pytest.mark.parametrize("how", [single, batch])
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("more", [False, True])
def test_it_is_answered_when_it_is_in_the_log(bench: Bench, how: str, count: int, more: bool) -> None:
    link = bench.connect()
    for number in range(2 * count):
        send(link, b"%d" % number)
    for _ in range(2):  # the second is like the first
        taken = pop(link, maxMsgNums=count)
        frames = how(taken)  # type: ignore[operator]
        stored = bench.store.max_offset(ACK_TOPIC, 0)
        assert link.door is not None
        link.door.received(b"".join(frames) + (pop_frame(99, maxMsgNums=1) if more else b""))
        assert not link.sent
        assert bench.store.max_offset(ACK_TOPIC, 0) == stored
        link.turn.run()
        assert bench.store.max_offset(ACK_TOPIC, 0) == stored + 1
        assert len(answers(link.take())) == len(frames) + more
        if more:
            break
