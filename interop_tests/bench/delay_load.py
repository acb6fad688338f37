#!/usr/bin/env python3
"""Delayed messages against plain ones on one connection: sent, and delivered when their time has come.

delay_load.py HOST:PORT --server-pid PID [--window N] [--messages M] [--rounds R]      prints one JSON line: server CPU us per plain message,
per message of level 1 and per timer, both including the delivery (medians of rounds that take turns), and their ratios to plain
delay_load.py HOST:PORT --server-pid PID --pending N      sends N timers for the next three days: CPU us per send, RssAnon per timer in bytes
The broker must be otherwise idle.
"""
from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from pathlib import Path

from remoting_load import responses
from remoting_wire import INPUT, ServerClock, connect, create_topic, decode, encode

TOPIC = "delay_load"
LEVEL, TIMER = "DELAY\x011\x02", "TIMER_DELAY_MS\x01{}\x02"
ASK_S = 0.2
PLAIN_TIMES = 4  # plain messages of a round for each delayed one: the server's clock ticks every 10 ms
DAYS_MS = 3 * 86_400_000 - 60_000


def rss_anon(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", text)[1]) * 1024


def frame(number: int, extra: str) -> bytes:
    text = f"UNIQ_KEY\x017F0000010BAD2A139A55{number:010d}\x02WAIT\x01true\x02TAGS\x01TagA\x02{extra}"
    fields = {"a": "load", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "1700000000000", "h": "0",
              "i": text, "j": "0", "k": "false", "m": "false", "n": "broker-a"}
    return encode(310, 1_000_000_000 + number, fields, bytes(128))


def send(address: str, frames: list[bytes], window: int) -> None:
    """Windows one after the other: the server's CPU is what counts, not the rate."""
    sock, data = connect(address), bytearray()
    for start in range(0, len(frames), window):
        batch = frames[start:start + window]
        sock.sendall(b"".join(batch))
        waiting = len(batch)
        while waiting:
            data += INPUT[:sock.recv_into(INPUT)]
            opaques, codes = responses(data)
            assert not any(codes), codes
            waiting -= len(opaques)
    sock.close()


def delivered(address: str) -> int:
    """Messages in the topic."""
    sock, total = connect(address), 0
    for queue in range(4):
        sock.sendall(encode(30, 7, {"topic": TOPIC, "queueId": str(queue)}, b""))
        data = bytearray()
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += INPUT[:sock.recv_into(INPUT)]
        total += int(decode(bytes(data[4:]))[2]["offset"])
    sock.close()
    return total


def measured(address: str, clock: ServerClock, first: int, messages: int, window: int, extra: str) -> float:
    """CPU us per message until all are in their topic."""
    frames = [frame(number, extra) for number in range(first, first + messages)]
    target = delivered(address) + messages
    before = clock.seconds()
    send(address, frames, window)
    while delivered(address) < target:
        time.sleep(ASK_S)
    return (clock.seconds() - before) / messages * 1e6


def pending(address: str, clock: ServerClock, pid: int, count: int, window: int) -> dict[str, float]:
    lot, step = random.Random(1), 50_000
    send(address, [frame(number, "") for number in range(window)], window)
    anon, before = rss_anon(pid), clock.seconds()
    for first in range(0, count, step):
        part = range(first, min(first + step, count))
        send(address, [frame(number, TIMER.format(lot.randrange(60_000, DAYS_MS))) for number in part], window)
    used = clock.seconds() - before
    time.sleep(3)
    return {"pending": count, "us_per_send": round(used / count * 1e6, 1), "rss_anon_mib": round(rss_anon(pid) / 2**20, 1),
            "bytes_per_timer": round((rss_anon(pid) - anon) / count, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--server-pid", type=int, required=True)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pending", type=int, default=0)
    given = parser.parse_args()
    create_topic(connect(given.address), TOPIC, 4)
    clock = ServerClock([given.server_pid])
    if given.pending:
        print(json.dumps(pending(given.address, clock, given.server_pid, given.pending, given.window)))
        return
    kinds = {"plain": "", "level": LEVEL, "timer": TIMER.format(1_500)}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for round_ in range(given.rounds + 1):
        for name, extra in kinds.items():
            messages = given.messages * (1 if extra else PLAIN_TIMES)
            us = measured(given.address, clock, round_ * PLAIN_TIMES * given.messages, messages, given.window, extra)
            if round_:  # the first one warms up
                found[name].append(us)
    plain = statistics.median(found["plain"])
    rows = {f"{name}_us": round(statistics.median(values), 1) for name, values in found.items()}
    ratios = {f"{name}_ratio": round(statistics.median(found[name]) / plain, 2) for name in ("level", "timer")}
    print(json.dumps(rows | ratios))


if __name__ == "__main__":
    main()
