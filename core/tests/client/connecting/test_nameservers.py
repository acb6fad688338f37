"""Nameservers from an HTTP page."""

import asyncio
from collections.abc import Iterator

import pytest

from core.tests.client.client_runs import run
from core.tests.client.fake_cluster import FakeCluster
from gantrymq.client import Client, Producer
from gantrymq.client.connecting import nameservers, routes
from gantrymq.client.connecting.nameservers import fetch_nameservers
from gantrymq.model.errors import ErrorCode, GantryError


class Page:
    """One HTTP page."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    async def __aenter__(self) -> "Page":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/rocketmq/nsaddr?unit=1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        writer.close()


def page(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n\r\n{body}".encode()


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.topics["orders"] = {"broker-a": 2}
    yield cluster
    cluster.close()


@pytest.mark.parametrize("body", ["a:1;b:2", " a:1;b:2\r\n", "a:1\nb:2"])
def test_a_page_names_nameservers(body: str) -> None:
    async def main() -> None:
        async with Page(page(body)) as served:
            assert await fetch_nameservers(served.url) == ["a:1", "b:2"]
            assert served.asked[0].startswith(b"GET /rocketmq/nsaddr?unit=1 HTTP/1.0\r\nHost: 127.0.0.1:")

    run(main())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (page("", "404 Not Found"), "status 404"),
        (page("no address"), "HOST:PORT"),
        (page(""), "no nameserver"),
        (b"", "no HTTP answer"),
        (b"SSH-2.0\r\n\r\n", "no HTTP answer"),
        (page("x" * 70_000), "over 65536 bytes"),
    ],
    ids=["status", "text", "empty", "nothing", "other protocol", "large"],
)
def test_a_page_that_is_none(answer: bytes, text: str) -> None:
    async def main() -> None:
        async with Page(answer) as served:
            with pytest.raises(GantryError, match=text) as caught:
                await fetch_nameservers(served.url)
            assert served.url in caught.value.text

    run(main())


def test_a_page_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "ASK_TIMEOUT_S", 0.2)

    async def main() -> None:
        async with Client("http://127.0.0.1:1/nsaddr") as client:
            with pytest.raises(GantryError, match=r"127\.0\.0\.1:1/nsaddr cannot be had") as caught:
                await client.routes.route("orders")
            assert caught.value.code is ErrorCode.UNAVAILABLE

    run(main())


def test_a_client_keeps_its_list_while_the_page_is_away(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "DISCOVERY_S", 0.0)
    assert nameservers.DISCOVERY_S == 120

    async def main() -> None:
        async with Page(page(f"127.0.0.1:1;{cluster.nameserver}")) as served, Producer(served.url) as producer:
            await producer.send("orders", b"1")
            names = producer.client.routes.nameservers
            assert names == [cluster.nameserver, "127.0.0.1:1"]  # the one that answered goes first
            served.answer = page("", "500 Internal Server Error")
            await producer.client.routes.route("orders", fresh=True)
            assert names == [cluster.nameserver, "127.0.0.1:1"]
            served.answer = page(cluster.nameserver)
            await producer.client.routes.route("orders", fresh=True)
            assert names == [cluster.nameserver]

    run(main())
