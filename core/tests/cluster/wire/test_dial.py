"""A gateway's search for its broker, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest

from gantrymq.cluster.wire.dial import find_groups
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameReader
from gantrymq.remoting.constants import FLAG_RESPONSE


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
        while not (asked := frames.feed(await reader.read(65536))):
            pass
        writer.write(codec.encode(Command(0, None, body, asked[0].opaque, FLAG_RESPONSE)))
        await reader.read()
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
