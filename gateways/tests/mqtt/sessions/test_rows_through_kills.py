"""Kill -9 at every append of rows of a session with more filters than its own row holds, and in the middle of each: its filters are what they were, or what
they become, never a part of a change (beyond `TOGETHER_MAX` rows: of a piece of it); what was answered is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem, _apply
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.drafts import INLINE_MAX
from gantrymq_gateways.mqtt.gateway import MqttGateway, Shell
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gantrymq_gateways.mqtt.sessions.rows import TOGETHER_MAX
from gantrymq_gateways.mqtt.wire.codec import Connect
from gantrymq_gateways.mqtt.wire.packets import Subscribe, Unsubscribe
from gateways.tests.mqtt.world import Client, World
from tests.broker.node import ROOT, SMALL

CONFIG = replace(SMALL, commitlog_file_size=512 * 1024, consumequeue_file_size=40_000)
ROWS = b"rmq_sys_gantry_mqtt_session"
TORN = 4
"""Places at which a write with rows of the session is cut off."""
OTHERS = 25
"""Of writes without such rows one of so many is a kill."""
HEARD = 6
"""Filters of each kind that are published to after a kill."""
FIRST = [f"first/{number}" for number in range(INLINE_MAX + 30)]

Granted = dict[str, int]


@dataclass
class Kill:
    """What a killed process leaves, and whether its client had its answer."""

    files: MemoryFileSystem
    answered: bool


class WatchedFiles(MemoryFileSystem):
    """`on_write(path, at, data)` is called before each write to the log, which the files do not show yet."""

    on_write: Callable[[Path, int, bytes], None] | None = None

    def pwrite(self, handle: int, data: Any, at: int) -> None:
        path = self._handles[handle][0]
        if self.on_write is not None and "commitlog" in path.parts:
            self.on_write(path, at, bytes(data))
        super().pwrite(handle, data, at)

    def torn(self, path: Path, at: int, data: bytes) -> MemoryFileSystem:
        """What is left where of a write only this came."""
        left = self.after_process_crash()
        _apply(left._names[path].data, at, data)
        return left


class House:
    """A broker with its MQTT door."""

    def __init__(self, files: MemoryFileSystem) -> None:
        self.files, self.turn, clock = files, ManualTurn(), ManualClock()
        self.wheel = ManualWheel(clock)
        self.store = MessageStore(files, ROOT, CONFIG, clock)
        self.store.load()
        self.broker = Broker(
            self.store, clock, self.turn, self.wheel, {"mqtt": MqttRoutes()},
            BrokerConfig(), TopicsConfig(), GatewayConfig(), False,
        )  # fmt: skip
        self.broker.open()
        self.gateway = MqttGateway(Shell(LocalBrokerPort(self.broker), clock, self.turn, self.wheel), MqttConfig())
        began: list[Any] = []
        self.gateway.start(began.append)
        self.clients: list[Client] = []
        self.settle()
        assert began == [None]

    def settle(self) -> None:
        for _ in range(20_000):  # turns: a filter after the other takes some
            if self.turn.pending:
                self.turn.run()
                continue
            moved = [client.collect() for client in self.clients]
            if not any(moved):
                return
        raise AssertionError("never comes to rest")

    def world(self) -> World:
        """As far as a client asks for it."""
        found: Any = SimpleNamespace(
            gateway=self.gateway, wheel=self.wheel, turn=self.turn, clients=self.clients, settle=self.settle
        )
        return cast("World", found)

    def client(self, client_id: str, **fields: Any) -> Client:
        return Client(self.world()).connect(client_id, **fields)

    def filters(self) -> Granted:
        """Of the session `c`, from its rows."""
        stored = self.gateway.lifecycle.rows.stored("c")
        if stored is None or stored.row.over:
            return {}
        return {text: stored.filters[text].granted for text in stored.filters}

    def rows(self) -> list[str]:
        return [key for key in self.broker.tables.rows("mqtt_session") if key.partition("\n")[0] == "c"]


def kills(house: House, client: Client, packet: Any, lot: random.Random) -> list[Kill]:
    """What is left at each append of rows of the session while the client asks for `packet`: before it, in the middle of it, and at last."""
    found: list[Kill] = []
    files = house.files
    assert isinstance(files, WatchedFiles)
    heard = len(client.packets)

    def take(left: MemoryFileSystem) -> None:
        found.append(Kill(left, len(client.packets) > heard or bool(client.link.sent)))

    def on_write(path: Path, at: int, data: bytes) -> None:
        if ROWS not in data and lot.randrange(OTHERS):
            return
        take(files.after_process_crash())
        for count in sorted(lot.sample(range(1, len(data)), min(TORN, len(data) - 1))) if ROWS in data else ():
            take(files.torn(path, at, data[:count]))

    files.on_write = on_write
    client.send(packet)
    files.on_write = None
    take(files.after_process_crash())
    return found


def check(kill: Kill, allowed: Iterable[Granted], after: Granted) -> Granted:
    """The next process: which filters it finds, after its client was there."""
    house = House(kill.files)
    found = house.filters()
    assert found == after or (not kill.answered and found in list(allowed)), sorted(found)
    client = house.client("c", clean=False)
    assert client.present
    lot = sorted(found)
    some = lot[: HEARD // 2] + lot[-HEARD // 2 :] + sorted(after.keys() - found.keys())[:HEARD]
    sender = house.client("p")
    for text in some:
        sender.publish(text)
    assert sorted(client.messages()) == sorted((text, b"x") for text in set(some) & found.keys())
    assert client.subscribe("one/more") == [1], "the session can still be changed"
    assert house.filters() == {**found, "one/more": 1}
    house.store.close()
    return found


def begun() -> tuple[House, Client, Granted]:
    house = House(WatchedFiles())
    client = house.client("c", clean=False)
    client.subscribe(*FIRST)
    before = house.filters()
    assert before == dict.fromkeys(FIRST, 1)
    assert len(house.rows()) == 1 + len(FIRST) - INLINE_MAX
    return house, client, before


@pytest.mark.parametrize("seed", range(2))
def test_a_subscribe_is_there_or_not(seed: int) -> None:
    house, client, before = begun()
    new = [f"new/{number}" for number in range(40)]
    again = [(text, 2) for text in FIRST[::3]]
    left = kills(house, client, Subscribe(9, [(text, 1) for text in new] + again), random.Random(seed))
    after = house.filters()
    assert after == {**before, **dict.fromkeys(new, 1), **dict(again)}
    found = [check(kill, [before], after) for kill in left]
    assert before in found
    assert found[-1] == after


@pytest.mark.parametrize("seed", range(2))
def test_an_unsubscribe_is_done_or_not(seed: int) -> None:
    house, client, before = begun()
    gone = FIRST[3:50:2]
    left = kills(house, client, Unsubscribe(9, gone), random.Random(seed))
    after = {text: qos for text, qos in before.items() if text not in gone}
    assert house.filters() == after
    found = [check(kill, [before], after) for kill in left]
    assert before in found
    assert found[-1] == after


def test_beyond_what_changes_together_a_subscribe_comes_in_whole_pieces() -> None:
    house, client, before = begun()
    new = [f"new/{number}" for number in range(TOGETHER_MAX + 60)]
    left = kills(house, client, Subscribe(9, [(text, 1) for text in new]), random.Random(3))
    after = house.filters()
    assert after == {**before, **dict.fromkeys(new, 1)}
    piece = {**before, **dict.fromkeys(new[:TOGETHER_MAX], 1)}
    found = [check(kill, [before, piece], after) for kill in left]
    assert {len(got) for got in found} == {len(before), len(piece), len(after)}


def test_the_end_of_a_session_is_the_end_of_all_its_filters() -> None:
    house, client, before = begun()
    client.disconnect()
    house.settle()
    other = Client(house.world())
    left = kills(house, other, Connect("c"), random.Random(4))
    assert house.rows() == []
    found = []
    for kill in left:
        after = House(kill.files)
        found.append(after.filters())
        assert found[-1] in (before, {})
        client = after.client("c", clean=False)
        assert client.present == bool(found[-1])
        if not client.present:
            assert after.rows() == ["c"], "of the one that ended nothing is left"
        after.store.close()
    assert before in found
    assert {} in found
