"""What brokers ask a push consumer for people: every request that a broker may send, answered over the connection."""

import asyncio
from typing import Any

import pytest

from core.tests.client.client_runs import run, until
from core.tests.client.fake_cluster import make_record
from gantrymq.client import Admin, Producer, PushConsumer, ReceivedMessage, RetryLater
from gantrymq.client.connecting.link import Link
from gantrymq.client.connecting.routes import loads
from gantrymq.client.pushing import push
from gantrymq.model.dialect import standard
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode


class Asker(Link):
    """Stands for the connection to the broker: keeps the answers."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.answers: list[tuple[int, bytes]] = []

    def answer(self, command: Command, code: int = 0, remark: str | None = None, body: bytes = b"") -> None:
        self.answers.append((code, body))


async def ask(consumer: PushConsumer, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> tuple[int, Any]:
    link = Asker()
    assert consumer.serve(link, Command(code, {"consumerGroup": consumer.group, **fields}, body))
    await until(lambda: link.answers)
    code_, answered = link.answers[0]
    return code_, loads(standard(answered)) if answered else None


def test_requests_about_a_running_consumer(nameserver: str, topic: str) -> None:
    async def main() -> None:
        async with Admin(nameserver) as admin:
            await admin.create_topic(topic, 1)
        got: list[bytes] = []
        consumer = PushConsumer(nameserver, group=topic, start="earliest")

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)
            if message.body == b"later":
                raise RetryLater
            if message.body == b"bad":
                raise ValueError("bad")

        consumer.subscribe(topic, handle)
        async with consumer, Producer(nameserver) as producer:
            for n in range(3):
                await producer.send(topic, b"%d" % n)
            await until(lambda: len(got) == 3)

            _, info = await ask(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO, {})
            assert {row["topic"] for row in info["subscriptionSet"]} == {topic, f"%RETRY%{topic}"}
            assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
            assert int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"]) > 0  # mqadmin stops without it
            (state,) = [row for key, row in info["mqTable"].items() if loads(key.encode())["topic"] == topic]
            assert (state["commitOffset"], state["cachedMsgCount"]) == (3, 0)

            _, status = await ask(consumer, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic})
            (queue,) = [queue for queue in consumer.queues if queue.topic == topic]
            ((key, offset),) = status["messageQueueTable"].items()
            assert loads(key.encode()) == {"topic": topic, "brokerName": queue.broker, "queueId": 0}
            assert offset == 3

            for body, result in ((b"fine", "CR_SUCCESS"), (b"later", "CR_LATER"), (b"bad", "CR_THROW_EXCEPTION")):
                record = make_record(topic, 0, 7, body)
                _, answer = await ask(consumer, RequestCode.CONSUME_MESSAGE_DIRECTLY, {"brokerName": "b"}, record)
                assert answer["consumeResult"] == result
            code, _ = await ask(consumer, RequestCode.CONSUME_MESSAGE_DIRECTLY, {}, make_record("other", 0, 7, b""))
            assert code == 1

            got.clear()
            place = b'{"topic":"%b","brokerName":"%b","queueId":0}' % (topic.encode(), queue.broker.encode())
            body = b'{"offsetTable":{%b:1}}' % place  # an object as a key: fastjson's dialect
            await ask(consumer, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": topic, "group": topic}, body)
            await until(lambda: got == [b"1", b"2"])
            assert not consumer.serve(Asker(), Command(RequestCode.PULL_MESSAGE))
            await asyncio.sleep(0)

    run(main())


def test_requests_of_tools_have_a_limit(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "BACKGROUND_MAX", 0)

    async def main() -> None:
        link = Asker()
        consumer = PushConsumer("127.0.0.1:1", group=topic)
        assert consumer.serve(link, Command(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": topic}))
        assert [code for code, _ in link.answers] == [2]

    run(main())
