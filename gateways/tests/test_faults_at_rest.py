"""Files that are missing, shortened, zeroed or flipped while the server is stopped, looked at through its doors: Remoting, MQTT and AMQP.

The faults are those of the core's test of the same name. After the start, or after a rebuild where bytes changed in place (of the log: with and
without), each door serves every message that is whole, once, in order, and no other; what the log has lost is named by its position. `GANTRY_FAULT_SEEDS=1000` tries more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.net.testing import FakeLink, ManualTurn, ManualWheel
from gantrymq.remoting.server.broker_door import BrokerServer
from gantrymq.store.log import record
from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.service import server_properties
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.gateway import MqttGateway, Shell
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gateways.tests.amqp.peer import Content, Peer, call, publish
from gateways.tests.mqtt.world import Client
from tests.broker.node import ROOT, SMALL
from tests.broker.tables.test_snapshots import SnapshotNode
from tests.broker.test_faults_at_rest import KINDS, PLACES, hurt, rebuild
from tests.remoting.bench import PULL, ask, send
from tests.store.crash_states import CrashFiles

pytestmark = pytest.mark.crash

SEEDS = int(os.environ.get("GANTRY_FAULT_SEEDS", "50"))
COUNT = 240
QUEUES = 4


@dataclass
class Context:
    wheel: ManualWheel
    turn: ManualTurn
    shared: dict[str, Any] = field(default_factory=dict)


class House(SnapshotNode):
    """A broker with its doors."""

    routes: Mapping[str, Callable[[], Any]] = {"mqtt": MqttRoutes, "amqp": AmqpRoutes}

    def __init__(self, files: CrashFiles, accept_loss: bool = False) -> None:
        self.accept_loss = accept_loss
        super().__init__(files)
        clock = self.broker.clock
        self.doors = BrokerServer(
            self.broker,
            Context(self.wheel, self.turn),  # type: ignore[arg-type]
            partial(GatewaySession, self.broker),
        )
        self.doors.set_address("127.0.0.1:10911")
        began: list[Any] = []
        mqtt = MqttGateway(Shell(LocalBrokerPort(self.broker), clock, self.turn, self.wheel), MqttConfig())
        mqtt.start(began.append)
        amqp = Gateway(
            AmqpConfig(), LocalBrokerPort(self.broker), clock, self.turn, self.wheel, lambda: "token" + "0" * 17
        )
        amqp.start(began.append)
        self.clients: list[Client] = []
        self.settle()
        assert began == [None, None]
        self.world = SimpleNamespace(
            gateway=mqtt, wheel=self.wheel, turn=self.turn, clients=self.clients, settle=self.settle
        )
        self.server = SimpleNamespace(
            gateway=amqp, wheel=self.wheel, turn=self.turn, config=AmqpConfig(), body_bytes_max=BODY_BYTES_CEILING, settle=self.settle,
            properties=server_properties(AmqpConfig(), "test"),
        )  # fmt: skip

    def settle(self) -> None:
        for _ in range(10_000):
            self.turn.run_until_quiet()
            moved = [client.collect() for client in self.clients]
            if not any(moved) and not self.turn.pending:
                return
        raise AssertionError("never comes to rest")

    def session(self) -> Client:
        client = Client(self.world)  # type: ignore[arg-type]
        return client.connect("device", clean=False)

    def amqp(self) -> Peer:
        peer = Peer(self.server)  # type: ignore[arg-type]
        peer.handshake()
        peer.call("channel.open", "")
        return peer

    def link(self) -> FakeLink:
        return FakeLink(self.wheel, self.turn, "127.0.0.1:50000").attach(self.doors.accept())


class Site:
    """The directory before the fault, and what publishers of every door put into it; nobody has consumed anything."""

    def __init__(self, lot: random.Random) -> None:
        house = House(CrashFiles())
        session = house.session()
        session.subscribe("t/#")
        session.disconnect()
        peer, link = house.amqp(), house.link()
        house.call("ensure_topic", "t", True)
        peer.call("queue.declare", 0, "q", False, True, False, False, False, [])
        peer.call("queue.bind", 0, "q", "t", "#", False, [])
        device = Client(house.world).connect("publisher")  # type: ignore[arg-type]
        self.definitions_end = house.store.written_position
        self.bodies: list[bytes] = []
        for number in range(COUNT):
            body = b"%d " % number + lot.randbytes(lot.choice((10, 300, 900)))
            door = lot.randrange(3)
            if door == 0:
                device.publish("t/a/b", body)  # type: ignore[arg-type]
            elif door == 1:
                peer.ask(publish(1, "t", "a.b", body))
            else:
                assert send(link, body, "TAGS\x01a.b\x02", b="t", e=number % QUEUES).code == 0
            self.bodies.append(body)
            if number == COUNT // 2:
                house.make()
                house.background()
            house.settle()
        house.flush()
        self.places = places(house)
        assert sorted(self.places, key=self.places.__getitem__) == self.bodies
        if lot.random() < 0.5:
            house.background()
            house.flush()
            self.files = House(house.disk.after_process_crash()).disk.after_process_crash()
        else:
            house.stop()
            self.files = house.disk.after_process_crash()


def places(house: House) -> dict[bytes, tuple[int, int]]:
    """Where each message's record is, and its size."""
    store, found = house.store, {}
    for queue in range(QUEUES):
        for position, size, _ in store.units("t", queue, 0, store.max_offset("t", queue)):
            message = store.get(position)
            assert message is not None
            found[message.body] = (position, size)
    return found


