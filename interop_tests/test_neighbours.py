"""What the worst clients of each door do to others, over real sockets: everybody is answered, health too, and a stop keeps its deadline.

Counts, not times: how long a neighbour waits is measured by `./run bench fair`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gantrymq.cluster.wire.calls import Sent
from gantrymq.cluster.wire.codec import GatewayCode, encode_body, pack_sent
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from interop_tests import raw_peers as raw
from interop_tests.bench import fair
from interop_tests.bench import remoting_wire as wire
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

QUEUES = 200
"""Of the fan-out here: to declare 1,500 takes longer than all the rest."""
SENDS = 50
DRAIN_MS = 2_000
ROUNDS = 250
MALFORMED_PER_ROUND = 12
"""For each four messages of healthy publishers: 1,000/s beside 333/s."""


@contextmanager
def attackers(server: Gantry, name: str) -> Iterator[list[Any]]:
    spawn = multiprocessing.get_context("spawn")
    target, arguments = (fair.crowd, (server.doors,)) if name == fair.CROWD else (fair.attack, (server.doors, name))
    processes = [spawn.Process(target=target, args=arguments, daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def sample(server: Gantry, name: str) -> float:
    text = httpx.get(f"http://{server.doors['metrics']}/metrics", timeout=LIMIT_S).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*fair.ATTACKS, fair.CROWD])
def test_everybody_is_answered_beside_the_worst_clients_and_a_stop_keeps_its_deadline(
    tmp_path: Path, name: str
) -> None:
    server = Gantry(tmp_path, settings=(f"server.drain_ms={DRAIN_MS}",)).start()
    try:
        with wire.connect(server.doors["broker"]) as connection:
            wire_topic(connection)
        if "queues" in name:
            fair.declare_fanout(server.doors, QUEUES)
        before = sample(server, "gantry_received_bytes_total")
        with attackers(server, name) as processes:
            until(lambda: sample(server, "gantry_received_bytes_total") > before + 4 * fair.BLOCK_BYTES)
            with wire.connect(server.doors["broker"]) as connection:
                connection.settimeout(LIMIT_S)
                for opaque in range(SENDS):
                    connection.sendall(fair.send_frame(opaque))
                    assert answered(connection) == opaque
            health = httpx.get(f"http://{server.doors['metrics']}/healthz", timeout=LIMIT_S)
            assert health.status_code == 200
            assert all(process.is_alive() for process in processes), "who attacks was cut off"
            (process,) = server.processes
            assert process.process is not None
            process.process.send_signal(signal.SIGTERM)
            # Twenty times the deadline is for a busy machine; without budgets it took minutes.
            assert process.process.wait(20 * DRAIN_MS / 1000) == 0, process.log()[-4000:]
    finally:
        server.stop()


def wire_topic(connection: socket.socket) -> None:
    fair.create_topic(connection, fair.TOPIC, 4)


def answered(connection: socket.socket) -> int:
    """The number of the request that was answered, with success."""
    size = struct.unpack(">I", exactly(connection, 4))[0]
    code, opaque, _, remark, _ = wire.decode(exactly(connection, size))
    assert code == 0, remark
    return opaque


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, f"closed after {data!r}"
        data += part
    return data


# Malformed records on the gateways' wire.

GOOD = Message("bad", b"body", props.encode([(props.TAGS, "a"), (props.UNIQ_KEY, "u")]), "a", ("u",))
CHANGES: list[dict[str, Any]] = [
    {"properties": 1}, {"properties": None}, {"tag": None}, {"tag": 1}, {"tag": "b"}, {"body": None}, {"queue_id": "0"},
    {"topic": 1}, {"topic": ""}, {"topic": "x" * 300}, {"sharding_key": 1}, {"keys": ["other"]}, {"sys_flag": -1},
    {"born_ms": -1}, {"topic": "rmq_sys_gantry_ack"}, {"demand_route": "nobody"},
]  # fmt: skip
"""What is wrong with each row."""


def malformed(number: int) -> bytes:
    columns = dict(zip(Sent.__struct_fields__, pack_sent([GOOD])[0], strict=True)) | CHANGES[number % len(CHANGES)]
    return wire.encode(int(GatewayCode.SUBMIT), number, {}, encode_body([[list(columns.values())], 0]))


class Publishers:
    """One at each door, with one message on its way at most."""

    def __init__(self, server: Gantry) -> None:
        self.mqtt = raw.mqtt(server)
        self.amqp = raw.amqp(server)
        self.amqp.send(raw.method(1, 85, 10, b"\0"))  # confirm.select
        raw.read_frame(self.amqp)
        self.native = wire.connect(server.doors["broker"])
        self.native.settimeout(LIMIT_S)
        wire_topic(self.native)
        self.http = httpx.Client(timeout=LIMIT_S, base_url="http://{}:{}".format(*server.address("cloudevents")))
        self.answers = dict.fromkeys(("mqtt", "amqp", "broker", "cloudevents"), 0)

    def publish(self, number: int) -> None:
        """A message through each door; all are under way when the first answer is awaited."""
        packet = struct.pack(">H", number + 1)
        self.mqtt.send(b"\x32\x0c\0\x07healthy" + packet + b"x")
        self.amqp.send(fair.amqp_publish("amq.fanout", "a"))
        self.native.sendall(fair.send_frame(number))
        event = {"ce-id": str(number), "ce-source": "/s", "ce-type": "a", "ce-specversion": "1.0"}
        answer = self.http.post("/topics/healthy", headers=event | {"content-type": "text/plain"}, content=b"x")
        self.answers["cloudevents"] += answer.status_code == 202
        self.answers["mqtt"] += self.mqtt.exactly(4) == b"\x40\x02" + packet
        _, _, payload = raw.read_frame(self.amqp)
        self.answers["amqp"] += payload[:4] == b"\0\x3c\0\x50"  # basic.ack
        self.answers["broker"] += answered(self.native) == number

    def close(self) -> None:
        for connection in (self.mqtt.sock, self.amqp.sock, self.native, self.http):
            connection.close()  # type: ignore[attr-defined]


def test_malformed_records_cost_healthy_publishers_no_answer(own_server: Gantry) -> None:
    healthy = Publishers(own_server)
    codes: list[int] = []
    with wire.connect(own_server.doors["broker"]) as bad:
        bad.settimeout(LIMIT_S)
        for number in range(ROUNDS):
            first = number * MALFORMED_PER_ROUND
            bad.sendall(b"".join([malformed(first + each) for each in range(MALFORMED_PER_ROUND)]))
            healthy.publish(number)
            for _ in range(MALFORMED_PER_ROUND):
                size = struct.unpack(">I", exactly(bad, 4))[0]
                codes.append(wire.decode(exactly(bad, size))[0])
    healthy.close()
    assert healthy.answers == dict.fromkeys(healthy.answers, ROUNDS)
    assert len(codes) == ROUNDS * MALFORMED_PER_ROUND
    assert "Traceback" not in own_server.log()
    assert "failed:" not in own_server.log()


def test_turn_lengths_and_answer_times_of_each_door_are_exported(tmp_path: Path) -> None:
    server = Gantry(tmp_path, settings=("store.flush=async",)).start()
    try:
        healthy = Publishers(server)
        before = {door: sample(server, f'gantry_answer_seconds_count{{door="{door}"}}') for door in healthy.answers}
        turns = sample(server, "gantry_turn_seconds_count")
        numbers = itertools.count()

        def all_counted() -> bool:
            """Answers of a later turn than the one that read their request are not: a busy machine has some of these."""
            healthy.publish(next(numbers))
            return all(
                sample(server, f'gantry_answer_seconds_count{{door="{door}"}}') > count
                for door, count in before.items()
            )

        until(all_counted)
        healthy.close()
        assert sample(server, "gantry_turn_seconds_count") > turns
    finally:
        server.stop()
