"""What a Celery client does: `celery_client.py SCENARIO`. Fails by an exception."""

import datetime
import sys
import time

from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from celery_app import add, app, began, third_time, total, write

WAIT_S = 60


def results():
    assert [add.delay(number, 1).get(WAIT_S) for number in range(3)] == [1, 2, 3]
    asked = [add.delay(number, number) for number in range(100)]
    assert [one.get(WAIT_S) for one in asked] == [2 * number for number in range(100)]
    assert third_time.delay().get(WAIT_S) == 2
    assert chain(add.s(1, 2), add.s(3)).delay().get(WAIT_S) == 6
    assert group(add.s(number, 1) for number in range(5)).delay().get(WAIT_S) == [1, 2, 3, 4, 5]


def later():
    due = time.time() + 1.5
    counted = began.apply_async(countdown=1.5)
    at = began.apply_async(eta=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1.5))
    assert counted.get(WAIT_S) >= due
    assert at.get(WAIT_S) >= due
    late = began.apply_async(countdown=0.5, expires=0.1)
    after = began.apply_async(countdown=0.7)
    after.get(WAIT_S)
    failure = late.get(WAIT_S, propagate=False)
    assert isinstance(failure, TaskRevokedError), failure


def control():
    replies = app.control.ping(timeout=WAIT_S, limit=1)
    assert replies, "nobody answers a ping"
    assert all(answer == {"ok": "pong"} for reply in replies for answer in reply.values()), replies
    inspect = app.control.inspect(timeout=WAIT_S, limit=1)
    queues = inspect.active_queues()
    assert {one["name"] for found in queues.values() for one in found} == {"celery"}
    assert any("celery_app.add" in found for found in inspect.registered().values())
    revoked = began.apply_async(countdown=2)
    app.control.revoke(revoked.id)
    deadline = time.monotonic() + WAIT_S
    while not any(revoked.id in found for found in (inspect.revoked() or {}).values()):
        assert time.monotonic() < deadline, "never revoked"


def events():
    seen = []

    def note(event):
        seen.append(event["type"])
        if "task-succeeded" in seen:
            receiver.should_stop = True

    app.control.enable_events(reply=True, timeout=WAIT_S, limit=1)
    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})
        with receiver.consumer_context(wakeup=True) as (own, _, _):
            add.delay(1, 1)
            while not receiver.should_stop:
                own.drain_events(timeout=WAIT_S)
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen), seen


def chords():
    assert chord((add.s(number, number) for number in range(5)), total.s()).delay().get(WAIT_S) == 20


def write_many():
    for number in range(60):
        write.apply_async((number,), ignore_result=True)


globals()[sys.argv[1]]()
print("done")
