#!/usr/bin/env python3
"""Pop load for any RocketMQ broker: POP_MESSAGE (200050) and acknowledgements, one pop outstanding per queue; every message is acknowledged once.

remoting_pop.py HOST:PORT --topic T [--queues Q] [--batch 32] [--ack batch|single|shuffled|none] [--any] [--runs R] [--group G] [--server-pid PID ...]
Each run is a new consumer group that begins at the first message. With --any the pops name no queue. Prints one JSON line per batch size.
`--ack shuffled`: one acknowledgement per message, those of an answer in random order, as handlers in threads finish.
"""
from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import time

from remoting_pull import walk
from remoting_wire import INPUT, ServerClock, call, connect, decode, encode

POP, ACK, BATCH_ACK = 200050, 200051, 200151
INVISIBLE_MS = 60_000
EMPTY_MAX = 20_000  # answers without a message in a row: a real broker gives some while another pop holds the queue


class Run:
    """One group that drains a topic."""

    def __init__(self, address: str, group: str, topic: str, batch: int, how: str, any_queue: bool) -> None:
        self.sock = connect(address)
        self.group, self.topic, self.batch, self.how, self.any_queue = group, topic, batch, how, any_queue
        self.popped = self.pops = self.acked = self.open_acks = 0

    def pop(self, slot: int) -> bytes:
        now = str(int(time.time() * 1000))
        return encode(POP, slot, {
            "consumerGroup": self.group, "topic": self.topic, "queueId": "-1" if self.any_queue else str(slot), "maxMsgNums": str(self.batch),
            "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "bornTime": now, "initMode": "0", "expType": "TAG", "exp": "*", "order": "false"})

    def acks(self, fields: dict[str, str]) -> list[bytes]:
        """Frames that acknowledge all messages of one answer."""
        starts = {tuple(part.split(" ")[:2]): int(part.split(" ")[2]) for part in fields["startOffsetInfo"].split(";")}
        frames, batches = [], []
        for part in fields["msgOffsetInfo"].split(";"):
            mark, queue, offsets = part.split(" ")
            start = starts[mark, queue]
            numbers = [int(offset) for offset in offsets.split(",")]
            self.acked += len(numbers)
            if self.how in ("single", "shuffled"):
                head = f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {mark} broker-a {queue}"
                frames += [encode(ACK, 1 << 20, {"consumerGroup": self.group, "topic": self.topic, "queueId": queue,
                                                 "extraInfo": f"{head} {offset}", "offset": str(offset)}) for offset in numbers]
            else:
                bits = 0
                for offset in numbers:
                    bits |= 1 << (offset - start)
                batches.append({"b": base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode(), "c": self.group,
                                "it": INVISIBLE_MS, "pt": int(fields["popTime"]), "q": int(queue), "r": mark, "rq": int(fields["reviveQid"]),
                                "so": start, "t": self.topic})
        if batches:
            frames.append(encode(BATCH_ACK, 1 << 20, {}, json.dumps({"acks": batches, "brokerName": "broker-a"}, separators=(",", ":")).encode()))
        if self.how == "shuffled":
            random.shuffle(frames)
        self.open_acks += len(frames)
        return frames

    def drain(self, slots: int, total: int) -> None:
        """Pop until `total` messages came."""
        self.sock.sendall(b"".join(map(self.pop, range(slots))))
        pending, waiting, empty = bytearray(), slots, 0
        while waiting or self.open_acks:
            got = self.sock.recv_into(INPUT)
            if not got:
                raise SystemExit("server closed the connection")
            pending += INPUT[:got]
            out: list[bytes] = []
            while len(pending) >= 4 and len(pending) >= (end := 4 + int.from_bytes(pending[:4], "big")):
                code, slot, fields, remark, body = decode(memoryview(pending)[4:end])
                del pending[:end]
                if slot == 1 << 20:
                    self.open_acks -= 1
                    if code:
                        raise SystemExit(f"acknowledgement answered {code} {remark}")
                    continue
                if code == 0:
                    count = walk(memoryview(body))
                    self.popped, self.pops, empty = self.popped + count, self.pops + 1, 0
                    if self.how != "none":
                        out += self.acks(fields)
                elif code == 210:
                    empty += 1
                    if empty > EMPTY_MAX:
                        raise SystemExit(f"only {self.popped} of {total} messages came")
                else:
                    raise SystemExit(f"pop answered {code} {remark}")
                if self.popped < total:
                    out.append(self.pop(slot))
                else:
                    waiting -= 1
            if out:
                self.sock.sendall(b"".join(out))
        self.sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="broker HOST:PORT")
    parser.add_argument("--topic", default="LoadTopic")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--ack", choices=("batch", "single", "shuffled", "none"), default="batch")
    parser.add_argument("--any", action="store_true", help="pops name no queue")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--group", default=f"LOAD_POP_{int(time.time())}")
    parser.add_argument("--server-pid", type=int, action="append", default=[], help="repeatable; descendants are counted too")
    args = parser.parse_args()

    total = 0
    with connect(args.address) as sock:
        for queue in range(args.queues):
            where = {"topic": args.topic, "queueId": str(queue)}
            low, high = (call(sock, code, where) for code in (31, 30))
            total += int(high[2]["offset"]) - int(low[2]["offset"])
    clock = ServerClock(args.server_pid)
    for batch in args.batch:
        rows = []
        for number in range(args.runs):
            run = Run(args.address, f"{args.group}_{batch}_{number}", args.topic, batch, args.ack, args.any)
            cpu, own, t0 = clock.seconds(), time.process_time(), time.perf_counter()
            run.drain(args.queues, total)
            seconds = time.perf_counter() - t0
            cpu, own = clock.seconds() - cpu, time.process_time() - own
            if run.popped < total:
                raise SystemExit(f"{run.popped} of {total} messages came")
            rows.append({"msgs_per_s": round(run.popped / seconds), "server_cpu_us_per_msg": round(cpu / run.popped * 1e6, 3),
                         "client_cpu_us_per_msg": round(own / run.popped * 1e6, 3), "msgs_per_pop": round(run.popped / run.pops, 1)})
        result = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
        result |= {"batch": batch, "ack": args.ack, "messages": total, "runs": rows}
        if not args.server_pid:
            del result["server_cpu_us_per_msg"]
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
