"""Connections to others, over real sockets: what is made, what is left behind, and what is said where none can be made."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.tests.net.tls.certs import client_context, make_certificates
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.dial.connector import connect, connect_blocking

LIMIT_S = 1.0


class Closing(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    async def close(self) -> None:
        self.transport.abort()
        await self.lost.wait()


def by_loop(address: str, **more: Any) -> None:
    async def main() -> None:
        await (await connect(Closing, address, LIMIT_S, **more)).close()

    asyncio.run(main())


def by_socket(address: str, **more: Any) -> None:
    connect_blocking(address, LIMIT_S, **more).close()


BOTH = pytest.mark.parametrize("dial", [by_loop, by_socket])


@BOTH
@pytest.mark.parametrize("address", ["", "h", ":1", "h:", "h:x", "h:0", "h:65536", "h:-1"])
def test_what_is_no_address(dial: Callable[[str], None], address: str) -> None:
    with pytest.raises(GantryError, match="allowed is HOST:PORT") as caught:
        dial(address)
    assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT


@BOTH
def test_one_that_listens(dial: Callable[[str], None], silent: str) -> None:
    dial(silent)


@BOTH
def test_nobody_listens(dial: Callable[[str], None], refused: str) -> None:
    with pytest.raises(GantryError, match=f"^{refused} cannot be reached: Connection refused$") as caught:
        dial(refused)
    assert caught.value.code is ErrorCode.UNAVAILABLE


@BOTH
@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 64 + ".invalid"])
def test_a_name_that_is_none(dial: Callable[[str], None], host: str) -> None:
    with pytest.raises(GantryError, match=f"^{host}:1 cannot be reached: .") as caught:
        dial(f"{host}:1")
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_what_to_do_is_said(refused: str) -> None:
    with pytest.raises(GantryError, match=r"Connection refused; name another$"):
        by_loop(refused, remedy="name another")


@BOTH
def test_a_handshake_that_is_not_answered_ends_in_time(dial: Callable[..., None], silent: str) -> None:
    with pytest.raises(GantryError, match=f"^{silent} cannot be reached: (no answer in time|.*timed out)"):
        dial(silent, tls=ssl.create_default_context())


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address of a server with TLS, for each connection of which a thread shakes hands once, and the directory of its CA."""
    directory = make_certificates(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")

    def serve() -> None:
        try:
            with context.wrap_socket(listening.accept()[0], server_side=True) as connection:
                connection.recv(1)
        except OSError:
            return  # refused by the other side, as the tests want it

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", directory
        thread.join()


@BOTH
def test_a_certificate_of_nobody_we_trust(dial: Callable[..., None], encrypted: tuple[str, Path]) -> None:
    with pytest.raises(GantryError, match="certificate refused: "):
        dial(encrypted[0], tls=ssl.create_default_context())


@BOTH
def test_a_certificate_of_one_we_trust(dial: Callable[..., None], encrypted: tuple[str, Path]) -> None:
    address, directory = encrypted
    dial(address, tls=client_context(directory))


def test_the_name_that_a_certificate_must_be_for(encrypted: tuple[str, Path]) -> None:
    address, directory = encrypted
    with pytest.raises(GantryError, match=r"certificate refused: .*elsewhere"):
        by_loop(address, tls=client_context(directory), name="elsewhere")


@BOTH
def test_tls_to_who_speaks_none(dial: Callable[..., None]) -> None:
    def serve() -> None:
        with listening.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(GantryError, match="cannot be reached: it speaks no TLS"):
            dial(f"127.0.0.1:{listening.getsockname()[1]}", tls=ssl.create_default_context())
        thread.join()


def test_who_is_cancelled_leaves_no_connection(silent: str) -> None:
    made: list[Closing] = []

    class Noted(Closing):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            made.append(self)

    async def after(steps: int) -> None:
        task = asyncio.ensure_future(connect(Noted, silent))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():  # it was there before
            await task.result().close()
        for each in made:
            await each.lost.wait()

    for steps in range(12):
        asyncio.run(after(steps))
    assert made
