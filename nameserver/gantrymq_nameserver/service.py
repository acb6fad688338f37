"""The nameserver as a service: port 9876, expiry every 5 s, KV configuration in D/namesrv/kvConfig.json."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from gantrymq.model.settings import setting
from gantrymq.services import ServiceContext
from gantrymq_nameserver.door import NameserverDoor, State

log = logging.getLogger(__name__)

EXPIRE_EVERY_MS: Final = 5_000
"""RocketMQ's scanNotActiveBrokerInterval."""


@dataclass(frozen=True, slots=True)
class NameserverConfig:
    """Section `nameserver`."""

    port: int = setting(9876, least=0, most=65535)
    order_messages: bool = False
    """Answer route queries with `orderTopicConf` from namespace ORDER_TOPIC_CONFIG (RocketMQ:
    orderMessageEnable)."""
    brokers: list[str] = setting(
        [], "names of the brokers that may register here; empty: all (see auth.cluster_key_file)"
    )


class WholeFile:
    """A file that is read whole at start and replaced whole after a change (temporary file, fsync, rename)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """The content, or None if there is no file."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        """Replace the content; durable when it returns. Raises OSError."""
        directory = self.path.parent
        directory.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class NameserverService:
    """Started first: brokers register with it, clients ask it for routes."""

    name = "nameserver"
    default_port = 9876
    config: type = NameserverConfig
    extra_sections: ClassVar[dict[str, type]] = {}

    def __init__(self) -> None:
        self.state: State | None = None
        self._file: WholeFile
        self._settings_file: WholeFile
        self._settings_written = b""
        self._context: ServiceContext
        self._waiting: list[Callable[[str], None]] = []
        self._saving = False
        self._timer = 0

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        """Read the KV configuration and open the door."""
        self._context = context
        directory = context.data / "namesrv"
        self._file = WholeFile(directory / "kvConfig.json")
        self._settings_file = WholeFile(directory / "namesrv.properties")
        config: NameserverConfig = context.config
        shared = context.shared
        state = State(
            context.wheel,
            config.order_messages,
            self._save,
            shared.get("cluster_key"),
            config.brokers,
            shared.get("cluster_certificates", frozenset()),
        )
        data = await asyncio.to_thread(self._file.read)
        if data is not None:
            state.kv.load(data, str(self._file.path))
        data = await asyncio.to_thread(self._settings_file.read)
        if data is not None:
            state.settings.load(data, str(self._settings_file.path))
        self._settings_written = state.settings.to_bytes()
        self.state = state
        self._timer = context.wheel.call_at(context.wheel.now_ms() + EXPIRE_EVERY_MS, self._expire)
        bound = await context.listen(lambda: NameserverDoor(state), context.host, context.config.port)
        state.settings.address = f"{bound[0]}:{bound[1]}"
        return [bound]

    def _expire(self, now_ms: int) -> None:
        if self.state is not None:
            for broker in self.state.routes.expire(now_ms):
                log.warning("broker %s sent no heartbeat in time and was removed from the routes", broker)
            self._timer = self._context.wheel.call_at(now_ms + EXPIRE_EVERY_MS, self._expire)

    def _save(self, done: Callable[[str], None]) -> None:
        self._waiting.append(done)
        if not self._saving:
            self._saving = True
            self._context.spawn(self._save_all)

    async def _save_all(self) -> None:
        """One write for all changes that came while the last one was under way."""
        while self._waiting and self.state is not None:
            waiting, self._waiting = self._waiting, []
            error = ""
            settings = self.state.settings.to_bytes()
            file = self._file
            try:
                await asyncio.to_thread(file.write, self.state.kv.to_bytes())
                if settings != self._settings_written:
                    file = self._settings_file
                    await asyncio.to_thread(file.write, settings)
                    self._settings_written = settings
            except OSError as failure:
                error = f"{file.path} cannot be written: {failure.strerror}; the change is lost at a restart"
                log.error("%s", error)
            for done in waiting:
                done(error)
        self._saving = False

    async def drain(self, deadline_s: float) -> None:
        """Nothing is left open: every answer but KV changes is given at once."""

    async def stop(self) -> None:
        """Stop the timer; the shell has closed the door."""
        if self.state is not None:
            self._context.wheel.cancel(self._timer)
            self.state = None


def factory() -> Any:
    """Entry point `nameserver` of group `gantrymq.services`."""
    return NameserverService()
