"""Doors that follow a broker: every loss shuts, every return opens, failures are tried again, a stop leaves nothing half done."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from gantrymq.launch import restart
from gantrymq.launch.restart import Follower


class Port:
    def __init__(self) -> None:
        self.states: list[Callable[[bool], None]] = []

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        self.states.append(on_state)
        on_state(True)

    def lose(self) -> None:
        for on_state in self.states:
            on_state(False)


class Doors:
    """`fails`: what the next attempts to open raise."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.port = Port()
        self.fails: list[Exception] = []
        self.follower: Follower | None = None
        self.hold: anyio.Event | None = None
        self.shutting = anyio.Event()

    async def shut(self, name: str) -> int:
        self.shutting.set()
        await anyio.lowlevel.checkpoint()
        self.events.append("shut")
        return 3

    async def reopen(self, name: str) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.fails:
            self.events.append("failed")
            raise self.fails.pop(0)
        self.events.append("open")
        self.port = Port()
        assert self.follower is not None
        self.follower.follow(name, self.port)

    async def until(self, count: int) -> None:
        with anyio.fail_after(30):
            while len(self.events) < count:
                await anyio.lowlevel.checkpoint()


def play(scene: Callable[[Doors], Awaitable[None]]) -> list[str]:
    doors = Doors()

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            doors.follower = Follower(doors, tasks.start_soon, str)
            doors.follower.follow("mqtt", doors.port)
            await scene(doors)
            with anyio.fail_after(30):
                await doors.follower.stop()

    anyio.run(run)
    return doors.events


def test_every_loss(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(doors: Doors) -> None:
        for round_ in (1, 2):
            doors.port.lose()
            await doors.until(2 * round_)

    caplog.set_level(logging.INFO)
    assert play(scene) == ["shut", "open"] * 2
    lines = [record.getMessage() for record in caplog.records if record.name == restart.__name__]
    assert (
        lines
        == [
            "mqtt: the broker is lost: 3 connections closed; shut until it is back",
            "mqtt: the broker is back: open again",
        ]
        * 2
    )


def test_tried_until_it_opens(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(restart, "BACKOFF_S", (0.0,))

    async def scene(doors: Doors) -> None:
        doors.fails = [OSError("in use"), OSError("in use"), OSError("other")]
        doors.port.lose()
        await doors.until(5)

    assert play(scene) == ["shut", "failed", "failed", "failed", "open"]
    reasons = [record.getMessage() for record in caplog.records if "cannot open" in record.getMessage()]
    assert reasons == [
        "mqtt: cannot open yet: in use; trying again",
        "mqtt: cannot open yet: other; trying again",
    ]


def test_stop_finishes_a_shut_and_gives_up_an_opening() -> None:
    async def scene(doors: Doors) -> None:
        doors.hold = anyio.Event()
        doors.port.lose()
        await doors.shutting.wait()

    assert play(scene) == ["shut"]


def test_stop_without_a_loss() -> None:
    async def scene(doors: Doors) -> None: ...

    assert play(scene) == []
