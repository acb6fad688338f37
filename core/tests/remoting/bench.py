"""A broker on a real store in a temporary directory, with doors but without sockets."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.server.broker_door import BrokerConnection, BrokerServer
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore

if TYPE_CHECKING:
    from gantrymq.store.files import Buffer

TOPIC = "T"


@dataclass
class Context:
    """The part of ServiceContext that the doors use."""

    wheel: ManualWheel
    turn: ManualTurn
    shared: dict[str, Any] = field(default_factory=dict)


class Files(OsFileSystem):
    """A disk that takes no byte while it is `full`."""

    full = False

    def pwrite(self, handle: int, data: Buffer, at: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(handle, data, at)

    def pwritev(self, handle: int, parts: Sequence[Buffer], at: int) -> None:
        self.pwrite(handle, b"".join(parts), at)


class Bench:
    """`connect()` gives a link; `ask` sends one request over it and returns the answer."""

    def __init__(self, root: Path, sync: bool = False, routes: dict[str, Any] | None = None, **topics: Any) -> None:
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.turn = ManualTurn()
        config = StoreConfig(commitlog_file_size=1 << 20, index_slots=1000, index_entries=4000)
        self.files = Files()
        self.store = MessageStore(self.files, root, config, self.clock)
        self.store.load()
        self.broker = Broker(
            self.store,
            self.clock,
            self.turn,
            self.wheel,
            routes or {},
            BrokerConfig(),
            TopicsConfig(**topics),
            GatewayConfig(),
            sync,
        )
        self.broker.open()
        self.doors = BrokerServer(
            self.broker,
            Context(self.wheel, self.turn),  # type: ignore[arg-type]
            partial(GatewaySession, self.broker),
        )
        self.doors.set_address("127.0.0.1:10911")

    def connect(self, peer: str = "127.0.0.1:50000") -> FakeLink:
        door = self.doors.accept()
        assert isinstance(door, BrokerConnection)
        return FakeLink(self.wheel, self.turn, peer).attach(door)

    def close(self) -> None:
        self.broker.close()
        self.store.close()


def answers(data: bytes) -> list[Command]:
    return FrameReader().feed(data)


def ask(link: FakeLink, code: int, body: bytes = b"", opaque: int = 7, **fields: Any) -> Command:
    """One request and its answer (notices beside it are dropped); integers and booleans become text."""
    found = answers(link.feed(request(code, body, opaque, **fields)))
    (answer,) = [command for command in found if command.is_response]
    assert answer.opaque == opaque
    return answer


def request(code: int, body: bytes = b"", opaque: int = 7, flag: int = 0, binary: bool = False, **fields: Any) -> bytes:
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    return encode(Command(code, text, body, opaque, flag, language=0), binary)


SEND = {"a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "j": "0",
        "k": "false", "m": "false"}  # fmt: skip


def send_frame(body: bytes = b"body", properties: str = "", opaque: int = 7, code: int = 310, **fields: Any) -> bytes:
    given = {name: str(value) for name, value in fields.items()}
    wanted = SEND | ({"i": properties} if properties else {}) | given
    flag = int(wanted.pop("flag", "0"))
    binary = wanted.pop("binary", "") == "True"
    return encode(Command(code, wanted, body, opaque, flag, language=0), binary)


def send(link: FakeLink, body: bytes = b"body", properties: str = "", **fields: Any) -> Command:
    (answer,) = answers(link.feed(send_frame(body, properties, **fields)))
    return answer


PULL = {"consumerGroup": "CG", "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}  # fmt: skip
SUSPEND = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}


def pull(link: FakeLink, **fields: Any) -> Command:
    return ask(link, RequestCode.PULL_MESSAGE, **PULL | fields)


def pull_frame(opaque: int = 7, **fields: Any) -> bytes:
    return request(RequestCode.PULL_MESSAGE, b"", opaque, **PULL | fields)
