"""FastStream: subscribers with every kind of exchange, a request with its reply, a rejected message."""

import asyncio
import os

from faststream import AckPolicy
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue

broker = RabbitBroker(os.environ["AMQP_URL"])
seen: asyncio.Queue[str] = asyncio.Queue()
TOPIC = RabbitExchange("lines", type=ExchangeType.TOPIC)
HEADERS = RabbitExchange("by-headers", type=ExchangeType.HEADERS)


@broker.subscriber("plain")
async def plain(text: str) -> None:
    await seen.put(f"plain {text}")


@broker.subscriber("chained")
@broker.publisher("plain")
async def chained(text: str) -> str:
    return text.upper()


@broker.subscriber(RabbitQueue("temperatures", routing_key="line.*.temp"), TOPIC)
async def temperature(value: float) -> None:
    await seen.put(f"temp {value}")


@broker.subscriber(RabbitQueue("warm", bind_arguments={"x-match": "any", "warm": "yes"}), HEADERS)
async def warm(text: str) -> None:
    await seen.put(f"warm {text}")


@broker.subscriber("double")
async def double(number: int) -> int:
    return 2 * number


DEAD = RabbitQueue("dying", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})


@broker.subscriber(DEAD, ack_policy=AckPolicy.REJECT_ON_ERROR)
async def dies(text: str) -> None:
    raise ValueError(text)


@broker.subscriber("dead")
async def dead(text: str) -> None:
    await seen.put(f"dead {text}")


async def main() -> None:
    async with broker:
        await broker.start()
        await broker.publish("a", "plain")
        await broker.publish("b", "chained")
        await broker.publish(21.5, exchange=TOPIC, routing_key="line.1.temp")
        await broker.publish("c", exchange=HEADERS, headers={"warm": "yes"})
        await broker.publish("d", "dying")
        answers = await asyncio.gather(*(broker.request(number, "double", timeout=30) for number in range(20)))
        assert [await answer.decode() for answer in answers] == [2 * number for number in range(20)]
        wanted = {"plain a", "plain B", "temp 21.5", "warm c", "dead d"}
        async with asyncio.timeout(60):
            while wanted:
                wanted.discard(await seen.get())
    print("done")


asyncio.run(main())