def at_rest(files: CrashFiles) -> bytes:
    """The log as one piece from its begin on; what is not there is zero."""
    size = SMALL.commitlog_file_size
    parts = {path: data for path, data in files.snapshot().items() if path.parent == ROOT / "store" / "commitlog"}
    log = bytearray(size * (1 + max([int(path.name) // size for path in parts], default=0)))
    for path, data in parts.items():
        log[int(path.name) : int(path.name) + len(data)] = data
    return bytes(log)


def pulled(house: House) -> list[bytes]:
    """What a native consumer gets."""
    link, found = house.link(), []
    for queue in range(QUEUES):
        offset = 0
        while True:
            answer = ask(link, 11, **PULL | {"topic": "t", "queueId": queue, "queueOffset": offset})
            if answer.code not in (0, 20, 21) or int(answer.fields["nextBeginOffset"]) == offset:
                break
            offset, at = int(answer.fields["nextBeginOffset"]), 0
            while at < len(answer.body):
                message = record.decode(answer.body, at)
                found.append(message.body)
                at += message.size
    return found


def consumed(house: House) -> list[bytes]:
    """What the AMQP queue has."""
    peer = house.amqp()
    found = []
    answers = peer.ask(call(1, "basic.consume", 0, "q", "", False, True, False, False, []))
    while answers:
        found += [answer[1].body for answer in answers if isinstance(answer[1], Content)]
        house.settle()
        answers = peer.ask()
    return found


def is_refused(files: CrashFiles) -> bool:
    """Parts of the log are missing, and nobody has said that it may start without them."""
    try:
        House(files.after_process_crash())
    except StoreCorruptError as error:
        return "--accept-loss" in error.text
    return False


def in_order(found: list[bytes], bodies: list[bytes]) -> bool:
    numbers = [bodies.index(body) for body in found]
    return numbers == sorted(numbers) and len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_fault(seed: int) -> None:
    lot = random.Random(seed)
    site = Site(lot)
    place, kind = lot.choice(list(PLACES)), lot.choice(KINDS)
    files = site.files.after_process_crash()
    path = hurt(files, place, kind, lot)
    before, after = at_rest(site.files), at_rest(files).ljust(len(at_rest(site.files)), b"\0")
    whole = {body for body, (at, size) in site.places.items() if before[at : at + size] == after[at : at + size]}
    refused = is_refused(files)
    in_log = "commitlog" in str(path)
    if kind in ("zeroed", "flipped") and (not in_log or lot.random() < 0.5):
        files, _ = rebuild(files, refused)
    house = House(files, refused)
    end = site.definitions_end
    defined = before[:end] == after[:end]
    doors = {"Remoting": pulled(house)}
    if defined:  # else the session, the queue or their routes may be gone with their rows
        doors |= {"MQTT": [body for _, body in house.session().messages()], "AMQP": consumed(house)}
    for door, found in doors.items():
        assert whole <= set(found), f"{door}: {len(whole - set(found))} of {len(whole)} are missing ({place}, {kind})"
        assert set(found) <= set(site.bodies), f"{door} invents"
        assert len(found) == len(set(found)), f"{door} delivers twice"
        assert door == "Remoting" or in_order(found, site.bodies), door
    for body, (at, _) in site.places.items():
        if in_log and body not in whole:
            listed = house.store.damage.entries.values()
            named = any(entry.position <= at < entry.position + entry.size for entry in listed)
            assert named or body in doors["Remoting"], f"{at} is named, or only its properties changed"
    house.stop()
