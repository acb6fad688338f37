"""Headers that are encoded once and filled in per request are those that each request would get of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.client import Client, MessageQueue, OutMessage
from gantrymq.client.connecting.link import shape_of
from gantrymq.client.consuming.pulling import Subscription, pull_fields
from gantrymq.client.producing import sending
from gantrymq.client.producing.sending import Outgoing, Sender, Settings
from gantrymq.client.pushing.buffers import QueueBuffer
from gantrymq.client.pushing.pull_run import PullRun
from gantrymq.model import sysflag
from gantrymq.remoting.codec import Command, encode_header
from gantrymq.remoting.constants import RequestCode

ODD = '50%d "opaque":0 "i":"" \\ %%b €'
BORN_MS = 1_700_000_000_123


def sender(group: str = "group") -> Sender:
    return Sender(Client("127.0.0.1:9876"), Settings(group))


def own_header(of: Sender, outgoing: Outgoing, queue: MessageQueue, opaque: int) -> bytes:
    command = of._command(outgoing, queue)
    command.opaque = opaque
    return encode_header(command)


@pytest.mark.parametrize("group", ["group", ODD])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"flag": 7},
        {"tag": "a"},
        {"keys": "k %d"},
        {"properties": {"p": ODD}},
        {"sharding_key": "%s"},
        {"delay_level": 3},
        {"priority": 0},
    ],
)
def test_a_send_has_the_header_of_its_own(group: str, more: dict[str, Any]) -> None:
    of = sender(group)
    for queue in (MessageQueue("topic", ODD, 3), MessageQueue("topic", "b", 0)):
        for n, unique_id in enumerate(["7F" * 16, "7E" * 16, "ïd", "i d", 'i"d', "%d"]):
            outgoing = Outgoing(OutMessage("topic", b"body", born_ms=BORN_MS + n, **more), unique_id, b"body")
            shape, values = of._header(outgoing, queue)
            assert shape % (*values, n) == own_header(of, outgoing, queue, n)


@pytest.mark.parametrize(
    "change",
    [
        lambda outgoing: setattr(outgoing, "sys_flag", sysflag.COMPRESSED),
        lambda outgoing: setattr(outgoing, "extra", "TRAN_MSG\x01true\x02"),
        lambda outgoing: setattr(outgoing, "properties", ""),
        lambda outgoing: setattr(outgoing, "code", RequestCode.SEND_BATCH_MESSAGE),
    ],
)
def test_what_is_not_plain_is_not_taken_for_it(change: Callable[[Outgoing], None]) -> None:
    of, queue = sender(), MessageQueue("topic", "b", 1)
    for is_plain in (True, False, True):
        outgoing = Outgoing(OutMessage("topic", b"body", born_ms=BORN_MS), "7F" * 16, b"body")
        if not is_plain:
            change(outgoing)
        shape, values = of._header(outgoing, queue)
        assert shape % (*values, 1) == own_header(of, outgoing, queue, 1)


def test_headers_that_are_kept_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "HEADERS_MAX", 3)
    of = sender()
    for number in (*range(10), 0):
        outgoing = Outgoing(OutMessage("topic", b"", born_ms=BORN_MS), "7F" * 16, b"")
        queue = MessageQueue("topic", "b", number)
        shape, values = of._header(outgoing, queue)
        assert shape % (*values, 5) == own_header(of, outgoing, queue, 5)
        assert len(of._headers) <= 3


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("group", ["group", ODD])
def test_a_pull_has_the_header_of_its_own(group: str, commits: bool) -> None:
    async def main() -> None:
        queue = MessageQueue("topic", "b", 2)
        subscription = Subscription.of("topic", "a || %d")
        run = PullRun(
            Client("127.0.0.1:9876"), group, QueueBuffer(queue, 0), lambda topic: subscription,
            lambda buffer, messages: None, count=256, commits=commits,
        )  # fmt: skip
        shape = run._shape(subscription)
        for opaque, (offset, floor) in enumerate([(0, 0), (7, 5), (1 << 40, (1 << 40) - 1)]):
            fields = pull_fields(group, queue, offset, 256, subscription, 15_000, floor if commits else -1)
            command = Command(RequestCode.PULL_MESSAGE, fields, opaque=opaque)
            assert shape % (*run._values(offset, floor), opaque) == encode_header(command)

    asyncio.run(main())


def test_a_shape_is_the_header_with_a_place_for_the_opaque() -> None:
    command = Command(105, {"topic": ODD, "opaque": "0"}, opaque=12)
    assert shape_of(command) % 12 == encode_header(Command(105, {"topic": ODD, "opaque": "0"}, opaque=12))
