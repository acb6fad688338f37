#!/usr/bin/env python3
"""What amqp_load.py does not do: many connections, dead letters, priorities, expiry, declarations; one JSON line per run.
usage: amqp_special_load.py many|dead|priority|expiry|declare --host H --port P --messages N --server-pid PID
Each mode is one process. The server's CPU is over the timed part only: `dead` from the first rejection until all lie in the other queue, `expiry` from
before the moment when all expire until the queue is empty, `declare` of one queue.declare + queue.bind + queue.delete with 2,000 other queues there."""
import argparse
import json
import random
import select
import struct
import sys
import time

from amqp_load import ACK_UNPACK, END, FRAME, Amqp, Confirms, cpu_us, frame, method, parse, rss_kib, short, table

QUEUE = "amqp-special"
OTHERS = 2_000
WINDOW = 100


def declare(c, queue, arguments):
    c.rpc(1, 50, 40, b"\0\0" + short(queue) + b"\0", 50, 41)
    c.rpc(1, 50, 10, b"\0\0" + short(queue) + b"\x02" + table(arguments), 50, 11)


def delete(c, *queues):
    for queue in queues:
        c.rpc(1, 50, 40, b"\0\0" + short(queue) + b"\0", 50, 41)


def ready(c, queue):
    p = c.rpc(1, 50, 10, b"\0\0" + short(queue) + b"\x03" + b"\0\0\0\0", 50, 11)
    return struct.unpack_from(">I", p, 1 + p[0])[0]


DURABLE = struct.pack(">HB", 0x1000, 2)


def message(queue, size, props=DURABLE):
    return method(1, 60, 40, b"\0\0" + short("") + short(queue) + b"\0") + frame(2, 1, struct.pack(">HHQ", 60, 0, size) + props) + frame(3, 1, b"x" * size)


def publish(c, count, make, window=WINDOW):
    """`make(n)`: bytes of n messages. Confirmed, `window` at a time."""
    c.rpc(1, 85, 10, b"\0", 85, 11)
    conf, sent, buf = Confirms(), 0, b""
    while sent < count:
        n = min(window, count - sent)
        c.s.sendall(make(n))
        conf.sent(sent + 1, sent + n, 0.0)
        sent += n
        while conf.done < sent:
            data = c.s.recv(262144)
            if not data:
                raise EOFError("server closed the socket")
            buf += data
            buf = buf[parse(buf, 0, conf, 0.0, lambda t: None):]
    if conf.nacked:
        raise RuntimeError(f"{conf.nacked} were refused")


def take(c, queue, count, answer, prefetch=200):
    """Consume that many, each answered on its own with `answer(tag)`."""
    c.rpc(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0), 60, 11)
    c.s.sendall(method(1, 60, 20, b"\0\0" + short(queue) + short("special") + b"\0" + b"\0\0\0\0"))
    conf, got, buf = Confirms(), 0, b""
    while got < count:
        data = c.s.recv(262144)
        if not data:
            raise EOFError("server closed the socket")
        buf += data
        tags = []
        buf = buf[parse(buf, 0, conf, 0.0, tags.append):]
        got += len(tags)
        c.s.sendall(b"".join(map(answer, tags)))
    c.rpc(1, 60, 30, short("special") + b"\0", 60, 31)


ACK = FRAME.pack(1, 1, 13) + b"\0\x3c\0\x50"
REJECT = FRAME.pack(1, 1, 13) + b"\0\x3c\0\x5a"


def ack(tag):
    return ACK + ACK_UNPACK.pack(tag, 0) + END


def reject(tag):
    return REJECT + ACK_UNPACK.pack(tag, 0) + END


class Timed:
    """CPU and time of a part."""

    def __init__(self, a):
        self.a = a

    def __enter__(self):
        self.cpu, self.t0 = cpu_us(self.a.server_pid), time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.t0
        self.cpu = cpu_us(self.a.server_pid) - self.cpu


def until_ready(c, queue, count):
    while ready(c, queue) != count:
        time.sleep(0.05)


