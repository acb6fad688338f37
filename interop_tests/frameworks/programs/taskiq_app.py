"""taskiq over aio-pika: `taskiq worker taskiq_app:broker` works, `taskiq_client.py` sends."""

import os
import time
from pathlib import Path

from taskiq import SimpleRetryMiddleware
from taskiq_aio_pika import AioPikaBroker, Queue

PLACE = Path(os.environ["PLACE"])
broker = AioPikaBroker(os.environ["AMQP_URL"], delay_queue=Queue(name="taskiq.delay")).with_middlewares(
    SimpleRetryMiddleware(default_retry_count=3)
)


def note(line: str) -> None:
    with (PLACE / "taskiq").open("a") as file:
        file.write(f"{line}\n")


@broker.task
async def work(number: int) -> None:
    note(f"work {number}")


@broker.task
async def late(due: float) -> None:
    note(f"late {time.time() >= due}")


@broker.task(retry_on_error=True)
async def third_time() -> None:
    with (PLACE / "taskiq-tries").open("a") as file:
        file.write("x")
    if (PLACE / "taskiq-tries").stat().st_size < 3:
        raise ValueError("again")
    note("third time")
