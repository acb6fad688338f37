"""The page that names nameservers, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from gantrymq.launch import nameserver_page
from gantrymq.model.errors import GantryError


class Page:
    """An HTTP server with one page; `text` None: it closes without an answer."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.asked = asyncio.Event()

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if self.text is not None:
            writer.write(f"HTTP/1.0 200 OK\r\n\r\n{self.text}\n".encode())
        writer.close()
        self.asked.set()


def test_the_list_follows_the_page_in_place() -> None:
    async def run() -> None:
        page = Page("a:9876;b:9876")
        nameservers: list[str] = []
        url = await page.start()
        async with asyncio.timeout(30), page.server:
            await nameserver_page.begin(url, nameservers)
            assert nameservers == ["a:9876", "b:9876"]
            keeping = asyncio.create_task(nameserver_page.keep(url, nameservers, 0.01))
            for text, wanted in (("c:1", ["c:1"]), (None, ["c:1"]), ("", ["c:1"]), ("d:1;e:2", ["d:1", "e:2"])):
                page.text = text
                for _ in range(3):  # the answer to the one before the last was read
                    page.asked.clear()
                    await page.asked.wait()
                assert nameservers == wanted
            keeping.cancel()

    asyncio.run(run())


def test_a_page_that_cannot_be_had_is_an_error_in_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = itertools.count(0, 25)  # at each look at the clock: the page is asked for until one sees more than 60
    monkeypatch.setattr(nameserver_page.anyio, "current_time", lambda: float(next(seconds)))
    monkeypatch.setattr(nameserver_page, "RETRY_S", 0.0)

    async def run() -> None:
        page = Page(None)
        url = await page.start()
        async with page.server:
            with pytest.raises(GantryError, match="rocketmq/nsaddr"):
                await nameserver_page.begin(url, [])

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert caplog.text.count("trying again") == 1
