"""The nameserver as a service: its file, its timer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gantrymq.model.errors import ConfigError
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.json_bodies import TopicConfigTable
from gantrymq.services import ServiceContext
from gantrymq_nameserver import kv
from gantrymq_nameserver.routes import Live
from gantrymq_nameserver.service import NameserverConfig, NameserverService, WholeFile, factory


class Shell:
    """Just enough of a server around one service."""

    def __init__(self, data: Path) -> None:
        self.wheel = ManualWheel(ManualClock())
        self.factory: Any = None
        self.tasks: list[asyncio.Task[None]] = []
        self.context = ServiceContext(
            NameserverConfig(port=0), {}, "127.0.0.1", data, self.wheel.manual_clock, ManualTurn(), self.wheel, [],
            self.listen, lambda function, *args: self.tasks.append(asyncio.ensure_future(function(*args))),
        )  # fmt: skip

    async def listen(self, factory: Any, host: str, port: int) -> tuple[str, int]:
        self.factory = factory
        return host, port or 9

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)


async def put(shell: Shell, link: FakeLink, key: str, value: str) -> Command:
    link.feed(encode(Command(Code.PUT_KV_CONFIG, {"namespace": "N", "key": key, "value": value})))
    await shell.settle()
    (answer,) = FrameReader().feed(link.feed(b""))
    return answer


def test_kv_survives_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        service: NameserverService = factory()
        shell = Shell(tmp_path)
        assert await service.start(shell.context) == [("127.0.0.1", 9)]
        link = FakeLink(shell.wheel).attach(shell.factory())
        assert (await put(shell, link, "k", "v")).code == 0
        assert (await put(shell, link, "k2", "w")).code == 0
        await service.drain(1.0)
        await service.stop()
        again: NameserverService = factory()
        await again.start(Shell(tmp_path).context)
        assert again.state is not None
        assert again.state.kv.namespaces == {"N": {"k": "v", "k2": "w"}}
        await again.stop()

    asyncio.run(run())
    assert [path.name for path in (tmp_path / "namesrv").iterdir()] == ["kvConfig.json"]


def test_file_that_cannot_be_written_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "namesrv").write_text("in the way")

    async def run() -> None:
        service: NameserverService = factory()
        shell = Shell(tmp_path)
        with pytest.raises(NotADirectoryError):
            await service.start(shell.context)
        (tmp_path / "namesrv").unlink()
        await service.start(shell.context)
        (tmp_path / "namesrv").write_text("in the way")
        answer = await put(shell, FakeLink(shell.wheel).attach(shell.factory()), "k", "v")
        assert answer.code == 1
        assert "kvConfig.json cannot be written" in (answer.remark or "")
        await service.stop()

    asyncio.run(run())


def test_broken_file_stops_the_start(tmp_path: Path) -> None:
    WholeFile(tmp_path / "namesrv" / "kvConfig.json").write(b"{")
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        asyncio.run(factory().start(Shell(tmp_path).context))


def test_silent_brokers_expire(tmp_path: Path) -> None:
    async def run() -> None:
        service: NameserverService = factory()
        shell = Shell(tmp_path)
        await service.start(shell.context)
        assert service.state is not None
        routes = service.state.routes
        routes.register(Live("C", "a", 0, "h:1"), "x", shell.wheel.now_ms(), TopicConfigTable(), False, False)
        shell.wheel.advance(119_000)
        assert routes.groups
        shell.wheel.advance(7_000)
        assert not routes.groups
        await service.stop()

    asyncio.run(run())


def test_kv_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    table = kv.KVTable()
    with pytest.raises(kv.GantryError, match="characters"):
        table.put("N", "k", "v" * (kv.TEXT_CHARS_MAX + 1))
    monkeypatch.setattr(kv, "ENTRIES_MAX", 2)
    table.put("N", "a", "1")
    table.put("M", "b", "1")
    table.put("M", "b", "2")
    with pytest.raises(kv.GantryError, match="2 keys"):
        table.put("N", "c", "1")
    table.delete("M", "b")
    table.delete("M", "b")
    assert table.namespaces == {"N": {"a": "1"}}


def test_kv_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of JSON, with the namespace of every key; what is set already can be made smaller and deleted."""
    monkeypatch.setattr(kv, "BYTES_MAX", 20)
    table = kv.KVTable()
    table.put("N", "k", "v" * 8)
    table.put("N", "l", "v" * 8)
    with pytest.raises(kv.GantryError, match="20 bytes; 20 are used") as refused:
        table.put("N", "m", "")
    assert refused.value.code is kv.ErrorCode.LIMIT_REACHED
    for value in ("ä" * 5, "\x01\x01"):
        with pytest.raises(kv.GantryError, match="20 bytes"):
            table.put("N", "k", value)
    assert table.namespaces == {"N": {"k": "v" * 8, "l": "v" * 8}}
    table.put("N", "k", "ä" * 3)
    table.put("N", "m", "")
    table.delete("N", "l")
    table.put("M", "k", "v" * 8)
    again = kv.KVTable()
    again.load(table.to_bytes(), "")
    for one in (table, again):
        with pytest.raises(kv.GantryError, match="20 are used"):
            one.put("M", "l", "")


def test_real_file_layout() -> None:
    table = kv.KVTable()
    table.load(b'{\n\t"configTable":{"N":{"k":"v"}\n\t}\n}', "kvConfig.json")
    assert table.get("N", "k") == "v"
    again = kv.KVTable()
    again.load(table.to_bytes(), "")
    assert again.namespaces == table.namespaces
