"""End-to-end latency, send to push consumer's handler, with the native Python client at a steady rate.

    ./run exec dev python -m interop_tests.bench.latency [--rate 10000] [--seconds 10] [--nameserver HOST:PORT] [--realtime]

Starts a server of its own unless a nameserver is given (ours or a RocketMQ cluster's). Producer and consumer are processes of their own; each
message carries the times at which it was due and at which it was handed to the producer: `p..` counts from the latter, `due_p..` from the
former, so that a producer that falls behind its timetable shows (timers of 1 ms are in it too). Both processes do what an application that cares
for milliseconds does: once started, what there is is frozen for the garbage collector (docs/client.md). Prints one JSON line.

With --realtime (root) clients and server run before all other programs of the machine: what remains is theirs and the kernel's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import struct
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from gantrymq.client import Admin, OutMessage, Producer, PushConsumer, ReceivedMessage
from interop_tests.running import Gantry

TOPIC = "bench_latency"
BODY = bytes(112)
HEAD = struct.Struct(">qq")
TICK_S = 0.001
ANSWERS_S = 10.0
POLL_S = 0.05
GC_YOUNG_MAX = 10_000
"""As in the server: at 700 a collector that finds nothing looks at the youngest objects hundreds of times a second."""
REALTIME_PRIORITY = 5


def hurry(pid: int, on: bool = True) -> None:
    """Run a process, and what it starts from now on, before all others, or like all others again. Raises PermissionError."""
    policy, priority = (os.SCHED_RR, REALTIME_PRIORITY) if on else (os.SCHED_OTHER, 0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))
        except ProcessLookupError:  # the thread ended meanwhile
            continue


def settle() -> None:
    """What was made so far stays: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_MAX, 10, 10)


async def produce(nameserver: str, rate: int, seconds: float) -> dict[str, float]:
    failed = answered = 0

    def done(result: object) -> None:
        nonlocal failed, answered
        answered += 1
        failed += isinstance(result, Exception)

    async with Producer(nameserver, group="bench") as producer:
        await producer.send(TOPIC, HEAD.pack(0, 0))
        total = int(rate * seconds)
        settle()
        begin = time.time()
        sent = 0
        while sent < total:
            due = min(total, int((time.time() - begin) * rate) + 1)
            while sent < due:
                at = int((begin + sent / rate) * 1e9)
                producer.post(OutMessage(TOPIC, HEAD.pack(at, time.time_ns()) + BODY), done)
                sent += 1
                await asyncio.sleep(0)  # each leaves by itself, as in an application that sends at this rate
            await asyncio.sleep(TICK_S)
        took = time.time() - begin
        for _ in range(int(ANSWERS_S / TICK_S)):
            if answered >= total:
                break
            await asyncio.sleep(TICK_S)
    return {
        "sent": total,
        "failed": failed,
        "rate": round(total / took),
        "cpu_us": round(time.process_time() / total * 1e6, 1),
    }


def producer_process(pipe: Connection, nameserver: str, rate: int, seconds: float) -> None:
    pipe.recv()
    pipe.send(uvloop.run(produce(nameserver, rate, seconds)))


async def consume(nameserver: str, total: int, pipe: Connection, seconds: float) -> dict[str, object]:
    latencies: list[int] = []
    from_due: list[int] = []
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC)
    consumer = PushConsumer(nameserver, group="bench_latency", start="latest")

    async def handle(message: ReceivedMessage) -> None:
        due, at = HEAD.unpack_from(message.body)
        if at:
            now = time.time_ns()
            latencies.append(now - at)
            from_due.append(now - due)

    consumer.subscribe(TOPIC, handle)
    async with consumer:
        settle()
        cpu = time.process_time()
        pipe.send("go")
        for _ in range(int((seconds + 20) / POLL_S)):
            if len(latencies) >= total:
                break
            await asyncio.sleep(POLL_S)
        cpu = time.process_time() - cpu
    return {
        "received": len(latencies),
        **percentiles("p", latencies),
        **percentiles("due_p", from_due),
        "consumer_cpu_us": round(cpu / max(1, len(latencies)) * 1e6, 1),
    }


def percentiles(name: str, values: list[int]) -> dict[str, float]:
    """Of nanoseconds, in milliseconds, without the first tenth."""
    warm = sorted(values[len(values) // 10 :]) or [0]
    return {
        f"{name}{p:g}_ms": round(warm[min(len(warm) - 1, int(len(warm) * p / 100))] / 1e6, 3)
        for p in (50, 90, 99, 99.9)
    }


def measure(nameserver: str, rate: int, seconds: float) -> dict[str, object]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=producer_process, args=(theirs, nameserver, rate, seconds)
    )
    process.start()
    try:
        received = uvloop.run(consume(nameserver, int(rate * seconds), ours, seconds))
        sent = ours.recv()
    finally:
        process.join(30)
    return {"asked_rate": rate, **received, **{f"producer_{name}": value for name, value in sent.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--nameserver", default="")
    parser.add_argument("--realtime", action="store_true", help="before all other programs of the machine (root)")
    arguments = parser.parse_args()
    if arguments.realtime:
        hurry(os.getpid())
    if arguments.nameserver:
        json.dump(measure(arguments.nameserver, arguments.rate, arguments.seconds), sys.stdout)
        print()
        return
    with tempfile.TemporaryDirectory(prefix="gantry-latency-") as directory:
        gantry = Gantry(Path(directory)).start()
        try:
            result = measure(gantry.doors["nameserver"], arguments.rate, arguments.seconds)
        finally:
            gantry.stop()
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
