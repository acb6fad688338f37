"""A Celery application: worker and client import it. Nothing but places differ from Celery's defaults."""

import os
import threading
import time
from pathlib import Path

from celery import Celery

PLACE = Path(os.environ["PLACE"])
app = Celery("proof", broker=os.environ["AMQP_URL"], backend=os.environ["RESULTS"])
app.conf.task_default_queue = os.environ.get("QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True)
def third_time(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task
def began():
    return time.time()


@app.task(acks_late=True, reject_on_worker_lost=True)
def write(number):
    pause = threading.Event()
    pause.wait(0.02)  # what a task costs
    while number >= 30 and not (PLACE / "second half").exists():
        pause.wait(0.02)
    with (PLACE / "written").open("a") as file:
        file.write(f"{number}\n")
