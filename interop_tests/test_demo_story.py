"""The demonstration accuses the server of nothing that it did itself, however slow the machine is."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

for package in ("matplotlib", "psutil"):
    pytest.importorskip(package, reason="the demonstration's packages are in the demo environment")

from interop_tests.demo.server import Server, ServerError  # noqa: E402  # behind the check for its packages
from interop_tests.demo.story import DemoError, Options, Story  # noqa: E402  # behind the check for its packages
from interop_tests.waiting import LIMIT_S, until_async  # noqa: E402  # behind the check for its packages

ROOT = Path(__file__).resolve().parents[1]


class SlowlyReaped:
    """A process that is gone as soon as it gets a signal; whoever waits for it hears of that only after `reap`, as on a busy machine."""

    pid = 1

    def __init__(self, code: int | None = None, answer: int | None = None) -> None:
        self.returncode = code
        self._answer = answer
        self._reaped = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            self.returncode = -number if self._answer is None else self._answer

    def wait(self, timeout: float | None = None) -> int:
        if not self._reaped.wait(LIMIT_S if timeout is None else timeout):
            raise subprocess.TimeoutExpired("gantry", timeout or LIMIT_S)
        assert self.returncode is not None
        return self.returncode

    def reap(self) -> None:
        self._reaped.set()


def server_of(process: SlowlyReaped, directory: Path) -> Server:
    server = Server(directory)
    server._process = process  # type: ignore[assignment]
    return server


async def watched(server: Server, process: SlowlyReaped, ending: Coroutine[Any, Any, None]) -> list[bool]:
    """What `died` says from the signal to the end."""
    task = asyncio.create_task(ending)
    await until_async(lambda: process.returncode is not None)
    seen = [server.died()]
    process.reap()
    await task
    return [*seen, server.died()]


@pytest.mark.parametrize("word", ["kill", "stop"])
def test_an_end_that_was_asked_for_is_none_of_its_own(tmp_path: Path, word: str) -> None:
    process = SlowlyReaped(answer=None if word == "kill" else 0)
    server = server_of(process, tmp_path)
    assert asyncio.run(watched(server, process, getattr(server, word)())) == [False, False]


@pytest.mark.parametrize("word", ["kill", "stop"])
def test_an_end_before_the_signal_is_its_own(tmp_path: Path, word: str) -> None:
    server = server_of(SlowlyReaped(code=1), tmp_path)
    assert server.died()
    with pytest.raises(ServerError, match="ended by itself with 1"):
        asyncio.run(getattr(server, word)())


def test_an_end_at_the_very_moment_of_the_signal_is_its_own(tmp_path: Path) -> None:
    process = SlowlyReaped(answer=3)
    process.reap()
    with pytest.raises(ServerError, match="ended by itself with 3"):
        asyncio.run(server_of(process, tmp_path).kill())


def test_a_stop_that_fails_says_how(tmp_path: Path) -> None:
    process = SlowlyReaped(answer=-signal.SIGSEGV)
    process.reap()
    with pytest.raises(ServerError, match="stopped with -11"):
        asyncio.run(server_of(process, tmp_path).stop())


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(Options(6.0, False, False, tmp_path, ROOT), Console(quiet=True), tmp_path)
    yield story
    asyncio.run(story.webhook.stop())


def test_a_slow_machine_is_waited_for_as_long_as_anything_moves(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("interop_tests.demo.story.time.monotonic", lambda: clock)
    monkeypatch.setattr("interop_tests.demo.story.TICK_S", 0.0)
    count = 0

    def turn() -> None:
        nonlocal clock, count
        clock += 9.0
        if count < 5:
            story.ledger.sending("mqtt", str(count), b"x")
            story.ledger.acknowledged("mqtt", str(count), 1.0)
            count += 1

    assert asyncio.run(story._until(lambda: count == 5, 10.0, turn))
    clock = 0.0
    assert not asyncio.run(story._until(lambda: False, 10.0, turn))
    assert clock == 18.0


def test_what_is_attended_ends_when_the_server_does(story: Story, tmp_path: Path) -> None:
    process = SlowlyReaped()
    story.server = server_of(process, tmp_path)
    ended = []

    async def work() -> None:
        process.returncode = 1
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(DemoError, match="the server has ended by itself"):
        asyncio.run(story._attend(work(), "work"))
    assert ended


def test_an_error_of_the_work_itself_is_told(story: Story) -> None:
    async def work() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        asyncio.run(story._attend(work(), "work"))
