"""Connections of a client: requests pipelined on one connection per address, paired with their answers by opaque.

A request that waits costs one dictionary entry and no task; deadlines of a connection share one timer; what is posted in one turn of the
loop leaves in one write. A connection that breaks ends everything that waits on it with UNAVAILABLE; the next request opens a new one. So does
one that is half open: a request timed out, and nothing at all was heard since it was sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import Final, cast

from gantrymq.client.connecting.signing import Signer
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.dial.connector import CONNECT_S, connect
from gantrymq.remoting.codec import Command, FrameError, FrameReader, decode_json_header, encode, encode_header, frame
from gantrymq.remoting.constants import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode

_log = logging.getLogger(__name__)

Done = Callable[[Command | GantryError], None]
"""Called exactly once per posted request, on the loop; must not raise."""

Serve = Callable[["Link", Command], bool]
"""Gets a request of the server's, on the loop; False if it knows no such code. Whoever takes it answers with `Link.answer`."""

REQUEST_TIMEOUT_S: Final = 3.0
"""As the Java client's."""
CLOSED: Final = "this client is closed"
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
"""A server that comes back is found within this; a dead one is asked no more often."""
SWEEP_S: Final = 0.1
"""Timeouts are kept to this."""
PENDING_MAX: Final = 65_536
"""Requests without an answer on one connection: more means that the other side does not answer, and memory would grow."""
_OPAQUE_MASK: Final = 0x7FFFFFFF


def shape_of(command: Command) -> bytes:
    """The header of `command` as a template: %d where its opaque belongs. (No name or value can look like that place: JSON escapes quotes.)"""
    command.opaque = 0
    return encode_header(command).replace(b"%", b"%%").replace(b'"opaque":0', b'"opaque":%d')


def _unavailable(text: str) -> GantryError:
    return GantryError(ErrorCode.UNAVAILABLE, text)


