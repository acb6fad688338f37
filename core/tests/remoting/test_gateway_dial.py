"""A gateway's search for its broker, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.gateway_dial import find_groups


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
