#!/usr/bin/env python3
"""Transactions against plain sends on one connection: half message, its answer, one-way commit, as RocketMQ's client does it.

transaction_load.py HOST:PORT --server-pid PID [--window N] [--messages M] [--rounds R]      prints one JSON line: server CPU us per plain
message and per transaction (medians of rounds that take turns), and their ratio. A round has M transactions, or as many plain messages as take
about as long: the server's clock ticks every 10 ms. The broker must be otherwise idle.
"""
from __future__ import annotations

import argparse
import json
import re
import statistics
import struct

from remoting_wire import INPUT, ServerClock, connect, create_topic, decode, encode

ANSWER = re.compile(rb'"opaque"\s*:\s*(\d+)')
TOPIC = "transaction_load"
PLAIN_TIMES = 4  # plain messages of a round for each transaction of the next one


def send_frame(number: int, half: bool) -> bytes:
    text = f"UNIQ_KEY\x017F0000010BAD2A139A55{number:010d}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    if half:
        text += "TRAN_MSG\x01true\x02PGROUP\x01load\x02"
    fields = {"a": "load", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "4" if half else "0", "g": "1700000000000", "h": "0",
              "i": text, "j": "0", "k": "false", "m": "false", "n": "broker-a"}
    return encode(310, 1_000_000_000 + number, fields, bytes(128))


COMMIT = encode(37, 1_999_999_999, {"producerGroup": "load", "tranStateTableOffset": "@1", "commitLogOffset": "@2", "commitOrRollback": "8",
                                    "fromTransactionCheck": "false", "msgId": "7F0000010BAD2A139A550000000000", "transactionId": "@3"})
HEAD = json.loads(COMMIT[8:])
HEAD["flag"] = 2  # one-way


def commit_frame(fields: dict[str, str]) -> bytes:
    HEAD["extFields"]["tranStateTableOffset"] = fields["queueOffset"]
    HEAD["extFields"]["commitLogOffset"] = str(int(fields["msgId"][16:], 16))
    HEAD["extFields"]["msgId"] = HEAD["extFields"]["transactionId"] = fields["transactionId"]
    HEAD["opaque"] -= 1
    header = json.dumps(HEAD, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(header), len(header)) + header


def run(address: str, first: int, messages: int, window: int, half: bool) -> None:
    """One round; the decisions of a window go out with the next window's messages."""
    sock = connect(address)
    data = bytearray()
    commits: list[bytes] = []
    for start in range(first, first + messages, window):
        sock.sendall(b"".join(commits + [send_frame(number, half) for number in range(start, start + window)]))
        commits = []
        waiting = window
        while waiting:
            data += INPUT[:sock.recv_into(INPUT)]
            at = 0
            while len(data) - at >= 4 and len(data) - at >= 4 + int.from_bytes(data[at:at + 4], "big"):
                end = at + 4 + int.from_bytes(data[at:at + 4], "big")
                code, _, fields, remark, _ = decode(bytes(data[at + 4:end]))
                assert code == 0, remark
                if half:
                    commits.append(commit_frame(fields))
                waiting -= 1
                at = end
            del data[:at]
    sock.sendall(b"".join(commits))
    sock.sendall(encode(28, 1, {}))  # runtime info: answered behind the last decision
    while b'"flag":1' not in bytes(INPUT[:sock.recv_into(INPUT)]):
        pass
    sock.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--server-pid", type=int, action="append", required=True)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--messages", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with connect(given.address) as sock:
        create_topic(sock, TOPIC, 4)
    clock = ServerClock(given.server_pid)
    costs: dict[bool, list[float]] = {False: [], True: []}
    first = 0
    for number in range(2 * given.rounds + 2):
        half = bool(number % 2)
        messages = given.messages * (1 if half else PLAIN_TIMES) // given.window * given.window
        before = clock.seconds()
        run(given.address, first, messages, given.window, half)
        first += messages
        if number >= 2:
            costs[half].append((clock.seconds() - before) / messages * 1e6)
    plain, transaction = (statistics.median(costs[half]) for half in (False, True))
    print(json.dumps({"window": given.window, "plain_us": round(plain, 1), "transaction_us": round(transaction, 1), "ratio": round(transaction / plain, 2)}))


if __name__ == "__main__":
    main()
