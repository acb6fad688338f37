"""Sends the tasks of taskiq_app."""

import asyncio
import time

from taskiq_app import broker, late, third_time, work


async def main() -> None:
    await broker.startup()
    for number in range(100):
        await work.kiq(number)
    await late.kicker().with_labels(delay=1).kiq(time.time() + 1)
    await third_time.kiq()
    await broker.shutdown()
    print("done")


asyncio.run(main())
