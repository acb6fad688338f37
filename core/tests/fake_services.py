"""A program for `test_server.py`: the `gantry` command with tiny services instead of the real ones.

Arguments are those of `gantry`; `FAKE_TROUBLE` names what goes wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import anyio

from gantrymq.cli.main import main
from gantrymq.launch import plan
from gantrymq.net.testing import EchoDoor
from gantrymq.services import ServiceContext

TROUBLE = os.environ.get("FAKE_TROUBLE", "")


@dataclass(frozen=True, slots=True)
class EchoConfig:
    port: int = 0
    flavour: Literal["plain", "loud"] = "plain"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    flush: Literal["async", "sync"] = "async"


class FakeDoor(EchoDoor):
    def received(self, data: bytes) -> None:
        if data == b"boom":
            raise ValueError("boom")
        super().received(data)

    def shutdown(self) -> None:
        if TROUBLE != "never closes":
            self.out.append(b"goodbye")
            self.link.close()


def say(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # one of the tests closes the other end
        pass


def full_of_holes() -> list[bytes]:
    """What is kept of 64 MB: a small piece behind each megabyte of what is gone, so that none of it is the heap's end."""
    made = [(b"\1" * 60_000, b"\2" * 600) for _ in range(1_000)]
    return [small for _, small in made]


class FakePort:
    def for_service(self) -> FakePort:
        return self

    def close(self) -> None:
        say("close port")


class FakeService:
    default_port = 0
    config: type = EchoConfig
    extra_sections: ClassVar[dict[str, type]] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "broker":
            self.extra_sections = {"store": StoreConfig}  # type: ignore[misc]

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        if f"{self.name} hangs" == TROUBLE:
            say("hanging")
            await anyio.sleep_forever()
        if f"{self.name} fails" == TROUBLE:
            raise RuntimeError("no luck\ntoday")
        if f"{self.name} task fails" == TROUBLE:
            context.spawn(self.fail)
        if f"{self.name} leaves holes" == TROUBLE:
            self.kept = full_of_holes()
        if self.name == "broker":
            context.shared["broker_port"] = FakePort()
        if self.name == "echo":
            say(f"port: {type(context.port).__name__}")
            say(f"nameservers: {len(context.nameservers)} {context.nameservers == context.shared['nameservers']}")
        address = await context.listen(FakeDoor, context.host, context.config.port)
        if self.name == "nameserver":
            context.shared["nameservers"] = [f"{address[0]}:{address[1]}"]
        return [address]

    async def fail(self) -> None:
        raise RuntimeError("task broke")

    async def drain(self, deadline_s: float) -> None:
        say(f"drain {self.name}")

    async def stop(self) -> None:
        say(f"stop {self.name}")


class FakeEntryPoint:
    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> Callable[[], Any]:
        say(f"import {self.name}")
        if f"{self.name} is broken" == TROUBLE:
            raise ImportError("no module named grpc")
        return lambda: FakeService(self.name)


if __name__ == "__main__":
    plan.discover = lambda: {  # type: ignore[assignment]
        name: FakeEntryPoint(name) for name in ("echo", "broker", "nameserver")
    }
    sys.exit(main())
