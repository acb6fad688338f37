import asyncio
from types import SimpleNamespace

import pytest

from gantrymq.clock import SystemClock
from gantrymq.config import load
from gantrymq.model.errors import ConfigError
from gantrymq.model.limits import MessageConfig
from gantrymq.net.turn import LoopTurn
from gantrymq.net.wheel import TimerWheel
from gantrymq_gateways.cloudevents import service as module
from gantrymq_gateways.cloudevents.service import CloudEventsConfig, factory
from tests.fakeport import FakePort


def context(loop, port, **settings):
    clock = SystemClock()
    doors = []

    async def listen(make, host, port_number):
        doors.append(make)
        return host, 4711

    return SimpleNamespace(
        config=CloudEventsConfig(**settings),
        sections={"message": MessageConfig()},
        port=port,
        host="127.0.0.1",
        host_names=(),
        clock=clock,
        turn=LoopTurn(loop.call_soon),
        wheel=TimerWheel(clock.monotonic_ms, loop.call_later),
        listen=listen,
        asking=lambda make: make,
        doors=doors,
        shared={},
    )


def start(port, **settings):
    async def main():
        service = factory()
        made = context(asyncio.get_running_loop(), port, **settings)
        bound = await service.start(made)
        await service.drain(1)
        await service.stop()
        return service, bound, made

    return asyncio.run(main())


def test_start_and_stop():
    service, bound, made = start(FakePort())
    assert (service.name, service.default_port, bound) == ("cloudevents", 8080, [("127.0.0.1", 4711)])
    assert len(made.doors) == 1


def test_the_door_opens_without_a_broker(monkeypatch, caplog):
    monkeypatch.setattr(module, "LOAD_TIMEOUT_S", 0.01)
    port = FakePort()
    port.lose()
    _, bound, _ = start(port)
    assert bound
    assert "503" in caplog.text


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("source=a b", 'cloudevents.source = "a b" (--set): allowed are URI-references'),
        ("sink_networks=10.0.0.1/8", 'cloudevents.sink_networks = "10.0.0.1/8" (--set): allowed'),
        ("retry_first_ms=70000", "cloudevents.retry_first_ms, retry_max_ms = (70000, 60000) (--set): allowed"),
    ],
)
def test_bad_settings(given, line):
    with pytest.raises(ConfigError) as caught:
        load(None, {}, [f"cloudevents.{given}"]).build("cloudevents", CloudEventsConfig)
    assert str(caught.value).startswith(line)


def test_no_port():
    with pytest.raises(ConfigError):
        start(None)
