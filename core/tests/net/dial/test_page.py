"""One page of an HTTP server. What is no page is tested where pages name nameservers (client/connecting/test_nameservers.py)."""

from __future__ import annotations

import asyncio

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.dial.page import get_page


def test_a_page_and_what_is_asked() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for part in (b"HTTP/1.0 200 OK\r\n", b"X: y\r\n\r\nbo", b"dy\r\n\r\nmore"):
            writer.write(part)
            await writer.drain()
        writer.close()

    async def main() -> bytes:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await get_page(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a/b?c=d", 5.0, 1000)

    assert asyncio.run(main()) == b"body\r\n\r\nmore"
    assert asked[0].startswith(b"GET /a/b?c=d HTTP/1.0\r\nHost: 127.0.0.1:")


def test_a_server_that_never_answers(silent: str) -> None:
    url = f"http://{silent}/page"
    with pytest.raises(GantryError, match=f"^{url} cannot be had: no answer in time$") as caught:
        asyncio.run(get_page(url, 0.1, 1000))
    assert caught.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("url", ["http://", "http:///page", "http://h:port/", "http://h:99999/", "http://[::1/"])
def test_what_is_no_address_of_a_page(url: str) -> None:
    with pytest.raises(GantryError, match="cannot be had: ") as caught:
        asyncio.run(get_page(url, 1.0, 1000))
    assert caught.value.text.startswith(url)
