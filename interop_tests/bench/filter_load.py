#!/usr/bin/env python3
"""What a filter costs the broker: a topic is filled with messages of ten tags and some properties, then pulled with and without a filter.

filter_load.py HOST:PORT --server-pid PID [--messages M] [--type TAG|SQL92] [--expression E] [--per-dropped] [--runs R]      prints one JSON line:
us: server CPU per message that was looked at, above that of a plain pull of the delivered ones (--per-dropped: whole CPU less the delivered
messages' share, per dropped message); medians of rounds that take turns.
"""
from __future__ import annotations

import argparse
import json
import statistics

from remoting_load import responses
from remoting_pull import walk
from remoting_wire import INPUT, ServerClock, call, connect, create_topic, decode, encode

QUEUES = 4
REGIONS = ("north", "south", "east", "west", "centre")


def frame(topic: str, number: int) -> bytes:
    tag = "TagKeep" if number % 10 == 0 else f"Tag{number % 10}"
    text = f"UNIQ_KEY\x017F0000010BAD2A139A55{number:010d}\x02TAGS\x01{tag}\x02a\x01{number % 10}\x02region\x01{REGIONS[number % 5]}\x02"
    fields = {"a": "load", "b": topic, "c": "TBW102", "d": "4", "e": str(number // 10 % QUEUES), "f": "0", "g": "1700000000000", "h": "0",
              "i": text, "j": "0", "k": "false", "m": "false", "n": "broker-a"}
    return encode(310, 1_000_000_000 + number, fields, bytes(128))


def fill(address: str, topic: str, messages: int, window: int = 256) -> None:
    sock, data = connect(address), bytearray()
    create_topic(sock, topic, QUEUES)
    for start in range(0, messages, window):
        batch = [frame(topic, number) for number in range(start, min(start + window, messages))]
        sock.sendall(b"".join(batch))
        waiting = len(batch)
        while waiting:
            data += INPUT[:sock.recv_into(INPUT)]
            opaques, codes = responses(data)
            assert not any(codes), codes
            waiting -= len(opaques)
    sock.close()


def drain(address: str, topic: str, ends: list[int], kind: str, expression: str, batch: int) -> int:
    """Pull every queue to its end; the number of messages that came."""
    sock, delivered = connect(address), 0
    for queue, end in enumerate(ends):
        at, stuck = 0, 0
        while at < end:
            fields = {"consumerGroup": "LOAD_FILTER", "topic": topic, "queueId": str(queue), "queueOffset": str(at), "maxMsgNums": str(batch),
                      "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": expression, "subVersion": "0",
                      "expressionType": kind, "maxMsgBytes": "2147483647"}
            sock.sendall(encode(11, queue, fields))
            data = bytearray()
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                data += INPUT[:sock.recv_into(INPUT)]
            code, _, answer, remark, body = decode(memoryview(data)[4:])
            # SUCCESS, PULL_RETRY_IMMEDIATELY (nothing matched so far), PULL_NOT_FOUND (nothing matched up to the end)
            if code not in (0, 19, 20):
                raise SystemExit(f"pull answered {code} {remark}")
            following = int(answer["nextBeginOffset"])
            stuck = stuck + 1 if following == at else 0
            if stuck > 10:
                raise SystemExit(f"queue {queue} does not go on at {at} of {end}: {code} {remark}")
            if code == 0:
                delivered += walk(memoryview(body))
            at = following
    sock.close()
    return delivered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--server-pid", type=int, action="append", required=True)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--type", default="TAG", choices=("TAG", "SQL92"))
    parser.add_argument("--expression", default="TagKeep")
    parser.add_argument("--per-dropped", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    topic = f"FilterLoad{given.messages}"
    with connect(given.address) as sock:
        create_topic(sock, topic, QUEUES)
        ends = [int(call(sock, 30, {"topic": topic, "queueId": str(queue)})[2]["offset"]) for queue in range(QUEUES)]
    if sum(ends) < given.messages:
        fill(given.address, topic, given.messages - sum(ends))
        with connect(given.address) as sock:
            ends = [int(call(sock, 30, {"topic": topic, "queueId": str(queue)})[2]["offset"]) for queue in range(QUEUES)]
    total = sum(ends)
    clock = ServerClock(given.server_pid)
    plain, filtered, delivered = [], [], 0
    for number in range(given.runs + 1):
        before = clock.seconds()
        came = drain(given.address, topic, ends, "TAG", "*", given.batch)
        middle = clock.seconds()
        assert came == total, (came, total)
        delivered = drain(given.address, topic, ends, given.type, given.expression, given.batch)
        if number:  # the first one warms up
            plain.append((middle - before) * 1e6 / total)
            filtered.append((clock.seconds() - middle) * 1e6)
    each, whole = statistics.median(plain), statistics.median(filtered)
    above = whole - each * delivered
    us = above / max(1, total - delivered) if given.per_dropped else above / total
    print(json.dumps({"us": round(us, 3), "plain_pull_us": round(each, 3), "looked_at": total, "delivered": delivered,
                      "whole_us_per_message": round(whole / total, 3), "type": given.type, "expression": given.expression}))


if __name__ == "__main__":
    main()
