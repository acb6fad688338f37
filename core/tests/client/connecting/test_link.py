"""One connection: pairing, limits, and servers that speak nonsense."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gantrymq.client.connecting import link as link_module
from gantrymq.client.connecting.link import Link, Links
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command, FrameReader, encode, response
from gantrymq.remoting.constants import FLAG_RESPONSE

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_server(handler: Handler, work: Callable[[Links, str], Awaitable[None]]) -> None:
    async def main() -> None:
        handlers: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.add(asyncio.current_task())
            await handler(reader, writer)
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        links = Links()
        try:
            await work(links, f"{host}:{port}")
        finally:
            await links.close()
            server.close()
            if handlers:
                await asyncio.wait(handlers)

    asyncio.run(main())


async def backwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers three requests at a time, the last one first, one byte at a time."""
    frames, waiting = FrameReader(), []
    while data := await reader.read(65536):
        waiting += frames.feed(data)
        while len(waiting) >= 3:
            for command in reversed(waiting[:3]):
                for byte in response(command, 0, command.fields["n"]):
                    writer.write(bytes([byte]))
            del waiting[:3]


async def asks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Asks the client something with each request, answers what it said, and then the request."""
    frames, open_requests, said = FrameReader(), [], []
    while data := await reader.read(65536):
        for command in frames.feed(data):
            if command.flag & FLAG_RESPONSE:
                said.append(command.code)
                writer.write(response(open_requests.pop(0), 0, str(said)))
            else:
                open_requests.append(command)
                writer.write(encode(Command(77, {}, b"", 5)))


def test_a_request_of_the_server_that_cannot_be_handled_does_not_end_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(links: Links, address: str) -> None:
        def serve(link: Link, command: Command) -> bool:
            raise ValueError("odd")

        links._serve = serve
        link = await links.get(address)
        for said in ("[1]", "[1, 1]"):
            answer = await link.request(Command(1))
            assert answer.remark == said
        assert await links.get(address) is link

    with_server(asks, work)
    assert "code 77 of the server cannot be handled" in caplog.text


def test_answers_in_any_order_and_any_split() -> None:
    async def work(links: Links, address: str) -> None:
        link = await links.get(address)
        answers = await asyncio.gather(*[link.request(Command(1, {"n": str(n)})) for n in range(30)])
        assert [answer.remark for answer in answers] == [str(n) for n in range(30)]
        assert await links.get(address) is link

    with_server(backwards, work)


@pytest.mark.parametrize("nonsense", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08\x07\0\0\x04abcd"])
def test_a_server_that_speaks_something_else(nonsense: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(nonsense)
        await reader.read()

    async def work(links: Links, address: str) -> None:
        link = await links.get(address)
        with pytest.raises(GantryError, match=f"connection to {address} was lost: .*") as caught:
            await link.request(Command(1))
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert not link.is_open
        assert await links.get(address) is not link

    with_server(handler, work)


def test_requests_of_the_server_are_refused() -> None:
    seen: asyncio.Queue[Command] = asyncio.Queue()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Command(39, opaque=77)))
        seen.put_nowait(FrameReader().feed(await reader.read(1000))[0])

    async def work(links: Links, address: str) -> None:
        await links.get(address)
        answer = await seen.get()
        assert (answer.code, answer.opaque, answer.flag) == (3, 77, FLAG_RESPONSE)

    with_server(handler, work)


def test_open_requests_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "PENDING_MAX", 2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work(links: Links, address: str) -> None:
        link: Link = await links.get(address)
        outcomes: list[object] = []
        for _ in range(3):
            link.post(Command(1), outcomes.append)
        (error,) = outcomes
        assert isinstance(error, GantryError)
        assert error.code is ErrorCode.BUSY
        link.post(Command(1, body=bytes(17 << 20)), outcomes.append)

    with_server(silent, work)


def test_an_oversize_request_is_refused_here() -> None:
    async def work(links: Links, address: str) -> None:
        link = await links.get(address)
        with pytest.raises(GantryError) as caught:
            await link.request(Command(1, body=bytes(17 << 20)))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE

    with_server(backwards, work)


def stand_still(monkeypatch: pytest.MonkeyPatch, overslept_s: float = 0.0) -> None:
    """The running loop's time goes on in pauses alone, by so much more each: not while the machine does something else."""
    loop, sleep = asyncio.get_running_loop(), asyncio.sleep
    now_s = loop.time()

    async def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds + overslept_s
        await sleep(0)

    monkeypatch.setattr(loop, "time", lambda: now_s)
    monkeypatch.setattr(link_module.asyncio, "sleep", pause)


def test_back_off_grows_and_ends(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    async def main() -> None:
        stand_still(monkeypatch)
        links = Links()
        with pytest.raises(GantryError, match=f"{refused} cannot be reached: Connection refused$"):
            await links.get(refused, timeout_s=0.5)
        slot = links._slots[refused]
        assert slot.backoff_s >= 4 * link_module.BACKOFF_FIRST_S
        slot.retry_at += 60
        with pytest.raises(GantryError, match=f"{refused} cannot be reached: Connection refused$"):
            await links.get(refused, patient=False)
        await links.close()
        with pytest.raises(GantryError, match="closed"):
            await links.get(refused)

    asyncio.run(main())


def test_who_overslept_says_why_the_last_attempt_failed(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """A pause that took longer than what was left of the time: nothing was asked any more, so nobody failed to answer."""

    async def main() -> None:
        stand_still(monkeypatch, overslept_s=60.0)
        links = Links()
        with pytest.raises(GantryError, match=f"{refused} cannot be reached: Connection refused$"):
            await links.get(refused, timeout_s=30.0)
        assert links._slots[refused].backoff_s == link_module.BACKOFF_FIRST_S, "one attempt"
        await links.close()

    asyncio.run(main())
