"""What other brokers say of their table of slots, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gantrymq.broker.tables.slot_table import SLOTS_TABLE, founded
from gantrymq.cluster.wire import neighbours
from gantrymq.cluster.wire.codec import PROTOCOL_VERSION, GatewayCode, decode_body, encode_body, pack_error
from gantrymq.cluster.wire.neighbours import Neighbours
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameReader
from gantrymq.remoting.constants import FLAG_RESPONSE, ResponseCode
from tests.cluster.wire.test_dial import answering, reset

Answer = Callable[[Command], Command | None]

ROWS = {key: value for key, value in founded("a", "life", lambda bits: 5) if value is not None}


def answer(asked: Command, result: Any) -> Command:
    return Command(0, None, encode_body(result), asked.opaque, FLAG_RESPONSE)


def having(rows: dict[str, bytes]) -> Answer:
    """A broker with that table, which it tells in two parts."""

    def said(asked: Command) -> Command:
        if asked.code == GatewayCode.HELLO:
            return answer(asked, [PROTOCOL_VERSION, 1 << 20])
        listed = [list(row) for row in rows.items()]
        if asked.code == GatewayCode.NEXT:
            return answer(asked, [listed[5:], None])
        assert (asked.code, decode_body(asked.body)) == (GatewayCode.WATCH_TABLE, [SLOTS_TABLE, False])
        return answer(asked, [listed[:5], 7 if rows else None])

    return said


def foreign(asked: Command) -> Command:
    """RocketMQ's."""
    return Command(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, None, b"", asked.opaque, FLAG_RESPONSE, "request type not supported"
    )


def older(asked: Command) -> Command:
    error = GantryError(ErrorCode.NOT_SUPPORTED, "gateway protocol 8; this broker speaks 7")
    return Command(1, None, pack_error(error), asked.opaque, FLAG_RESPONSE)


def hanging(asked: Command) -> None:
    return None


async def serving(said: Answer) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65536):
            for asked in frames.feed(data):
                if (found := said(asked)) is not None:
                    writer.write(codec.encode(found))
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def address(server: asyncio.Server) -> str:
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def told(nameserver: str) -> dict[str, Any]:
    """What `a` hears of the others that it knows."""
    box: list[dict[str, Any]] = []
    tasks: list[asyncio.Task[None]] = []

    def spawn(function: Any, *arguments: Any) -> None:
        tasks.append(asyncio.create_task(function(*arguments)))

    Neighbours([nameserver], "a", None, None, spawn).survey(None, lambda _, said: box.append(said))
    await asyncio.gather(*tasks)
    (found,) = box
    return found


def surveyed(brokers: dict[str, Answer]) -> dict[str, Any]:
    """...of brokers that are registered with it, and one that is gone."""

    async def survey() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            gone = await asyncio.start_server(reset, "127.0.0.1", 0)
            registered = {"a": "127.0.0.1:1", "gone": address(gone)}
            gone.close()
            await gone.wait_closed()
            for name, said in brokers.items():
                registered[name] = address(await stack.enter_async_context(await serving(said)))
            return await told(address(await stack.enter_async_context(await answering(registered))))

    return asyncio.run(survey())


def test_each_says_what_it_has_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ASK_S", 2.0)
    found = surveyed({"b": having(ROWS), "c": having({}), "d": foreign, "e": hanging, "f": older})
    assert "refused" in found.pop("gone")
    assert found == {
        "b": ROWS,
        "c": {},
        "d": {},
        "e": "no answer within 2 s",
        "f": "gateway protocol 8; this broker speaks 7",
    }


def test_without_nameservers_there_are_no_others() -> None:
    async def survey() -> dict[str, Any]:
        async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
            return await told(address(server))

    assert asyncio.run(survey()) == {}