def many(a):
    """Confirmed persistent publishes over many connections, one on its way at each."""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main = Amqp(a)
    declare(main, QUEUE, {})
    connections = [Amqp(a) for _ in range(a.connections)]
    for c in connections:
        c.rpc(1, 85, 10, b"\0", 85, 11)
    one = message(QUEUE, a.size)
    poll = select.epoll()
    by_fd = {c.s.fileno(): c for c in connections}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    sent = done = 0
    with Timed(a) as timed:
        for c in connections:
            c.s.sendall(one)
            sent += 1
        while done < a.messages:
            for fd, _ in poll.poll():
                c = by_fd[fd]
                if not c.s.recv(65536):
                    raise EOFError("server closed the socket")
                done += 1
                if sent < a.messages:
                    c.s.sendall(one)
                    sent += 1
    delete(main, QUEUE)
    for c in connections:
        c.s.close()
    return timed, a.messages


def dead(a):
    c = Amqp(a)
    declare(c, QUEUE + "-dead", {})
    declare(c, QUEUE, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE + "-dead"})
    one = message(QUEUE, a.size)
    publish(c, a.messages, lambda n: one * n, 1000)
    taking = Amqp(a)
    with Timed(a) as timed:
        take(taking, QUEUE, a.messages, reject)
        until_ready(c, QUEUE + "-dead", a.messages)
    delete(c, QUEUE, QUEUE + "-dead")
    return timed, a.messages


def priority(a):
    """Published with chance priorities, then consumed: both are timed."""
    c = Amqp(a)
    declare(c, QUEUE, {"x-max-priority": 10})
    each = [message(QUEUE, a.size, struct.pack(">HBB", 0x1800, 2, level)) for level in range(11)]
    chance = random.Random(7)
    taking = Amqp(a)
    with Timed(a) as timed:
        publish(c, a.messages, lambda n: b"".join(chance.choices(each, k=n)))
        take(taking, QUEUE, a.messages, ack)
    delete(c, QUEUE)
    return timed, a.messages


def expiry(a):
    """All expire at one moment, behind the last publish."""
    c = Amqp(a)
    declare(c, QUEUE, {"x-message-ttl": 3_600_000})   # ours expires on time in such a queue; in others when a consumer comes by
    end = time.monotonic() + 10 + a.messages / 4_000

    def make(n):
        left = str(max(int((end - time.monotonic()) * 1000), 1))
        return message(QUEUE, a.size, struct.pack(">HB", 0x1100, 2) + short(left)) * n
    publish(c, a.messages, make, 1000)
    if ready(c, QUEUE) != a.messages:
        raise RuntimeError("some expired before all were there")
    taking = Amqp(a)   # the queue's timers run with consumers and without
    time.sleep(max(end - time.monotonic() - 1, 0))
    with Timed(a) as timed:
        until_ready(c, QUEUE, 0)
    delete(taking, QUEUE)
    return timed, a.messages


def declarations(a):
    c = Amqp(a)
    names = [f"{QUEUE}-other-{number}" for number in range(OTHERS)]
    c.rpc(1, 40, 10, b"\0\0" + short(QUEUE) + short("direct") + b"\x02" + b"\0\0\0\0", 40, 11)
    bind = lambda queue: c.rpc(1, 50, 20, b"\0\0" + short(queue) + short(QUEUE) + short(queue) + b"\0" + b"\0\0\0\0", 50, 21)
    for name in names:
        declare(c, name, {})
        bind(name)
    with Timed(a) as timed:
        for _ in range(a.messages):
            c.rpc(1, 50, 10, b"\0\0" + short(QUEUE) + b"\x02" + b"\0\0\0\0", 50, 11)
            bind(QUEUE)
            delete(c, QUEUE)
    delete(c, *names)
    return timed, a.messages


MODES = {"many": many, "dead": dead, "priority": priority, "expiry": expiry, "declare": declarations}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("mode", choices=MODES)
    ap.add_argument("--host", default="127.0.0.1")
    ap.add_argument("--port", type=int, default=5672)
    ap.add_argument("--user", default="guest")
    ap.add_argument("--password", default="guest")
    ap.add_argument("--vhost", default="/")
    ap.add_argument("--messages", type=int, default=20_000)
    ap.add_argument("--connections", type=int, default=1000)
    ap.add_argument("--size", type=int, default=128)
    ap.add_argument("--server-pid", type=int, default=0)
    a = ap.parse_args()
    timed, count = MODES[a.mode](a)
    print(json.dumps({"mode": a.mode, "messages": count, "seconds": round(timed.seconds, 3), "rate": round(count / timed.seconds),
                      "server_cpu_us_per_msg": round(timed.cpu / count, 2), "server_rss_kib": rss_kib(a.server_pid)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
