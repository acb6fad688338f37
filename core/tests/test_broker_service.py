"""The broker's second listener: RocketMQ's VIP channel."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.broker_service import listen_vip
from gantrymq.net.listen import ListenError


def door() -> Any:
    raise AssertionError("nobody connects")


def opened(
    port: int, taken: bool = False, ports: Collection[int] = ()
) -> tuple[list[tuple[str, int]], list[tuple[Callable[[], Any], str, int]]]:
    """What `listen_vip` gives for a broker on `port`, and what it asked to listen on."""
    asked: list[tuple[Callable[[], Any], str, int]] = []

    async def listen(accept: Callable[[], Any], host: str, at: int) -> tuple[str, int]:
        asked.append((accept, host, at))
        if taken:
            raise ListenError(errno.EADDRINUSE, f"cannot listen on {host}:{at}: the port is in use")
        return host, at

    context: Any = SimpleNamespace(listen=listen, host="127.0.0.1", shared={"ports": set(ports)})
    return asyncio.run(listen_vip(context, door, port)), asked


def test_the_same_door_two_below_the_brokers_port() -> None:
    assert opened(10911) == ([("127.0.0.1", 10909)], [(door, "127.0.0.1", 10909)])


def test_a_port_that_is_taken_costs_the_vip_channel_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert opened(10911, taken=True)[0] == []
    (line,) = caplog.messages
    assert "127.0.0.1:10909" in line
    assert "broker.vip_channel" in line


def test_a_port_that_a_later_door_is_to_have_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    assert opened(10911, ports={10909, 10911}) == ([], [])
    assert "10909" in caplog.text


@pytest.mark.parametrize("port", [1, 2])
def test_no_port_below(port: int) -> None:
    assert opened(port) == ([], [])