class Link(asyncio.Protocol):
    """One connection. Not made directly: `Links.get`."""

    def __init__(self, address: str, serve: Serve | None = None, signer: Signer | None = None) -> None:
        self.address = address
        self._signer = signer
        self.is_open = False
        self._serve = serve
        self._heard_at = 0.0
        self._loop = asyncio.get_running_loop()
        self.clock_s = self._loop.time
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._opaque = 0
        self._pending: dict[int, tuple[Done, float, float]] = {}
        """By opaque: what to call, until when an answer may come, when it was asked."""
        self._outbox: list[bytes] = []
        self._sweeping = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._protocol_error = ""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        broken = ""
        self._heard_at = self.clock_s()
        try:
            commands = self._reader.feed(data)
        except FrameError as error:
            commands, broken = error.commands, str(error)
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                waiting = self._pending.pop(command.opaque, None)
                if waiting is not None:
                    waiting[0](command)
            elif not self._served(command):
                text = f"request code {command.code} is not supported by this client"
                self.answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        if broken:
            self.abort(broken)

    def _served(self, command: Command) -> bool:
        """A request of the server's that nobody here understands must not end the connection, on which others wait."""
        try:
            return self._serve is not None and self._serve(self, command)
        except Exception:
            _log.exception("%s: a request with code %d of the server cannot be handled", self.address, command.code)
            self.answer(command, ResponseCode.SYSTEM_ERROR, "the client cannot handle this request")
            return True

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._can_write.set()
        why = self._protocol_error or str(error or "") or "closed by the other side"
        self._fail_all(_unavailable(f"connection to {self.address} was lost: {why}"))

    # requests

    async def writable(self) -> None:
        """Wait until the other side takes what was written (back-pressure of whoever posts many requests)."""
        await self._can_write.wait()

    def post(self, command: Command, done: Done, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Send `command`, whose opaque is set here; `done` gets the answer, whatever its code, or a GantryError (UNAVAILABLE)."""
        if self._may_post(done):
            command.opaque = self._opaque
            if self._signer is not None:
                self._signer.sign(command)
            try:
                data = encode(command)
            except ValueError as error:
                done(GantryError(ErrorCode.MESSAGE_TOO_LARGE, str(error)))
                return
            self._ask(data, done, timeout_s)

    def post_header(
        self, shape: bytes, values: tuple[object, ...], body: bytes, done: Done, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        """As `post`, with a header that is encoded already (`shape_of`); `values`: for its places but the last one, which is the opaque's."""
        if self._signer is not None:
            self.post(decode_json_header(shape % (*values, 0), body), done, timeout_s)
            return
        if self._may_post(done):
            try:
                data = frame(shape % (*values, self._opaque), body)
            except ValueError as error:
                done(GantryError(ErrorCode.MESSAGE_TOO_LARGE, str(error)))
                return
            self._ask(data, done, timeout_s)

    def _may_post(self, done: Done) -> bool:
        """True, with a new opaque; False if `done` was told why not."""
        if not self.is_open:
            done(_unavailable(f"connection to {self.address} is closed"))
            return False
        if len(self._pending) >= PENDING_MAX:
            done(GantryError(ErrorCode.BUSY, f"{PENDING_MAX} requests wait for an answer of {self.address}"))
            return False
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return True

    def _ask(self, data: bytes, done: Done, timeout_s: float) -> None:
        now = self.clock_s()
        self._pending[self._opaque] = (done, now + timeout_s, now)
        self._write(data)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(SWEEP_S, self._sweep)

    async def request(self, command: Command, timeout_s: float = REQUEST_TIMEOUT_S) -> Command:
        """The answer, whatever its code. Raises UNAVAILABLE for a lost connection or a timeout."""
        future: asyncio.Future[Command] = self._loop.create_future()

        def done(answer: Command | GantryError) -> None:
            if future.done():
                return
            if isinstance(answer, Command):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        self.post(command, done, timeout_s)
        return await future

    def one_way(self, command: Command) -> None:
        """Send without wanting an answer; lost silently if the connection is closed."""
        command.flag |= FLAG_ONEWAY
        if self._signer is not None:
            self._signer.sign(command)
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        command.opaque = self._opaque
        self._write(encode(command))

    def answer(
        self, command: Command, code: int = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b""
    ) -> None:
        """Answer a request of the server's; nothing happens where it wants no answer or the connection is gone."""
        if not command.is_oneway and self.is_open:
            self._write(encode(Command(code, {}, body, command.opaque, FLAG_RESPONSE, remark)))

    def abort(self, why: str) -> None:
        """Close at once; everything that waits ends with UNAVAILABLE and this reason."""
        if self._transport is not None:
            self._protocol_error = why
            self._transport.abort()

    def close(self) -> None:
        """Write what was posted, then close; what still waits ends with UNAVAILABLE."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _sweep(self) -> None:
        now = self._loop.time()
        late = [opaque for opaque, entry in self._pending.items() if entry[1] <= now]
        silent = False
        for opaque in late:
            done, _, asked_at = self._pending.pop(opaque)
            silent |= self._heard_at < asked_at
            done(_unavailable(f"{self.address} did not answer in time"))
        if silent:  # RocketMQ's clientCloseSocketIfTimeout
            self.abort("half open: nothing was heard since a request that timed out")
        self._sweeping = bool(self._pending)
        if self._sweeping:
            self._loop.call_later(SWEEP_S, self._sweep)

    def _fail_all(self, error: GantryError) -> None:
        pending, self._pending = self._pending, {}
        for done, _, _ in pending.values():
            done(error)


class _Slot:
    """One address: its open link, or when it may be tried again."""

    __slots__ = ("backoff_s", "link", "lock", "reason", "retry_at")

    def __init__(self) -> None:
        self.link: Link | None = None
        self.lock = asyncio.Lock()
        self.backoff_s = 0.0
        self.retry_at = 0.0
        self.reason = ""
        """Why the last attempt failed."""


class Links:
    """One link per address, opened when it is first needed and again after it broke.

    `serve` gets the requests of servers; `opened` is called with each new link before anybody else uses it. Neither may raise."""

    def __init__(
        self,
        signer: Signer | None = None,
        tls: ssl.SSLContext | None = None,
        serve: Serve | None = None,
        opened: Callable[[Link], None] | None = None,
    ) -> None:
        self._signer = signer
        self._tls = tls
        self._serve = serve
        self._opened = opened
        self._slots: dict[str, _Slot] = {}
        self._closed = False

    async def get(self, address: str, timeout_s: float = CONNECT_S, patient: bool = True) -> Link:
        """An open link. After a failure the next attempts wait, a little longer each time, as far as `timeout_s` allows; with `patient`
        false there is at most one attempt and no waiting for its turn (there are other servers to ask).

        Raises UNAVAILABLE naming the address.
        """
        slot = self._slots.get(address)
        if slot is None:
            slot = self._slots[address] = _Slot()
        if slot.link is not None and slot.link.is_open:
            return slot.link
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        async with slot.lock:
            while slot.link is None or not slot.link.is_open:
                if self._closed:
                    raise _unavailable(CLOSED)
                pause = slot.retry_at - loop.time()
                if pause > 0:
                    if not patient or loop.time() + pause > deadline:
                        raise _unavailable(slot.reason)
                    await asyncio.sleep(pause)
                if slot.backoff_s and loop.time() >= deadline:  # no time for another attempt: the last one says why
                    raise _unavailable(slot.reason)
                await self._connect(address, slot, deadline, patient)
            return slot.link

    async def _connect(self, address: str, slot: _Slot, deadline: float, patient: bool) -> None:
        loop = asyncio.get_running_loop()
        left_s = deadline - loop.time()
        try:
            link = await connect(lambda: Link(address, self._serve, self._signer), address, left_s, self._tls)
        except GantryError as failed:
            if failed.code is not ErrorCode.UNAVAILABLE:
                raise
            slot.backoff_s = min(max(BACKOFF_FIRST_S, slot.backoff_s * 2), BACKOFF_MAX_S)
            slot.retry_at = loop.time() + slot.backoff_s * random.uniform(0.8, 1.2)
            slot.reason = failed.text
            if not patient or slot.retry_at >= deadline:
                raise
            return
        if self._closed:  # in the meantime: `close` did not see this one
            link.close()
            raise _unavailable(CLOSED)
        slot.link = link
        slot.backoff_s = slot.retry_at = 0.0
        if self._opened is not None:
            self._opened(link)

    def open_link(self, address: str) -> Link | None:
        """The link to an address if it is open now."""
        slot = self._slots.get(address)
        return slot.link if slot is not None and slot.link is not None and slot.link.is_open else None

    def open_links(self) -> list[Link]:
        """Links that are open now."""
        return [slot.link for slot in self._slots.values() if slot.link is not None and slot.link.is_open]

    async def close(self) -> None:
        """Close every link; `get` raises from now on."""
        self._closed = True
        for slot in self._slots.values():
            if slot.link is not None:
                slot.link.close()
        self._slots.clear()
        await asyncio.sleep(0)
