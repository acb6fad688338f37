"""A simulated client process: one connection, requests with answers or without, pauses, crashes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import FLAG_ONEWAY
from interop_tests.sim.network import Wire
from interop_tests.sim.world import Handle

if TYPE_CHECKING:
    from interop_tests.sim.ledger import Ledger
    from interop_tests.sim.node import Node
    from interop_tests.sim.world import World

TIMEOUT_MS = 3_000

OnAnswer = Callable[[Command | None], None]
"""Gets the answer, or None: none came, and what became of the request is not known."""


def text_of(value: object) -> str:
    """A field as it travels."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Client:
    """`started` and `ended` are called with each incarnation; `incarnation` changes when the process crashes."""

    def __init__(self, world: World, node: Node, ledger: Ledger, name: str) -> None:
        self.world = world
        self.node = node
        self.ledger = ledger
        self.name = name
        self.wire: Wire | None = None
        self.incarnation = 0
        self.connection = 0
        """Counts connections."""
        self.alive = False
        self._reader = FrameReader()
        self._open: dict[int, tuple[OnAnswer, Handle]] = {}
        self._opaque = 0
        self._paused_until = 0
        self._inbox: list[tuple[Wire, bytes]] = []

    # Life.

    def start(self) -> None:
        """The process starts."""
        if not self.alive:
            self.alive = True
            self.incarnation += 1
            self._connect()
            self.started()

    def crash(self) -> None:
        """It ends without a word; what it knew is gone."""
        if not self.alive:
            return
        self.world.note(f"{self.name} crashes")
        self.alive = False
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.client_leaves()
        for _, handle in self._open.values():
            handle.cancel()
        self._open.clear()
        self._inbox.clear()
        self.ended()

    def pause(self, ms: int) -> None:
        """It stands still: a garbage collection, a stopped machine."""
        self.world.note(f"{self.name} stands still for {ms} ms")
        self._paused_until = max(self._paused_until, self.world.now + ms)
        self.soon(ms, self._go_on)

    def soon(self, delay_ms: int, call: Callable[[], None]) -> Handle:
        """As `World.later`; it does not happen if this process is gone by then, and happens later if it stands still."""
        incarnation = self.incarnation

        def run() -> None:
            if not self.alive or self.incarnation != incarnation:
                return
            if self.world.now < self._paused_until:
                self.world.later(self._paused_until - self.world.now, run)
            else:
                call()

        return self.world.later(delay_ms, run)

    def started(self) -> None:
        """For subclasses."""

    def ended(self) -> None:
        """For subclasses."""

    def connected(self) -> None:
        """For subclasses: there is a connection."""

    def asked(self, command: Command) -> None:
        """For subclasses: a request of the broker."""

    # Connection.

    def _connect(self) -> None:
        if self.wire is not None or not self.alive:
            return
        if not self.node.up:
            self.soon(self.world.lot.randrange(50, 300), self._connect)
            return
        self.connection += 1
        self._reader = FrameReader()
        self.wire = Wire(self.world, self.node, self, f"127.0.0.1:{40_000 + self.connection % 20_000}")
        self.connected()

    def lost(self, wire: Wire) -> None:
        """See `network.End`."""
        if wire is not self.wire:
            return
        self.world.note(f"{self.name} lost its connection")
        self.wire = None
        opened, self._open = self._open, {}
        for on_answer, handle in opened.values():
            handle.cancel()
            on_answer(None)
        self.soon(self.world.lot.randrange(5, 300), self._connect)

    def arrived(self, wire: Wire, data: bytes) -> None:
        """See `network.End`."""
        if self.world.now < self._paused_until:
            self._inbox.append((wire, data))
        elif wire is self.wire:
            self._read(data)

    def _go_on(self) -> None:
        inbox, self._inbox = self._inbox, []
        for wire, data in inbox:
            if wire is self.wire:
                self._read(data)

    def _read(self, data: bytes) -> None:
        for command in self._reader.feed(data):
            if not command.is_response:
                self.world.note(f"{self.name} <- request {command.code}")
                self.asked(command)
                continue
            found = self._open.pop(command.opaque, None)
            if found is not None:
                self.world.note(f"{self.name} <- answer {command.opaque}: {command.code}")
                found[1].cancel()
                found[0](command)

    # Requests.

    def ask(
        self, code: int, on_answer: OnAnswer, body: bytes = b"", timeout_ms: int = TIMEOUT_MS, **fields: object
    ) -> None:
        """Send a request; `on_answer` is called once, later, unless the process crashes."""
        if self.wire is None:
            self.soon(self.world.lot.randrange(1, 20), partial(on_answer, None))
            return
        self._opaque += 1
        opaque = self._opaque
        handle = self.soon(timeout_ms, partial(self._timed_out, opaque))
        self._open[opaque] = (on_answer, handle)
        self.world.note(f"{self.name} -> {code} as {opaque}")
        self._send(Command(code, {name: text_of(value) for name, value in fields.items()}, body, opaque, language=0))

    def tell(self, code: int, body: bytes = b"", **fields: object) -> None:
        """Send a request that has no answer."""
        self._opaque += 1
        self.world.note(f"{self.name} -> {code} one-way")
        texts = {name: text_of(value) for name, value in fields.items()}
        self._send(Command(code, texts, body, self._opaque, FLAG_ONEWAY, language=0))

    def _send(self, command: Command) -> None:
        if self.wire is not None:
            binary = command.code < 1 << 15 and self.world.chance(0.2)
            self.wire.to_broker.send(encode(command, binary))

    def _timed_out(self, opaque: int) -> None:
        found = self._open.pop(opaque, None)
        if found is not None:
            self.world.note(f"{self.name}: no answer to {opaque}")
            found[0](None)
