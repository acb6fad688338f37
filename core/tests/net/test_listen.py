"""Listening sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gantrymq.net.listen import bind, reserve


def test_reserved_addresses_refuse_and_can_be_taken_back():
    first = socket.socket()
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    first.bind(("127.0.0.1", 0))
    first.listen()
    address = first.getsockname()
    first.close()
    (held,) = reserve([address])
    with held, pytest.raises(ConnectionRefusedError), socket.create_connection(address):
        pass
    (held,) = reserve([address])

    async def take_back():
        bound = await bind(*address)
        bound.close()

    with held:
        asyncio.run(take_back())
    assert reserve([("192.0.2.1", 1)]) == []
