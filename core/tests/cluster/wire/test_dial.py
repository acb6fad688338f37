"""A gateway's search for its broker, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.cluster.wire import dial
from gantrymq.cluster.wire.codec import PROTOCOL_VERSION, GatewayCode, encode_body
from gantrymq.cluster.wire.dial import Dialer, Members, find_groups
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameReader
from gantrymq.remoting.constants import FLAG_RESPONSE
from tests.cluster.site import Line, Site


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What a nameserver that is killed in the middle of a request does."""
    await reader.read(1)
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_a_nameserver_that_resets_the_connection_is_one_that_does_not_answer() -> None:
    async def search() -> None:
        async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(GantryError) as raised:
                await find_groups([f"127.0.0.1:{port}"])
        assert raised.value.code is ErrorCode.UNAVAILABLE
        assert f"127.0.0.1:{port}" in raised.value.text

    asyncio.run(search())


async def answering(groups: dict[str, str]) -> asyncio.Server:
    """A nameserver that knows these brokers."""
    table = {
        name: {"brokerAddrs": {"0": address}, "brokerName": name, "cluster": "C"} for name, address in groups.items()
    }
    body = json.dumps({"brokerAddrTable": table, "clusterAddrTable": {"C": list(groups)}}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65536):
            for asked in frames.feed(data):
                writer.write(codec.encode(Command(0, None, body, asked.opaque, FLAG_RESPONSE)))
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def test_what_any_nameserver_knows_counts() -> None:
    """One that was started a moment ago knows some brokers only; one is gone."""

    async def search() -> dict[str, str]:
        servers = [await answering(groups) for groups in ({"b": "h:2"}, {"a": "h:1", "b": "h:2"}, {})]
        gone = await asyncio.start_server(reset, "127.0.0.1", 0)
        addresses = [f"127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in (*servers, gone)]
        try:
            return await find_groups(addresses)
        finally:
            for one in (*servers, gone):
                one.close()

    assert asyncio.run(search()) == {"a": "h:1", "b": "h:2"}


class Broker:
    """Answers the first hello, and none after it; may say something else all the time."""

    def __init__(self, talks: bool, leaves: bool = False) -> None:
        self.talks = talks
        self.leaves = leaves
        """It ends the connection instead of answering the second hello."""
        self.served: set[asyncio.Task[None]] = set()
        self.asked = asyncio.Event()
        """A second hello came."""
        self.talked = asyncio.Event()
        """It said something else for longer than anybody waits for a broker that says nothing."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.served.add(task)
        frames, mine = FrameReader(), 0
        while data := await reader.read(65536):
            for asked in frames.feed(data):
                mine += 1
                if mine == 1:
                    body = encode_body([PROTOCOL_VERSION, 1 << 20])
                    writer.write(codec.encode(Command(0, None, body, asked.opaque, FLAG_RESPONSE)))
                else:
                    self.asked.set()
                    if self.leaves:
                        writer.close()
                    if self.talks:
                        self.talk(writer, 6)
        writer.close()
        await writer.wait_closed()

    def talk(self, writer: asyncio.StreamWriter, left: int) -> None:
        if not left:
            self.talked.set()
            return
        writer.write(codec.encode(Command(GatewayCode.NOTICE_READY, None, encode_body([1]), 1)))
        asyncio.get_running_loop().call_later(dial.SILENCE_S / 4, self.talk, writer, left - 1)


def kept(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, is_alone: bool, wait: Callable[[asyncio.Event], Any]
) -> list[bool]:
    """States of the port while `wait(lost)` goes on."""
    monkeypatch.setattr(dial, "HELLO_EVERY_S", 0.05)
    monkeypatch.setattr(dial, "SILENCE_S", 1.0 if broker.talks else 0.2)
    states: list[bool] = []

    async def keep() -> None:
        lost = asyncio.Event()

        def on_state(up: bool) -> None:
            states.append(up)
            if states[-2:] == [True, False]:
                lost.set()

        async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with await answering({"b": f"127.0.0.1:{port}"}) as names:
                address = f"127.0.0.1:{names.sockets[0].getsockname()[1]}"
                dialer = Dialer([address], "b", is_alone=lambda: is_alone)
                dialer.port.watch_state(on_state)
                keeping = asyncio.create_task(dialer.keep())
                async with asyncio.timeout(30):
                    await wait(lost)
                dialer.close()
                await keeping
        await asyncio.wait(broker.served)

    asyncio.run(keep())
    return states


def test_a_broker_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(monkeypatch, Broker(False), False, lambda lost: lost.wait())[:3] == [False, True, False]


def test_a_broker_that_is_busy_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(True)
    assert kept(monkeypatch, broker, False, lambda lost: broker.talked.wait()) == [False, True]


def test_a_connection_that_ends_behind_a_hello_is_lost_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when the broker has said nothing for some time, while others are used: nobody would see that all were lost together."""
    assert kept(monkeypatch, Broker(False, True), False, lambda lost: lost.wait())[:3] == [False, True, False]
    assert "connection lost" in caplog.text
    assert "nothing heard" not in caplog.text


def test_the_only_broker_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(False)

    async def wait(lost: asyncio.Event) -> None:
        await broker.asked.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4 * dial.SILENCE_S):
                await lost.wait()

    assert kept(monkeypatch, broker, True, wait) == [False, True]


def test_a_gateway_that_may_use_no_broker_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers that know of no slots, and come at once."""
    site = Site("a", "b")

    class Connected:
        """In place of a Dialer."""

        why = ""

        def __init__(self, nameservers: list[str], name: str, *rest: Any) -> None:
            self.port = Line(site.nodes[name])
            self.port.cut()

        async def keep(self) -> None:
            self.port.mend()
            site.run()

    async def find(*arguments: Any) -> dict[str, str]:
        return {"a": "h:1", "b": "h:2"}

    monkeypatch.setattr(dial, "find_groups", find)
    monkeypatch.setattr(dial, "Dialer", Connected)
    monkeypatch.setattr(dial, "GROUPS_WAIT_S", 0.05)
    monkeypatch.setattr(dial, "FIRST_CONNECT_S", 0.2)

    async def begin() -> None:
        spawned: list[asyncio.Task[None]] = []

        def spawn(work: Callable[..., Any]) -> None:
            spawned.append(asyncio.create_task(work()))

        context: Any = SimpleNamespace(turn=site.turn, wheel=site.wheel, shared={}, spawn=spawn)
        members = Members(["h:0"], context, "g")
        with pytest.raises(GantryError) as raised:
            await members.begin()
        await asyncio.gather(*spawned)
        assert raised.value.code is ErrorCode.UNAVAILABLE
        assert raised.value.text.startswith(
            "no broker answers (registered: a, b): broker group a has no table of slots, and b is"
        )
        assert members.why() in raised.value.text

    asyncio.run(begin())
