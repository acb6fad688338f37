"""A client that is closed, cancelled or gives up leaves no connection open, whatever it was about to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gantrymq.client import Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer
from gantrymq.client.blocking import LoopThread
from gantrymq.client.client import Client
from gantrymq.client.connecting.link import Link
from gantrymq.model.errors import ErrorCode, GantryError

STEPS = 12
"""Steps of the loop in which each call is cancelled; a connection is made in the first five."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Link]:
    """Every link whose connection was made."""
    links: list[Link] = []
    inner = Link.connection_made

    def note(link: Link, transport: asyncio.BaseTransport) -> None:
        links.append(link)
        inner(link, transport)

    monkeypatch.setattr(Link, "connection_made", note)
    return links


async def send(nameserver: str) -> None:
    async with Producer(nameserver) as producer:
        await producer.send("t", b"")


async def start(nameserver: str) -> None:
    async with Producer(nameserver) as producer:
        await producer.start("t")


async def ask(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.route("t")


async def pull(nameserver: str) -> None:
    async with PullConsumer(nameserver, group="g") as consumer:
        await consumer.assign("t")


async def receive(nameserver: str) -> None:
    async with SimpleConsumer(nameserver, group="g") as consumer:
        await consumer.receive("t")


async def push(nameserver: str) -> None:
    consumer = PushConsumer(nameserver, group="g")
    consumer.subscribe("t", lambda message: None)
    async with consumer:
        pass


@pytest.mark.parametrize("call", [send, start, ask, pull, receive, push])
def test_cancelled_in_any_step(silent: str, made: list[Link], call: Callable[[str], Awaitable[None]]) -> None:
    async def after(steps: int) -> None:
        task = asyncio.ensure_future(call(silent))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    for steps in range(STEPS):
        asyncio.run(after(steps))
        assert not [link for link in made if link.is_open], f"after {steps} steps"
    assert made


def test_a_connection_that_is_made_while_the_client_is_closed(silent: str, made: list[Link]) -> None:
    async def main(steps: int) -> None:
        client = Client(silent)
        waiting = asyncio.ensure_future(client.links.get(silent))
        for _ in range(steps):
            await asyncio.sleep(0)
        await client.close()
        (found,) = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(found, GantryError):
            assert found.code is ErrorCode.UNAVAILABLE
            assert found.text == "this client is closed"
        else:
            assert isinstance(found, Link)
        await asyncio.sleep(0)

    for steps in range(STEPS):
        asyncio.run(main(steps))
        assert not [link for link in made if link.is_open], f"after {steps} steps"
    assert len(made) >= STEPS - 2


def test_who_waits_for_a_route_of_a_client_that_is_closed_is_told_so(silent: str, made: list[Link]) -> None:
    async def main() -> None:
        client = Client(silent)
        waiting = [asyncio.ensure_future(client.routes.route("t")) for _ in range(2)]
        for _ in range(STEPS):
            await asyncio.sleep(0)
        await client.close()
        for found in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(found, GantryError)
            assert found.text == "this client is closed"
        with pytest.raises(GantryError, match="this client is closed"):
            await client.routes.route("t")

    asyncio.run(main())
    assert made
    assert not [link for link in made if link.is_open]


def test_closing_that_is_cancelled_closes_the_links_all_the_same(silent: str, made: list[Link]) -> None:
    async def main() -> None:
        producer = Producer(silent, group="g")
        await producer.client.links.get(silent)
        never = asyncio.Event()
        producer.client.members.close = never.wait  # type: ignore[method-assign, assignment]
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])

    asyncio.run(main())
    (link,) = made
    assert not link.is_open


def test_a_loop_thread_that_ends_ends_what_runs_on_it(silent: str, made: list[Link]) -> None:
    thread = LoopThread()
    ended: list[BaseException] = []

    async def connected() -> None:
        client = Client(silent)
        try:
            await client.links.get(silent)
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise
        finally:
            await client.close()

    async def begin() -> asyncio.Task[None]:
        return asyncio.ensure_future(connected())

    task = thread.run(begin())
    thread.stop()
    assert task.done()
    assert len(ended) == 1
    assert not [link for link in made if link.is_open]
