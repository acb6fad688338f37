"""Dramatiq's actors: `dramatiq dramatiq_app` works them off, `dramatiq_app.py` sends."""

import os
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

PLACE = Path(os.environ["PLACE"])
dramatiq.set_broker(RabbitmqBroker(url=os.environ["AMQP_URL"]))


def note(line):
    with (PLACE / "dramatiq").open("a") as file:
        file.write(f"{line}\n")


@dramatiq.actor
def work(number):
    note(f"work {number}")


@dramatiq.actor(min_backoff=100, max_backoff=200)
def third_time():
    with (PLACE / "tries").open("a") as file:
        file.write("x")
    if (PLACE / "tries").stat().st_size < 3:
        raise ValueError("again")
    note("third time")


@dramatiq.actor(max_retries=0)
def fails():
    raise ValueError("a dead letter")


@dramatiq.actor
def late(due_ms):
    note(f"late {time.time() * 1000 >= due_ms}")


if __name__ == "__main__":
    for number in range(100):
        work.send(number)
    third_time.send()
    fails.send()
    late.send_with_options(args=(int(time.time() * 1000) + 1000,), delay=1000)
    print("done")
