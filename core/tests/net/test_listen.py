"""Listening sockets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from gantrymq.net.listen import ListenError, bind, bind_unix, reserve


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


def test_a_unix_socket_that_nobody_serves_gives_way(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    first = bind_unix(path, 0o600)
    with pytest.raises(ListenError, match="in use"):
        bind_unix(path, 0o600)
    first.close()
    assert Path(path).is_socket()
    bind_unix(path, 0o640).close()
    assert Path(path).stat().st_mode & 0o777 == 0o640
