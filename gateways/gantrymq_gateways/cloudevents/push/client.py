"""Sending to sinks: connections by sink, kept alive, on asyncio's transports. A task per new connection, none per event.

Each address of a name is checked before it is dialled, for every new connection, so a name that changes its mind (DNS
rebinding) gains nothing. No redirects, no proxies from the environment.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, cast

import h11

from gantrymq.model.errors import GantryError
from gantrymq.net.api import Wheel
from gantrymq.net.dial.connector import connect
from gantrymq.net.places import join_address
from gantrymq_gateways.cloudevents.push.resolver import Found, Lookup, NoThreadError, Resolver
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard
from gantrymq_gateways.cloudevents.subscription import Sink
from gantrymq_gateways.cloudevents.wire.client_connection import Answer, ClientConnection
from gantrymq_gateways.cloudevents.wire.constants import DELIVERY_TIMEOUT_MS

IDLE_PER_SINK_MAX: Final = 32
"""Idle connections kept per sink: as many as a subscription has lanes in flight."""
IDLE_MS: Final = 20_000
"""An idle connection is closed before most servers would (nginx 75 s); one that closes earlier (Node 5 s) is heard."""
ADDRESSES_TRIED_MAX: Final = 3
"""Addresses of one name dialled in one attempt."""

OnAnswer = Callable[[Answer], None]


class Exchange:
    """One attempt. `cancel` ends it without an answer."""

    __slots__ = ("body", "connection", "headers", "lookup", "on_answer", "redialled", "sink", "task", "timer")

    def __init__(self, sink: Sink, headers: list[tuple[bytes, bytes]], body: bytes, on_answer: OnAnswer) -> None:
        self.sink = sink
        self.headers = headers
        self.body = body
        self.on_answer: OnAnswer | None = on_answer
        self.connection: _SinkConnection | None = None
        self.lookup: Lookup | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer = 0
        self.redialled = False

    def cancel(self) -> None:
        """Nobody waits for the answer any more; what the sink has seen of it, it has seen."""
        self.on_answer = None
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None:
            self.connection.abort()


class SinkClient:
    """All connections to sinks of one process."""

    def __init__(
        self, wheel: Wheel, guard: SinkGuard, resolver: Resolver, timeout_ms: int = DELIVERY_TIMEOUT_MS
    ) -> None:
        self._wheel = wheel
        self._guard = guard
        self._resolver = resolver
        self._timeout_ms = timeout_ms
        self._idle: dict[tuple[bool, str, int], deque[_SinkConnection]] = {}
        self._open: set[_SinkConnection] = set()
        self._exchanges: set[Exchange] = set()
        self._tls: ssl.SSLContext | None = None
        self._sweeping = False

    def send(self, sink: Sink, headers: list[tuple[bytes, bytes]], body: bytes, on_answer: OnAnswer) -> Exchange:
        """POST to `sink`; `on_answer` is called once, later, unless the exchange is cancelled."""
        exchange = Exchange(sink, headers, body, on_answer)
        self._exchanges.add(exchange)
        exchange.timer = self._wheel.call_at(
            self._wheel.now_ms() + self._timeout_ms, lambda now_ms: self._timed_out(exchange)
        )
        idle = self._idle.get(sink.origin)
        if idle:
            idle.pop().start(exchange)
        else:
            self._dial(exchange)
        return exchange

    def _timed_out(self, exchange: Exchange) -> None:
        exchange.timer = 0
        told = exchange.connection.answer if exchange.connection is not None else None
        if told is not None:
            self.finish(
                exchange, told
            )  # the sink has said what became of the event; only the end of its answer is missing
        elif exchange.lookup is not None and exchange.lookup.is_queued:
            failure = f"{exchange.sink.host} was not looked up within {self._timeout_ms} ms: too many other names hang"
            self.finish(exchange, Answer(0, failure=failure, unsent=True))
        else:
            self.finish(exchange, Answer(0, failure=f"no answer within {self._timeout_ms} ms"))
        if exchange.task is not None:
            exchange.task.cancel()
        if exchange.connection is not None:
            exchange.connection.abort()

    def finish(self, exchange: Exchange, answer: Answer) -> None:
        """Hand over the answer, once."""
        self._exchanges.discard(exchange)
        if exchange.timer:
            self._wheel.cancel(exchange.timer)
            exchange.timer = 0
        on_answer, exchange.on_answer = exchange.on_answer, None
        if on_answer is not None:
            on_answer(answer)

    def redial(self, exchange: Exchange) -> None:
        """A kept connection turned out to be closed before anything was sent: on a new one."""
        exchange.redialled = True
        exchange.connection = None
        self._dial(exchange)

    def _dial(self, exchange: Exchange) -> None:
        exchange.task = asyncio.get_running_loop().create_task(self._connect(exchange))

    async def _connect(self, exchange: Exchange) -> None:
        sink = exchange.sink
        try:
            connection = await self._connect_to(sink, await self._addresses(exchange))
        except OSError as error:
            unsent = isinstance(error, NoThreadError)
            self.finish(exchange, Answer(0, failure=f"{sink.authority}: {error}", unsent=unsent))
            return
        finally:
            exchange.task = None
        if exchange.on_answer is None:
            connection.abort()
        else:
            connection.start(exchange)

    async def _addresses(self, exchange: Exchange) -> tuple[str, ...]:
        """What to dial, not yet checked. Raises OSError."""
        try:
            return (str(ip_address(exchange.sink.host)),)
        except ValueError:
            waiting: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        exchange.lookup = self._resolver.resolve(
            exchange.sink.host, lambda found: None if waiting.done() else waiting.set_result(found)
        )
        try:
            found = await waiting
        finally:
            exchange.lookup.cancel()
            exchange.lookup = None
        if isinstance(found, OSError):
            raise found
        return found

    async def _connect_to(self, sink: Sink, addresses: tuple[str, ...]) -> _SinkConnection:
        permitted = [address for address in addresses if self._guard.permits(address)]
        if not permitted:
            raise OSError(f"no address of {', '.join(addresses)[:200]} is allowed; see cloudevents.sink_networks")
        failure = OSError("no address")
        for address in permitted[:ADDRESSES_TRIED_MAX]:
            place = join_address(address, sink.port)
            tls = self._context() if sink.secure else None
            try:
                return await connect(lambda: _SinkConnection(self, sink), place, None, tls, name=sink.host)
            except GantryError as error:
                failure = OSError(error.text)
        raise failure

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    # -- connections ---------------------------------------------------------------------------------------------

    def opened(self, connection: _SinkConnection) -> None:
        """A connection is up."""
        self._open.add(connection)

    def park(self, connection: _SinkConnection) -> bool:
        """Keep a connection for the next request; False if there are enough."""
        idle = self._idle.setdefault(connection.sink.origin, deque())
        if len(idle) >= IDLE_PER_SINK_MAX:
            return False
        connection.idle_since_ms = self._wheel.now_ms()
        idle.append(connection)
        if not self._sweeping:
            self._sweeping = True
            self._wheel.call_at(self._wheel.now_ms() + IDLE_MS, self._sweep)
        return True

    def _sweep(self, now_ms: int) -> None:
        oldest_ms = now_ms
        for idle in self._idle.values():
            while idle and idle[0].idle_since_ms + IDLE_MS <= now_ms:
                idle.popleft().abort()
            if idle:
                oldest_ms = min(oldest_ms, idle[0].idle_since_ms)
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}
        self._sweeping = bool(self._idle)
        if self._sweeping:
            self._wheel.call_at(oldest_ms + IDLE_MS, self._sweep)

    def lost(self, connection: _SinkConnection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        idle = self._idle.get(connection.sink.origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def close(self) -> None:
        """Cancel every exchange and close every connection."""
        for exchange in list(self._exchanges):
            if exchange.timer:
                self._wheel.cancel(exchange.timer)
            exchange.cancel()
        self._exchanges.clear()
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()


class _SinkConnection(asyncio.Protocol):
    """One connection to a sink."""

    __slots__ = ("_client", "_exchange", "_http", "_transport", "idle_since_ms", "sink")

    def __init__(self, client: SinkClient, sink: Sink) -> None:
        self._client = client
        self._http = ClientConnection()
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self.sink = sink
        self.idle_since_ms = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._client.opened(self)

    def start(self, exchange: Exchange) -> None:
        """Send a request; its answer comes to `exchange`."""
        if self._transport is not None and self._transport.is_closing() and not exchange.redialled:
            self._client.redial(exchange)
            return
        exchange.connection = self
        self._exchange = exchange
        sink = exchange.sink
        try:
            data = self._http.request(sink.authority, sink.target, exchange.headers, exchange.body)
        except h11.LocalProtocolError as error:
            self._done(exchange, Answer(400, failure=f"the event cannot be written as HTTP: {error}"))
            return
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # Nobody asked.
            return
        answer = self._http.receive_data(data)
        if answer is not None:
            self._done(exchange, answer)

    def _done(self, exchange: Exchange, answer: Answer) -> None:
        self._exchange = exchange.connection = None
        if not self._http.reusable or answer.failure or not self._client.park(self):
            self.abort()
        self._client.finish(exchange, answer)

    def eof_received(self) -> bool:
        return False  # The transport closes; `connection_lost` sees to what is open.

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.connection = None
        # RFC 9110 9.2.2: what was sent may have been done, so it is not sent again in the same attempt.
        answer = self._http.answer if exc is not None else self._http.receive_data(b"")
        self._client.finish(exchange, answer or Answer(0, failure=f"connection lost: {exc or 'closed by the sink'}"))

    @property
    def answer(self) -> Answer | None:
        """What the sink has answered so far to the request under way: its status."""
        return self._http.answer

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
